"""How long a recall takes, by users and episodes, beside the bare vector search of pgvector for the same user.

Each size has a database of its own, loaded by COPY; recalls go through `Memory`, with Redis and a streaming replica.
The questions' vectors are made before: what an embedder takes is its own.
"""

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from asyncio.events import Handle
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import numpy as np

from aftermind import Memory
from aftermind.cli.worker import worker_argv
from aftermind.db.engine import PostgresDatabase
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.ranking.vectors import Matrix
from aftermind.settings import Settings
from aftermind.stack import Endpoints, Stack
from aftermind.stores.postgres.search_indexed import NARROWEST, WIDEST
from aftermind.types import Episode
from aftermind.wire.queues import STORE
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_epoch import ensure_epoch
from aftermind.wire.redis_keys import Keys
from benchmarks.common import Report, arguments, percentile, redis_facts
from benchmarks.synthetic import DIMENSION, Size, Talk, connect, fill
from tests.support.waiting import NeverHappened, wait_until

SIZES = (
    Size(users=1_000, episodes=100),
    Size(users=1, episodes=1_000),
    Size(users=1, episodes=10_000),
    Size(users=1, episodes=100_000),
)
QUICK = ("1000x100", "1x10000")
BOUNDS = {"1000x100": 4.0, "1x10000": 12.0, "1x100000": 30.0}  # p50, ms
BUFFERS = "512MB"  # holds the largest database; with less, recall is as fast as the page cache
TURNS = 20_000  # that wait for the workers of `under_ingest`: more than they store meanwhile
SPINS = 100_000  # some 2 ms of computing: about what a recall computes itself
Question = tuple[str, str]  # user, text


def main() -> int:
    """Measure every size, print, write."""
    given = arguments(__doc__ or "")
    report = Report(title="Recall latency")
    with tempfile.TemporaryDirectory(prefix="aftermind-bench-") as folder:
        stack = Stack(Path(folder) / "stack", replica=True, postgres_settings={"shared_buffers": BUFFERS})
        try:
            asyncio.run(_measure(stack.up(), given, report, Path(folder)))
        finally:
            stack.destroy()
    return report.finish(given.json)


async def _measure(at: Endpoints, given: Namespace, report: Report, folder: Path) -> None:
    report.facts |= {**redis_facts(at.redis_url), "dimension": DIMENSION, "shared_buffers": BUFFERS}
    sizes: dict[str, Any] = {}  # Any: JSON
    blocks = 0.0
    for size in SIZES:
        if given.quick and size.name not in QUICK:
            continue
        found = await _of_size(at, size, folder, recalls=100 if given.quick else 300)
        blocks = max(blocks, found["loop_block_max_ms"])
        sizes[size.name] = found
        _tell(report, size, found)
    report.add("loop_block_max_ms", blocks, at_most=5.0, note="one callback's worst thread CPU time")
    report.add("loop_block_idle_ms", await _idle_block(), note="the same loop, doing nothing")
    report.details["sizes"] = sizes


def _tell(report: Report, size: Size, found: dict[str, Any]) -> None:
    served = ", ".join(f"{name} {count}" for name, count in found["served_by"].items())
    report.add(f"{size.name} p50_ms", found["p50_ms"], at_most=BOUNDS.get(size.name), note=served)
    report.add(f"{size.name} p99_ms", found["p99_ms"])
    report.add(f"{size.name} cpu_ms", found["cpu_ms"], note="CPU time of the agent's process per recall")
    report.add(f"{size.name} exact_ms", found["exact_ms"], note="bare pgvector top-10, every vector compared")
    report.add(
        f"{size.name} hnsw_ms",
        found["hnsw_ms"],
        note=f"bare pgvector top-10 by HNSW, ef_search {_walked(size)}",
    )
    report.add(f"{size.name} overlap", found["overlap"], at_least=0.98, note="of the exact vector top-10")
    if "under_ingest" in found:
        under = found["under_ingest"]
        note = f"while two niced workers store {under['turns_per_s']:.0f} turns/s; " + ", ".join(under["served_by"])
        report.add("under_ingest_p99_ms", under["p99_ms"], note=note)
        report.add("under_ingest_ratio_p99", under["ratio_p99"], at_most=2.0)
        for name, ratio in under["machine"].items():
            report.add(f"under_ingest_machine_{name}_ratio_p99", ratio, note="what the same load does to it alone")


async def _of_size(at: Endpoints, size: Size, folder: Path, *, recalls: int) -> dict[str, Any]:  # Any: JSON
    name = f"recall_{size.name}"
    url, replica = await _database(at, name)
    await fill(url, size)
    connection = await connect(url)
    asked = await _questions(connection, size, recalls + 50)
    settings = Settings(
        recall_budget_seconds=10.0,  # a slow recall is to be seen, not cut
        remember_budget_seconds=10.0,
        state_dir=folder / name,
    )
    memory = Memory(
        _named(at.app_url, name),
        broker=at.redis_url,
        redis=at.redis_url,
        replicas=[replica],
        settings=settings,
        embedder=_Known([text for _, text in asked]),
    )
    try:
        await _trust_marks(at.redis_url, url)
        await _caught_up(connection, replica)
        for user, text in asked[:50] if size.users > 1 else asked:  # one user's pages are warm, many users' are not
            await memory.recall(text, user_id=user)
        gc.collect()
        gc.freeze()  # what the benchmark itself has loaded is not the agent's to collect
        with _callbacks() as worst:
            used = time.process_time()
            times, served = await _recalls(memory, asked[50:])
            used = time.process_time() - used
        found: dict[str, Any] = {  # Any: JSON
            "p50_ms": percentile(times, 0.5),
            "p99_ms": percentile(times, 0.99),
            "cpu_ms": used * 1e3 / (len(asked) - 50),
            **await _bare(connection, asked[50:150], _walked(size)),
            "overlap": await _overlap(memory, connection, asked[50:150]),
            "loop_block_max_ms": worst[0],
            "served_by": dict(served),
        }
        if size.users > 1:
            rest = found["p99_ms"], await _machine(replica, len(asked) - 50)
            found["under_ingest"] = await _under_ingest(memory, at.redis_url, url, replica, asked[50:], rest)
        return found
    finally:
        await memory.close()
        await connection.close()


def _walked(size: Size) -> int:
    """`hnsw.ef_search` as recall sets it for an owner of that size."""
    return min(max(size.episodes // 100, NARROWEST), WIDEST)


class _Known(HashEmbedder):
    """The offline embedder, which has these texts' vectors at hand."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(DIMENSION)
        self._made = dict(zip(texts, super().vectors(texts), strict=True))

    async def embed(self, texts: Sequence[str]) -> Matrix:
        return np.stack([self._made[text] for text in texts])


async def _under_ingest(
    memory: Memory,
    redis_url: str,
    url: str,
    replica: str,
    asked: list[Question],
    rest: tuple[float, dict[str, float]],
) -> dict[str, Any]:  # Any: JSON
    """The same recalls while workers store at full rate what was queued before, of other users."""
    gate = asyncio.Semaphore(200)

    async def remember(number: int, session: str, text: str) -> None:
        async with gate:
            await memory.remember(text, user_id=f"writer-{number % 500}", session_id=session)

    queued = enumerate(Talk(seed=3).turns(TURNS))
    await asyncio.gather(*(remember(number, session, text) for number, (session, _, text) in queued))
    with tempfile.TemporaryDirectory() as logs, _workers(redis_url, url, Path(logs)):
        try:
            await wait_until(lambda: _stored(url), timeout=60, description="the workers have begun")
        except NeverHappened as exc:
            said = _said(Path(logs))
            raise SystemExit(f"{exc}; they said:\n{said}") from exc
        before = await _stored(url)
        started = time.perf_counter()
        times, served = await _recalls(memory, asked)
        stored = await _stored(url) - before
        rate = stored / (time.perf_counter() - started)
        machine = await _machine(replica, len(asked))
    p99 = percentile(times, 0.99)
    return {
        "p50_ms": percentile(times, 0.5),
        "p99_ms": p99,
        "ratio_p99": p99 / rest[0],
        "machine": {name: slow / rest[1][name] for name, slow in machine.items()},
        "turns_per_s": rate,
        "served_by": dict(served),
    }


async def _machine(replica: str, times: int) -> dict[str, float]:
    """What the machine itself does with a fixed piece of work in this process, and a bare `SELECT 1` of the replica.

    p99 in ms: whatever runs beside slows these down too, of which no recall can be faster.
    """
    spun, asked = [], []
    connection = await asyncpg.connect(replica)
    for _ in range(times):
        started = time.perf_counter()
        sum(range(SPINS))
        between = time.perf_counter()
        await connection.fetchval("SELECT 1")
        spun.append((between - started) * 1e3)
        asked.append((time.perf_counter() - between) * 1e3)
    await connection.close()
    return {"spin": percentile(spun, 0.99), "select_1": percentile(asked, 0.99)}


def _said(logs: Path) -> str:
    return "\n".join(log.read_text()[-2_000:] for log in logs.glob("*.log"))


async def _stored(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM aftermind.episodes WHERE user_id LIKE 'writer-%'"))
    finally:
        await connection.close()


@contextmanager
def _workers(redis_url: str, url: str, logs: Path) -> Iterator[None]:
    """Two store workers, as niced as a service beside an agent would be."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AFTERMIND_")}
    env |= {"AFTERMIND_DATABASE_URL": url, "AFTERMIND_BROKER_URL": redis_url, "AFTERMIND_REDIS_URL": redis_url}
    env["AFTERMIND_ALLOW_OWNER"] = "true"  # the address is the one that the database was filled by
    env |= {"AFTERMIND_EMBEDDER": "hash", "AFTERMIND_EXTRACTOR": "off", "AFTERMIND_STATE_DIR": str(logs)}
    processes = []
    for number in range(2):
        argv = ["nice", "-n", "10", *worker_argv([STORE], loglevel="WARNING")]
        argv[argv.index("-n", 3) + 1] = f"bench-{number}@%h"
        with (logs / f"{number}.log").open("wb") as log:
            processes.append(subprocess.Popen(argv, env=env, stdout=log, stderr=log))
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=60)


async def _recalls(memory: Memory, asked: list[Question]) -> tuple[list[float], Counter[str]]:
    times: list[float] = []
    served: Counter[str] = Counter()
    for user, text in asked:
        started = time.perf_counter()
        block = await memory.recall(text, user_id=user)
        times.append((time.perf_counter() - started) * 1e3)
        if block.degraded or not block.matches:
            raise SystemExit(f"a recall found nothing: {block.degraded}")
        served[block.served_by] += 1
    return times, served


_EXACT = """
    WITH compared AS MATERIALIZED (
        SELECT id, embedding <=> $2 AS distance FROM aftermind.episodes WHERE namespace = 'default' AND user_id = $1
    ) SELECT id FROM compared ORDER BY distance LIMIT 10
"""
# The user as a function: else the planner reads all of a small user's rows and sorts, and no index is walked.
_WALKED = """
    SELECT id FROM aftermind.episodes
    WHERE texteq(namespace, 'default') AND texteq(user_id, $1) ORDER BY embedding <=> $2 LIMIT 10
"""


async def _bare(
    connection: "asyncpg.Connection[asyncpg.Record]", asked: list[Question], ef_search: int
) -> dict[str, float]:
    embedder = HashEmbedder(DIMENSION)
    await connection.execute(f"SET hnsw.ef_search = {ef_search}; SET hnsw.iterative_scan = strict_order")

    async def timed(statement: str) -> float:
        times = []
        for user, text in asked:
            vector = embedder.vectors([text])[0]
            started = time.perf_counter()
            await connection.fetch(statement, user, vector)
            times.append((time.perf_counter() - started) * 1e3)
        return percentile(times, 0.5)

    exact = await timed(_EXACT)
    walked = await timed(_WALKED)
    return {"exact_ms": exact, "hnsw_ms": walked}


async def _overlap(memory: Memory, connection: "asyncpg.Connection[asyncpg.Record]", asked: list[Question]) -> float:
    embedder = HashEmbedder(DIMENSION)
    shares = []
    for user, text in asked:
        rows = await connection.fetch(_EXACT, user, embedder.vectors([text])[0])
        found = await memory.recall_scored(text, user_id=user, mode="vector", limit=10, load=["history"])
        shares.append(
            len({row["id"] for row in rows} & {match.item.id for match in found if isinstance(match.item, Episode)})
            / len(rows)
        )
    return sum(shares) / len(shares)


async def _questions(connection: "asyncpg.Connection[asyncpg.Record]", size: Size, count: int) -> list[Question]:
    talk = Talk(seed=2)
    total = size.users * size.episodes
    rows = await connection.fetch("SELECT user_id, content FROM aftermind.episodes ORDER BY id")
    return [(rows[place]["user_id"], talk.question(rows[place]["content"])) for place in talk.chosen(count, total)]


async def _database(at: Endpoints, name: str) -> tuple[str, str]:
    """A new database on the primary, and its address on the replica."""
    admin = await asyncpg.connect(at.admin_url)
    await admin.execute(f'CREATE DATABASE "{name}" OWNER {urlsplit(at.postgres_url).username}')
    await admin.close()
    inside = await asyncpg.connect(_named(at.admin_url, name))
    await inside.execute("CREATE EXTENSION IF NOT EXISTS vector")
    await inside.close()
    return _named(at.postgres_url, name), _named(at.replica_urls[0], name)


def _named(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


async def _trust_marks(redis_url: str, url: str) -> None:
    """What the reconciler does in a running system: note this life of Redis, so that replicas may serve."""
    database, link = PostgresDatabase(url), RedisLink(redis_url, timeout=1.0)
    try:
        await link.call("DEL", Keys().epoch())
        await ensure_epoch(link, Keys(), database.watermark)
    finally:
        await link.close()
        await database.close()


async def _caught_up(connection: "asyncpg.Connection[asyncpg.Record]", replica: str) -> None:
    mark = await connection.fetchval("SELECT pg_current_wal_flush_lsn()::text")
    behind = await asyncpg.connect(replica)

    async def has_replayed() -> bool:
        return bool(await behind.fetchval("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", mark))

    await wait_until(has_replayed, timeout=120, description="the replica has replayed what was loaded")
    await behind.close()


@contextmanager
def _callbacks() -> Iterator[list[float]]:
    """The worst thread CPU time (ms) of a single callback of the loop while the block runs."""
    worst, run = [0.0], Handle._run

    def timed(self: Handle) -> None:
        started = time.thread_time()
        run(self)
        worst[0] = max(worst[0], (time.thread_time() - started) * 1e3)

    Handle._run = timed  # type: ignore[method-assign]
    try:
        yield worst
    finally:
        Handle._run = run  # type: ignore[method-assign]


async def _idle_block() -> float:
    with _callbacks() as worst:
        for _ in range(200):
            await asyncio.sleep(0.002)
    return worst[0]


if __name__ == "__main__":
    sys.exit(main())
