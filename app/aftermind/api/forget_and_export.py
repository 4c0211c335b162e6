"""Forget and export a user, in every place with content."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, NamedTuple
from uuid import UUID

from aftermind import errors
from aftermind.api import conversation_history, erasure_delivery_to_redis
from aftermind.api.items import to_item
from aftermind.api.memory_services import Parts
from aftermind.db.database_protocol import Transaction
from aftermind.facts.bitemporal_resolution import group_key, resolve_after_erasure, to_group
from aftermind.indexes.client import IndexClient
from aftermind.indexes.sync_with_record_store import compare, index_job
from aftermind.ledger.protocol import DailyUsage, Ledger
from aftermind.stores.protocol import EVERY_FACT, DrewOn, Store, Vector
from aftermind.telemetry.logger import get_logger
from aftermind.types import (
    Block,
    Episode,
    EpisodeId,
    ExtractionResult,
    Fact,
    FactId,
    Item,
    Job,
    JobId,
    JobKind,
    JobState,
    Json,
    NewJob,
    Profile,
    Scope,
    Summary,
    Turn,
)
from aftermind.types.assertion import RecordedAssertion
from aftermind.types.audit import Action
from aftermind.types.erasure_report import ErasureProof
from aftermind.types.items import feedback_name
from aftermind.types.plain_values import to_plain
from aftermind.types.timestamps import why_unusable
from aftermind.types.tombstone import Tombstone
from aftermind.types.uuid7 import uuid7
from aftermind.wire.pending import PAGE_TURNS
from aftermind.wire.turn_encoding import decode_turn, encode_turn

log = get_logger(__name__)

PAGE_EPISODES = 1_000
MAX_NOTE = 500  # characters
INDEX_SECONDS = 5.0  # that a forget waits for the vector index


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgot:
    """Deleted rows by kind, and turns that were not stored yet and from which something was deleted; those in groups
    included. The proof if requested.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    pending_turns: int = 0
    proof: ErasureProof | None = None

    def __repr__(self) -> str:
        rows = ", ".join(f"{count} {name}" for name, count in self.rows.items() if count)
        proof = f", {self.proof!r}" if self.proof else ""
        return f"<Forgot {rows or 'nothing stored'}, {self.pending_turns} pending turns{proof}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """All data of a user. `episodes` include pending ones; `jobs` are unfinished ones, and dead letters with their
    payload. `items` include metadata of sessions and checkpoints: their path begins with an empty label. `assertions`
    include retracted ones; `extraction` is the outcome of each message. `vectors` are empty if not requested.
    """

    scope: Scope
    episodes: tuple[Episode, ...]
    facts: tuple[Fact, ...]
    blocks: tuple[Block, ...]
    items: tuple[Item, ...]
    summaries: tuple[Summary, ...]
    profile: Profile | None
    jobs: tuple[Job, ...]
    extraction: tuple[ExtractionResult, ...] = ()
    spending: tuple[DailyUsage, ...] = ()
    assertions: tuple[RecordedAssertion, ...] = ()
    vectors: Mapping[EpisodeId, Vector] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        """As `aftermind export` writes it and `aftermind ingest` reads it."""
        found: dict[str, Any] = to_plain(self)
        return found

    def __repr__(self) -> str:
        return f"<Export of {self.scope.user_id!r}: {len(self.episodes)} episodes, {len(self.facts)} facts>"


class Erased(NamedTuple):
    """What a transaction has deleted: counts of rows by kind and of turns in the ledger, by this tombstone.

    `waiting` are turns outside of the database that it covers and that nothing will store any more.
    """

    rows: dict[str, int]
    turns: int
    stone: Tombstone
    waiting: frozenset[JobId] = frozenset()


def add_up(several: Iterable[Forgot]) -> Forgot:
    """Several deletions as one, with the proof of one of them, if there is any."""
    rows, pending, proof = Counter[str](), 0, None
    for each in several:
        rows.update(each.rows)
        pending += each.pending_turns
        proof = each.proof or proof
    return Forgot(rows=dict(rows), pending_turns=pending, proof=proof)


async def forget(parts: Parts, asked: Tombstone, *, note: str | None = None) -> Forgot:
    """Delete stored content and reject later copies: the tombstone is committed with the deletes.

    The audit trail, if there is one, has the `note`.
    """
    owner = asked.owner
    detail = _audit_detail(asked) | ({"note": note} if note else {})
    waiting: Sequence[Turn] = ()
    if parts.pending is not None:
        with suppress(errors.RedisUnavailable):  # the generation of accepted turns must be below the new number
            await erasure_delivery_to_redis.settle_generation(parts.db, parts.pending.shard_of(owner))
            waiting = (await parts.pending.read(owner, limit=PAGE_TURNS)).turns
    known = parts.generation.known or 0

    async def delete(tx: Transaction) -> Erased:
        is_indexed = parts.index is not None
        erased = await erase(parts.store, parts.ledger, tx, asked, known=known, is_indexed=is_indexed, waiting=waiting)
        if parts.trail is not None:
            await parts.trail.append(tx, owner.namespace, Action.ERASE, user_id=owner.user_id, detail=detail)
        return erased

    erased = await parts.effects.commit(owner, delete)
    parts.generation.learn(erased.stone.generation)
    parts.wake()
    if parts.trail is not None:
        await parts.trail.anchor()
    if parts.index is not None:
        await _erase_from_index(parts, parts.index, owner)
    waited = erased.waiting.union(await _erase_pending(parts, erased.stone))
    return Forgot(rows=erased.rows, pending_turns=erased.turns + len(waited))


def requested(
    owner: Scope, *, session_id: str | None, before: datetime | None, ids: Iterable[EpisodeId | str] | None
) -> Tombstone | None:
    """What is to be forgotten; None for an empty list of ids. Raises `InvalidQuery`."""
    named = frozenset() if ids is None else frozenset(map(episode_id, ids))
    if ids is not None and (session_id is not None or before is not None):
        why = "ids name the messages alone. Leave out the session and the time, or the ids."
        raise errors.InvalidQuery("ids", [str(each) for each in named], why)
    if before is not None and (unusable := why_unusable(before)) is not None:
        raise errors.InvalidQuery("before", before, unusable)
    if ids is not None and not named:
        return None
    return Tombstone(owner=owner, session_id=session_id, before=before, ids=named)


async def erase(
    store: Store,
    ledger: Ledger,
    tx: Transaction,
    asked: Tombstone,
    *,
    known: int = 0,
    is_indexed: bool = False,
    waiting: Sequence[Turn] = (),
) -> Erased:
    """Write the tombstone, with a number above `known`, and delete the rows and ledger turns that it covers. The owner
    stays locked, so nothing is stored concurrently: of the turns that were `waiting` for it in Redis, those that are
    not stored by now never will be. `is_indexed`: a job empties the external vector index, too.
    """
    stone = replace(asked, generation=await store.begin_erasure(tx, asked.owner, known=known))
    left = [turn for turn in waiting if not stone.precedes(turn)]
    covered = {turn.job_id: {each.id for each in turn.episodes() if stone.fits(each)} for turn in left}
    stored = await store.existing_ids(tx, asked.owner, set[UUID]().union(*covered.values())) if covered else set()
    unstored = frozenset(job_id for job_id, ids in covered.items() if ids and not ids & stored)
    drew_on = await store.drew_on(tx, stone)
    turns = await _erase_from_ledger(ledger, tx, stone)  # first: deleted rows have no payload
    counts = await store.forget(tx, stone)
    if not stone.is_whole:
        deleted, stated = await _resolve_facts(store, tx, stone.owner, drew_on.claims) if drew_on.claims else (0, ())
        counts["facts"] += deleted
        # The oldest messages have replaced nothing that is left, and retention deletes such ones each day.
        are_oldest = stone.before is not None and stone.session_id is None and not stone.ids
        await rebuild(ledger, tx, stone.owner, drew_on, () if are_oldest else stated)
    if is_indexed:
        await ledger.enqueue(tx, [index_job(stone.owner, sorted(stone.ids) or None)])
    return Erased(counts, turns, stone, unstored)


async def _resolve_facts(
    store: Store, tx: Transaction, owner: Scope, about: Iterable[tuple[str, str]]
) -> tuple[int, Sequence[RecordedAssertion]]:
    """Compute facts again from the assertions that are left; how many were deleted, and these assertions.

    Without the key of an encrypted namespace they stay as the deletion left them: it has removed the forgotten times.
    """
    await store.hold_beliefs(tx, owner)
    groups = {to_group(subject, predicate) for subject, predicate in about}
    try:
        rows = await store.facts(tx, owner, history=True, limit=EVERY_FACT)
        assertions = await store.recorded_assertions(tx, owner, {subject for subject, _ in groups})
        # Writes nothing, but raises where the key is missing, before facts are deleted.
        await store.put_assertions(tx, owner, (), unsaid=())
    except (errors.KeyMissing, errors.Unreadable, errors.InvalidSettings) as exc:
        log.warning("facts are not computed again after an erasure", extra={"error": str(exc)})
        return 0, ()
    believed = [fact for fact in rows if fact.superseded_at is None]
    deleted, written = resolve_after_erasure(
        groups, believed, assertions, owner=owner, now=await store.now(tx), new_id=lambda: FactId(uuid7())
    )
    await store.delete_facts(tx, owner, [fact.id for fact in deleted])
    await store.add_facts(tx, written)
    gone = {fact.id for fact in deleted} - {fact.id for fact in written}
    await store.delete_items(tx, owner, [feedback_name(fact_id) for fact_id in gone])
    return len(gone), assertions


async def export(parts: Parts, owner: Scope, *, vectors: bool = False) -> Export:
    """Everything of a user, the newest rows included. Raises `StoreUnavailable`."""
    episodes = await conversation_history.everything(parts, owner)
    async with parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:
        store = parts.store
        facts = await store.facts(tx, owner, history=True, limit=1_000_000)
        assertions = await store.recorded_assertions(tx, owner)
        blocks = await store.blocks(tx, owner)
        items = [*await store.items_under(tx, owner, ()), *await store.items_under(tx, owner, ("",))]
        summaries = await store.summaries(tx, owner, limit=100_000)
        profile = await store.profile(tx, owner)
        extraction = await store.extraction_results(tx, owner, None, limit=len(episodes) + 1)
        embedded = await store.vectors(tx, owner) if vectors else {}
    spent = await parts.ledger.spending(owner.namespace, since=date.min, owner=owner)
    jobs = await parts.ledger.jobs(owner=owner, limit=100_000)
    return Export(
        scope=owner,
        episodes=tuple(episodes),
        facts=tuple(facts),
        blocks=tuple(blocks),
        items=tuple(to_item(owner, each) for each in items),
        summaries=tuple(summaries),
        profile=profile,
        extraction=tuple(extraction),
        spending=tuple(spent),
        assertions=tuple(assertions),
        vectors=embedded,
        jobs=tuple(job for job in jobs if not job.state.is_final or job.state is JobState.DEAD),
    )


async def _erase_from_index(parts: Parts, index: IndexClient, owner: Scope) -> None:
    """Now, if the index answers soon; otherwise the job does it."""
    try:
        async with asyncio.timeout(INDEX_SECONDS):
            await compare(parts.db, parts.store, index, owner, await parts.identify_embedder())
    except (TimeoutError, errors.Unavailable, errors.Conflict, errors.InvalidSettings) as exc:
        log.warning("an erasure waits for the vector index", extra={"error": str(exc)})


async def _erase_from_ledger(ledger: Ledger, tx: Transaction, stone: Tombstone) -> int:
    """Remove forgotten content from turns in the ledger (accepted and not stored yet, or dead); from how many."""
    count = 0
    for job_id, payload in await ledger.list_turn_payloads(tx, stone.owner):
        try:
            turn = decode_turn(payload)
        except errors.UnknownPayload:  # unreadable bytes, whose content cannot be determined
            continue
        rest = turn.without(stone.fits)
        if rest is not turn:
            await ledger.rewrite_turn(tx, job_id, None if rest is None else encode_turn(rest))
            count += 1
    return count


async def _erase_pending(parts: Parts, stone: Tombstone) -> Sequence[JobId]:
    """Turns in Redis and in this host's spool. What is missed here is dropped by the tombstone when it is stored."""
    gone = [job_id for outbox in parts.outboxes.all() for job_id in await outbox.forget(stone)]
    if parts.pending is None or parts.deliveries is None:
        return gone
    try:
        return await erasure_delivery_to_redis.deliver(parts.db, parts.store, parts.ledger, parts.pending, stone, gone)
    except errors.Unavailable as exc:
        log.warning("an erasure waits for Redis", extra={"generation": stone.generation, "error": str(exc)})
        parts.deliveries.begin(stone, gone)
        return gone


def _audit_detail(stone: Tombstone) -> dict[str, Json]:
    """What was to be forgotten, for the audit trail."""
    asked: dict[str, Json] = {"session_id": stone.session_id, "ids": len(stone.ids) or None}
    asked["member"] = stone.member
    asked["before"] = None if stone.before is None else stone.before.isoformat()
    return {name: value for name, value in asked.items() if value is not None} or {"everything": True}


async def rebuild(
    ledger: Ledger,
    tx: Transaction,
    owner: Scope,
    drew_on: DrewOn,
    left: Iterable[RecordedAssertion],
    *,
    without: Collection[EpisodeId] = (),
) -> None:
    """Enqueue the job that rebuilds summaries and traits that used withdrawn content, from the remaining content.

    A trait records only the messages of its present value, and a removed one none. Therefore the sources of every
    assertion `left` that the withdrawn ones could have ended or repeated are read again too, except those in `without`.
    """
    groups = {to_group(subject, predicate) for subject, predicate in drew_on.claims}
    stated = {source for one in left if group_key(one.claim) in groups for source in one.claim.sources}
    evidence = sorted({*drew_on.evidence, *stated}.difference(without))
    if not drew_on.sessions and not evidence:
        return
    job_id = JobId(uuid7())
    job = NewJob(
        id=job_id,
        kind=JobKind.FORGET,
        scope=owner,
        payload={"sessions": list(drew_on.sessions), "evidence": [str(each) for each in evidence]},
        effect_key=str(job_id),
    )
    await ledger.enqueue(tx, [job])


def episode_id(given: object) -> EpisodeId:
    """The id of an episode, as given or as text. Raises `InvalidQuery`."""
    try:
        return EpisodeId(given if isinstance(given, UUID) else UUID(str(given)))
    except ValueError as exc:
        raise errors.InvalidQuery(
            "ids",
            given,
            "these are ids of episodes: `episode_ids` of a receipt, or `id` of what `history` and `search` return.",
        ) from exc
