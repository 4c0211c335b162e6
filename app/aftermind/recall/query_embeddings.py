"""A question's vector: from the process, from Redis, from the embedder; never waited for beyond its budget."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermind import errors
from aftermind.llm import rate_limit_and_circuit_breaker
from aftermind.llm.protocols import Embedder, Prepares, embed, embedder_identity
from aftermind.telemetry.logger import get_logger
from aftermind.types import EmbedderIdentity
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys

log = get_logger(__name__)

Vector = NDArray[np.float32]

MAX_CACHED = 1_024  # vectors in the process: 1.5 MB at 384 dimensions
FAILURES = 3  # in a row, after which recalls stop waiting for the provider …
PAUSE_SECONDS = 10.0  # duration of the pause; calls continue in the background, and the first success ends it
# a program that hands over one turn and exits has ended by then, and need not load anything
PREPARE_AFTER_SECONDS = 0.5


class QueryVectors:
    """Vectors of queries. One call for the same text at a time, for all callers; `redis` None caches them only here."""

    def __init__(
        self,
        embedder: Embedder | None,
        *,
        budget_seconds: float = 0.3,
        redis: RedisLink | None = None,
        keys: Keys | None = None,
        keep_seconds: float = 3_600,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._embedder, self._budget, self._clock = embedder, budget_seconds, clock
        self._redis = redis if keep_seconds > 0 and keys is not None else None
        self._keys, self._keep_ms = keys or Keys(), int(keep_seconds * 1000)
        self._known: OrderedDict[str, Vector] = OrderedDict()
        self._running: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[Vector]] = {}
        self._preparing: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self._failed, self._paused_until = 0, -1.0
        self._identity: EmbedderIdentity | None = None
        self._is_loaded = self._has_failed = False

    @property
    def embedder(self) -> EmbedderIdentity | None:
        """Which embedder makes its vectors; None without one. Ask after a vector: a local model is loaded by then."""
        if self._identity is None and self._embedder is not None:
            self._identity = embedder_identity(self._embedder)
        return self._identity

    def prepare(self) -> None:
        """Have the embedder load what its first call would wait for, if it has anything, in the background."""
        loop = asyncio.get_running_loop()
        if isinstance(self._embedder, Prepares) and loop not in self._preparing:
            task = loop.create_task(self._prepare(self._embedder), name="aftermind embedder")
            self._preparing[loop] = task
            task.add_done_callback(lambda done: self._preparing.pop(loop, None))

    def get_cached(self, text: str) -> Vector | None:
        """The vector, if this process has it."""
        known = self._known.get(text)
        if known is not None:
            self._known.move_to_end(text)
        return known

    async def vector(self, text: str) -> tuple[Vector | None, str | None]:
        """The vector, or None and why there is none. Takes at most the budget, in the time of the running loop."""
        if self._embedder is None:
            return None, None
        known = self.get_cached(text)
        if known is not None:
            return known, None
        if self._embedder.inline:
            try:
                return self._cache(text, await _embed(self._embedder, text)), None
            except errors.AftermindError as exc:
                return None, f"no vector for the question: {exc}"
        task = self._task(text)
        if self._clock() < self._paused_until and not task.done():
            return None, self._loading() or f"{self._embedder.name} does not answer: only a lexical search was made"
        try:
            async with asyncio.timeout(self._budget):
                return await asyncio.shield(task), None
        except TimeoutError:
            self._count_failure()
            return None, self._loading() or (
                f"{self._embedder.name} took more than {self._budget:g} s: only a lexical search was made"
            )
        except errors.AftermindError as exc:
            return None, f"no vector for the question: {exc}"

    def _loading(self) -> str | None:
        """The reason of a missing vector, until the embedder is loaded."""
        if self._embedder is None or self._is_loaded or self._has_failed:
            return None
        return f"{self._embedder.name} is being loaded: only a lexical search was made"

    async def close(self) -> None:
        """Stop calls without a waiting caller. A loading embedder is awaited."""
        here = asyncio.get_running_loop()
        tasks: list[asyncio.Task[Any]] = [task for (loop, _), task in self._running.items() if loop is here]
        if (preparing := self._preparing.get(here)) is not None:
            tasks.append(preparing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _prepare(self, embedder: Prepares) -> None:
        await asyncio.sleep(PREPARE_AFTER_SECONDS)
        try:
            loading = asyncio.ensure_future(embedder.prepare())
            await asyncio.shield(loading)
        except asyncio.CancelledError:
            await asyncio.gather(loading, return_exceptions=True)  # it is in a thread, which cannot be stopped
            raise
        except Exception as exc:  # it may be the caller's code; its first call reports the error
            log.debug("embedder not prepared", extra={"error_class": type(exc).__name__})

    def _task(self, text: str) -> asyncio.Task[Vector]:
        """The call for this text; it outlives a caller that gives up, so that the next one finds its answer."""
        loop = asyncio.get_running_loop()
        task = self._running.get((loop, text))
        if task is None:
            task = loop.create_task(self._fetch(text), name="aftermind question vector")
            self._running[loop, text] = task
            task.add_done_callback(lambda done: self._finished(loop, text, done))
        return task

    def _finished(self, loop: asyncio.AbstractEventLoop, text: str, task: asyncio.Task[Vector]) -> None:
        self._running.pop((loop, text), None)
        if task.cancelled():
            return
        if task.exception() is not None:
            self._has_failed = True  # it is not being loaded
            self._count_failure()
        else:
            self._failed, self._paused_until = 0, -1.0

    def _count_failure(self) -> None:
        self._failed += 1
        if self._failed >= FAILURES:
            self._paused_until = self._clock() + PAUSE_SECONDS

    async def _fetch(self, text: str) -> Vector:
        embedder = self._embedder
        assert embedder is not None
        # In a thread: a model of this machine is loaded for its identity.
        identity = self._identity
        if identity is None:
            identity = self._identity = await asyncio.to_thread(embedder_identity, embedder)
        asked = f"{identity.key}\n{text}".encode()
        key = self._keys.question(embedder.name, hashlib.blake2b(asked, digest_size=16).hexdigest())
        stored = await self._stored(key)
        if stored is not None and len(stored) == identity.dimension:
            return self._cache(text, stored)
        if not self._is_loaded:
            await self._load(embedder)
        with rate_limit_and_circuit_breaker.early():
            vector = self._cache(text, await _embed(embedder, text))
        await self._store(key, vector)
        return vector

    async def _load(self, embedder: Embedder) -> None:
        """Load what the first call would; a slow import is no failure of the provider."""
        if isinstance(embedder, Prepares):
            with suppress(Exception):  # it may be the caller's code; the call reports the error
                await embedder.prepare()
        self._is_loaded, self._failed, self._paused_until = True, 0, -1.0

    async def _stored(self, key: str) -> Vector | None:
        if self._redis is None:
            return None
        try:
            data = await self._redis.call("GET", key)
        except errors.RedisUnavailable:
            return None
        return None if not isinstance(data, bytes) else np.frombuffer(data, dtype="<f4").astype(np.float32)

    async def _store(self, key: str, vector: Vector) -> None:
        if self._redis is None:
            return
        try:
            await self._redis.call("SET", key, vector.astype("<f4").tobytes(), "PX", str(self._keep_ms))
        except errors.RedisUnavailable as exc:
            log.debug("question vector not kept", extra={"reason": exc.why})

    def _cache(self, text: str, vector: Vector) -> Vector:
        self._known[text] = vector
        while len(self._known) > MAX_CACHED:
            self._known.popitem(last=False)
        return vector


async def _embed(embedder: Embedder, text: str) -> Vector:
    vector: Vector = (await embed(embedder, [text], queries=True))[0]
    return vector
