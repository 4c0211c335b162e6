"""Verifies an erasure: what remains of a user, and a forget with evidence before and after."""

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from aftermind import errors
from aftermind.api import conversation_history, forget_and_export, turn_builder
from aftermind.api.forget_and_export import Forgot
from aftermind.api.memory_services import Parts
from aftermind.receipt import Receipt
from aftermind.telemetry.logger import get_logger
from aftermind.types import Json, Scope
from aftermind.types.audit import Action
from aftermind.types.erasure_report import ErasureProof, ErasureReport
from aftermind.types.tombstone import Tombstone

log = get_logger(__name__)

STORED_SECONDS = 10.0  # for the canary to be stored; without workers it is found while it is pending
IDS = 20  # of the user's latest episodes that are searched together with the canary


async def remains(parts: Parts, owner: Scope, texts: Sequence[str]) -> ErasureReport:
    """Where any of the texts is found, and rows and keys of the user."""
    if any(not isinstance(each, str) or not each.strip() for each in texts):
        raise errors.InvalidQuery("texts", list(texts), "each text to search for must be non-empty.")
    return await parts.erasure_scan.scan(owner, texts)


async def forget_and_prove(parts: Parts, owner: Scope, *, note: str | None = None) -> Forgot:
    """Store a canary, check that it is found, forget the user, and search again."""
    looking = parts.erasure_scan
    ids = tuple(episode.id for episode in await conversation_history.history(parts, owner, limit=IDS))
    canary = f"canary{secrets.token_hex(12)}"
    is_stored = await _plant(parts, owner, f"The word of the canary is {canary}.")
    sought = [canary, *map(str, ids)]
    before = await looking.scan(owner, sought)
    began = time.monotonic()
    gone = await forget_and_export.forget(parts, Tombstone(owner=owner), note=note)
    seconds = time.monotonic() - began
    after = await looking.scan(owner, sought)
    try:
        await _audit_result(parts, owner, after, note)
    except errors.Unavailable as exc:  # the user is erased, and this proof cannot be made again
        log.warning("the audit trail has no entry of the proof", extra={"error": str(exc)})
    proof = ErasureProof(canary=canary, ids=ids, before=before, after=after, seconds=seconds)
    return replace(_without_canary(gone, is_stored=is_stored), proof=proof)


async def _audit_result(parts: Parts, owner: Scope, after: ErasureReport, note: str | None) -> None:
    """The search is a read after the erasure, whose own entry is committed with the deletes."""
    if parts.trail is None:
        return
    found: dict[str, Json] = {"is_erased": after.is_erased, "places_not_searched": len(after.unsearched)}
    detail = {"by": "proof", **found, **({"note": note} if note else {})}
    async with parts.db.transaction(namespace=owner.namespace) as tx:
        await parts.trail.append(tx, owner.namespace, Action.READ, user_id=owner.user_id, detail=detail)
    await parts.trail.anchor()


def _without_canary(gone: Forgot, *, is_stored: bool) -> Forgot:
    """The counts of what the user had."""
    if is_stored:
        return replace(gone, rows={**gone.rows, "episodes": max(0, gone.rows.get("episodes", 0) - 1)})
    return replace(gone, pending_turns=max(0, gone.pending_turns - 1))


async def _plant(parts: Parts, owner: Scope, said: str) -> bool:
    """Remember the text; whether it is stored in time."""
    outbox = parts.outboxes.get()
    turn = turn_builder.make_turn(
        said,
        owner,
        turn_builder.limits(parts.settings),
        keep=turn_builder.KINDS,
        idempotency_key=None,
        position=outbox.positions.take,
    )
    sent = await outbox.send(turn)
    receipt = Receipt(turn, spooled=sent.spooled, ledger=parts.ledger, news=parts.events)
    with suppress(TimeoutError, errors.AftermindError):
        await receipt.stored(timeout=STORED_SECONDS)
        return True
    return False
