"""The extract job: turns of a session become facts; one model call per burst, whose answer is kept and applied once."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.events.types import MemoryFactsExtracted
from aftermind.facts.bitemporal_resolution import Changes, decide
from aftermind.facts.entities import aliases_of, rename
from aftermind.facts.predicates import folded
from aftermind.llm.injection import detect
from aftermind.llm.protocols import Extraction, Extractor
from aftermind.stores.protocol import ExtractionOutcome, MiningOutcome
from aftermind.types import Episode, EpisodeId, Fact, JobId, JobKind, JobState, Lease, NewJob, Scope
from aftermind.types.assertion import Assertion, RecordedAssertion
from aftermind.types.job import session_key
from aftermind.types.uuid7 import uuid7
from aftermind.wire import queues
from aftermind_tasks import extraction_call, followup_jobs, reextract
from aftermind_tasks.job_outcome_types import Done, Outcome, Snooze
from aftermind_tasks.runtime import Runtime

# A correction waits for sessions with older messages, which may state what it is about: "I meant Bern, not Berlin".
EARLIER_SESSION, EARLIER_SESSION_WAIT = "an earlier session is extracted first", timedelta(seconds=1)
MAX_EARLIER_SESSIONS, MAX_EARLIER_MESSAGES = 1_000, 200


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Extract facts from the session of each lease; a replay may request a new extraction of earlier episodes."""
    return {
        lease.job.id: await (reextract.reextract if lease.job.payload.get("reextract") else _mine)(runtime, lease)
        for lease in leases
    }


async def _mine(runtime: Runtime, lease: Lease) -> Outcome:
    if runtime.extractor is None:
        raise errors.InvalidSettings("extractor", "off", "sessions wait to be mined; set AFTERMIND_EXTRACTOR again.")
    episodes, is_more = await _waiting(runtime, lease)
    if not episodes and not is_more:
        async with runtime.db.transaction(namespace=lease.job.scope.namespace) as tx:
            await runtime.ledger.finish(tx, lease, note="nothing was left to mine")
        return Done()
    extraction = await _answer(runtime, runtime.extractor, lease, episodes)
    if extraction is None:
        return Snooze(after=EARLIER_SESSION_WAIT, why=EARLIER_SESSION, is_own=True)
    try:
        await _apply(runtime, runtime.extractor, lease, episodes, extraction, is_more=is_more)
    except extraction_call.AnswerVoid as exc:
        return exc.outcome
    return Done()


async def _waiting(runtime: Runtime, lease: Lease) -> tuple[list[Episode], bool]:
    """Unextracted episodes of the session, up to the limits of one call; and whether there are more.

    If an earlier attempt has kept an answer, the episodes of that answer: later ones wait for the next job.
    """
    settings, scope = runtime.settings, lease.job.scope
    limit = settings.extract_max_turns * 2  # a turn is a question and an answer
    async with runtime.db.transaction(namespace=scope.namespace, read_only=True) as tx:
        found = await runtime.store.unmined(tx, scope.owner, scope.session_id, limit=limit + 1)
    if lease.job.answer is not None:
        shown = set(lease.job.answer["episodes"])
        chosen = [episode for episode in found if str(episode.id) in shown]
    else:
        chosen = extraction_call.first(found[:limit], tokens=settings.extract_max_tokens)
    return chosen, len(found) > len(chosen)


async def _answer(
    runtime: Runtime, extractor: Extractor, lease: Lease, episodes: Sequence[Episode]
) -> Extraction | None:
    """The model's answer; one that an earlier try has kept is not asked for, nor paid, again. None where it lacks what
    an earlier session may state, which is not extracted yet.
    """
    if lease.job.answer is not None and not extraction_call.is_void(lease.job.answer, episodes):
        return Extraction.from_json(lease.job.answer["extraction"])
    extraction = await extraction_call.ask(runtime, extractor, lease.job.scope, episodes)
    if extraction.lacks_reference and await _has_earlier_session(runtime, lease, episodes):
        return None
    kept = extraction_call.build_answer(episodes, extraction_call.FACTS, extraction=extraction.to_json())
    await extraction_call.save_answer(runtime, lease, kept, extraction.usage)
    return extraction


async def _has_earlier_session(runtime: Runtime, lease: Lease, episodes: Sequence[Episode]) -> bool:
    """Whether the user has another session with an older message that a job will extract.

    Of two sessions that wait, each with a message older than the other's last, the one with the oldest one continues.
    """
    scope = lease.job.scope
    jobs = await runtime.ledger.jobs(
        owner=scope.owner,
        states=(JobState.QUEUED, JobState.RUNNING, JobState.RETRYING),
        kinds=(JobKind.EXTRACT,),
        limit=MAX_EARLIER_SESSIONS,
    )
    waits = {job.scope.session_id: job.note == EARLIER_SESSION for job in jobs}
    first, last = (each(episode.occurred_at for episode in episodes) for each in (min, max))
    async with runtime.db.transaction(namespace=scope.namespace, read_only=True) as tx:
        for session_id in waits.keys() - {scope.session_id}:
            others = await runtime.store.unmined(tx, scope.owner, session_id, limit=MAX_EARLIER_MESSAGES)
            oldest = min((each.occurred_at for each in others), default=last)
            if oldest < (first if waits[session_id] else last):
                return True
    return False


async def _apply(
    runtime: Runtime,
    extractor: Extractor,
    lease: Lease,
    episodes: Sequence[Episode],
    extraction: Extraction,
    *,
    is_more: bool,
) -> None:
    """Facts, outcomes, the next job and `done` in one transaction, fenced by the lease."""
    scope = lease.job.scope
    name = f"{extractor.name}:{extractor.version}"
    ring = {queues.EXTRACT: lease.job.id} if is_more else {}
    async with runtime.db.transaction(namespace=scope.namespace) as tx:
        await runtime.store.tombstones(tx, [scope.owner])  # holds a forget off until the end
        there = await runtime.store.episodes(tx, scope.owner, [each.id for each in episodes])
        if extraction_call.is_void(extraction_call.build_answer(episodes, extraction_call.FACTS), there):
            raise extraction_call.AnswerVoid
        alive = {each.id for each in there}
        claims = _sourced(extraction.claims, alive)
        changes = await _changes(runtime, tx, scope.owner, claims, name)
        await extraction_call.write(runtime, tx, scope.owner, changes)
        await extraction_call.record_batch(
            runtime,
            tx,
            lease,
            JobKind.EXTRACT,
            extractor,
            [each.id for each in extraction_call.visible_episodes(episodes, extraction_call.FACTS)],
        )
        reason = extraction.reason_empty or "no fact in this message"
        reasons = {each.id: extraction.reasons.get(each.id, reason) for each in episodes}
        counted = [*filter(changes.states, claims)]
        outcomes = [_outcome(each, counted, lease, name, reasons[each.id]) for each in episodes if each.id in alive]
        outcomes += await _outcomes_of_earlier_ends(runtime, tx, scope.owner, changes, alive)
        await runtime.store.note_outcomes(tx, scope.owner, outcomes)
        await runtime.ledger.finish(tx, lease, note=None if claims else extraction.reason_empty)
        if is_more:
            await runtime.ledger.enqueue(tx, [_next(lease)])
        mined = [each for each in episodes if each.id in alive]
        ring |= await followup_jobs.after_mining(runtime, tx, scope, mined, wanted=lease.job.payload)
        event = MemoryFactsExtracted(
            id=f"{lease.job.id}:facts:{lease.job.attempts}",
            scope=scope,
            at=runtime.clock.utc_now(),
            job_id=str(lease.job.id),
            added=len(changes.added),
            superseded=len(changes.superseded),
        )
        events = await runtime.events.append(tx, [event])
    await runtime.after_commit({scope.owner}, events, ring)
    now = runtime.clock.utc_now()
    for moment in {episode.remembered_at for episode in episodes}:
        runtime.observer.fresh("mined", (now - moment).total_seconds())


async def _changes(
    runtime: Runtime, tx: Transaction, owner: Scope, claims: Sequence[Assertion], extractor: str
) -> Changes:
    believed: list[Fact] = []
    said: list[RecordedAssertion] = []
    await runtime.store.hold_beliefs(tx, owner)  # sessions of one user are extracted concurrently
    if claims:
        rows = await runtime.store.facts(tx, owner, history=True, limit=100_000)
        aliases = aliases_of(rows)
        claims = [rename(claim, aliases) for claim in claims]
        subjects = {folded(claim.subject) for claim in claims}
        believed = [fact for fact in rows if fact.superseded_at is None and folded(fact.subject) in subjects]
        said = await runtime.store.recorded_assertions(tx, owner, subjects)
    return decide(
        claims,
        believed,
        said=said,
        owner=owner,
        now=runtime.clock.utc_now(),
        extractor=extractor,
        new_id=extraction_call.new_fact_id,
        cardinalities=await runtime.store.cardinalities(tx, owner.namespace),
    )


def _sourced(claims: Sequence[Assertion], alive: set[EpisodeId]) -> list[Assertion]:
    """Assertions with their existing sources; those without any were forgotten during the call."""
    kept = [replace(claim, sources=tuple(each for each in claim.sources if each in alive)) for claim in claims]
    return [claim for claim in kept if claim.sources]


def _outcome(episode: Episode, claims: Sequence[Assertion], lease: Lease, name: str, reason: str) -> MiningOutcome:
    count = sum(episode.id in claim.sources for claim in claims)
    if episode.mark is not None:
        reason = episode.mark
    elif not detect.may_become_fact(episode.role, episode.metadata):
        reason = f"a message of role {episode.role} is context"
    return MiningOutcome(
        episode_id=episode.id,
        outcome=ExtractionOutcome.FACTS if count else ExtractionOutcome.EMPTY,
        extractor=name,
        reason=None if count else reason,
        facts=count,
        job_id=lease.job.id,
    )


async def _outcomes_of_earlier_ends(
    runtime: Runtime, tx: Transaction, owner: Scope, changes: Changes, mined: set[EpisodeId]
) -> list[MiningOutcome]:
    """Outcomes of messages that were extracted before what they end: "I left Acme", then "I work at Acme"."""
    ended = [fact for fact in changes.added if fact.valid_to is not None]
    counts = Counter(source for fact in ended for source in fact.sources if source not in mined)
    earlier = await runtime.store.outcomes(tx, owner, list(counts)) if counts else []
    return [
        replace(each, outcome=ExtractionOutcome.FACTS, reason=None, facts=counts[each.episode_id])
        for each in earlier
        if each.outcome is ExtractionOutcome.EMPTY
    ]


def _next(lease: Lease) -> NewJob:
    """The rest of the session, immediately. The job that ends in this transaction has released its effect key."""
    scope = lease.job.scope
    return NewJob(
        id=JobId(uuid7()),
        kind=JobKind.EXTRACT,
        scope=scope,
        payload=lease.job.payload,
        effect_key=session_key(scope),
    )
