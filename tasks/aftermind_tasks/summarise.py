"""A session's running summary: each model call merges the new messages into it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.llm.injection import screening
from aftermind.types import Episode, JobId, JobKind, Lease, Summary
from aftermind.types.blocks_summaries_profiles import latest_message_at
from aftermind.wire import queues
from aftermind_tasks import extraction_call, followup_jobs, job_events
from aftermind_tasks.job_outcome_types import Done, Outcome
from aftermind_tasks.runtime import Runtime

MAX_CHARACTERS = 8_000  # of a summary, whatever wrote it
MAX_EPISODES = 200  # episodes of one call; tokens are limited by `summary_max_tokens`


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryInput:
    """Input of a job: the current summary, the episodes since, and whether there are more.

    `is_outdated`: episodes arrived late, before the end of the summarised part, so the summary is rebuilt from the
    beginning.
    """

    before: Summary | None
    episodes: Sequence[Episode]
    is_more: bool
    is_outdated: bool


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Bring the summary of each lease's session up to date."""
    return {lease.job.id: await _summarise(runtime, lease) for lease in leases}


async def _summarise(runtime: Runtime, lease: Lease) -> Outcome:
    seen = await _read_input(runtime, lease)
    if not seen.episodes and lease.job.answer is None:
        async with runtime.db.transaction(namespace=lease.job.scope.namespace) as tx:
            await runtime.ledger.finish(tx, lease, note="no new messages")
        return Done()
    answer = lease.job.answer or await _ask(runtime, lease, seen)
    await _apply(runtime, lease, answer)
    return Done()


async def _read_input(runtime: Runtime, lease: Lease) -> SummaryInput:
    scope, store = lease.job.scope, runtime.store
    async with runtime.db.transaction(namespace=scope.namespace, read_only=True) as tx:
        before = await store.summary(tx, scope.owner, scope.session_id)
        is_outdated = False
        if before is not None:
            size = await store.session_size(tx, scope.owner, scope.session_id, up_to=before.covers_to)
            is_outdated = size != before.messages
        after = followup_jobs.BEFORE_ALL if before is None or is_outdated else before.covers_to
        found = await store.session_span(
            tx, scope.owner, scope.session_id, after_position=after, limit=MAX_EPISODES + 1
        )
    chosen = extraction_call.first(found[:MAX_EPISODES], tokens=runtime.settings.summary_max_tokens)
    return SummaryInput(before=before, episodes=chosen, is_more=len(found) > len(chosen), is_outdated=is_outdated)


async def _ask(
    runtime: Runtime, lease: Lease, seen: SummaryInput
) -> Mapping[str, Any]:  # Any: JSON that is kept with the job
    """The new summary, kept with the job: a retry neither asks nor pays again."""
    if runtime.summariser is None:
        raise errors.InvalidSettings("extractor", "off", "sessions wait for a summary; set AFTERMIND_EXTRACTOR again.")
    base = None if seen.is_outdated else seen.before
    turns = [
        extraction_call.to_turn_text(episode)
        for episode in extraction_call.visible_episodes(seen.episodes, extraction_call.SUMMARY)
    ]
    condensed = None
    if turns:
        await extraction_call.check_budget(runtime, lease.job.scope)
        with extraction_call.evidence_of_failures(seen.episodes, extraction_call.SUMMARY):
            condensed = await runtime.summariser.summarise(base.text if base else None, turns)
    if condensed is not None:
        text = await screening.without_instructions(condensed.text[:MAX_CHARACTERS])
    else:
        text = base.text if base else ""
    answer = extraction_call.build_answer(seen.episodes, extraction_call.SUMMARY) | {
        "text": text,
        "covers_to": seen.episodes[-1].position,
        "last_message_at": latest_message_at(base, (each.occurred_at for each in seen.episodes)).isoformat(),
        "messages": (base.messages if base else 0) + len(seen.episodes),
        "over": seen.before.version if seen.before else 0,
        "is_more": seen.is_more,
    }
    if condensed:
        await extraction_call.save_answer(runtime, lease, answer, condensed.usage)
    return answer


async def _apply(runtime: Runtime, lease: Lease, answer: Mapping[str, Any]) -> None:  # Any: as `_ask`
    """Summary, the next job and `done` in one transaction, fenced by the lease."""
    scope = lease.job.scope
    ring: dict[str, JobId] = {}
    async with runtime.db.transaction(namespace=scope.namespace) as tx:
        await runtime.store.tombstones(tx, [scope.owner])  # holds a forget off until the end
        is_sound = await _is_sound(runtime, tx, lease, answer)
        if is_sound:
            shown = extraction_call.episode_ids(answer, "shown")
            await extraction_call.record_batch(runtime, tx, lease, JobKind.SUMMARISE, runtime.summariser, shown)
        if is_sound and answer["text"]:
            await runtime.store.put_summary(tx, _summary(runtime, lease, answer), over=answer["over"])
        note = None if is_sound else "the source messages were forgotten during the call"
        await runtime.ledger.finish(tx, lease, note=note)
        if answer["is_more"] or not is_sound:
            await runtime.ledger.enqueue(tx, [followup_jobs.job(JobKind.SUMMARISE, scope)])
            ring[queues.QUEUE_OF[JobKind.SUMMARISE]] = lease.job.id
        events = await runtime.events.append(tx, [job_events.completed(runtime, lease.job)])
    await runtime.after_commit({scope.owner}, events, ring)


async def _is_sound(
    runtime: Runtime, tx: Transaction, lease: Lease, answer: Mapping[str, Any]
) -> bool:  # Any: as above
    """Whether everything that the answer draws on is still there."""
    scope, ids = lease.job.scope, extraction_call.episode_ids(answer)
    there = await runtime.store.episodes(tx, scope.owner, ids)
    before = await runtime.store.summary(tx, scope.owner, scope.session_id)
    return (
        len(there) == len(ids)
        and not extraction_call.is_void(answer, there)
        and (before.version if before else 0) == answer["over"]
    )


def _summary(runtime: Runtime, lease: Lease, answer: Mapping[str, Any]) -> Summary:  # Any: as above
    return Summary(
        scope=replace(lease.job.scope, agent_id=None),
        text=answer["text"],
        covers_to=answer["covers_to"],
        messages=answer["messages"],
        updated_at=runtime.clock.utc_now(),
        last_message_at=datetime.fromisoformat(answer["last_message_at"]) if "last_message_at" in answer else None,
        summariser=runtime.summariser.name if runtime.summariser else "unknown",
    )
