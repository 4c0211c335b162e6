"""The JSON API, one file per resource. The path names the user, the API key determines the namespace."""

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute

from aftermind import errors
from aftermind.nearest_name import nearest_name
from aftermind.types import stream_token
from aftermind.web import problem_details
from aftermind.web.auth import TOKEN_PARAMETER
from aftermind.web.routes import (
    audit,
    blocks,
    checkpoints,
    dead_letters,
    episodes,
    events,
    facts,
    groups,
    job_admin,
    jobs,
    memory,
    reextract,
    replays,
    retention,
    users,
    webhooks,
)

VERSION = "/v1"
MODULES = (
    memory,
    episodes,
    facts,
    blocks,
    checkpoints,
    groups,
    events,
    users,
    jobs,
    job_admin,
    dead_letters,
    replays,
    reextract,
    retention,
    audit,
    webhooks,
)


async def refuse_unknown_parameters(request: Request) -> None:
    """Raise `InvalidQuery` for one: a list would ignore a misspelt filter, and return everything."""
    if not request.query_params:
        return
    route: APIRoute = request.scope["route"]
    operation = request.app.openapi()["paths"].get(VERSION + route.path_format, {}).get(request.method.lower(), {})
    known = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
    known |= {"anonymous", "user_id"}  # they are read with the key, whatever the endpoint is
    for name, value in request.query_params.items():
        is_credential = name == TOKEN_PARAMETER and value.startswith(stream_token.PREFIX)
        if name not in known and not is_credential:
            near = nearest_name(name, known)
            hint = f"Did you mean {near}?" if near else f"It has {', '.join(sorted(known)) or 'none'}."
            raise errors.InvalidQuery(name, value, f"the endpoint has no such parameter. {hint}")


def install(app: FastAPI) -> None:
    """Add all of them.

    Each to the application: with a router between them FastAPI would match every request once more.
    """
    for each in MODULES:
        app.include_router(
            each.router,
            prefix=VERSION,
            responses=problem_details.RESPONSES,
            dependencies=[Depends(refuse_unknown_parameters)],
        )
