"""How fast turns become durable memory, beside no-op Celery jobs on as many workers of the same configuration.

A turn counts when its episodes, lexical entries and vectors are committed. Both queues are filled before their workers
start; the clock runs from the first finished job to the last, so that start-up is in neither figure. Best of three.
"""

import argparse
import asyncio
import json
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
import redis

from aftermind import Memory, Message
from aftermind.db import migrate
from aftermind.settings import Settings
from aftermind.stack import Endpoints
from aftermind.wire import queues
from aftermind.wire.redis_keys import Keys
from benchmarks.common import Report, arguments, embedded_stack, percentile, redis_facts
from benchmarks.noop_app import NOOP

WORKERS = 2  # processes, one for each core
ROUNDS = 3
USER = "I moved to {place} last spring because the {thing} there is better, and number {n} of my reasons is the light. "
ANSWER = "Thank you for telling me about {place}; I will keep in mind that the {thing} matters to you. " * 4
PLACES, THINGS = ("Oslo", "Rome", "Lima", "Kyoto", "Graz"), ("coffee", "weather", "music", "food", "work")


def _turn(number: int) -> list[Message]:
    words = {"place": PLACES[number % 5], "thing": THINGS[number // 5 % 5], "n": number}
    return [Message.user(USER.format(**words)), Message.assistant(ANSWER.format(**words))]


@contextmanager
def worker_processes(app: str, queue: str, env: dict[str, str], logs: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers of the application for one queue, stopped afterwards; their output is in `logs`."""
    command = [sys.executable, "-m", "celery", "-A", app, "worker", "-Q", queue, "-l", "WARNING"]
    command += ["--without-gossip", "--without-mingle"]
    processes = []
    for number in range(WORKERS):
        name = f"{app.rsplit('.', maxsplit=1)[-1]}-{number}"
        log = (logs / f"{name}.log").open("wb")
        processes.append(subprocess.Popen([*command, "-n", f"{name}@bench"], env=env, stdout=log, stderr=log))
    try:
        yield processes
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(timeout=60)


def _drained(left: Callable[[], int], total: int) -> float:
    """Jobs a second from the first that is finished to the last."""
    while left() >= total:
        time.sleep(0.002)
    first, started = left(), time.perf_counter()
    while left() > 0:
        time.sleep(0.002)
    return first / (time.perf_counter() - started)


def _noop_rate(client: redis.Redis, env: dict[str, str], logs: Path, jobs: int) -> float:
    from benchmarks.noop_app import app

    keys = Keys()
    app.conf.broker_url = env["AFTERMIND_BROKER_URL"]
    for _ in range(jobs):
        app.send_task(NOOP, args=[str(uuid4())], queue=queues.STORE)
    unacked = f"{keys.prefix}unacked"

    def left() -> int:
        return _number(client.llen(keys.queue(queues.STORE))) + _number(client.hlen(unacked))

    with worker_processes("benchmarks.noop_app", queues.STORE, env, logs):
        return _drained(left, jobs)


async def _turn_rate(client: redis.Redis, ends: Endpoints, env: dict[str, str], logs: Path, turns: int) -> float:
    memory = _memory(ends)
    gate = asyncio.Semaphore(200)

    async def remember(number: int) -> None:
        async with gate:
            await memory.remember(_turn(number), user_id=f"user-{number % 50}", session_id=f"s{number % 7}")

    await asyncio.gather(*(remember(number) for number in range(turns)))
    await memory.close()
    index = Keys().index()
    with worker_processes("aftermind_workers.celery_app", queues.STORE, env, logs):
        return await asyncio.to_thread(_drained, lambda: _number(client.zcard(index)), turns)


async def _freshness(ends: Endpoints, env: dict[str, str], logs: Path, turns: int) -> tuple[list[float], float]:
    """Milliseconds from remember() to `Completed`, one turn at a time on idle workers; the workers' memory in MB."""
    memory = _memory(ends)
    waits: list[float] = []
    with worker_processes("aftermind_workers.celery_app", queues.STORE, env, logs) as processes:
        heard = memory.events(user_id="fresh")
        waiting: dict[str, asyncio.Event] = {}

        async def listen() -> None:
            async for event in heard:
                if event.event == "MemoryUpdateCompleted" and event.job_id in waiting:
                    waiting[event.job_id].set()

        listening = asyncio.create_task(listen())
        for number in range(turns + 10):
            started = time.perf_counter()
            receipt = await memory.remember(_turn(number), user_id="fresh", session_id="s")
            done = waiting[str(receipt.job_id)] = asyncio.Event()
            try:
                await asyncio.wait_for(done.wait(), 30 if number == 0 else 5)
            except TimeoutError:
                await receipt.stored(timeout=30)  # told before we listened for it
            if number >= 10:  # the first ones start the workers up
                waits.append((time.perf_counter() - started) * 1_000)
            await asyncio.sleep(0.01)
        listening.cancel()
        await asyncio.wait([listening])
        size = max(psutil.Process(process.pid).memory_info().rss for process in processes) / 1_048_576
    await memory.close()
    return waits, size


async def _fairness(ends: Endpoints, env: dict[str, str], logs: Path, turns: int) -> float:
    """Others' freshness p95 beside a user with 95 % of the load, over their p95 when all have the same share."""

    async def others_p95(flood: bool) -> float:
        memory = _memory(ends)
        waits: list[float] = []
        with worker_processes("aftermind_workers.celery_app", queues.STORE, env, logs):
            await (await memory.remember("warm", user_id="warm")).stored(timeout=60)

            async def load() -> None:
                await asyncio.gather(
                    *(
                        memory.remember(_turn(n), user_id="flood" if flood else f"even-{n % 20}", session_id="s")
                        for n in range(turns)
                    )
                )

            loading = asyncio.create_task(load())
            for number in range(turns // 20):
                started = time.perf_counter()
                receipt = await memory.remember(_turn(number), user_id=f"other-{number % 5}", session_id="s")
                await receipt.stored(timeout=60)
                waits.append(time.perf_counter() - started)
            await loading
        await memory.close()
        return percentile(waits, 0.95)

    even = await others_p95(flood=False)
    return await others_p95(flood=True) / even


def _number(answer: Any) -> int:  # Any: redis-py's stubs mix sync and async answers
    return int(answer)


def _memory(ends: Endpoints) -> Memory:
    settings = Settings(embedder="hash", extractor="off")
    return Memory(ends.app_url, broker=ends.redis_url, settings=settings)


def worker_environment(ends: Endpoints) -> dict[str, str]:
    """What a worker of the stack is started with: the offline embedder and no extraction."""
    named = {
        "AFTERMIND_DATABASE_URL": ends.app_url,
        "AFTERMIND_RELAY_URL": ends.relay_url,
        "AFTERMIND_BROKER_URL": ends.redis_url,
        "AFTERMIND_REDIS_URL": ends.redis_url,
        "AFTERMIND_REPLICA_URLS": json.dumps(list(ends.replica_urls)),
        "AFTERMIND_EMBEDDER": "hash",
        "AFTERMIND_EXTRACTOR": "off",
    }
    return {**os.environ, **named}


def _measure(report: Report, options: argparse.Namespace) -> None:
    jobs = 3_000 if options.quick else 10_000
    rounds = 1 if options.quick else ROUNDS
    with embedded_stack() as (stack, ends):
        asyncio.run(migrate.apply(ends.postgres_url))
        env, logs = worker_environment(ends), stack.logs
        os.environ.update(env)
        client: Any = redis.Redis.from_url(ends.redis_url)  # Any: redis-py's stubs mix sync and async answers
        noop = max(_noop_rate(client, env, logs, jobs) for _ in range(rounds))
        turns = max(asyncio.run(_turn_rate(client, ends, env, logs, jobs)) for _ in range(rounds))
        waits, size = asyncio.run(_freshness(ends, env, logs, 50 if options.quick else 300))
        report.add("noop_jobs_per_s", round(noop))
        report.add("turns_per_s", round(turns))
        report.add("ratio", round(turns / noop, 2), at_least=0.9)
        report.add("freshness_p50_ms", round(percentile(waits, 0.5), 1), at_most=10)
        report.add("freshness_p99_ms", round(percentile(waits, 0.99), 1))
        report.add("worker_rss_mb", round(size))
        if not options.quick:
            factor = asyncio.run(_fairness(ends, env, logs, 4_000))
            report.add("fairness_factor", round(factor, 2), at_most=3)
        report.facts |= redis_facts(ends.redis_url)
        report.facts |= {"workers": WORKERS, "jobs": jobs, "pool": "threads", "embedder": "hash"}


def main() -> int:
    """Run, show, write; 1 where a target was missed."""
    options = arguments(__doc__ or "")
    report = Report(title="ingest: turns stored durably, beside no-op Celery jobs")
    _measure(report, options)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
