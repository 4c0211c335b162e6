"""The JSON API, one file per resource. The path names the user, the API key determines the namespace."""

from fastapi import APIRouter

from aftermind.web import problem_details
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


def router() -> APIRouter:
    """All of them."""
    made = APIRouter(prefix=VERSION, responses=problem_details.RESPONSES)
    for each in MODULES:
        made.include_router(each.router)
    return made
