"""Dead letters of the key's namespace: listed, grouped, shown whole, closed."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from pydantic import AwareDatetime, BaseModel, Field

from aftermind import errors
from aftermind.types import JobId, JobKind, JobState
from aftermind.types.audit import Action
from aftermind.types.plain_values import to_plain
from aftermind.types.replay import DeadLetter, JobFilter
from aftermind.types.scope import MAX_ID_BYTES
from aftermind.web import auth, pagination, schemas
from aftermind.web.auth import Caller, Operator, Remembering
from aftermind.web.pagination import Cursor, Limit, Page

router = APIRouter(prefix="/dead-letters", tags=["dead letters"])


class FilterIn(schemas.Shape):
    """Which jobs are meant; everything that is given has to fit."""

    ids: list[UUID] = Field(default_factory=list, max_length=10_000)
    states: list[JobState] = Field(default_factory=list)
    kinds: list[JobKind] = Field(default_factory=list)
    reasons: list[str] = Field(default_factory=list, description="Reason codes, as dead letters have them.")
    fingerprint: str | None = Field(default=None, description="That of an error, as dead letters have it.")
    error: str | None = Field(default=None, description="A text that the error contains.")
    user_id: schemas.Id | None = None
    session_id: schemas.Id | None = None
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None

    def to_job_filter(self, who: Caller) -> JobFilter:
        """Filter within the caller's namespace."""
        return JobFilter(
            ids=tuple(JobId(each) for each in self.ids),
            states=tuple(self.states),
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


class GroupOut(schemas.Shape):
    """Dead letters with the same error."""

    kind: str
    reason_code: str
    fingerprint: str
    error: str
    count: int
    oldest: datetime
    newest: datetime


class DiscardIn(schemas.Shape):
    """Filter of the dead letters to discard, with a note."""

    filter: FilterIn
    note: str = Field(min_length=1, max_length=500)
    actor: str | None = Field(None, min_length=1, max_length=200, description="Default: the key.")


class DiscardedOut(BaseModel):
    """How many were closed."""

    discarded: int


def _filter(
    state: Annotated[
        list[JobState] | None, Query(description="dead, discarded or replayed; without one: dead.")
    ] = None,
    kind: Annotated[list[JobKind] | None, Query()] = None,
    reason: Annotated[list[str] | None, Query()] = None,
    fingerprint: str | None = None,
    error: Annotated[str | None, Query(description="Text that the error contains.")] = None,
    user_id: Annotated[str | None, Query(min_length=1, max_length=MAX_ID_BYTES)] = None,
    session_id: Annotated[str | None, Query(min_length=1, max_length=MAX_ID_BYTES)] = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
) -> FilterIn:
    return FilterIn(
        states=state or [],
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
) -> Page[schemas.JobOut]:
    """Without their payloads: one is shown whole by its id."""
    found = await memory.dead_letters.list(wanted.to_job_filter(who), limit=pagination.rows_to_read(cursor, limit))
    return pagination.page(found, cursor=cursor, limit=limit, key=lambda each: each.id, shown=schemas.job)


@router.get("/groups", summary="Dead letters grouped by error")
async def groups(memory: Remembering, who: Operator, wanted: Filter, limit: Limit = 100) -> list[GroupOut]:
    """The largest group first."""
    return [
        GroupOut.model_validate(each)
        for each in await memory.dead_letters.groups(wanted.to_job_filter(who), limit=limit)
    ]


@router.get("/{job_id}", summary="One dead letter with its payload and attempts")
async def get_dead_letter(request: Request, job_id: UUID, memory: Remembering, who: Operator) -> dict[str, Any]:
    """The job with its payload, messages, attempts and replays. The access is audited."""
    found = await memory.dead_letters.get(JobId(job_id))
    if found is None or found.job.scope.namespace != who.namespace:
        raise errors.NotThere("dead letter", str(job_id))
    await auth.record_access(request, who, Action.READ, user_id=found.job.scope.user_id, job=str(job_id))
    return _to_out(found) | {"messages": [each.to_chat() for each in await memory.job_admin.messages(found.job)]}


@router.post("/discard", summary="Discard dead letters")
async def discard(what: DiscardIn, memory: Remembering, who: Operator) -> DiscardedOut:
    """They stay readable, and can still be replayed by id. An empty filter means all of the namespace."""
    actor = what.actor or who.actor
    done = await memory.dead_letters.discard(what.filter.to_job_filter(who), note=what.note, actor=actor)
    return DiscardedOut(discarded=done)


def _to_out(found: DeadLetter) -> dict[str, Any]:
    whole: dict[str, Any] = to_plain(found)
    whole["successors"] = [schemas.job(each).model_dump(mode="json") for each in found.successors]
    return whole
