"""The vectors of a store of one process as `api.reembed` changes them: a second table, by owner."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from aftermind import errors
from aftermind.api.reembed import Searches
from aftermind.db.inmemory_database import MemoryDatabase, MemoryTransaction
from aftermind.ledger.inmemory.ledger import InMemoryLedger, jobs_table
from aftermind.ledger.reembed_jobs import TARGET
from aftermind.ranking.tokenizer import LanguageFor
from aftermind.stores.inmemory import InMemoryStore
from aftermind.stores.inmemory import vector_tables_by_embedder as tables
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, Job, JobKind, JobState, NewJob, Scope
from aftermind.types.reembedding import Reembedding, ReembeddingCounts, ReembeddingSteps
from aftermind.types.scope import owner_from_columns

T = TypeVar("T")
ENQUEUED_AT_ONCE = 100  # jobs a transaction: turns wait for it
WAITING = (JobState.QUEUED, JobState.RETRYING)


class InProcessVectors:
    """See `StoredVectors`. `identify` returns the configured embedder, which made the vectors of a store that records
    none. `wake` begins jobs. Each owner is read in a separate transaction: turns come in between.
    """

    def __init__(
        self,
        db: MemoryDatabase,
        store: InMemoryStore,
        ledger: InMemoryLedger,
        *,
        language_for: LanguageFor,
        identify: Callable[[], Awaitable[EmbedderIdentity]],
        wake: Callable[[], None],
    ) -> None:
        self._db, self._store, self._ledger, self._language_for = db, store, ledger, language_for
        self._identify, self._wake, self._lock = identify, wake, threading.Lock()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        if not self._lock.acquire(blocking=False):
            raise errors.ReembeddingConflict(
                "another call changes the vectors of this store", "Repeat it when that has ended."
            )
        try:
            yield
        finally:
            self._lock.release()

    async def read(self) -> Reembedding:
        async with self._db.transaction(read_only=True) as tx:
            known = tables.read_embedders(tx)
        if known is not None:
            return known
        configured = await self._identify()
        async with self._db.transaction() as tx:
            return Reembedding(stored=await self._store.adopt_embedder(tx, configured))

    async def count(self) -> ReembeddingCounts:
        async def count(tx: MemoryTransaction, owner: Scope) -> tuple[int, int, int, int]:
            rows = await tx.owned("episodes", owner)
            active, standby = tables.vector_table(tx) or tables.VECTOR_TABLES[0], tables.standby_table(tx)
            sizes = len(await tx.owned(active, owner)), len(await tx.owned(standby, owner))
            return len(rows), *sizes, sum(len(each.content) for each in rows.values())

        sums = [sum(column) for column in zip(*await self._of_each_owner(count), strict=True)] or [0] * 4
        return ReembeddingCounts(episodes=sums[0], active=sums[1], standby=sums[2], characters=sums[3])

    async def steps(self, target: EmbedderIdentity) -> ReembeddingSteps:
        async with self._db.transaction(read_only=True) as tx:
            jobs = [record.job for record in jobs_table(tx).values() if record.job.kind is JobKind.EMBED]
        mine = [job for job in jobs if job.payload.get(TARGET) == target.key]
        reasons = (job.note or job.error for job in mine if job.state in (*WAITING, JobState.DEAD))
        return ReembeddingSteps(
            waiting=_count(mine, WAITING),
            running=_count(mine, (JobState.RUNNING,)),
            dead=_count(mine, (JobState.DEAD,)),
            why=max(filter(None, reasons), default=None),
        )

    async def lacking(self, embedder: EmbedderIdentity) -> Sequence[Scope]:
        async def lacks(tx: MemoryTransaction, owner: Scope) -> Scope | None:
            table = tables.vector_table(tx, embedder)
            held = (await tx.owned(table, owner)).keys() if table is not None else ()
            return owner if (await tx.owned("episodes", owner)).keys() - held else None

        return [owner for owner in await self._of_each_owner(lacks) if owner is not None]

    async def sample(
        self, *, limit: int, namespace: str | None, user_id: str | None
    ) -> Sequence[tuple[Scope, EpisodeId]]:
        found: list[tuple[Scope, EpisodeId]] = []

        async def draw(tx: MemoryTransaction, owner: Scope) -> None:
            if len(found) < limit and namespace in (None, owner.namespace) and user_id in (None, owner.user_id):
                newest = _newest_of_user((await tx.owned("episodes", owner)).values())
                found.extend((owner, each.id) for each in newest[: limit if user_id is not None else 1])

        await self._of_each_owner(draw)
        return found[:limit]

    async def begin(self, target: EmbedderIdentity) -> None:
        await self._clear_standby()  # rows that an interrupted `drop_standby` has left
        async with self._db.transaction() as tx:
            tables.begin(tx, target)

    async def index_standby(self) -> None:
        """Nothing: search compares every vector."""

    async def exchange(self) -> None:
        async with self._db.transaction() as tx:
            tables.exchange(tx)

    async def drop_standby(self) -> None:
        async with self._db.transaction() as tx:
            tables.forget_standby(tx)
        await self._clear_standby()

    async def enqueue(self, jobs: Sequence[NewJob]) -> None:
        for first in range(0, len(jobs), ENQUEUED_AT_ONCE):
            async with self._db.transaction() as tx:
                await self._ledger.enqueue(tx, jobs[first : first + ENQUEUED_AT_ONCE])
        self._wake()

    @asynccontextmanager
    async def open_searches(self) -> AsyncIterator[Searches]:
        standby = InMemoryStore(language_for=self._language_for, standby=True)
        yield Searches(database=self._db, store=self._store, active=self._store, standby=standby)

    async def _clear_standby(self) -> None:
        async def clear(tx: MemoryTransaction, owner: Scope) -> None:
            tx.clear(await tx.owned(tables.standby_table(tx), owner))

        await self._of_each_owner(clear)

    async def _of_each_owner(self, work: Callable[[MemoryTransaction, Scope], Awaitable[T]]) -> list[T]:
        """What `work` returns of each owner."""
        await self._db.open()
        found = []
        for namespace, user in sorted(self._db.owners):
            async with self._db.transaction(namespace=namespace) as tx:
                found.append(await work(tx, owner_from_columns(namespace, user)))
        return found


def _count(jobs: Iterable[Job], states: Sequence[JobState]) -> int:
    return sum(job.state in states for job in jobs)


def _newest_of_user(episodes: Iterable[Episode]) -> list[Episode]:
    said = [each for each in episodes if each.role == "user"]
    return sorted(said, key=lambda each: (each.position, each.id), reverse=True)
