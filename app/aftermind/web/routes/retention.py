"""The retention policy of the key's namespace: read, replaced, removed, carried out."""

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from aftermind import errors
from aftermind.types.retention import SHORTEST, RetentionPolicy, RetentionResult
from aftermind.web import schemas
from aftermind.web.auth import Operator, Remembering

router = APIRouter(prefix="/retention", tags=["retention"])

MAX_AGE_SECONDS = 100 * 366 * 86_400  # a century; the database has no interval for more than some thousand years
RUN_SECONDS = 20.0  # limit of one request; `stopped_after` is the position from which the next one continues


class RetentionIn(schemas.Shape):
    """How long to keep episodes: those younger than an age, the newest of each user, or both."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"max_age_seconds": 7_776_000}]})

    max_age_seconds: float | None = Field(None, ge=SHORTEST.total_seconds(), le=MAX_AGE_SECONDS)
    max_episodes: int | None = Field(None, ge=1, le=2**31 - 1, description="Of each user.")
    keep_important: bool = Field(
        False, description='Keep episodes with `"important": true` in their metadata, and those that facts rest on.'
    )


class RetentionOut(schemas.Shape):
    """A policy. `archive` is where deleted episodes are written first; `aftermind retention` alone can set it."""

    max_age_seconds: float | None
    max_episodes: int | None
    keep_important: bool
    archive: str | None
    ran_at: datetime | None


class RetainedOut(schemas.Shape):
    """What a run deleted, or with `dry_run` would. `is_done` is false where its time ran out."""

    users: int
    episodes: int
    rows: dict[str, int]
    archived: int
    oldest: datetime | None
    newest: datetime | None
    dry_run: bool
    is_done: bool
    stopped_after: str | None


@router.get("", summary="The retention policy")
async def get(memory: Remembering, who: Operator) -> RetentionOut | None:
    """Null where the namespace keeps everything."""
    found = await memory.retention.get(namespace=who.namespace)
    return None if found is None else _to_out(found)


@router.put("", summary="Replace the retention policy")
async def update(given: RetentionIn, memory: Remembering, who: Operator) -> RetentionOut:
    """Carried out once a day (`AFTERMIND_RETENTION_EVERY_SECONDS`), first a day after it was set or changed.

    `POST /v1/retention/run?dry_run=true` counts until then what it would delete; without `dry_run` it is carried out.
    """
    if given.max_age_seconds is None and given.max_episodes is None:
        why = "name a greatest age, a greatest number of episodes, or both; DELETE keeps everything."
        raise errors.InvalidFilter("max_age_seconds", None, why)
    former = await memory.retention.get(namespace=who.namespace)
    policy = await memory.retention.set(
        max_age=None if given.max_age_seconds is None else timedelta(seconds=given.max_age_seconds),
        max_episodes=given.max_episodes,
        keep_important=given.keep_important,
        archive=None if former is None else former.archive,  # a path on the workers' hosts: the operator's to choose
        namespace=who.namespace,
    )
    return _to_out(policy)


@router.delete("", status_code=204, summary="Delete the retention policy")
async def delete(memory: Remembering, who: Operator) -> None:
    """Everything is kept from now on. 404 where there is no policy."""
    if not await memory.retention.clear(namespace=who.namespace):
        raise errors.NotThere("retention policy", who.namespace)


@router.post("/run", summary="Run the retention policy")
async def run(
    memory: Remembering,
    who: Operator,
    *,
    dry_run: Annotated[bool, Query(description="Count what would be deleted, and delete nothing.")] = False,
    after: Annotated[str | None, Query(min_length=1, description="`stopped_after` of the run before.")] = None,
) -> RetainedOut:
    """Delete what the policy does not keep, for at most 20 seconds."""
    done = await memory.retention.run(namespace=who.namespace, dry_run=dry_run, seconds=RUN_SECONDS, after=after)
    return _counted(done)


def _to_out(policy: RetentionPolicy) -> RetentionOut:
    return RetentionOut(
        max_age_seconds=None if policy.max_age is None else policy.max_age.total_seconds(),
        max_episodes=policy.max_episodes,
        keep_important=policy.keep_important,
        archive=policy.archive,
        ran_at=policy.ran_at,
    )


def _counted(done: RetentionResult) -> RetainedOut:
    fields = {name: getattr(done, name) for name in RetainedOut.model_fields if name != "rows"}
    return RetainedOut(rows=dict(done.rows), **fields)
