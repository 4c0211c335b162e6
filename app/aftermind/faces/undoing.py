"""Undo what was derived from episodes, without deleting anything that was said or believed."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from uuid6 import uuid7

from aftermind import errors
from aftermind.claims.undo import undo as decided
from aftermind.db.base import Transaction
from aftermind.faces.forgetting import episode_id, rebuilding
from aftermind.faces.parts import Parts
from aftermind.stores import believing
from aftermind.stores.base import Tombstone
from aftermind.types import EpisodeId, Fact, FactId, Json, Scope
from aftermind.types.audit import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What was undone, or with `dry_run` would be.

    `retracted` are facts that rested on these episodes alone; `restored` are facts that are believed again as they were
    before. `summaries` and `traits` count what drew on them and is made anew from the rest.
    """

    episodes: int = 0
    retracted: tuple[Fact, ...] = ()
    restored: tuple[Fact, ...] = ()
    summaries: int = 0
    traits: int = 0
    dry_run: bool = False


class _NothingDone(Exception):  # it ends a transaction that was only to be looked at
    pass


async def undo(parts: Parts, owner: Scope, given: Iterable[EpisodeId | str], *, dry_run: bool) -> Undone:
    """Facts, summaries, traits and the episodes' mark in one transaction; a dry run rolls the same back."""
    ids = sorted({episode_id(each) for each in given})
    found: list[Undone] = []

    async def work(tx: Transaction) -> None:
        found.append(await _undo(parts, tx, owner, ids, dry_run=dry_run))
        if dry_run:
            raise _NothingDone
        if parts.trail is not None:
            detail: dict[str, Json] = {"undone": len(ids)}
            await parts.trail.append(tx, owner.namespace, Action.EDIT, user_id=owner.user_id, detail=detail)

    with suppress(_NothingDone):
        await parts.effect(owner, work)
        if parts.trail is not None:
            await parts.trail.told()
    return found[-1]


async def _undo(parts: Parts, tx: Transaction, owner: Scope, ids: list[EpisodeId], *, dry_run: bool) -> Undone:
    store, now = parts.store, datetime.now(UTC)
    await store.tombstones(tx, [owner])  # holds a forget of this user off until the end
    await store.hold_beliefs(tx, owner)
    there = {episode.id for episode in await store.episodes(tx, owner, ids)}
    if missing := [each for each in ids if each not in there]:
        why = "no stored message of this user has that id. One that is still on its way can be forgotten."
        raise errors.InvalidQuery("ids", str(missing[0]), why)
    rows = await store.facts(tx, owner, history=True, limit=1_000_000)
    said = await store.said(tx, owner)
    changes = decided(rows, frozenset(ids), said=said, owner=owner, now=now, new_id=_new_id)
    await believing.write(store, tx, owner, changes, at=now)
    drew_on = await store.drew_on(tx, Tombstone(owner=owner, at=now, ids=frozenset(ids)))
    counts = await store.undo(tx, owner, ids)
    if drew_on.sessions or drew_on.evidence:
        await parts.ledger.enqueue(tx, [rebuilding(owner, drew_on)])
    return Undone(
        episodes=len(ids),
        retracted=tuple(fact for fact in rows if fact.id in changes.superseded and not changes.superseded[fact.id]),
        restored=tuple(changes.added),
        summaries=counts["summaries"],
        traits=counts["traits"],
        dry_run=dry_run,
    )


def _new_id() -> FactId:
    return FactId(UUID(bytes=uuid7().bytes))
