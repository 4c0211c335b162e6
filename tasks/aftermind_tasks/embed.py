"""Vectors for episodes that have none: the busier it is, the larger each call of the model."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from aftermind import errors
from aftermind.events.types import MemoryEmbedded, MemoryEvent
from aftermind.ledger.base import Spent
from aftermind.llm import tokens
from aftermind.llm.base import Embedder
from aftermind.ranking import spoken
from aftermind.stores.base import Vector
from aftermind.types import Episode, EpisodeId, JobId, JobKind, Lease, Scope
from aftermind_tasks import mining, verdicts
from aftermind_tasks.outcomes import Done, Outcome
from aftermind_tasks.runtime import Runtime

MAX_TEXT_TOKENS = 8_192  # of one text: embedders cut longer ones, and none takes more


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Embed the episodes of all leases. No transaction is open while the model works; vectors are fenced per job."""
    if runtime.embedder is None:
        raise errors.InvalidSettings("embedder", "off", "jobs wait for vectors; set AFTERMIND_EMBEDDER again.")
    leases, waiting = await _within_budget(runtime, leases)
    if not leases:
        return waiting
    episodes = await _episodes(runtime, leases)
    flat = [episode for group in episodes.values() for episode in group]
    vectors: dict[EpisodeId, Vector] = {}
    started, calls = time.monotonic(), 0
    for part in _parts(flat, runtime.embedder):
        rows = await runtime.embedder.embed([spoken(episode.name, episode.content) for episode in part])
        vectors |= {episode.id: row for episode, row in zip(part, rows, strict=True)}
        calls += 1
    if calls:
        elapsed = (time.monotonic() - started) * 1_000
        costs = _costs(runtime.embedder, leases, episodes, calls=calls, latency_ms=elapsed)
        await runtime.ledger.spend(costs)
        for _, spent in costs:
            runtime.observer.spent(JobKind.EMBED, spent)
    done = await _write(runtime, leases, episodes, vectors)
    now = runtime.clock.utc_now()
    for job_id in done:
        for moment in {episode.remembered_at for episode in episodes[job_id]}:
            runtime.observer.fresh("embedded", (now - moment).total_seconds())
    return {**waiting, **done}


async def _within_budget(runtime: Runtime, leases: Sequence[Lease]) -> tuple[Sequence[Lease], Mapping[JobId, Outcome]]:
    """Leases whose namespace may still spend; the others wait, and do not stop these."""
    spent_out: dict[str, errors.BudgetExhausted] = {}
    for scope in {lease.job.scope.namespace: lease.job.scope for lease in leases}.values():
        try:
            await mining.check_budget(runtime, scope, tokens=False)
        except errors.BudgetExhausted as exc:
            spent_out[scope.namespace] = exc
    if not spent_out:
        return leases, {}
    mine = [lease for lease in leases if lease.job.scope.namespace not in spent_out]
    others = [lease for lease in leases if lease.job.scope.namespace in spent_out]
    judged = {each.job.id: verdicts.judge(spent_out[each.job.scope.namespace], attempts=1) for each in others}
    return mine, judged


def _costs(
    embedder: Embedder,
    leases: Sequence[Lease],
    episodes: Mapping[JobId, Sequence[Episode]],
    *,
    calls: int,
    latency_ms: float,
) -> list[tuple[Lease, Spent]]:
    """What the calls cost, by the tokens of each job; calls and their time are counted with the first."""
    price = embedder.usd_per_million_tokens or 0.0
    found: list[tuple[Lease, Spent]] = []
    for lease in leases:
        size = sum(tokens.count(episode.content) for episode in episodes[lease.job.id])
        cost = size * price / 1_000_000
        found.append((lease, Spent(model=embedder.name, tokens_in=size, cost_usd=cost)))
    first, spent = found[0]
    return [(first, replace(spent, calls=calls, latency_ms=latency_ms)), *found[1:]]


async def _episodes(runtime: Runtime, leases: Sequence[Lease]) -> dict[JobId, list[Episode]]:
    found: dict[JobId, list[Episode]] = {}
    async with runtime.db.transaction(namespace=leases[0].job.scope.namespace, read_only=True) as tx:
        for owner, group in _by_owner(leases).items():
            await tx.enter(owner.namespace)
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
    events: list[MemoryEvent] = []
    async with runtime.db.transaction(namespace=leases[0].job.scope.namespace) as tx:
        held = await runtime.ledger.finish_all(tx, leases)
        mine = [lease for lease in leases if lease.job.id in held]
        for namespace in sorted({lease.job.scope.namespace for lease in mine}):
            await tx.enter(namespace)
            group = [lease for lease in mine if lease.job.scope.namespace == namespace]
            rows = {
                (lease.job.scope.owner, episode.id): vectors[episode.id]
                for lease in group
                for episode in episodes[lease.job.id]
            }
            await runtime.store.set_vectors(tx, rows)
            events += await runtime.events.append(tx, [_event(runtime, lease, episodes) for lease in group])
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
        length = min(tokens.estimate(episode.content[: MAX_TEXT_TOKENS * tokens.CHARACTERS]), MAX_TEXT_TOKENS)
        if part and (len(part) >= embedder.max_batch or size + length > embedder.max_batch_tokens):
            yield part
            part, size = [], 0
        part.append(episode)
        size += length
    if part:
        yield part
