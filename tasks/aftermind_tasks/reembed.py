"""Steps of a re-embedding: an embed job that makes vectors of the target for an owner's episodes, a batch at a time.

A step finds the owner's first episodes that lack a vector of its target, and puts in the next step with its own
effect. A worker that is killed loses one batch of calls: its lease ends, and another worker takes the step.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from aftermind.db.database_protocol import Transaction
from aftermind.ledger.reembed_jobs import AFTER, FIRST_POSITION, RATE, TARGET, new_step
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, JobId, Lease, NewJob
from aftermind_tasks.runtime import Runtime


def is_step(lease: Lease) -> bool:
    """Whether the job is a step of a re-embedding."""
    return TARGET in lease.job.payload


def target_embedder(lease: Lease) -> EmbedderIdentity:
    """The embedder whose vectors a step makes."""
    return EmbedderIdentity.from_key(str(lease.job.payload[TARGET]))


async def without_vector(
    runtime: Runtime, leases: Sequence[Lease], episodes: Mapping[JobId, Sequence[Episode]], embedder: EmbedderIdentity
) -> dict[JobId, list[Episode]]:
    """Those of the episodes that lack a vector of the embedder."""
    found: dict[JobId, list[Episode]] = {}
    async with runtime.db.transaction(namespace=leases[0].job.scope.namespace, read_only=True) as tx:
        for lease in leases:
            given = episodes.get(lease.job.id)
            if not given:
                continue
            owner = lease.job.scope.owner
            await tx.enter(owner.namespace)
            ids = [episode.id for episode in given]
            known: frozenset[EpisodeId] = await runtime.store.embedded(tx, owner, ids, embedder=embedder)
            found[lease.job.id] = [episode for episode in given if episode.id not in known]
    return found


async def list_step_episodes(
    runtime: Runtime, leases: Sequence[Lease], embedder: EmbedderIdentity
) -> dict[JobId, list[Episode]]:
    """The next batch of each step whose target the embedder is: all of them together are one batch."""
    steps = [lease for lease in leases if is_step(lease) and target_embedder(lease) == embedder]
    if not steps:
        return {}
    limit = _limit(runtime, steps)
    found: dict[JobId, list[Episode]] = {}
    async with runtime.db.transaction(namespace=steps[0].job.scope.namespace, read_only=True) as tx:
        for lease in steps:
            owner, after = lease.job.scope.owner, int(str(lease.job.payload.get(AFTER, FIRST_POSITION)))
            await tx.enter(owner.namespace)
            lacking = runtime.store.unembedded(tx, owner, embedder, after_position=after, limit=limit)
            found[lease.job.id] = await lacking
    return found


async def enqueue_next(
    runtime: Runtime, tx: Transaction, leases: Sequence[Lease], episodes: Mapping[JobId, Sequence[Episode]]
) -> list[JobId]:
    """Put in the step after each that had episodes, in the transaction that closes it; the new ids.

    It begins where this one ended. The last step finds nothing and has none after it.
    """
    jobs = [
        _next(runtime, lease, episodes[lease.job.id])
        for lease in leases
        if is_step(lease) and episodes.get(lease.job.id)
    ]
    return await runtime.ledger.enqueue(tx, jobs) if jobs else []


def _next(runtime: Runtime, lease: Lease, done: Sequence[Episode]) -> NewJob:
    rate = float(str(lease.job.payload.get(RATE) or 0))
    pause = timedelta(seconds=len(done) / rate) if rate else None
    return new_step(
        lease.job.scope.owner,
        target_embedder(lease),
        rate=rate,
        after=done[-1].position,
        delay=pause,
    )


def _limit(runtime: Runtime, steps: Sequence[Lease]) -> int:
    return max(1, runtime.settings.embed_batch_texts // len(steps))
