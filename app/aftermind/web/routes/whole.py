"""All of a user at once: forget and export. And whose key this is, what models have cost, how everything is."""

import asyncio
from datetime import date
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from aftermind import errors
from aftermind.ledger.base import Spending
from aftermind.types.api_key import Right
from aftermind.web import shapes
from aftermind.web.auth import Operator, Reader, Remembering, Writer
from aftermind.web.routes.memory import User

router = APIRouter(tags=["whole"])

Since = Annotated[date | None, Query(description="From this day on (UTC); null: today.")]


class WhoOut(BaseModel):
    """Whom a request is taken for. `key` is null where the service has no keys and answers its own machine."""

    namespace: str
    rights: list[Right]
    key: str | None


@router.get("/whoami", summary="Whose key this is")
async def whoami(who: Reader) -> WhoOut:
    """The namespace and rights of the key."""
    return WhoOut(namespace=who.namespace, rights=sorted(who.rights), key=who.key.id if who.key else None)


@router.post("/users/{user_id:id}/forget", summary="Forget a user, a session, what is older, or single episodes")
async def forget(user_id: User, what: shapes.ForgetIn, memory: Remembering, who: Writer) -> shapes.ForgotOut:
    """It is gone when this answers: stored, derived, pending and on its way. `503`: nothing is gone."""
    is_all = what.session_id is None and what.before is None and what.ids is None
    if is_all != what.everything:
        why = "say what to forget, or set it to true to forget everything of the user; not both."
        raise errors.InvalidFilter("everything", what.everything, why)
    done = await memory.forget(
        user_id=user_id,
        session_id=what.session_id,
        namespace=who.namespace,
        before=what.before,
        ids=None if what.ids is None else [str(each) for each in what.ids],
    )
    return shapes.ForgotOut(rows=dict(done.rows), pending_turns=done.pending_turns)


@router.post("/users/{user_id:id}/undo", summary="Undo what was derived from messages")
async def undo(user_id: User, what: shapes.UndoIn, memory: Remembering, who: Writer) -> shapes.UndoneOut:
    """Facts that rest on these messages alone are retracted; summaries and traits are made again without them.

    The messages stay in the history, marked. `dry_run` shows the same and changes nothing.
    """
    ids = [str(each) for each in what.ids]
    done = await memory.undo(*ids, user_id=user_id, namespace=who.namespace, dry_run=what.dry_run)
    return shapes.UndoneOut(
        episodes=done.episodes,
        retracted=[shapes.fact(each) for each in done.retracted],
        restored=[shapes.fact(each) for each in done.restored],
        summaries=done.summaries,
        traits=done.traits,
        dry_run=done.dry_run,
    )


@router.get("/users/{user_id:id}/erasure", summary="Verify a user's erasure")
async def verify_erasure(user_id: User, memory: Remembering, who: Operator, request: Request) -> shapes.ErasureOut:
    """Search tables, replicas, Redis, spool and logs for the user's rows and keys. Slow: it reads every row.

    `503` while another verification runs in this process. `missing` says why a place could not be searched.
    """
    running: asyncio.Lock = request.app.state.verifying
    if running.locked():
        raise errors.StoreUnavailable("erasure", "another verification runs in this process")
    async with running:
        found = await memory.remains(user_id=user_id, namespace=who.namespace)
    places = [shapes.PlaceOut.model_validate(each) for each in found.places]
    return shapes.ErasureOut(is_erased=found.are_none, places=places)


@router.get("/users/{user_id:id}/export", summary="Everything of a user")
async def export(user_id: User, memory: Remembering, who: Reader, *, vectors: bool = False) -> dict[str, Any]:
    """Episodes, facts with their history, blocks, summaries, profile, unfinished jobs and dead letters, costs."""
    found = await memory.export(user_id=user_id, namespace=who.namespace, vectors=vectors)
    whole: dict[str, Any] = shapes.jsonable(found)
    return whole


@router.get("/users/{user_id:id}/spending", summary="What models have cost the user")
async def spending(user_id: User, memory: Remembering, who: Reader, since: Since = None) -> list[shapes.SpendingOut]:
    """By day, kind of job and model."""
    return [_spent(each) for each in await memory.spending(user_id=user_id, namespace=who.namespace, since=since)]


@router.get("/spending", summary="What models have cost the namespace")
async def spending_of_all(memory: Remembering, who: Operator, since: Since = None) -> list[shapes.SpendingOut]:
    """By day, user, kind of job and model."""
    return [_spent(each) for each in await memory.spending(namespace=who.namespace, since=since, everybody=True)]


def _spent(found: Spending) -> shapes.SpendingOut:
    spent = found.spent
    return shapes.SpendingOut(
        day=found.day.isoformat(),
        user_id=found.owner.user_id,
        kind=found.kind,
        model=spent.model,
        calls=spent.calls,
        tokens_in=spent.tokens_in,
        tokens_out=spent.tokens_out,
        cost_usd=spent.cost_usd,
        latency_ms=spent.latency_ms,
    )
