"""`IndexClient`: a vector index behind threads, with a time limit for recalls and a pause after a failure."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TypeVar

from aftermind import errors
from aftermind.indexes.protocol import IndexEntry, IndexQuery, VectorIndex, owner_key
from aftermind.stores.protocol import EpisodeFilter, Vector
from aftermind.telemetry.logger import get_logger
from aftermind.types import EmbedderIdentity, EpisodeId, Scope

log = get_logger(__name__)

T = TypeVar("T")
THREADS = 4  # that call a server
PAUSE_SECONDS = 5.0  # after a failure, in which no call is made
REASON_CHARACTERS = 200


class IndexClient:
    """An index for any event loop and thread. Nothing connects before the first call; a forked process opens it again.

    `make` returns the index, unopened. `budget_seconds` is the longest that a recall waits.
    """

    def __init__(self, make: Callable[[], VectorIndex], *, budget_seconds: float) -> None:
        self._make, self._budget = make, budget_seconds
        self._reset()
        self.name = self._index.name

    def _reset(self) -> None:
        self._index = self._make()
        self._pid = os.getpid()
        self._opened_for: EmbedderIdentity | None = None
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._paused_until, self._failure = 0.0, ""
        self._is_checked = False

    async def search(
        self, owner: Scope, vector: Vector, embedder: EmbedderIdentity, wanted: EpisodeFilter, *, text: str, k: int
    ) -> tuple[Sequence[EpisodeId] | None, str | None]:
        """Candidates for a recall; or None, and why there are none. Never raises, never longer than the budget."""
        query = IndexQuery.of(owner, vector, wanted, text=text, k=k)
        try:
            async with asyncio.timeout(self._budget):
                return await self._call(embedder, lambda index: index.search(query)), None
        except TimeoutError:
            self._pause(f"no answer within {self._budget:g} s")
            return None, f"the index {self.name} was not searched: {self._failure}"
        except errors.AftermindError as exc:
            return None, str(exc)

    async def check(self, identify: Callable[[], Awaitable[EmbedderIdentity]], *, seconds: float) -> None:
        """Open the index once. Raises `IndexMismatch` and `InvalidSettings`; one that does not answer is no error."""
        if self._pid == os.getpid() and (self._is_checked or monotonic() < self._paused_until):
            return
        try:
            async with asyncio.timeout(seconds):
                await self._call(await identify(), lambda index: None)
            self._is_checked = True
        except TimeoutError:
            self._pause(f"no answer within {seconds:g} s")
        except errors.Unavailable as exc:
            log.warning("the vector index is not checked", extra={"error": str(exc)})

    async def upsert(self, entries: Sequence[IndexEntry], embedder: EmbedderIdentity) -> None:
        """Write entries. Raises `IndexUnavailable`, `IndexMismatch`."""
        if entries:
            await self._call(embedder, lambda index: index.upsert(entries))

    async def delete(self, owner: Scope, ids: Sequence[EpisodeId] | None, embedder: EmbedderIdentity) -> None:
        """Delete entries of an owner; without `ids` all of them. Raises as `upsert`."""
        if ids is None or ids:
            await self._call(embedder, lambda index: index.delete(owner_key(owner), ids))

    async def ids(self, owner: Scope, embedder: EmbedderIdentity) -> frozenset[EpisodeId]:
        """The ids of an owner's entries. Raises as `upsert`."""
        return await self._call(embedder, lambda index: frozenset(index.ids(owner_key(owner))))

    async def count(self, owner: Scope | None, embedder: EmbedderIdentity) -> int:
        """The number of entries, of all owners or of one. Raises as `upsert`."""
        return await self._call(embedder, lambda index: index.count(None if owner is None else owner_key(owner)))

    async def recreate(self, embedder: EmbedderIdentity) -> None:
        """Delete the collection and create it for this embedder. Raises as `upsert`."""

        def work(index: VectorIndex) -> None:
            index.open(embedder, recreate=True)

        self._opened_for = None
        await self._call(None, work)
        self._paused_until = 0.0

    async def close(self) -> None:
        """Close the index; the next call opens it again."""
        if self._pid == os.getpid() and self._threads is not None:
            threads, self._threads, self._opened_for, self._is_checked = self._threads, None, None, False
            await asyncio.get_running_loop().run_in_executor(threads, self._index.close)
            threads.shutdown(wait=False)

    async def _call(self, embedder: EmbedderIdentity | None, work: Callable[[VectorIndex], T]) -> T:
        if self._pid != os.getpid():  # connections and locks belong to the parent
            self._reset()
        if monotonic() < self._paused_until:
            raise errors.IndexUnavailable(self.name, self._failure)
        with self._lock:
            if self._threads is None:
                count = 1 if self._index.is_local else THREADS
                self._threads = ThreadPoolExecutor(count, thread_name_prefix="aftermind-index")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._work, embedder, work)
        except errors.IndexUnavailable as exc:
            self._pause(exc.why)
            raise

    def _work(self, embedder: EmbedderIdentity | None, work: Callable[[VectorIndex], T]) -> T:
        try:
            if embedder is not None and self._opened_for != embedder:
                with self._lock:
                    if self._opened_for != embedder:
                        self._index.open(embedder)
                        self._opened_for = embedder
            return work(self._index)
        except errors.AftermindError:
            raise
        except Exception as exc:  # of the index's own library: whatever it is, the index did not answer
            why = " ".join(str(exc).split())[:REASON_CHARACTERS]
            raise errors.IndexUnavailable(self.name, f"{type(exc).__name__}: {why}") from exc

    def _pause(self, why: str) -> None:
        self._paused_until, self._failure = monotonic() + PAUSE_SECONDS, why
