"""The index job: an external vector index takes over the changes of the record store."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from aftermind import errors
from aftermind.indexes.sync_with_record_store import compare, episode_ids, project
from aftermind.types import JobId, Lease, Scope
from aftermind_tasks import embedder_selection, retry_policy
from aftermind_tasks.job_outcome_types import Done, Outcome, Snooze
from aftermind_tasks.runtime import Runtime

CLAIM_ENTRIES = 1_000  # of one claim; a large turn alone has as many
RETRY_AFTER = timedelta(seconds=10)  # of an index that does not answer; its jobs wait for as long as that takes


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Project the episodes of the jobs, owner by owner. An index that is away uses no attempt and pauses no other job.

    No transaction is open while the index works, and repeating the work changes nothing.
    """
    outcomes: dict[JobId, Outcome] = {}
    done: list[Lease] = []
    for owner in dict.fromkeys(lease.job.scope.owner for lease in leases):
        group = [lease for lease in leases if lease.job.scope.owner == owner]
        try:
            await _project(runtime, owner, group)
            done += group
        except (errors.Unavailable, errors.IndexMismatch, errors.InvalidSettings) as exc:
            outcome = retry_policy.judge(exc)
            if isinstance(outcome, Snooze):
                outcome = replace(outcome, after=max(outcome.after, RETRY_AFTER), is_own=True)
            outcomes |= {lease.job.id: outcome for lease in group}
    for namespace in sorted({lease.job.scope.namespace for lease in done}):
        mine = [lease for lease in done if lease.job.scope.namespace == namespace]
        async with runtime.db.transaction(namespace=namespace) as tx:
            held = await runtime.ledger.finish_all(tx, mine)
        outcomes |= {job_id: Done() for job_id in held}
    return outcomes


async def _project(runtime: Runtime, owner: Scope, leases: Sequence[Lease]) -> None:
    if runtime.index is None:
        why = "jobs wait for the vector index; set it for workers as it is set for agents."
        raise errors.InvalidSettings("AFTERMIND_INDEX_URL", None, why)
    embedder = await embedder_selection.configured(runtime)
    if embedder is None:
        raise errors.InvalidSettings("embedder", "off", "the vector index has vectors; set AFTERMIND_EMBEDDER again.")
    ids = episode_ids(lease.job for lease in leases)
    if ids is None:
        await compare(runtime.db, runtime.store, runtime.index, owner, embedder)
    else:
        await project(runtime.db, runtime.store, runtime.index, owner, ids, embedder)
