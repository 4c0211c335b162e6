"""A session's running summary: what was said since takes its place in it, one model call at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aftermind import errors
from aftermind.db.base import Transaction
from aftermind.types import Episode, JobId, JobKind, Lease, Summary
from aftermind.wire import queues
from aftermind_tasks import announcing, following, mining
from aftermind_tasks.outcomes import Done, Outcome
from aftermind_tasks.runtime import Runtime

MAX_CHARACTERS = 8_000  # of a summary, whatever wrote it
MOST = 200  # episodes of one call; tokens are limited by `summary_max_tokens`


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a job has before it: the summary so far, the episodes since, and whether there are more of them.

    `anew`: episodes came in late, behind the place up to which the summary goes, so it is made from the beginning.
    """

    before: Summary | None
    episodes: Sequence[Episode]
    is_more: bool
    anew: bool


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Bring the summary of each lease's session up to date."""
    return {lease.job.id: await _summarise(runtime, lease) for lease in leases}


async def _summarise(runtime: Runtime, lease: Lease) -> Outcome:
    seen = await _look(runtime, lease)
    if not seen.episodes and lease.job.answer is None:
        async with runtime.db.transaction(namespace=lease.job.scope.namespace) as tx:
            await runtime.ledger.finish(tx, lease, note="nothing was said since")
        return Done()
    answer = lease.job.answer or await _ask(runtime, lease, seen)
    await _apply(runtime, lease, answer)
    return Done()


async def _look(runtime: Runtime, lease: Lease) -> Seen:
    scope, store = lease.job.scope, runtime.store
    async with runtime.db.transaction(namespace=scope.namespace, read_only=True) as tx:
        before = await store.summary(tx, scope.owner, scope.session_id)
        anew = False
        if before is not None:
            size = await store.session_size(tx, scope.owner, scope.session_id, up_to=before.covers_to)
            anew = size != before.turns
        after = following.BEFORE_ALL if before is None or anew else before.covers_to
        found = await store.session_span(tx, scope.owner, scope.session_id, after_position=after, limit=MOST + 1)
    chosen = mining.first(found[:MOST], tokens=runtime.settings.summary_max_tokens)
    return Seen(before=before, episodes=chosen, is_more=len(found) > len(chosen), anew=anew)


async def _ask(runtime: Runtime, lease: Lease, seen: Seen) -> Mapping[str, Any]:  # Any: JSON that is kept with the job
    """The new summary, kept with the job: a retry neither asks nor pays again."""
    if runtime.summariser is None:
        raise errors.InvalidSettings("extractor", "off", "sessions wait for a summary; set AFTERMIND_EXTRACTOR again.")
    base = None if seen.anew else seen.before
    turns = [mining.text_of(episode) for episode in mining.shown(seen.episodes, mining.SUMMARY)]
    condensed = None
    if turns:
        await mining.check_budget(runtime, lease.job.scope)
        condensed = await runtime.summariser.summarise(base.text if base else None, turns)
    text = mining.without_instructions(condensed.text[:MAX_CHARACTERS]) if condensed else base.text if base else ""
    answer = mining.kept_answer(seen.episodes, mining.SUMMARY) | {
        "text": text,
        "covers_to": seen.episodes[-1].position,
        "turns": (base.turns if base else 0) + len(seen.episodes),
        "over": seen.before.version if seen.before else 0,
        "is_more": seen.is_more,
    }
    if condensed:
        await mining.keep(runtime, lease, answer, condensed.usage)
    return answer


async def _apply(runtime: Runtime, lease: Lease, answer: Mapping[str, Any]) -> None:  # Any: as `_ask`
    """Summary, the next job and `done` in one transaction, fenced by the lease."""
    scope = lease.job.scope
    ring: dict[str, JobId] = {}
    async with runtime.db.transaction(namespace=scope.namespace) as tx:
        await runtime.store.tombstones(tx, [scope.owner])  # holds a forget off until the end
        is_sound = await _is_sound(runtime, tx, lease, answer)
        if is_sound:
            shown = mining.ids_of(answer, "shown")
            await mining.note_shown(runtime, tx, lease, JobKind.SUMMARISE, runtime.summariser, shown)
        if is_sound and answer["text"]:
            await runtime.store.put_summary(tx, _summary(runtime, lease, answer), over=answer["over"])
        note = None if is_sound else "what it drew on was forgotten meanwhile"
        await runtime.ledger.finish(tx, lease, note=note)
        if answer["is_more"] or not is_sound:
            await runtime.ledger.enqueue(tx, [following.job(JobKind.SUMMARISE, scope)])
            ring[queues.QUEUE_OF[JobKind.SUMMARISE]] = lease.job.id
        events = await runtime.events.append(tx, [announcing.completed(runtime, lease.job)])
    await runtime.after_commit({scope.owner}, events, ring)


async def _is_sound(
    runtime: Runtime, tx: Transaction, lease: Lease, answer: Mapping[str, Any]
) -> bool:  # Any: as above
    """Whether everything that the answer draws on is still there."""
    scope, ids = lease.job.scope, mining.ids_of(answer)
    there = await runtime.store.episodes(tx, scope.owner, ids)
    before = await runtime.store.summary(tx, scope.owner, scope.session_id)
    return (
        len(there) == len(ids)
        and not mining.is_void(answer, there)
        and (before.version if before else 0) == answer["over"]
    )


def _summary(runtime: Runtime, lease: Lease, answer: Mapping[str, Any]) -> Summary:  # Any: as above
    return Summary(
        scope=replace(lease.job.scope, agent_id=None),
        text=answer["text"],
        covers_to=answer["covers_to"],
        turns=answer["turns"],
        updated_at=runtime.clock.utc_now(),
        summariser=runtime.summariser.name if runtime.summariser else "unknown",
    )
