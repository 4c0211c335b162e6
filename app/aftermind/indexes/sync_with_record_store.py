"""Brings a vector index into agreement with the record store, which is the truth."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from aftermind.db.database_protocol import Database, Transaction
from aftermind.indexes.client import IndexClient
from aftermind.indexes.protocol import IndexEntry
from aftermind.stores.protocol import EpisodeFilter, Store
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, Job, JobId, JobKind, NewJob, Scope
from aftermind.types.uuid7 import uuid7

PAGE_EPISODES = 500
EPISODES = "episodes"  # of a job's payload: their ids; without it all of the owner's


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """An owner's entries after a comparison: how many there are, were missing, and were too many."""

    entries: int = 0
    added: int = 0
    removed: int = 0


def index_job(owner: Scope, ids: Sequence[EpisodeId] | None) -> NewJob:
    """The job that projects these episodes, or an owner's all: put in by the transaction that changes them."""
    job_id = JobId(uuid7())
    return NewJob(
        id=job_id,
        kind=JobKind.INDEX,
        scope=owner.owner,
        payload={} if ids is None else {EPISODES: [str(each) for each in ids]},
        effect_key=str(job_id),
        weight=1 if ids is None else max(1, len(ids)),
    )


def episode_ids(jobs: Iterable[Job]) -> list[EpisodeId] | None:
    """The episodes that jobs of one owner are about; None for all of the owner's."""
    found: dict[EpisodeId, None] = {}
    for job in jobs:
        if EPISODES not in job.payload:
            return None
        found |= {EpisodeId(UUID(text)): None for text in job.payload[EPISODES]}
    return list(found)


async def project(
    db: Database, store: Store, index: IndexClient, owner: Scope, ids: Sequence[EpisodeId], embedder: EmbedderIdentity
) -> None:
    """Write the entries of these episodes; delete those of episodes that do not exist.

    May run any number of times. Raises `Unavailable` and `IndexMismatch`.
    """
    async with db.transaction(namespace=owner.namespace, read_only=True) as tx:
        episodes = await store.episodes(tx, owner, ids)
        entries = await _read_entries(tx, store, owner, episodes)
        embedder = await _active(tx, store, embedder)
    await index.upsert(entries, embedder)
    # After the write: an erasure in between, whose own job may have run before it.
    async with db.transaction(namespace=owner.namespace, read_only=True) as tx:
        there = {each.id for each in await store.episodes(tx, owner, ids)}
    await index.delete(owner, [each for each in ids if each not in there], embedder)


async def compare(
    db: Database, store: Store, index: IndexClient, owner: Scope, embedder: EmbedderIdentity, *, rewrite: bool = False
) -> Compared:
    """Add an owner's missing entries and delete those without an episode; `rewrite` writes the others again, too."""
    async with db.transaction(namespace=owner.namespace, read_only=True) as tx:
        embedder = await _active(tx, store, embedder)
    known = await index.ids(owner, embedder)
    seen: set[EpisodeId] = set()
    older = EpisodeFilter()
    added = 0
    while True:
        async with db.transaction(namespace=owner.namespace, read_only=True) as tx:
            page = await store.history(tx, owner, older, limit=PAGE_EPISODES)
            lacking = [each for each in page if rewrite or each.id not in known]
            entries = await _read_entries(tx, store, owner, lacking)
        if not page:
            break
        await index.upsert(entries, embedder)
        seen |= {each.id for each in page}
        added += sum(each.id not in known for each in entries)
        older = EpisodeFilter(before_position=page[0].position, before_id=page[0].id)
    stray = known - seen
    if stray:  # also episodes that were stored while the pages were read
        async with db.transaction(namespace=owner.namespace, read_only=True) as tx:
            stray -= {each.id for each in await store.episodes(tx, owner, list(stray))}
    await index.delete(owner, list(stray), embedder)
    return Compared(entries=await index.count(owner, embedder), added=added, removed=len(stray))


async def _read_entries(tx: Transaction, store: Store, owner: Scope, episodes: Sequence[Episode]) -> list[IndexEntry]:
    if not episodes:
        return []
    vectors = await store.vectors(tx, owner, [each.id for each in episodes])
    return [IndexEntry.of(each, vectors[each.id]) for each in episodes if each.id in vectors]


async def _active(tx: Transaction, store: Store, configured: EmbedderIdentity) -> EmbedderIdentity:
    """The embedder of the stored vectors."""
    known = await store.stored_embedders(tx)
    return configured if known is None else known.active
