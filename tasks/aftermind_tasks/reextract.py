"""Repeats fact extraction for episodes, with another prompt or model; or shows what it would change."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from uuid import UUID

import orjson

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.events.types import MemoryFactsExtracted
from aftermind.facts.bitemporal_resolution import Changes
from aftermind.facts.entities import aliases_of, rename
from aftermind.facts.reextraction_diff import redo
from aftermind.ledger.replay_overrides import check_options, has_options
from aftermind.llm import factory
from aftermind.llm.protocols import Extraction, Extractor
from aftermind.llm.rate_limit_and_circuit_breaker import unreported
from aftermind.stores.protocol import ExtractionOutcome, MiningOutcome
from aftermind.types import Episode, JobId, JobKind, JobState, Json, Lease, Scope
from aftermind.types.fact import period
from aftermind_tasks import extraction_call
from aftermind_tasks.job_outcome_types import Done, Outcome
from aftermind_tasks.runtime import Runtime

MAX_EPISODES = 200  # unextracted episodes of a dead job's session that are extracted together


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A model's claims about episodes, and which extractor made them."""

    episodes: Sequence[Episode]
    extraction: Extraction
    by: Extractor

    @property
    def extractor(self) -> str:
        """What facts call it."""
        return f"{self.by.name}:{self.by.version}"


async def reextract(runtime: Runtime, lease: Lease) -> Outcome:
    """See `_reextract`; repeated if an episode was undone during the call."""
    try:
        return await _reextract(runtime, lease)
    except extraction_call.AnswerVoid as exc:
        return exc.outcome


async def _reextract(runtime: Runtime, lease: Lease) -> Outcome:
    """Let the claims of another prompt or model take the place of the facts that were drawn before.

    Facts, outcomes and `done` are one transaction, fenced by the lease: a reader sees the old facts or the new.
    """
    answered = await _answer(runtime, lease, _origin(lease))
    if answered is None:
        return await _nothing(runtime, lease)
    scope, episodes = lease.job.scope, answered.episodes
    async with runtime.db.transaction(namespace=scope.namespace) as tx:
        await runtime.store.tombstones(tx, [scope.owner])  # holds a forget off until the end
        changes = await _changes(runtime, tx, scope.owner, answered)
        await extraction_call.write(runtime, tx, scope.owner, changes)
        seen = [each.id for each in extraction_call.visible_episodes(episodes, extraction_call.FACTS)]
        await extraction_call.record_batch(runtime, tx, lease, JobKind.EXTRACT, answered.by, seen)
        await runtime.store.note_outcomes(tx, scope.owner, _outcomes(answered, lease))
        await runtime.ledger.finish(tx, lease, note=None if episodes else "nothing was left to mine")
        event = MemoryFactsExtracted(
            id=f"{lease.job.id}:facts:{lease.job.attempts}",
            scope=scope,
            at=runtime.clock.utc_now(),
            job_id=str(lease.job.id),
            added=len(changes.added),
            superseded=len(changes.superseded),
        )
        events = await runtime.events.append(tx, [event])
    await runtime.after_commit({scope.owner}, events, {})
    return Done()


async def foresee(runtime: Runtime, lease: Lease) -> Outcome:
    """Determine what a new extraction of a job's episodes would change, store that with the job, and write nothing
    else.
    """
    answered = await _answer(runtime, lease, _origin(lease))
    if answered is None:
        return await _nothing(runtime, lease)
    scope = lease.job.scope
    async with runtime.db.transaction(namespace=scope.namespace) as tx:
        changes = await _changes(runtime, tx, scope.owner, answered)
        told = await _change_payload(runtime, tx, scope.owner, changes)
        await runtime.ledger.finish(tx, lease, note=orjson.dumps(told).decode())
    return Done()


async def _answer(runtime: Runtime, lease: Lease, origin: JobId) -> Answered | None:
    """Episodes and claims; an answer that an earlier try has kept is not asked for, nor paid, again."""
    extractor = _extractor(runtime, lease.job.payload)
    scope, former = lease.job.scope, await runtime.ledger.job(origin)
    async with runtime.db.transaction(namespace=scope.namespace, read_only=True) as tx:
        episodes = await runtime.store.mined_in(tx, scope.owner, origin)
        if not episodes and (
            former is None or former.state is not JobState.DONE
        ):  # it died before it mined anything: what it was for waits still
            episodes = await runtime.store.unmined(tx, scope.owner, scope.session_id, limit=MAX_EPISODES)
    kept = lease.job.answer
    if kept is not None:
        shown = set(kept["episodes"])
        episodes = [episode for episode in episodes if str(episode.id) in shown]
    if not episodes:
        return None
    if kept is not None and not extraction_call.is_void(kept, episodes):
        extraction = Extraction.from_json(kept["extraction"])
    else:
        with unreported() if has_options(lease.job.payload) else nullcontext():
            extraction = await extraction_call.ask(runtime, extractor, scope, episodes, is_repeated=True)
        answer = extraction_call.build_answer(episodes, extraction_call.FACTS, extraction=extraction.to_json())
        await extraction_call.save_answer(runtime, lease, answer, extraction.usage)
    return Answered(episodes=episodes, extraction=extraction, by=extractor)


def _extractor(runtime: Runtime, payload: Mapping[str, Json]) -> Extractor:
    """The one that the plan names, else the usual one. Raises `InvalidFilter` where the operator allows it no more."""
    check_options(payload, factory.replayable(runtime.settings))
    model, instructions = payload.get("model"), payload.get("instructions", "")
    named = {"extractor": payload["extractor"]} if payload.get("extractor") else {}
    named |= {"extractor": f"openai:{model}"} if model else {}
    chosen = runtime.extractor
    if named or instructions:
        settings = runtime.settings.model_copy(update=named)
        chosen = factory.extractor(settings, instructions=instructions, providers=runtime.providers)
    if chosen is None:
        raise errors.InvalidSettings("extractor", "off", "there is nothing to mine with; set AFTERMIND_EXTRACTOR.")
    return chosen


async def _changes(runtime: Runtime, tx: Transaction, owner: Scope, answered: Answered) -> Changes:
    await runtime.store.hold_beliefs(tx, owner)
    ids = [episode.id for episode in answered.episodes]
    there = await runtime.store.episodes(tx, owner, ids)
    if extraction_call.is_void(extraction_call.build_answer(answered.episodes, extraction_call.FACTS), there):
        raise extraction_call.AnswerVoid
    alive = frozenset(episode.id for episode in there)
    claims = [
        replace(claim, sources=tuple(each for each in claim.sources if each in alive))
        for claim in answered.extraction.claims
    ]
    rows = await runtime.store.facts(tx, owner, history=True, limit=100_000)
    aliases = aliases_of(rows)
    return redo(
        [rename(claim, aliases) for claim in claims if claim.sources],
        [fact for fact in rows if fact.superseded_at is None],
        said=await runtime.store.recorded_assertions(tx, owner),
        mined=alive,
        owner=owner,
        now=runtime.clock.utc_now(),
        extractor=answered.extractor,
        new_id=extraction_call.new_fact_id,
        cardinalities=await runtime.store.cardinalities(tx, owner.namespace),
    )


async def _change_payload(runtime: Runtime, tx: Transaction, owner: Scope, changes: Changes) -> dict[str, list[str]]:
    found = [await runtime.store.fact(tx, owner, fact_id) for fact_id in changes.superseded]
    superseded = [fact for fact in found if fact is not None]
    both = {fact.text for fact in changes.added} & {fact.text for fact in superseded}  # only the times change
    return {
        name: [f"{fact.text}{period(fact)}" if fact.text in both else fact.text for fact in facts]
        for name, facts in (("added", changes.added), ("superseded", superseded))
    }


def _outcomes(answered: Answered, lease: Lease) -> list[MiningOutcome]:
    reasons = answered.extraction.reasons
    otherwise = answered.extraction.reason_empty or "no fact in this message"
    counts = {
        episode.id: sum(episode.id in claim.sources for claim in answered.extraction.claims)
        for episode in answered.episodes
    }
    return [
        MiningOutcome(
            episode_id=episode_id,
            outcome=ExtractionOutcome.FACTS if count else ExtractionOutcome.EMPTY,
            extractor=answered.extractor,
            reason=None if count else reasons.get(episode_id, otherwise),
            facts=count,
            job_id=lease.job.id,
        )
        for episode_id, count in counts.items()
    ]


async def _nothing(runtime: Runtime, lease: Lease) -> Outcome:
    async with runtime.db.transaction(namespace=lease.job.scope.namespace) as tx:
        await runtime.ledger.finish(tx, lease, note='{"added": [], "superseded": []}')
    return Done()


def _origin(lease: Lease) -> JobId:
    """The job whose episodes are meant."""
    if lease.job.origin_job_id is None:
        raise errors.Bug(f"job {lease.job.id} was replayed from nothing.")
    return JobId(UUID(str(lease.job.origin_job_id)))
