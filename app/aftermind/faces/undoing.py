"""Undo what was derived from episodes, without deleting anything that was said or believed."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from uuid6 import uuid7

from aftermind import errors
from aftermind.claims.undo import undo as decided
from aftermind.db.base import Transaction
from aftermind.faces.forgetting import episode_id, rebuilding
from aftermind.faces.parts import Parts
from aftermind.stores import believing
from aftermind.stores.base import DrewOn, ShownTogether, Store
from aftermind.types import EpisodeId, Fact, FactId, JobId, JobKind, Json, NewJob, Scope
from aftermind.types.audit import Action
from aftermind.types.erasure import Tombstone
from aftermind.types.job import session_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """What was undone, or with `dry_run` would be.

    `retracted` are facts that rested on these episodes alone; `restored` are facts that are believed again as they were
    before. `summaries` and `traits` count what drew on them and is made anew from the rest. `mined_again` counts the
    episodes that a model was shown together with them: what it drew from those is retracted too, and drawn again.
    """

    episodes: int = 0
    retracted: tuple[Fact, ...] = ()
    restored: tuple[Fact, ...] = ()
    summaries: int = 0
    traits: int = 0
    mined_again: int = 0
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
        parts.wake()
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
    beside = await store.shown_together(tx, owner, ids)
    changes = decided(rows, frozenset(ids), beside=beside.mined, said=said, owner=owner, now=now, new_id=_new_id)
    await believing.write(store, tx, owner, changes, at=now)
    drew_on = await _drew_on(store, tx, owner, frozenset(ids), beside)
    counts = await store.undo(tx, owner, ids, beside=beside)
    if drew_on.sessions or drew_on.evidence:
        await parts.ledger.enqueue(tx, [rebuilding(owner, drew_on)])
    if beside.sessions:
        jobs = [_mining(owner, session_id) for session_id in beside.sessions]
        await parts.ledger.debounce(tx, jobs, quiet=timedelta(0), at_most=timedelta(0))
    return Undone(
        episodes=len(ids),
        retracted=tuple(fact for fact in rows if fact.id in changes.superseded and not changes.superseded[fact.id]),
        restored=tuple(changes.added),
        summaries=counts["summaries"],
        traits=counts["traits"],
        mined_again=len(beside.mined),
        dry_run=dry_run,
    )


async def _drew_on(
    store: Store, tx: Transaction, owner: Scope, ids: frozenset[EpisodeId], beside: ShownTogether
) -> DrewOn:
    """What has to be made again: summaries of the sessions of `ids`, traits that rest on them or on what was beside."""
    direct = await store.drew_on(tx, Tombstone(owner=owner, ids=ids))
    if not beside.profiled:
        return direct
    wider = await store.drew_on(tx, Tombstone(owner=owner, ids=ids | beside.profiled))
    return DrewOn(sessions=direct.sessions, evidence=tuple(sorted({*wider.evidence, *beside.profiled})))


def _mining(owner: Scope, session_id: str | None) -> NewJob:
    """The job that mines a session's episodes without an outcome; it joins one that waits."""
    scope = replace(owner, session_id=session_id)
    job_id = JobId(UUID(bytes=uuid7().bytes))
    return NewJob(id=job_id, kind=JobKind.EXTRACT, scope=scope, effect_key=session_key(scope))


def _new_id() -> FactId:
    return FactId(UUID(bytes=uuid7().bytes))
