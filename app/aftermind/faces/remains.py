"""What remains of a user, and a forget that shows what it did."""

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from aftermind import errors
from aftermind.faces import forgetting, reading, turns
from aftermind.faces.forgetting import Forgot
from aftermind.faces.looking import Looking
from aftermind.faces.parts import Parts
from aftermind.types import Scope
from aftermind.types.remains import Proof, Remains

STORED_SECONDS = 10.0  # for the canary to be stored; where nobody works it is found on its way instead
IDS = 20  # of the user's latest episodes that are looked for beside the canary


async def remains(parts: Parts, owner: Scope, texts: Sequence[str]) -> Remains:
    """Where any of the texts is found, and rows and keys of the user."""
    if any(not isinstance(each, str) or not each.strip() for each in texts):
        raise errors.InvalidQuery("texts", list(texts), "each is a text to look for, and an empty one is everywhere.")
    return await _looking(parts).look(owner, texts)


async def forget_and_prove(parts: Parts, owner: Scope) -> Forgot:
    """Plant a canary, see that it is found, forget the user, and look again."""
    looking = _looking(parts)
    ids = tuple(episode.id for episode in await reading.history(parts, owner, limit=IDS))
    canary = f"canary{secrets.token_hex(12)}"
    await _plant(parts, owner, f"The word of the canary is {canary}.")
    sought = [canary, *map(str, ids)]
    before = await looking.look(owner, sought)
    began = time.monotonic()
    gone = await forgetting.forget(parts, owner)
    seconds = time.monotonic() - began
    after = await looking.look(owner, sought)
    return replace(gone, proof=Proof(canary=canary, ids=ids, before=before, after=after, seconds=seconds))


def _looking(parts: Parts) -> Looking:
    if parts.looking is None:
        why = "jobs run in this process, which keeps nothing in any other place. Use Postgres."
        raise errors.InvalidSettings("store", "inmemory", why)
    return parts.looking


async def _plant(parts: Parts, owner: Scope, said: str) -> None:
    outbox = parts.ways.way()
    turn = turns.make_turn(
        said, owner, turns.limits(parts.settings), keep=turns.KINDS, idempotency_key=None, position=outbox.position
    )
    receipt = parts.receipt(turn, await outbox.send(turn))
    with suppress(TimeoutError, errors.AftermindError):
        await receipt.stored(timeout=STORED_SECONDS)
