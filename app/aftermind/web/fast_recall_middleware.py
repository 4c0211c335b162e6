"""Recall over HTTP without FastAPI's dependencies: ASGI middleware for the requests that an agent's answer waits for.

FastAPI's routing and dependencies took a third of the service's CPU for a recall. The body is validated by the same
model as in `routes.memory`, which documents both operations and answers every request that is not exactly as expected
here: another content type, a query string, an invalid body. So each error has one source.
"""

import re

from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from aftermind.memory import Memory
from aftermind.types.api_key import Right
from aftermind.types.audit import Action
from aftermind.types.scope import MAX_ID_BYTES
from aftermind.web import schemas
from aftermind.web.auth import Caller, record_access
from aftermind.web.middleware import replay_body
from aftermind.web.path_ids import SLASH, named_user
from aftermind.web.routes import memory as memory_routes

PATH = re.compile(rf"/v1/users/([^/]{{1,{MAX_ID_BYTES}}})/recall(/scored)?")
JSON = re.compile(rb"application/json\s*(;.*)?", re.IGNORECASE)

_ROUTES = {each.endpoint: each for each in memory_routes.router.routes if isinstance(each, APIRoute)}
RECALL, SCORED = _ROUTES[memory_routes.recall], _ROUTES[memory_routes.recall_scored]


class DirectRecall:
    """Answers recalls itself and passes everything else on. Inside `Guard`, which has read the body."""

    def __init__(self, app: ASGIApp, *, memory: Memory) -> None:
        self._app, self._memory = app, memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on. Raises errors of `aftermind.errors`, which `Guard` answers."""
        path = PATH.fullmatch(scope["path"]) if _may_be_recall(scope) else None
        if path is None:
            await self._app(scope, receive, send)
            return
        body = (await receive()).get("body", b"")
        try:
            asked = schemas.RecallIn.model_validate_json(body)
        except ValidationError:
            await self._app(scope, replay_body(body, receive), send)
            return
        scope["route"] = route = SCORED if path[2] else RECALL
        response = await self._recall(Request(scope), route, path[1].replace(SLASH, "/"), asked)
        await response(scope, receive, send)

    async def _recall(self, request: Request, route: APIRoute, user: str, asked: schemas.RecallIn) -> Response:
        user_id, who = await named_user(user), _caller(request)
        who.need(Right.READ)
        await record_access(request, who, Action.READ, user_id=user_id)
        options = dict(asked)  # no value is a model, so that this is `model_dump` without its cost
        if route is SCORED:
            found = await self._memory.recall_scored(user_id=user_id, namespace=who.namespace, **options)
            return schemas.matches_response(found)
        block = await self._memory.recall(user_id=user_id, namespace=who.namespace, **options)
        request.state.recall_id = block.id
        return schemas.block_response(block)


def _may_be_recall(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"] or scope.get("root_path"):
        return False
    return any(name == b"content-type" and JSON.fullmatch(value) for name, value in scope["headers"])


def _caller(request: Request) -> Caller:
    found: Caller = request.state.caller
    return found
