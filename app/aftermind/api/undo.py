"""Undo everything derived from episodes, without deleting messages or former facts."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from aftermind import errors
from aftermind.api.forget_and_export import episode_id, rebuild
from aftermind.api.memory_services import Parts
from aftermind.db.database_protocol import Transaction
from aftermind.facts.undo import undo as decided
from aftermind.stores import apply_fact_changes
from aftermind.stores.protocol import BatchNeighbours, DrewOn, Store
from aftermind.types import EpisodeId, Fact, FactId, JobId, JobKind, Json, NewJob, Scope
from aftermind.types.audit import Action
from aftermind.types.job import session_key
from aftermind.types.tombstone import Tombstone
from aftermind.types.uuid7 import uuid7


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoResult:
    """Result of an undo, or with `dry_run` its forecast.

    `retracted` are facts with no other source; `restored` are facts that are valid again. `summaries` and `traits`
    count those that used the episodes: they are deleted, and jobs rebuild them from the rest. The jobs also bring back
    traits that the episodes had removed; these are not counted. `mined_again` counts the episodes that a model saw
    together with the undone ones: facts from those are retracted too, and extracted again.
    """

    episodes: int = 0
    retracted: tuple[Fact, ...] = ()
    restored: tuple[Fact, ...] = ()
    summaries: int = 0
    traits: int = 0
    mined_again: int = 0
    dry_run: bool = False


class _NothingDone(Exception):  # ends a transaction that was only read
    pass


async def undo(parts: Parts, owner: Scope, given: Iterable[EpisodeId | str], *, dry_run: bool) -> UndoResult:
    """Facts, summaries, traits and the episodes' mark in one transaction; a dry run rolls the same back."""
    ids = sorted({episode_id(each) for each in given})
    found: list[UndoResult] = []

    async def work(tx: Transaction) -> None:
        found.append(await _undo(parts, tx, owner, ids, dry_run=dry_run))
        if dry_run:
            raise _NothingDone
        if parts.trail is not None:
            detail: dict[str, Json] = {"undone": len(ids)}
            await parts.trail.append(tx, owner.namespace, Action.EDIT, user_id=owner.user_id, detail=detail)

    with suppress(_NothingDone):
        await parts.effects.commit(owner, work)
        parts.wake()
        if parts.trail is not None:
            await parts.trail.anchor()
    return found[-1]


async def _undo(parts: Parts, tx: Transaction, owner: Scope, ids: list[EpisodeId], *, dry_run: bool) -> UndoResult:
    store = parts.store
    await store.tombstones(tx, [owner])  # holds a forget of this user off until the end
    await store.hold_beliefs(tx, owner)
    now = await store.now(tx)
    there = {episode.id for episode in await store.episodes(tx, owner, ids)}
    if missing := [each for each in ids if each not in there]:
        why = (
            "no stored message of this user has this id. Of a turn that was just accepted: wait for `receipt.stored()`."
        )
        raise errors.InvalidQuery("ids", str(missing[0]), why)
    rows = await store.facts(tx, owner, history=True, limit=1_000_000)
    said = await store.recorded_assertions(tx, owner)
    beside = await store.list_batch_neighbours(tx, owner, ids)
    drew_on = await _drew_on(store, tx, owner, frozenset(ids), beside)
    changes = decided(rows, frozenset(ids), beside=beside.mined, said=said, owner=owner, now=now, new_id=_new_id)
    await apply_fact_changes.write(store, tx, owner, changes, at=now)
    counts = await store.undo(tx, owner, ids, beside=beside)
    await rebuild(parts.ledger, tx, owner, drew_on, said, without=ids)
    if beside.sessions:
        jobs = [_mining(owner, session_id) for session_id in beside.sessions]
        await parts.ledger.debounce(tx, jobs, quiet=timedelta(0), at_most=timedelta(0))
    return UndoResult(
        episodes=len(ids),
        retracted=tuple(fact for fact in rows if fact.id in changes.superseded and not changes.superseded[fact.id]),
        restored=tuple(changes.added),
        summaries=counts["summaries"],
        traits=counts["traits"],
        mined_again=len(beside.mined),
        dry_run=dry_run,
    )


async def _drew_on(
    store: Store, tx: Transaction, owner: Scope, ids: frozenset[EpisodeId], beside: BatchNeighbours
) -> DrewOn:
    """What must be rebuilt: summaries of the sessions of `ids`, traits with these episodes or those shown with them as
    evidence.
    """
    direct = await store.drew_on(tx, Tombstone(owner=owner, ids=ids))
    if not beside.profiled:
        return direct
    wider = await store.drew_on(tx, Tombstone(owner=owner, ids=ids | beside.profiled))
    return replace(wider, sessions=direct.sessions, evidence=tuple(sorted({*wider.evidence, *beside.profiled})))


def _mining(owner: Scope, session_id: str | None) -> NewJob:
    """The job that mines a session's episodes without an outcome; it joins one that waits."""
    scope = replace(owner, session_id=session_id)
    job_id = JobId(uuid7())
    return NewJob(id=job_id, kind=JobKind.EXTRACT, scope=scope, effect_key=session_key(scope))


def _new_id() -> FactId:
    return FactId(uuid7())
