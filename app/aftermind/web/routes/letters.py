"""Dead letters of the key's namespace: listed, grouped, shown whole, closed."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel, Field

from aftermind import errors
from aftermind.types import JobId, JobKind
from aftermind.types.replay import DeadLetter, JobFilter
from aftermind.types.scope import MAX_ID_BYTES
from aftermind.web import paging, shapes
from aftermind.web.auth import Caller, Operator, Remembering
from aftermind.web.paging import Cursor, Limit, Page

router = APIRouter(prefix="/dead", tags=["dead letters"])


class FilterIn(shapes.Shape):
    """Which jobs are meant; everything that is given has to fit. `error` is a text that the error holds."""

    ids: list[UUID] = Field(default_factory=list, max_length=10_000)
    kinds: list[JobKind] = Field(default_factory=list)
    reasons: list[str] = Field(default_factory=list)
    fingerprint: str | None = None
    error: str | None = None
    user_id: shapes.Id | None = None
    session_id: shapes.Id | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None

    def of(self, who: Caller) -> JobFilter:
        """The same, within the caller's namespace."""
        return JobFilter(
            ids=tuple(JobId(each) for each in self.ids),
            kinds=tuple(self.kinds),
            reasons=tuple(self.reasons),
            fingerprint=self.fingerprint,
            error=self.error,
            namespace=who.namespace,
            user_id=self.user_id,
            session_id=self.session_id,
            since=self.since,
            until=self.until,
        )


class GroupOut(shapes.Shape):
    """Dead letters that failed alike."""

    kind: str
    reason_code: str
    fingerprint: str
    error: str
    count: int
    oldest: datetime
    newest: datetime


class DiscardIn(shapes.Shape):
    """Which are to be closed, why, and by whom."""

    filter: FilterIn
    note: str = Field(min_length=1, max_length=500)
    actor: str = Field(min_length=1, max_length=200)


class DiscardedOut(BaseModel):
    """How many were closed."""

    discarded: int


def _filter(
    kind: Annotated[list[JobKind] | None, Query()] = None,
    reason: Annotated[list[str] | None, Query()] = None,
    fingerprint: str | None = None,
    error: Annotated[str | None, Query(description="Text that the error holds.")] = None,
    user_id: Annotated[str | None, Query(min_length=1, max_length=MAX_ID_BYTES)] = None,
    session_id: Annotated[str | None, Query(min_length=1, max_length=MAX_ID_BYTES)] = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
) -> FilterIn:
    return FilterIn(
        kinds=kind or [],
        reasons=reason or [],
        fingerprint=fingerprint,
        error=error,
        user_id=user_id,
        session_id=session_id,
        since=since,
        until=until,
    )


Filter = Annotated[FilterIn, Depends(_filter)]


@router.get("", summary="Dead letters, the latest first")
async def list_(
    memory: Remembering, who: Operator, wanted: Filter, limit: Limit = 100, cursor: Cursor = None
) -> Page[shapes.JobOut]:
    """Without their payloads: one is shown whole by its id."""
    found = await memory.dead.listed(wanted.of(who), limit=paging.wanted(cursor, limit))
    return paging.page(found, cursor=cursor, limit=limit, key=lambda each: each.id, shown=shapes.job)


@router.get("/groups", summary="Dead letters by what they died of")
async def groups(memory: Remembering, who: Operator, wanted: Filter, limit: Limit = 100) -> list[GroupOut]:
    """The largest group first."""
    return [GroupOut.model_validate(each) for each in await memory.dead.groups(wanted.of(who), limit=limit)]


@router.get("/{job_id}", summary="One dead letter, whole")
async def shown(job_id: UUID, memory: Remembering, who: Operator) -> dict[str, Any]:
    """The job with its payload, every attempt, and what came of it since. It holds what the user said."""
    found = await memory.dead.shown(JobId(job_id))
    if found is None or found.job.scope.namespace != who.namespace:
        raise errors.NotThere("dead letter", str(job_id))
    return _whole(found)


@router.post("/discard", summary="Close dead letters, with a note")
async def discard(what: DiscardIn, memory: Remembering, who: Operator) -> DiscardedOut:
    """They stay readable, and can still be replayed by id. An empty filter means all of the namespace."""
    done = await memory.dead.discard(what.filter.of(who), note=what.note, actor=what.actor)
    return DiscardedOut(discarded=done)


def _whole(found: DeadLetter) -> dict[str, Any]:
    whole: dict[str, Any] = shapes.jsonable(found)
    whole["successors"] = [shapes.job(each).model_dump(mode="json") for each in found.successors]
    return whole
