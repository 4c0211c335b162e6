"""After a forget or an undo: summaries and profiles that used the episodes are rebuilt from the remaining ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from aftermind.types import EpisodeId, JobId, JobKind, Lease
from aftermind.wire import queues
from aftermind_tasks import followup_jobs
from aftermind_tasks.job_outcome_types import Done, Outcome
from aftermind_tasks.runtime import Runtime


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Enqueue the jobs that rebuild them. The forget or undo itself has deleted the content, in its transaction."""
    return {lease.job.id: await _rebuild(runtime, lease) for lease in leases}


async def _rebuild(runtime: Runtime, lease: Lease) -> Outcome:
    owner, payload = lease.job.scope.owner, lease.job.payload
    evidence = [EpisodeId(UUID(text)) for text in payload.get("evidence", ())]
    sessions = [replace(owner, session_id=session) for session in payload.get("sessions", ())]
    async with runtime.db.transaction(namespace=owner.namespace) as tx:
        await runtime.ledger.finish(tx, lease)
        at_once = timedelta(0)
        if runtime.summariser is not None and sessions:
            jobs = [followup_jobs.job(JobKind.SUMMARISE, scope) for scope in sessions]
            await runtime.ledger.debounce(tx, jobs, quiet=at_once, at_most=at_once)
        if runtime.profiler is not None and evidence:
            await followup_jobs.profile(runtime, tx, owner, evidence, quiet=at_once)
    await runtime.after_commit(set(), [], {queues.QUEUE_OF[JobKind.SUMMARISE]: lease.job.id})
    return Done()
