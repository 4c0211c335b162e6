"""Facts: what is believed, told, taken back, and why."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from aftermind import errors
from aftermind.types import Cardinality
from aftermind.web import paging, shapes
from aftermind.web.auth import Reader, Remembering, Writer
from aftermind.web.paging import Cursor, Limit, Page
from aftermind.web.routes.memory import User

router = APIRouter(tags=["facts"])


@router.get("/users/{user_id:id}/facts", summary="Facts, newest belief first")
async def query(
    user_id: User,
    memory: Remembering,
    who: Reader,
    subject: str | None = None,
    predicate: str | None = None,
    as_of: Annotated[AwareDatetime | None, Query(description="True in the world then; null: now.")] = None,
    known_at: Annotated[AwareDatetime | None, Query(description="Believed by us then; null: now.")] = None,
    history: Annotated[bool, Query(description="Every row, whatever its times.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[shapes.FactOut]:
    """By default those that we believe now and that are true now."""
    rows = paging.wanted(cursor, limit)
    if history:
        if as_of is not None or known_at is not None:
            raise errors.InvalidQuery("history", history, "it takes no as_of or known_at: it is every row.")
        found = await memory.facts.history(subject, predicate, user_id=user_id, namespace=who.namespace, limit=rows)
    else:
        found = await memory.facts.query(
            user_id=user_id,
            namespace=who.namespace,
            subject=subject,
            predicate=predicate,
            as_of=as_of,
            known_at=known_at,
            limit=rows,
        )
    return paging.page(found, cursor=cursor, limit=limit, key=lambda each: each.id, shown=shapes.fact)


@router.post("/users/{user_id:id}/facts", status_code=201, summary="Tell a fact")
async def add(user_id: User, told: shapes.FactIn, memory: Remembering, who: Writer) -> shapes.FactOut:
    """The one that is believed then: a new object of a single-valued predicate ends the old one's validity."""
    found = await memory.facts.add(
        told.subject,
        told.predicate,
        told.object,
        user_id=user_id,
        namespace=who.namespace,
        valid_from=told.valid_from,
        valid_to=told.valid_to,
        confidence=told.confidence,
        cardinality=None if told.cardinality is None else Cardinality(told.cardinality),
    )
    return shapes.fact(found)


@router.delete("/users/{user_id:id}/facts/{fact_id}", status_code=204, summary="Take a fact back")
async def retract(user_id: User, fact_id: UUID, memory: Remembering, who: Writer) -> None:
    """It never was so; what it had ended goes on. 404 where it is not believed any more."""
    if not await memory.facts.retract(str(fact_id), user_id=user_id, namespace=who.namespace):
        raise errors.NotThere("fact that is believed", str(fact_id))


@router.get("/users/{user_id:id}/facts/{fact_id}/why", summary="Where a fact came from")
async def why(user_id: User, fact_id: UUID, memory: Remembering, who: Reader) -> shapes.WhyOut:
    """The episodes that it was drawn from, and what drew it."""
    found = await memory.facts.why(str(fact_id), user_id=user_id, namespace=who.namespace)
    if found is None:
        raise errors.NotThere("fact", str(fact_id))
    return shapes.WhyOut(
        fact=shapes.fact(found.fact),
        episodes=[shapes.episode(each) for each in found.episodes],
        extractor=found.extractor,
    )
