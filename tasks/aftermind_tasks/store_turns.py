"""Store turns: ledger rows, episodes, follow-up jobs and events, in one statement where that can be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from aftermind.db.database_protocol import Transaction, Watermark
from aftermind.events.types import MemoryEvent, MemoryUpdateCompleted
from aftermind.indexes.sync_with_record_store import index_job
from aftermind.llm.injection import detect
from aftermind.store_turns_sql import Arrived, Following, StoreBatch, Written
from aftermind.stores import feedback_counts
from aftermind.stores.protocol import ExtractionOutcome, MiningOutcome
from aftermind.telemetry import tracing
from aftermind.telemetry.logger import get_logger
from aftermind.types import Episode, JobId, JobKind, Json, NewJob, Scope, Turn, session_order
from aftermind.types.feedback import Feedback
from aftermind.types.job import session_key
from aftermind.types.message import without_key
from aftermind.types.session_order import Counted, session_columns
from aftermind.types.tombstone import Tombstone, without_erased
from aftermind.types.uuid7 import uuid7
from aftermind.wire import queues
from aftermind_tasks import embedder_selection, followup_jobs, job_events
from aftermind_tasks.job_events import BatchStart
from aftermind_tasks.runtime import Runtime
from aftermind_tasks.turn_preparation import Prepared

log = get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class Effects:
    """Effects of a transaction: newly stored turns, events to publish once it is committed, queues to notify about
    follow-up jobs, and erasures of whole owners that turns came after.
    """

    turns: list[Turn] = field(default_factory=list)
    owners: set[Scope] = field(default_factory=set)
    events: list[MemoryEvent] = field(default_factory=list)
    ring: dict[str, JobId] = field(default_factory=dict)
    erased: list[Tombstone] = field(default_factory=list)
    watermark: Watermark | None = None  # where it was taken after the commit already

    def add(self, more: "Effects") -> None:
        """Add what a later transaction wrote; the watermark is to be taken after that one."""
        self._add_rows(more)
        self.watermark = more.watermark

    @classmethod
    def of(cls, parts: Sequence["Effects"]) -> "Effects":
        """What several concurrent transactions wrote. The watermark is the highest, or to be taken if one has none."""
        merged = cls()
        for part in parts:
            merged._add_rows(part)
        marks = [part.watermark for part in parts if part.watermark is not None]
        if len(marks) == len(parts) and len({mark.system for mark in marks}) == 1:
            merged.watermark = max(marks, key=lambda mark: (mark.timeline, mark.lsn))
        return merged

    def _add_rows(self, more: "Effects") -> None:
        self.turns += more.turns
        self.erased += more.erased
        self.owners |= more.owners
        self.events += more.events
        self.ring |= more.ring


async def write(runtime: Runtime, turns: Sequence[Turn], prepared: Prepared, start: BatchStart) -> Effects:
    """Store turns of one tenant: in one statement if possible, else row by row under locks.

    The statement makes no decision that needs earlier reads, so `write_under_locks` handles: turns of the in-memory
    store; turns that the ledger accepted, whose jobs close in the same transaction; owners with an erasure (each turn
    is compared with their tombstones); turns of groups (each is compared with the tombstones of its author);
    sessions with another count base, and turns that Postgres accepted while Redis did not answer (their position
    depends on the stored ones); turns saved without facts (other follow-up jobs); a repeated idempotency key (the
    contents are compared); a job to debounce that is claimed at this moment; feedback (counts are read and raised).
    """
    effects = Effects()
    given = [turn for turn in turns if turn.feedback is None]
    batch = _make_batch(runtime, given, prepared, start) if given else None
    if batch is not None and runtime.batch_writer is not None:
        embedder = runtime.opened.configured if prepared.is_embedded else None
        written = await runtime.batch_writer.store(batch, prepared.vectors, embedder=embedder)
        if written is not None:
            effects.add(_make_effects(batch, written))
            turns = [
                turn
                for turn in turns
                if turn.feedback is not None or (turn.content_hash is not None and turn.job_id not in written.new)
            ]
    if turns:
        async with runtime.db.transaction(namespace=turns[0].scope.namespace) as tx:
            more = await write_under_locks(runtime, tx, turns, prepared, start, committed=effects.turns)
        effects.add(more)
    return effects


def _make_batch(runtime: Runtime, turns: Sequence[Turn], prepared: Prepared, start: BatchStart) -> StoreBatch | None:
    """Turns of one tenant for `BatchWriter.store`; None if it cannot store them."""
    if any(turn.counted_from is None or turn.author is not None for turn in turns):
        return None
    kept = {turn.job_id: _episodes_to_keep(turn, prepared) for turn in turns}
    stored = [turn for turn in turns if kept[turn.job_id]]
    if runtime.extractor is not None and any("facts" not in turn.keep for turn in stored):
        return None
    arrived = [Arrived(turn=turn, episodes=kept[turn.job_id], events=_events([turn], start)) for turn in turns]
    return StoreBatch(turns=arrived, following=_following(runtime, stored, kept, is_embedded=prepared.is_embedded))


def _make_effects(batch: StoreBatch, written: Written) -> Effects:
    new = [arrived for arrived in batch.turns if arrived.turn.job_id in written.new]
    return Effects(
        turns=[arrived.turn for arrived in new],
        watermark=written.watermark,
        # Of all: a worker that died after its commit may have raised no watermark for those that were there.
        owners={arrived.turn.scope.owner for arrived in batch.turns},
        events=[_numbered(event, written) for arrived in new for event in arrived.events],
        ring={queues.EMBED: min(written.enqueued)} if written.enqueued else {},
    )


def _following(
    runtime: Runtime, turns: Sequence[Turn], kept: Mapping[JobId, Sequence[Episode]], *, is_embedded: bool
) -> Following | None:
    needs_job = embedder_selection.needs_job(runtime, is_embedded=is_embedded)
    is_indexed = runtime.index is not None and is_embedded
    if not needs_job and not is_indexed and runtime.extractor is None:
        return None
    quiet, at_most = _patience(runtime)
    return Following(
        enqueued=[
            *((_embed_job(turn, kept[turn.job_id]) for turn in turns) if needs_job else ()),
            *((_index_job(turn, kept[turn.job_id]) for turn in turns) if is_indexed else ()),
        ],
        debounced=_extract_jobs(turns) if runtime.extractor is not None else (),
        quiet=quiet,
        at_most=at_most,
    )


def _patience(runtime: Runtime) -> tuple[timedelta, timedelta]:
    settings = runtime.settings
    return timedelta(seconds=settings.extract_quiet_seconds), timedelta(seconds=settings.extract_max_wait_seconds)


def _numbered(event: MemoryEvent, written: Written) -> MemoryEvent:
    event = replace(event, cursor=str(written.cursors[event.id]))
    if isinstance(event, MemoryUpdateCompleted):
        return replace(event, duration_ms=event.duration_ms + written.took_ms)
    return event


async def write_under_locks(
    runtime: Runtime,
    tx: Transaction,
    turns: Sequence[Turn],
    prepared: Prepared,
    start: BatchStart,
    *,
    closed: Mapping[JobId, JobId] | None = None,
    committed: Sequence[Turn] = (),
) -> Effects:
    """Ledger rows, episodes, follow-up jobs and events of new turns of one tenant.

    It takes locks in order, so that two stores cannot deadlock. `closed`: the jobs that stored them, by their ids,
    which this transaction has closed as done. `committed`: other turns of the batch.
    """
    effects = Effects(owners={turn.scope.owner for turn in turns})
    if prepared.is_embedded:
        known = await runtime.store.stored_embedders(tx, hold=True)
        embedder_selection.note(runtime, known)
        if not await embedder_selection.is_active(runtime, known):
            prepared = replace(prepared, vectors={}, is_embedded=False)
    if turns:
        effects.turns = await _write_turns(
            runtime, tx, turns, prepared, start, effects, closed=closed, committed=committed
        )
    return effects


async def _write_turns(
    runtime: Runtime,
    tx: Transaction,
    turns: Sequence[Turn],
    prepared: Prepared,
    start: BatchStart,
    effects: Effects,
    *,
    closed: Mapping[JobId, JobId] | None,
    committed: Sequence[Turn],
) -> list[Turn]:
    owners = sorted({turn.scope.owner for turn in turns}, key=lambda owner: owner.user_column)
    authors = {turn.author for turn in turns if turn.author is not None}
    stones = await runtime.store.tombstones(tx, [*owners, *authors])
    left = {turn.job_id: without_erased(turn, stones) for turn in turns}
    gone: dict[Scope, list[JobId]] = {}
    for turn in turns:
        if left[turn.job_id] is None:
            gone.setdefault(turn.scope.owner, []).append(turn.job_id if closed is None else closed[turn.job_id])
    for owner in owners:
        if owner in gone:
            await runtime.ledger.record_forgotten(tx, owner, gone[owner], closed=closed is not None)
            whole = [stone for stone in stones if stone.owner == owner and stone.is_whole]
            effects.erased += [max(whole, key=lambda stone: stone.generation)] if whole else []
    rest = [turn for turn in left.values() if turn is not None]
    if closed is None:
        rest = await _recorded(runtime, tx, rest)
    rest = await _placed(runtime, tx, rest)
    kept = {turn.job_id: _episodes_to_keep(turn, prepared) for turn in rest}
    counted = {episode.id: session_order.counted(turn) for turn in rest for episode in kept[turn.job_id]}
    episodes = [episode for group in kept.values() for episode in group]
    await runtime.store.add_episodes(tx, episodes, prepared.vectors, counted=counted)
    stored = [turn for turn in rest if kept[turn.job_id]]
    await _follow_up(runtime, tx, stored, kept, effects, is_embedded=prepared.is_embedded)
    given: dict[Scope, list[Feedback]] = {}
    for turn in rest:
        if turn.feedback is not None:
            given.setdefault(turn.scope.owner, []).append(turn.feedback)
    for owner in owners:
        if owner in given:
            own = 0 if closed is not None else sum(turn.scope.owner == owner for turn in (*turns, *committed))
            may_arrive = partial(_may_arrive, runtime, tx, owner, stones, own)
            await feedback_counts.add(runtime.store, tx, owner, given[owner], may_arrive=may_arrive)
    effects.events += await runtime.events.append(tx, _events(rest, start))
    return rest


async def _may_arrive(runtime: Runtime, tx: Transaction, owner: Scope, stones: Sequence[Tombstone], own: int) -> bool:
    """Whether turns of the owner wait in Redis, apart from the `own` of this batch, or in the ledger.

    After an erasure of the owner none counts: no row remains of something forgotten.
    """
    if any(stone.owner == owner for stone in stones):
        return False
    if runtime.pending is not None and (await runtime.pending.shard_of(owner).read(owner, limit=0)).total > own:
        return True
    waiting = await runtime.ledger.measure_unstored(tx, owner.namespace, owner.user_column, limit=1)
    return waiting.turns > 0


async def _recorded(runtime: Runtime, tx: Transaction, turns: Sequence[Turn]) -> list[Turn]:
    """The new turns. A turn whose idempotency key was used for another turn, undetected at acceptance, becomes a
    separate turn.
    """
    new = await runtime.ledger.record_stored(tx, turns)
    others: list[Turn] = []
    for turn in turns:
        if turn.job_id not in new and turn.content_hash is not None:
            known = await runtime.ledger.content_hash(tx, turn.scope, turn.job_id)
            if known is not None and known != turn.content_hash:
                others.append(without_key(turn))
                ids = {"job_id": str(turn.job_id), "stored_as": str(others[-1].job_id)}
                log.error("an idempotency key was used for two turns: both are kept", extra=ids)
    if others:
        new |= await runtime.ledger.record_stored(tx, others)
    return [turn for turn in (*turns, *others) if turn.job_id in new]


async def _placed(runtime: Runtime, tx: Transaction, turns: Sequence[Turn]) -> list[Turn]:
    """The turns where their sessions' order has them, see `types.session_order`."""
    store = runtime.store
    sessions: dict[tuple[str, str], Scope] = {}
    for turn in turns:
        sessions.setdefault(session_columns(turn.scope), turn.scope)
    stands: dict[tuple[str, str], Counted | None] = {}
    for key, scope in sorted(sessions.items()):
        found = await store.admission_state(tx, scope.owner, [scope.session_id])
        stands[key] = found.counted.get(scope.session_id)
    placed: list[Turn] = []
    held: set[tuple[str, str]] = set()
    for turn in sorted(turns, key=lambda turn: (session_columns(turn.scope), turn.base)):
        key = session_columns(turn.scope)
        scope, newest = turn.scope, stands[key]
        shift = session_order.shift_at_once(turn, newest)
        if shift is None and key not in held:
            await store.hold(tx, scope.owner, f"order of {scope.session_id or ''}")
            held.add(key)
            found = await store.admission_state(tx, scope.owner, [scope.session_id])
            newest = found.counted.get(scope.session_id) if stands[key] is newest else newest
            shift = session_order.shift_at_once(turn, newest)
        if shift is None and newest is not None and turn.counted_from is not None:
            former = await store.find_session_shift(tx, scope.owner, scope.session_id, turn.counted_from)
            shift = session_order.shift_after(turn, newest, former)
        turn = session_order.shifted(turn, shift or 0)
        if newest is None or turn.base > newest.position:
            stands[key] = session_order.counted(turn)
        placed.append(turn)
    return placed


def _episodes_to_keep(turn: Turn, prepared: Prepared) -> list[Episode]:
    if not turn.keep:
        return []
    return [detect.marked(episode, prepared.marks) for episode in turn.episodes()]


async def _follow_up(
    runtime: Runtime,
    tx: Transaction,
    turns: Sequence[Turn],
    kept: Mapping[JobId, Sequence[Episode]],
    effects: Effects,
    *,
    is_embedded: bool,
) -> None:
    if embedder_selection.needs_job(runtime, is_embedded=is_embedded):
        jobs = [_embed_job(turn, kept[turn.job_id]) for turn in turns]
        new = await runtime.ledger.enqueue(tx, jobs)
        if new:
            effects.ring[queues.EMBED] = new[0]
    if runtime.index is not None and is_embedded:
        new = await runtime.ledger.enqueue(tx, [_index_job(turn, kept[turn.job_id]) for turn in turns])
        if new:
            effects.ring[queues.EMBED] = new[0]
    if runtime.extractor is None:
        return
    mined = [turn for turn in turns if "facts" in turn.keep]
    quiet, at_most = _patience(runtime)
    await runtime.ledger.debounce(tx, _extract_jobs(mined), quiet=quiet, at_most=at_most)
    for turn in sorted((turn for turn in turns if "facts" not in turn.keep), key=lambda turn: session_key(turn.scope)):
        scope, episodes = replace(turn.scope, agent_id=None), kept[turn.job_id]
        await runtime.store.note_outcomes(tx, scope.owner, [_skipped_outcome(each) for each in episodes])
        await followup_jobs.after_mining(runtime, tx, scope, episodes, wanted=followup_jobs.followup_options(turn.keep))


def _skipped_outcome(episode: Episode) -> MiningOutcome:
    return MiningOutcome(
        episode_id=episode.id, outcome=ExtractionOutcome.NOT_NEEDED, extractor="none", reason="not in save="
    )


def _embed_job(turn: Turn, episodes: Sequence[Episode]) -> NewJob:
    return NewJob(
        id=JobId(uuid7()),
        kind=JobKind.EMBED,
        scope=turn.scope,
        payload={"episodes": [str(episode.id) for episode in episodes]} | _trace([turn]),
        effect_key=str(turn.job_id),
        follows=(turn.job_id,),
        weight=max(1, sum(len(episode.content) for episode in episodes)),
    )


def _index_job(turn: Turn, episodes: Sequence[Episode]) -> NewJob:
    return replace(index_job(turn.scope, [episode.id for episode in episodes]), follows=(turn.job_id,))


def _extract_jobs(turns: Sequence[Turn]) -> list[NewJob]:
    """One job a session, however many of its turns are in the batch."""
    by_session: dict[Scope, list[Turn]] = {}
    for turn in turns:
        by_session.setdefault(replace(turn.scope, agent_id=None), []).append(turn)
    return [
        NewJob(
            id=JobId(uuid7()),
            kind=JobKind.EXTRACT,
            scope=scope,
            payload=followup_jobs.followup_options(frozenset().union(*(turn.keep for turn in group))) | _trace(group),
            effect_key=session_key(scope),
            follows=tuple(turn.job_id for turn in group),
        )
        for scope, group in by_session.items()
    ]


def _trace(turns: Sequence[Turn]) -> dict[str, Json]:
    """The span that the job continues: for a burst, that of its last turn."""
    carried = [turn.trace for turn in turns if turn.trace is not None]
    return {tracing.KEY: carried[-1]} if carried else {}


def _events(turns: Sequence[Turn], start: BatchStart) -> list[MemoryEvent]:
    return [
        event
        for turn in turns
        for event in (job_events.store_started(turn, start), job_events.store_completed(turn, start))
    ]
