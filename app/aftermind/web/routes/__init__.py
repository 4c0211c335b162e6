"""The JSON API, a file a subject. Every path says whose memory it is about; the key says of which namespace."""

from fastapi import APIRouter

from aftermind.web import problems
from aftermind.web.routes import (
    audit,
    blocks,
    events,
    facts,
    jobs,
    letters,
    memory,
    reextract,
    replays,
    retention,
    rows,
    webhooks,
    whole,
)

VERSION = "/v1"


def router() -> APIRouter:
    """All of them."""
    made = APIRouter(prefix=VERSION, responses=problems.RESPONSES)
    for each in (
        memory,
        rows,
        facts,
        blocks,
        events,
        whole,
        jobs,
        letters,
        replays,
        reextract,
        retention,
        audit,
        webhooks,
    ):
        made.include_router(each.router)
    return made
