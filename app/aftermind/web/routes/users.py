"""Operations on a whole user: forget, export and verification. Also the caller's identity, model costs and health."""

import asyncio
from datetime import date, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from aftermind import errors
from aftermind.ledger.protocol import DailyUsage
from aftermind.types.api_key import Right
from aftermind.types.scope import MAX_ID_BYTES
from aftermind.web import schemas
from aftermind.web.auth import Operator, Reader, Remembering, Writer
from aftermind.web.pagination import Limit
from aftermind.web.routes.memory import User

router = APIRouter(tags=["users"])

Since = Annotated[date | None, Query(description="From this day on (UTC); null: today.")]


class IdentityOut(BaseModel):
    """The caller's identity. `key` is null if the service has no API keys and answers the local machine."""

    namespace: str
    rights: list[Right]
    key: str | None


class UserOut(BaseModel):
    """A user with stored content; `user_id` null is the anonymous user."""

    user_id: str | None
    last_at: datetime | None


@router.get("/users", summary="Users with stored content, by id")
async def list_users(
    memory: Remembering,
    who: Reader,
    prefix: Annotated[str, Query(max_length=MAX_ID_BYTES, description="Only ids that begin with this.")] = "",
    after: Annotated[
        str | None, Query(max_length=MAX_ID_BYTES, description="The last id of the previous page.")
    ] = None,
    limit: Limit = 100,
) -> list[UserOut]:
    """The anonymous user is first. Users with only pending turns are not listed yet."""
    found = await memory.users(namespace=who.namespace, prefix=prefix, after=after, limit=limit)
    return [UserOut(user_id=each.user_id, last_at=each.last_at) for each in found]


@router.get("/whoami", summary="The caller's API key")
async def whoami(who: Reader) -> IdentityOut:
    """The namespace and rights of the key."""
    return IdentityOut(namespace=who.namespace, rights=sorted(who.rights), key=who.key.id if who.key else None)


@router.post("/users/{user_id:id}/forget", summary="Forget a user, a session, older content or single episodes")
async def forget(user_id: User, what: schemas.ForgetIn, memory: Remembering, who: Writer) -> schemas.ForgetOut:
    """Deletion is complete when this answers: stored, derived and pending content. HTTP 503: nothing was deleted."""
    is_all = what.session_id is None and what.before is None and what.ids is None
    if is_all != what.everything:
        why = "name what to forget, or set it to true to forget everything of the user; not both."
        raise errors.InvalidFilter("everything", what.everything, why)
    done = await memory.forget(
        user_id=user_id,
        session_id=what.session_id,
        namespace=who.namespace,
        before=what.before,
        ids=None if what.ids is None else [str(each) for each in what.ids],
        group=what.group,
        note=what.note,
    )
    return schemas.ForgetOut(rows=dict(done.rows), pending_turns=done.pending_turns)


@router.post("/users/{user_id:id}/undo", summary="Undo everything derived from messages")
async def undo(user_id: User, what: schemas.UndoIn, memory: Remembering, who: Writer) -> schemas.UndoOut:
    """Facts that rest on these messages alone are retracted; summaries and traits are made again without them.

    The messages stay in the history, marked. `dry_run` shows the same and changes nothing.
    """
    ids = [str(each) for each in what.ids]
    done = await memory.undo(*ids, user_id=user_id, namespace=who.namespace, dry_run=what.dry_run)
    return schemas.UndoOut(
        episodes=done.episodes,
        retracted=[schemas.FactOut.model_validate(each) for each in done.retracted],
        restored=[schemas.FactOut.model_validate(each) for each in done.restored],
        summaries=done.summaries,
        traits=done.traits,
        dry_run=done.dry_run,
    )


@router.get("/users/{user_id:id}/erasure", summary="Verify a user's erasure")
async def verify_erasure(user_id: User, memory: Remembering, who: Operator, request: Request) -> schemas.ErasureOut:
    """Search tables, replicas, Redis, spool and logs for the user's rows and keys. Slow: it reads every row.

    HTTP 503 while another verification runs in this process. `missing` is the reason if a place was not searched:
    `aftermind verify-erasure` with `AFTERMIND_MIGRATOR_URL` searches also tables that only their owner reads.
    """
    running: asyncio.Lock = request.app.state.verifying
    if running.locked():
        raise errors.StoreUnavailable("erasure", "another verification runs in this process")
    async with running:
        found = await memory.verify_erasure(user_id=user_id, namespace=who.namespace)
    places = [schemas.SearchedPlaceOut.model_validate(each) for each in found.places]
    return schemas.ErasureOut(is_erased=found.is_erased, unsearched=list(found.unsearched), places=places)


@router.get("/users/{user_id:id}/export", summary="Export a user")
async def export(user_id: User, memory: Remembering, who: Reader, *, vectors: bool = False) -> dict[str, Any]:
    """Episodes, facts with their history, blocks, summaries, profile, unfinished jobs and dead letters, costs."""
    found = await memory.export(user_id=user_id, namespace=who.namespace, vectors=vectors)
    return found.to_json()


@router.get("/users/{user_id:id}/spending", summary="Model usage of a user")
async def spending(user_id: User, memory: Remembering, who: Reader, since: Since = None) -> list[schemas.UsageOut]:
    """By day, kind of job and model."""
    return [_spent(each) for each in await memory.spending(user_id=user_id, namespace=who.namespace, since=since)]


@router.get("/spending", summary="Model usage of the namespace")
async def list_spending(memory: Remembering, who: Operator, since: Since = None) -> list[schemas.UsageOut]:
    """By day, user, kind of job and model."""
    return [_spent(each) for each in await memory.spending(namespace=who.namespace, since=since, everybody=True)]


def _spent(found: DailyUsage) -> schemas.UsageOut:
    spent = found.spent
    return schemas.UsageOut(
        day=found.day.isoformat(),
        user_id=found.owner.user_id,
        kind=found.kind,
        model=spent.model,
        calls=spent.calls,
        tokens_in=spent.tokens_in,
        tokens_out=spent.tokens_out,
        cost_usd=None if found.is_cost_unknown else spent.cost_usd,
        latency_ms=spent.latency_ms,
    )
