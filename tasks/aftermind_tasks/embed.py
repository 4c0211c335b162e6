"""Vectors for episodes that have none: the busier it is, the larger each call of the model."""

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from aftermind import errors
from aftermind.events.types import MemoryEmbedded
from aftermind.llm.base import Embedder
from aftermind.ranking import spoken
from aftermind.stores.base import Vector
from aftermind.types import Episode, EpisodeId, JobId, Lease, Scope
from aftermind_tasks.outcomes import Done, Outcome
from aftermind_tasks.runtime import Runtime

CHARACTERS_PER_TOKEN = 3  # of the longest call; fewer than any text has on average


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Embed the episodes of all leases. No transaction is open while the model works; vectors are fenced per job."""
    if runtime.embedder is None:
        raise errors.InvalidSettings("embedder", "off", "jobs wait for vectors; set AFTERMIND_EMBEDDER again.")
    episodes = await _episodes(runtime, leases)
    flat = [episode for group in episodes.values() for episode in group]
    vectors: dict[EpisodeId, Vector] = {}
    for part in _parts(flat, runtime.embedder):
        rows = await runtime.embedder.embed([spoken(episode.name, episode.content) for episode in part])
        vectors |= {episode.id: row for episode, row in zip(part, rows, strict=True)}
    return await _write(runtime, leases, episodes, vectors)


async def _episodes(runtime: Runtime, leases: Sequence[Lease]) -> dict[JobId, list[Episode]]:
    found: dict[JobId, list[Episode]] = {}
    async with runtime.db.transaction(read_only=True) as tx:
        for owner, group in _by_owner(leases).items():
            ids = [id_ for lease in group for id_ in _ids(lease)]
            there = {episode.id: episode for episode in await runtime.store.episodes(tx, owner, ids)}
            found |= {lease.job.id: [there[id_] for id_ in _ids(lease) if id_ in there] for lease in group}
    return found


async def _write(
    runtime: Runtime,
    leases: Sequence[Lease],
    episodes: Mapping[JobId, Sequence[Episode]],
    vectors: Mapping[EpisodeId, Vector],
) -> Mapping[JobId, Outcome]:
    async with runtime.db.transaction() as tx:
        held = await runtime.ledger.finish_all(tx, leases)
        mine = [lease for lease in leases if lease.job.id in held]
        rows = {
            (lease.job.scope.owner, episode.id): vectors[episode.id]
            for lease in mine
            for episode in episodes[lease.job.id]
        }
        await runtime.store.set_vectors(tx, rows)
        events = await runtime.events.append(tx, [_event(runtime, lease, episodes) for lease in mine])
    await runtime.after_commit({lease.job.scope.owner for lease in mine}, events, {})
    return {job_id: Done() for job_id in held}


def _event(runtime: Runtime, lease: Lease, episodes: Mapping[JobId, Sequence[Episode]]) -> MemoryEmbedded:
    job = lease.job
    return MemoryEmbedded(
        id=f"{job.id}:embedded",
        scope=job.scope,
        at=runtime.clock.utc_now(),
        job_id=str(job.id),
        episode_count=len(episodes[job.id]),
    )


def _ids(lease: Lease) -> list[EpisodeId]:
    return [EpisodeId(UUID(text)) for text in lease.job.payload.get("episodes", [])]


def _by_owner(leases: Sequence[Lease]) -> dict[Scope, list[Lease]]:
    groups: dict[Scope, list[Lease]] = {}
    for lease in leases:
        groups.setdefault(lease.job.scope.owner, []).append(lease)
    return groups


def _parts(episodes: Sequence[Episode], embedder: Embedder) -> Iterator[list[Episode]]:
    """Calls of at most so many texts and tokens as the embedder takes."""
    part: list[Episode] = []
    size = 0
    for episode in episodes:
        tokens = len(episode.content) // CHARACTERS_PER_TOKEN + 1
        if part and (len(part) >= embedder.max_batch or size + tokens > embedder.max_batch_tokens):
            yield part
            part, size = [], 0
        part.append(episode)
        size += tokens
    if part:
        yield part
