"""Threads or processes: how fast each queue is emptied by a worker of each kind, on the same two cores.

`threads`: two worker processes with the number of threads that is their default. `prefork`: one worker with as many
children as `threads` has bells at work in all, for a child works on one bell. Every leg empties the same number of jobs
that wait before its workers start, from the first that is finished to the last; legs take turns. The model answers
after 50 ms (embeddings, 32 texts a call) and 300 ms (facts).
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import redis.asyncio
from sqlalchemy import text

from aftermind import Memory, Settings
from aftermind.db import migrate
from aftermind.db.engine import PostgresDatabase
from aftermind.db.postgres_transaction import pg
from aftermind.stack import Endpoints
from aftermind.wire import queues
from aftermind.wire.redis_keys import Keys
from aftermind_workers.celery_config import CONCURRENCY
from benchmarks.common import Report, arguments, embedded_stack, redis_facts
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai
from tests.support.workers import environment, workers

APPS = {"threads": "aftermind_workers.celery_app", "prefork": "benchmarks.prefork_app"}
PROCESSES = 2
LATENCY = {queues.EMBED: 0.05, queues.EXTRACT: 0.3}
MODELS = {"AFTERMIND_EMBEDDER": "openai:text-embedding-3-small", "AFTERMIND_EXTRACTOR": "openai:gpt-5-mini"}
AT_ONCE = {
    "AFTERMIND_EMBED_BATCH_TEXTS": "32",
    "AFTERMIND_EXTRACT_QUIET_SECONDS": "0",
    "AFTERMIND_EXTRACT_MAX_WAIT_SECONDS": "0",
}
DIMENSION = 384

_LEFT = text(
    "SELECT count(*) AS jobs FROM aftermind.jobs WHERE kind = :kind AND state IN ('queued', 'running', 'retrying')"
)


@contextmanager
def _pool(pool: str, queue: str, env: dict[str, str], log: Path) -> Iterator[Callable[[], float]]:
    """Workers of a kind on one queue, and how much memory they take, in MB."""
    command = [sys.executable, "-m", "celery", "-A", APPS[pool], "worker", "-Q", queue]
    command += ["-l", "WARNING", "--without-gossip", "--without-mingle"]
    count = PROCESSES
    if pool == "prefork":
        count, command = 1, [*command, "-c", str(PROCESSES * CONCURRENCY[queue])]
    with log.open("ab") as out:
        started = [
            psutil.Popen([*command, "-n", f"{uuid4().hex[:8]}@pools"], env=env, stdout=out, stderr=out)
            for _ in range(count)
        ]

    def megabytes() -> float:
        every = [each for one in started for each in (one, *one.children(recursive=True))]
        return float(sum(each.memory_info().rss for each in every)) / 1_048_576

    try:
        yield megabytes
    finally:
        for one in started:
            one.send_signal(signal.SIGTERM)
        for one in started:
            one.wait(60)


@contextmanager
def _reconciler(env: dict[str, str], log: Path) -> Iterator[None]:
    """It rings for what has become due; prefork workers have no understudy of it."""
    with log.open("ab") as out:
        started = subprocess.Popen(
            [sys.executable, "-m", "aftermind.cli", "reconciler"], env=env, stdout=out, stderr=out
        )
    try:
        yield
    finally:
        started.terminate()
        started.wait(30)


class Legs:
    """One stack, one leg after the other."""

    def __init__(self, ends: Endpoints, logs: Path, model: ScriptedOpenAI, jobs: int) -> None:
        self.ends, self.logs, self.model, self.jobs = ends, logs, model, jobs
        more = {"AFTERMIND_RELAY_URL": ends.relay_url, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": model.url}
        self.env = environment(ends.app_url, ends.redis_url, **MODELS, **AT_ONCE, **more)
        self.env["AFTERMIND_EMBEDDING_DIMENSION"] = str(DIMENSION)
        self.redis: Any = redis.asyncio.from_url(ends.redis_url)  # Any: redis-py's stubs mix sync and async answers
        self.database = PostgresDatabase(ends.relay_url, application_name="pools")

    async def run(self, queue: str, pool: str) -> tuple[float, float]:
        """Jobs a second, and MB of memory of all processes together."""
        kind = queue.rsplit(".", 1)[-1]
        self.model.script.latency_seconds = 0.0
        await self._remember(kind)
        if kind != "store":
            with workers(self.env, self.logs, on=queues.STORE):
                await self._until_left("store", 0)
        self.model.script.latency_seconds = LATENCY.get(queue, 0.0)
        log = self.logs / f"{pool}-{kind}.log"
        with _reconciler(self.env, log), _pool(pool, queue, self.env, log) as megabytes:
            await self._until_left(kind, await self._left(kind) - 1)
            first, started = await self._left(kind), time.perf_counter()
            await self._until_left(kind, 0)
            found = first / (time.perf_counter() - started), megabytes()
        await self._clear()
        return found

    async def _remember(self, kind: str) -> None:
        settings = Settings(embedder="off", extractor="off")
        save = {"history", "facts"} if kind == "extract" else {"history"}
        async with Memory(self.ends.app_url, broker=self.ends.redis_url, settings=settings) as memory:
            for number in range(self.jobs):
                said = f"I collect stamps of the year {1800 + number}."
                await memory.remember(said, user_id=f"user-{number}-{uuid4().hex[:6]}", session_id="s", save=save)

    async def _left(self, kind: str) -> int:
        if kind == "store":
            return int(await self.redis.zcard(Keys().index()))
        async with self.database.transaction(read_only=True) as tx:
            row = await pg(tx).row(_LEFT, kind=kind)
        assert row is not None
        return int(row.jobs)

    async def _until_left(self, kind: str, jobs: int) -> None:
        deadline = time.monotonic() + 180
        while await self._left(kind) > jobs:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{kind}: {await self._left(kind)} jobs are left after 180 s; see {self.logs}")
            await asyncio.sleep(0.002)

    async def _clear(self) -> None:
        """What the leg did not measure is not left to the next one."""
        owner = PostgresDatabase(self.ends.postgres_url)
        async with owner.transaction() as tx:
            for table in ("jobs", "job_followups", "job_attempts", "episodes", "events", "event_counters"):
                await pg(tx).execute(text(f"TRUNCATE aftermind.{table} CASCADE"))
        await owner.close()


def _measure(report: Report, options: argparse.Namespace) -> None:
    jobs, rounds = (100, 1) if options.quick else (400, 3)
    with embedded_stack() as (stack, ends), scripted_openai() as model:
        asyncio.run(migrate.apply(ends.postgres_url, dimension=DIMENSION))
        os.environ.update({"AFTERMIND_EMBEDDER": "off"})
        for queue, count in ((queues.STORE, 10 * jobs), (queues.EMBED, 10 * jobs), (queues.EXTRACT, jobs)):
            kind = queue.rsplit(".", 1)[-1]
            best: dict[str, tuple[float, float]] = {}
            for _ in range(rounds):
                for pool in ("threads", "prefork"):
                    found = asyncio.run(Legs(ends, stack.logs, model, count).run(queue, pool))
                    best[pool] = max(best.get(pool, (0.0, 0.0)), found)
            for pool, (rate, size) in best.items():
                report.add(f"{kind}_{pool}_jobs_per_s", round(rate))
                report.add(f"{kind}_{pool}_mb", round(size))
            report.add(f"{kind}_threads_over_prefork", round(best["threads"][0] / best["prefork"][0], 2))
        report.facts |= redis_facts(ends.redis_url)
        report.facts |= {"processes": PROCESSES, "jobs": jobs}
        report.facts |= {f"latency_of_{name}_s": seconds for name, seconds in LATENCY.items()}


def main() -> int:
    """Run, show, write."""
    options = arguments(__doc__ or "")
    report = Report(title="pools: threads beside prefork, a queue at a time")
    _measure(report, options)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
