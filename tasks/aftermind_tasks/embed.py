"""The embed job: vectors for episodes without one; the longer the backlog, the larger each model call."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

import numpy as np

from aftermind import errors
from aftermind.events.types import MemoryEmbedded, MemoryEvent
from aftermind.indexes.sync_with_record_store import index_job
from aftermind.ledger.protocol import ModelUsage
from aftermind.llm import protocols, token_count
from aftermind.llm.protocols import Embedder
from aftermind.ranking import compares_sentences, models_of
from aftermind.ranking.passages import SpokenTexts, regroup
from aftermind.ranking.vectors import Matrix
from aftermind.stores.protocol import Vector
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, JobId, JobKind, Lease, NewJob, Scope
from aftermind.wire import queues
from aftermind_tasks import embedder_selection, extraction_call, job_runner, per_tenant_batches, reembed, retry_policy
from aftermind_tasks.job_outcome_types import Done, Outcome, Snooze
from aftermind_tasks.runtime import Runtime

MAX_TEXT_TOKENS = 8_192  # of one text: embedders cut longer ones, and none takes more
# Of one claim, as of a store batch: a second or two of a model. 256 texts of 1,000 characters.
CLAIM_CHARACTERS = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """Episodes by job that lack a vector of an embedder. `identity` None: the store has a single one for its life."""

    identity: EmbedderIdentity | None
    embedder: Embedder
    is_active: bool
    episodes: Mapping[JobId, Sequence[Episode]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """What the transaction of a tenant has committed."""

    held: frozenset[JobId]
    owners: set[Scope]
    events: Sequence[MemoryEvent]
    ring: Mapping[str, JobId]


async def split(runtime: Runtime, leases: Sequence[Lease]) -> dict[str, Sequence[Lease]]:
    """First the tenants with little text, then the rest: no small tenant waits for the calls of a large one."""
    episodes = await _episodes(runtime, [lease for lease in leases if not reembed.is_step(lease)])
    sizes = [
        (lease.job.scope.namespace, sum(len(each.content) for each in episodes.get(lease.job.id, ())))
        for lease in leases
    ]
    last = per_tenant_batches.largest_shares(sizes)
    parts = {
        "small": [lease for lease in leases if lease.job.scope.namespace not in last],
        "large": [lease for lease in leases if lease.job.scope.namespace in last],
    }
    return {name: part for name, part in parts.items() if part}


async def run(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
    """Embed the episodes of all leases. No transaction is open while the model works; vectors are fenced per job.

    During a re-embedding each episode gets a vector of either embedder, as far as this worker has them.
    """
    if runtime.embedder is None:
        raise errors.InvalidSettings("embedder", "off", "jobs wait for vectors; set AFTERMIND_EMBEDDER again.")
    leases, waiting = await _within_budget(runtime, leases)
    if not leases:
        return waiting
    served = await _served(runtime)
    leases, others = _sorted(leases, served)
    if not leases:
        return {**waiting, **others}
    episodes = await _episodes(runtime, [lease for lease in leases if not reembed.is_step(lease)])
    shares = await _shares(runtime, leases, served, episodes)
    vectors, failure = await _embed_all(runtime, shares, leases)
    if failure is not None and not vectors:
        raise failure
    done = await _write(runtime, leases, episodes, vectors, finish=failure is None)
    if failure is not None:
        raise failure
    now = runtime.clock.utc_now()
    for job_id in done:
        for moment in {episode.remembered_at for episode in episodes.get(job_id, ())}:
            runtime.observer.fresh("embedded", (now - moment).total_seconds())
    return {**waiting, **others, **done}


async def _served(runtime: Runtime) -> dict[EmbedderIdentity | None, Embedder | errors.AftermindError]:
    """The store's embedders: as this worker has them, or why it does not. Raises that if it has none of them."""
    assert runtime.embedder is not None
    known = await embedder_selection.stored(runtime, refresh=True)
    if known is None:
        return {None: runtime.embedder}
    found: dict[EmbedderIdentity | None, Embedder | errors.AftermindError] = {}
    for identity in filter(None, (known.active, known.standby)):
        try:
            found[identity] = await embedder_selection.find(runtime, identity, known)
        except (errors.EmbedderMismatch, errors.InvalidSettings) as exc:
            found[identity] = exc
    refusals = [each for each in found.values() if isinstance(each, errors.AftermindError)]
    if len(refusals) == len(found):
        raise refusals[0]
    return found


def _sorted(
    leases: Sequence[Lease], served: Mapping[EmbedderIdentity | None, Embedder | errors.AftermindError]
) -> tuple[Sequence[Lease], Mapping[JobId, Outcome]]:
    """Leases that this worker can serve; steps of a re-embedding by an embedder that it lacks wait for another one."""
    judged: dict[JobId, Outcome] = {}
    for lease in leases:
        refusal = served.get(reembed.target_embedder(lease)) if reembed.is_step(lease) else None
        if isinstance(refusal, errors.AftermindError):
            outcome = retry_policy.judge(refusal)
            judged[lease.job.id] = replace(outcome, is_own=True) if isinstance(outcome, Snooze) else outcome
    return [lease for lease in leases if lease.job.id not in judged], judged


async def _shares(
    runtime: Runtime,
    leases: Sequence[Lease],
    served: Mapping[EmbedderIdentity | None, Embedder | errors.AftermindError],
    episodes: Mapping[JobId, Sequence[Episode]],
) -> list[_Share]:
    shares = []
    for place, (identity, embedder) in enumerate(served.items()):
        if isinstance(embedder, errors.AftermindError):
            continue
        lacking: Mapping[JobId, Sequence[Episode]] = episodes
        if identity is not None and len(served) > 1:
            lacking = await reembed.without_vector(runtime, leases, episodes, identity)
        steps = {} if identity is None else await reembed.list_step_episodes(runtime, leases, identity)
        shares.append(_Share(identity=identity, embedder=embedder, is_active=place == 0, episodes={**lacking, **steps}))
    return shares


async def _embed_all(
    runtime: Runtime, shares: Sequence[_Share], leases: Sequence[Lease]
) -> tuple[list[tuple[_Share, Mapping[EpisodeId, Vector]]], errors.AftermindError | None]:
    """Each share with its vectors. One embedder that fails does not keep back the vectors of the other."""
    made: list[tuple[_Share, Mapping[EpisodeId, Vector]]] = []
    failure: errors.AftermindError | None = None
    for share in shares:
        try:
            made.append((share, await _embed(runtime, share, leases)))
        except errors.AftermindError as exc:
            failure = failure or exc
    return made, failure


async def _embed(runtime: Runtime, share: _Share, leases: Sequence[Lease]) -> dict[EpisodeId, Vector]:
    flat = [episode for group in share.episodes.values() for episode in group]
    sentences = runtime.settings.embed_sentences and compares_sentences(models_of(share.embedder.name))
    spoken = [SpokenTexts.of(each.name, each.content, sentences=sentences) for each in flat]
    made: list[Matrix] = []
    started, calls = time.monotonic(), 0
    for part in _parts([text for each in spoken for text in each.texts], share.embedder):
        with extraction_call.evidence_of_failures(flat, extraction_call.HISTORY):
            made.append(await protocols.embed(share.embedder, part))
        calls += 1
    rows = regroup(np.concatenate(made), spoken) if made else []
    vectors: dict[EpisodeId, Vector] = {episode.id: row for episode, row in zip(flat, rows, strict=True)}
    if calls:
        elapsed = (time.monotonic() - started) * 1_000
        paid = [lease for lease in leases if share.episodes.get(lease.job.id)]
        # In a thread: counting the tokens of long texts takes as long as their vectors.
        sent = {episode.id: each.texts for episode, each in zip(flat, spoken, strict=True)}
        texts = {job_id: [text for each in group for text in sent[each.id]] for job_id, group in share.episodes.items()}
        costs = await asyncio.to_thread(_costs, share.embedder, paid, texts, calls=calls, latency_ms=elapsed)
        await runtime.ledger.spend(costs)
        for _, spent in costs:
            runtime.observer.spent(JobKind.EMBED, spent)
    return vectors


async def _within_budget(runtime: Runtime, leases: Sequence[Lease]) -> tuple[Sequence[Lease], Mapping[JobId, Outcome]]:
    """Leases whose namespace may still spend; the others wait, and do not stop these."""
    spent_out: dict[str, errors.BudgetExhausted] = {}
    for scope in {lease.job.scope.namespace: lease.job.scope for lease in leases}.values():
        try:
            await extraction_call.check_budget(runtime, scope, tokens=False)
        except errors.BudgetExhausted as exc:
            spent_out[scope.namespace] = exc
    if not spent_out:
        return leases, {}
    mine = [lease for lease in leases if lease.job.scope.namespace not in spent_out]
    others = [lease for lease in leases if lease.job.scope.namespace in spent_out]
    judged = {each.job.id: retry_policy.judge(spent_out[each.job.scope.namespace]) for each in others}
    return mine, judged


def _costs(
    embedder: Embedder,
    leases: Sequence[Lease],
    texts: Mapping[JobId, Sequence[str]],
    *,
    calls: int,
    latency_ms: float,
) -> list[tuple[Lease, ModelUsage]]:
    """What the calls cost, by the tokens of each job; calls and their time are counted with the first."""
    price = embedder.usd_per_million_tokens or 0.0
    found: list[tuple[Lease, ModelUsage]] = []
    for lease in leases:
        size = sum(map(token_count.count, texts[lease.job.id]))
        cost = size * price / 1_000_000
        found.append((lease, ModelUsage(model=embedder.name, tokens_in=size, cost_usd=cost)))
    first, spent = found[0]
    return [(first, replace(spent, calls=calls, latency_ms=latency_ms)), *found[1:]]


async def _episodes(runtime: Runtime, leases: Sequence[Lease]) -> dict[JobId, list[Episode]]:
    found: dict[JobId, list[Episode]] = {}
    if not leases:
        return found
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
    vectors: Sequence[tuple[_Share, Mapping[EpisodeId, Vector]]],
    *,
    finish: bool,
) -> Mapping[JobId, Outcome]:
    """Vectors and closed jobs, each tenant in its own transaction, and what follows the commits together.

    Without `finish` the jobs stay open, for the vectors that are missing. Raises `SomeFailed` if those of some tenants
    could not be written.
    """
    events: list[MemoryEvent] = []
    ring: dict[str, JobId] = {}
    owners: set[Scope] = set()
    done: dict[JobId, Outcome] = {}
    failed: Exception | None = None

    async def add(results: Mapping[str, _Written | Exception]) -> None:
        nonlocal failed
        for written in results.values():
            if isinstance(written, Exception):
                failed = failed or written
                continue
            events.extend(written.events)
            ring.update(written.ring)
            owners.update(written.owners)
            done.update(dict.fromkeys(written.held, Done()))

    groups = _by_namespace(leases)
    works = {
        name: partial(_write_tenant, runtime, group, episodes, vectors, finish=finish) for name, group in groups.items()
    }
    if works:
        await per_tenant_batches.run_each(works, add)
    if owners:
        await runtime.after_commit(owners, events, ring)
    if failed is not None:
        raise job_runner.SomeFailed(done, failed)
    return done


async def _write_tenant(
    runtime: Runtime,
    leases: Sequence[Lease],
    episodes: Mapping[JobId, Sequence[Episode]],
    vectors: Sequence[tuple[_Share, Mapping[EpisodeId, Vector]]],
    *,
    finish: bool,
) -> _Written:
    ring: dict[str, JobId] = {}
    async with runtime.db.transaction(namespace=leases[0].job.scope.namespace) as tx:
        held = await (runtime.ledger.finish_all if finish else runtime.ledger.hold)(tx, leases)
        mine = [lease for lease in leases if lease.job.id in held]
        ended = mine if finish else []
        for share, made in vectors:
            rows = {
                (lease.job.scope.owner, episode.id): made[episode.id]
                for lease in mine
                for episode in share.episodes.get(lease.job.id, ())
            }
            await runtime.store.set_vectors(tx, rows, embedder=share.identity)
            if runtime.index is not None and share.is_active:
                new = await runtime.ledger.enqueue(tx, _index_jobs(rows))
                if new:
                    ring[queues.EMBED] = new[0]
            next_steps = await reembed.enqueue_next(runtime, tx, ended, share.episodes)
            if next_steps:
                ring[queues.EMBED] = next_steps[0]
        fresh = [lease for lease in ended if not reembed.is_step(lease)]
        events = await runtime.events.append(tx, [_event(runtime, lease, episodes) for lease in fresh])
    return _Written(
        held=frozenset(lease.job.id for lease in ended),
        owners={lease.job.scope.owner for lease in mine},
        events=events,
        ring=ring,
    )


def _index_jobs(rows: Iterable[tuple[Scope, EpisodeId]]) -> list[NewJob]:
    owners: dict[Scope, list[EpisodeId]] = {}
    for owner, id_ in rows:
        owners.setdefault(owner, []).append(id_)
    return [index_job(owner, ids) for owner, ids in owners.items()]


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


def _by_namespace(leases: Sequence[Lease]) -> dict[str, list[Lease]]:
    groups: dict[str, list[Lease]] = {}
    for lease in leases:
        groups.setdefault(lease.job.scope.namespace, []).append(lease)
    return groups


def _by_owner(leases: Sequence[Lease]) -> dict[Scope, list[Lease]]:
    groups: dict[Scope, list[Lease]] = {}
    for lease in leases:
        groups.setdefault(lease.job.scope.owner, []).append(lease)
    return groups


def _parts(texts: Sequence[str], embedder: Embedder) -> Iterator[list[str]]:
    """Calls with at most as many texts and tokens as the embedder accepts."""
    part: list[str] = []
    size = 0
    for text in texts:
        beginning = text[: MAX_TEXT_TOKENS * token_count.CHARACTERS]
        length = min(token_count.upper_bound(beginning), MAX_TEXT_TOKENS)
        if part and (len(part) >= embedder.max_batch or size + length > embedder.max_batch_tokens):
            yield part
            part, size = [], 0
        part.append(text)
        size += length
    if part:
        yield part
