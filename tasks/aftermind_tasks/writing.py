"""What storing turns writes: episodes, follow-up jobs and events; in one statement where that can be."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

from uuid6 import uuid7

from aftermind.db.base import Transaction, Watermark
from aftermind.db.event_log import EventRow
from aftermind.events.types import MemoryEvent, MemoryUpdateCompleted, MemoryUpdateStarted
from aftermind.llm import trust
from aftermind.stores.base import Mined, MiningOutcome, Tombstone
from aftermind.storing.base import Arrived, Following, Written
from aftermind.telemetry import tracing
from aftermind.types import Episode, JobId, JobKind, Json, NewJob, Scope, Turn
from aftermind.types.job import session_key
from aftermind.wire import queues
from aftermind_tasks import embedders, following
from aftermind_tasks.preparation import Prepared
from aftermind_tasks.runtime import Runtime


@dataclass(slots=True, kw_only=True)
class Effects:
    """What a transaction wrote: turns that nobody stored before, events to publish once it is committed, queues to ring
    for the jobs that follow.
    """

    turns: Sequence[Turn] = ()
    owners: set[Scope] = field(default_factory=set)
    events: list[MemoryEvent] = field(default_factory=list)
    ring: dict[str, JobId] = field(default_factory=dict)
    watermark: Watermark | None = None  # where it was taken after the commit already


async def at_once(runtime: Runtime, turns: Sequence[Turn], prepared: Prepared, started: float) -> Effects | None:
    """Turns of one tenant, written and committed in one trip.

    None: nothing was written, because it cannot be had that way. See `aftermind.storing`.
    """
    if runtime.at_once is None or len({turn.scope.namespace for turn in turns}) > 1:
        return None
    kept = {turn.job_id: _kept(turn, (), prepared) for turn in turns}
    stored = [turn for turn in turns if kept[turn.job_id]]
    if runtime.extractor is not None and any("facts" not in turn.keep for turn in stored):
        return None  # what follows their mining follows at once, which takes looking
    events = {turn.job_id: _events(runtime, [turn], started) for turn in turns}
    arrived = [
        Arrived(turn=turn, episodes=kept[turn.job_id], events=[_row(event) for event in events[turn.job_id]])
        for turn in turns
    ]
    following = _following(runtime, stored, kept, is_embedded=prepared.is_embedded)
    written = await runtime.at_once.store(
        arrived, prepared.vectors, following, embedder=runtime.opened.configured if prepared.is_embedded else None
    )
    if written is None:
        return None
    new = [turn for turn in turns if turn.job_id in written.new]
    return Effects(
        turns=new,
        watermark=written.watermark,
        owners={turn.scope.owner for turn in new},
        events=[_told(event, written) for turn in new for event in events[turn.job_id]],
        ring={queues.EMBED: min(written.enqueued)} if written.enqueued else {},
    )


def _following(
    runtime: Runtime, turns: Sequence[Turn], kept: Mapping[JobId, Sequence[Episode]], *, is_embedded: bool
) -> Following | None:
    needs_job = embedders.needs_job(runtime, is_embedded=is_embedded)
    if not needs_job and runtime.extractor is None:
        return None
    quiet, at_most = _patience(runtime)
    return Following(
        enqueued=[_embed_job(turn, kept[turn.job_id]) for turn in turns] if needs_job else (),
        debounced=_extract_jobs(turns) if runtime.extractor is not None else (),
        quiet=quiet,
        at_most=at_most,
    )


def _patience(runtime: Runtime) -> tuple[timedelta, timedelta]:
    settings = runtime.settings
    return timedelta(seconds=settings.extract_quiet_seconds), timedelta(seconds=settings.extract_max_wait_seconds)


def _row(event: MemoryEvent) -> EventRow:
    return EventRow(owner=event.scope.owner, id=event.id, event=event.to_json())


def _told(event: MemoryEvent, written: Written) -> MemoryEvent:
    event = replace(event, cursor=str(written.cursors[event.id]))
    if isinstance(event, MemoryUpdateCompleted):
        return replace(event, duration_ms=event.duration_ms + written.took_ms)
    return event


async def write(
    runtime: Runtime, tx: Transaction, turns: Sequence[Turn], prepared: Prepared, started: float
) -> Effects:
    """Episodes, follow-up jobs and events of turns that nobody stored before, one tenant after the other.

    Tenants in order, and within each the locks in theirs, so that two stores never wait crosswise.
    """
    effects = Effects(turns=turns, owners={turn.scope.owner for turn in turns})
    if prepared.is_embedded:
        known = await runtime.store.stored_embedders(tx, hold=True)
        embedders.note(runtime, known)
        if not await embedders.is_active(runtime, known):
            prepared = replace(prepared, vectors={}, is_embedded=False)
    for namespace in sorted({turn.scope.namespace for turn in turns}):
        await tx.enter(namespace)
        group = [turn for turn in turns if turn.scope.namespace == namespace]
        await _write_tenant(runtime, tx, group, prepared, started, effects)
    return effects


async def _write_tenant(
    runtime: Runtime,
    tx: Transaction,
    turns: Sequence[Turn],
    prepared: Prepared,
    started: float,
    effects: Effects,
) -> None:
    owners = {turn.scope.owner for turn in turns}
    stones = await runtime.store.tombstones(tx, sorted(owners, key=lambda owner: owner.user_column))
    kept = {turn.job_id: _kept(turn, stones, prepared) for turn in turns}
    await runtime.store.add_episodes(tx, [episode for group in kept.values() for episode in group], prepared.vectors)
    stored = [turn for turn in turns if kept[turn.job_id]]
    await _follow_up(runtime, tx, stored, kept, effects, is_embedded=prepared.is_embedded)
    effects.events += await runtime.events.append(tx, _events(runtime, turns, started))


def _kept(turn: Turn, stones: Sequence[Tombstone], prepared: Prepared) -> list[Episode]:
    if not turn.keep:
        return []
    owner = turn.scope.owner
    mine = [stone for stone in stones if stone.owner == owner]
    return [
        trust.marked(episode, prepared.marks)
        for episode in turn.episodes()
        if not any(stone.covers(episode) for stone in mine)
    ]


async def _follow_up(
    runtime: Runtime,
    tx: Transaction,
    turns: Sequence[Turn],
    kept: Mapping[JobId, Sequence[Episode]],
    effects: Effects,
    *,
    is_embedded: bool,
) -> None:
    if embedders.needs_job(runtime, is_embedded=is_embedded):
        jobs = [_embed_job(turn, kept[turn.job_id]) for turn in turns]
        new = await runtime.ledger.enqueue(tx, jobs)
        if new:
            effects.ring[queues.EMBED] = new[0]
    if runtime.extractor is None:
        return
    mined = [turn for turn in turns if "facts" in turn.keep]
    quiet, at_most = _patience(runtime)
    await runtime.ledger.debounce(tx, _extract_jobs(mined), quiet=quiet, at_most=at_most)
    for turn in sorted((turn for turn in turns if "facts" not in turn.keep), key=lambda turn: session_key(turn.scope)):
        scope, episodes = replace(turn.scope, agent_id=None), kept[turn.job_id]
        await runtime.store.note_outcomes(tx, scope.owner, [_not_wanted(each) for each in episodes])
        await following.after_mining(runtime, tx, scope, episodes, wanted=following.wanted(turn.keep))


def _not_wanted(episode: Episode) -> MiningOutcome:
    return MiningOutcome(episode_id=episode.id, outcome=Mined.NOT_WANTED, extractor="none", reason="not in save=")


def _embed_job(turn: Turn, episodes: Sequence[Episode]) -> NewJob:
    return NewJob(
        id=JobId(UUID(bytes=uuid7().bytes)),
        kind=JobKind.EMBED,
        scope=turn.scope,
        payload={"episodes": [str(episode.id) for episode in episodes]} | _trace([turn]),
        effect_key=str(turn.job_id),
        follows=(turn.job_id,),
    )


def _extract_jobs(turns: Sequence[Turn]) -> list[NewJob]:
    """One job a session, however many of its turns are in the batch."""
    by_session: dict[Scope, list[Turn]] = {}
    for turn in turns:
        by_session.setdefault(replace(turn.scope, agent_id=None), []).append(turn)
    return [
        NewJob(
            id=JobId(UUID(bytes=uuid7().bytes)),
            kind=JobKind.EXTRACT,
            scope=scope,
            payload=following.wanted(frozenset().union(*(turn.keep for turn in group))) | _trace(group),
            effect_key=session_key(scope),
            follows=tuple(turn.job_id for turn in group),
        )
        for scope, group in by_session.items()
    ]


def _trace(turns: Sequence[Turn]) -> dict[str, Json]:
    """The span that the job goes on from: of a burst, that of its last turn."""
    carried = [turn.trace for turn in turns if turn.trace is not None]
    return {tracing.KEY: carried[-1]} if carried else {}


def _events(runtime: Runtime, turns: Sequence[Turn], started: float) -> list[MemoryEvent]:
    now, elapsed = runtime.clock.utc_now(), (time.monotonic() - started) * 1_000
    events: list[MemoryEvent] = []
    for turn in turns:
        job, count = str(turn.job_id), len(turn.messages)
        events.append(
            MemoryUpdateStarted(id=f"{job}:started", scope=turn.scope, at=now, job_id=job, message_count=count)
        )
        events.append(
            MemoryUpdateCompleted(
                id=f"{job}:completed", scope=turn.scope, at=now, job_id=job, message_count=count, duration_ms=elapsed
            )
        )
    return events
