"""Facts: list, add, retract, sources."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from aftermind import errors
from aftermind.types import Cardinality
from aftermind.web import pagination, schemas
from aftermind.web.auth import Reader, Remembering, Writer
from aftermind.web.pagination import Cursor, Limit, Page
from aftermind.web.routes.memory import User

router = APIRouter(tags=["facts"])


@router.get("/users/{user_id:id}/facts", summary="Facts, the newest first")
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
) -> Page[schemas.FactOut]:
    """By default the current beliefs about what is true now."""
    rows = pagination.rows_to_read(cursor, limit)
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
    return pagination.page(
        found, cursor=cursor, limit=limit, key=lambda each: each.id, shown=schemas.FactOut.model_validate
    )


@router.post("/users/{user_id:id}/facts", status_code=201, summary="Add a fact")
async def add(user_id: User, told: schemas.FactIn, memory: Remembering, who: Writer) -> schemas.FactOut:
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
    return schemas.FactOut.model_validate(found)


@router.get("/users/{user_id:id}/entities/graph", summary="Facts around an entity, the nearest first")
async def graph(
    user_id: User,
    memory: Remembering,
    who: Reader,
    entity: str,
    hops: int = 2,
    as_of: Annotated[AwareDatetime | None, Query(description="True in the world then; null: now.")] = None,
    limit: Limit = 100,
) -> schemas.GraphOut:
    """The facts and entities within 1 to 5 hops; a hop leads from the subject of a fact to its object or back."""
    found = await memory.facts.graph(
        entity, user_id=user_id, namespace=who.namespace, hops=hops, as_of=as_of, limit=limit
    )
    return schemas.GraphOut(
        entity=found.entity, hops=dict(found.hops), facts=[schemas.FactOut.model_validate(each) for each in found.facts]
    )


@router.post("/users/{user_id:id}/entities/merge", summary="State that several names are one entity")
async def merge_entities(
    user_id: User, told: schemas.MergeIn, memory: Remembering, who: Writer
) -> list[schemas.FactOut]:
    """The facts of the entity. Facts under an alias, stored or to come, are facts of the entity."""
    found = await memory.facts.merge_entities(told.entity, *told.aliases, user_id=user_id, namespace=who.namespace)
    return [schemas.FactOut.model_validate(each) for each in found]


@router.delete("/users/{user_id:id}/facts/{fact_id}", status_code=204, summary="Retract a fact")
async def retract(user_id: User, fact_id: UUID, memory: Remembering, who: Writer) -> None:
    """As if it had never been true: a fact that it had ended is valid again. HTTP 404 if it is superseded."""
    if not await memory.facts.retract(str(fact_id), user_id=user_id, namespace=who.namespace):
        raise errors.NotThere("current fact", str(fact_id))


@router.get("/users/{user_id:id}/facts/{fact_id}/why", summary="Sources of a fact")
async def why(user_id: User, fact_id: UUID, memory: Remembering, who: Reader) -> schemas.ProvenanceOut:
    """The episodes that it was drawn from, what drew it, and the facts that it replaced."""
    found = await memory.facts.why(str(fact_id), user_id=user_id, namespace=who.namespace)
    if found is None:
        raise errors.NotThere("fact", str(fact_id))
    return schemas.ProvenanceOut(
        fact=schemas.FactOut.model_validate(found.fact),
        episodes=[schemas.episode(each) for each in found.episodes],
        extractor=found.extractor,
        replaced=[schemas.FactOut.model_validate(each) for each in found.replaced],
    )
