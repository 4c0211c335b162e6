"""What HTTP costs compared with the same memory in the process, requests per second, and the cost of listeners.

One service as `aftermind web` starts it, with the embedded stack (a replica too) and 5,000 episodes of 50 users.
Remember and recall are asked in turns over HTTP (one kept-alive connection) and in this process, so that both meet the
same machine. `fanout` is from before the commit of an event to its arrival at each listener, all of one user; the
benchmark itself, which reads all their sockets, runs on the same cores. `requests_per_s` is of recalls, by clients in
another process that ask again as soon as they are answered; `ratio_to_baseline` compares it with the same recalls in
the same run by FastAPI's default path (`harness/plain_web.py`). `--rates` measures these alone.
"""

import asyncio
import gc
import os
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import psutil
from sqlalchemy import text as sql

from aftermind import Memory, Settings
from aftermind.db import metric_history
from aftermind.db.engine import PostgresDatabase
from aftermind.db.postgres_transaction import pg
from aftermind.events.bus import EventBus
from aftermind.events.types import MemoryUpdateCompleted
from aftermind.stack import Endpoints
from aftermind.types import Scope
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from benchmarks.common import Report, arguments, embedded_stack, percentile, redis_facts
from benchmarks.harness import web
from benchmarks.synthetic import Size, Talk, connect, fill
from tests.support.waiting import NeverHappened, wait_until

SIZE = Size(users=50, episodes=100)
LISTENERS = 1_000
CLIENTS = 8  # connections of the requests per second
SLICE_SECONDS = 2.0  # of one load, before the next one has its turn
JOBS_PER_MINUTE = 1_200  # that a sample counts
CHECKS_PER_MINUTE = 12  # of the reconciler, whether a sample is due
AT_ONCE = 50  # listeners that connect at the same moment
SETTLE_SECONDS = 2.0
_JOBS = """
    WITH job AS (
        INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key, created_at, updated_at)
        SELECT id, 'default', 'u', 'extract', 'done', id::text, at - interval '2 s', at
        FROM (SELECT gen_random_uuid() AS id, $1::timestamptz - make_interval(secs => n * 60.0 / $3::int) AS at
              FROM generate_series(1, $2::int * $3::int) AS n) AS made RETURNING id, created_at, updated_at)
    INSERT INTO aftermind.job_attempts (namespace, job_id, number, worker, started_at, ended_at, outcome, model, calls)
    SELECT 'default', id, 1, 'w', created_at, updated_at, 'done', 'm', 1 FROM job
"""  # one each, evenly over the minutes before $1


class Load(StrEnum):
    """A kind of request that is sent for a while."""

    RECALL = "recall"
    PLAIN = "baseline"
    REMEMBER = "remember"


def main() -> int:
    """Measure, print, write."""
    given = arguments(__doc__ or "", more=_add_switch)
    report = Report(title="The service")
    web.allow_files(4 * LISTENERS)
    with embedded_stack(replica=True) as (_, at), tempfile.TemporaryDirectory(prefix="aftermind-bench-") as folder:
        asyncio.run(_measure(at, given, report, Path(folder)))
    return report.finish(given.json)


def _add_switch(parser: ArgumentParser) -> None:
    parser.add_argument("--rates", action="store_true", help="requests per second and sampling alone")


async def _measure(at: Endpoints, given: Namespace, report: Report, folder: Path) -> None:
    report.facts |= {**redis_facts(at.redis_url), "episodes": SIZE.users * SIZE.episodes}
    await fill(at.postgres_url, SIZE)
    settings = Settings(
        database_url=at.app_url,
        replica_urls=at.replica_urls,
        broker_url=at.redis_url,
        embedder="hash",
        state_dir=folder / "agent",
    )
    with web.service(_environment(at, folder), folder / "web.log", module="benchmarks.harness.plain_web") as (url, pid):
        process = psutil.Process(pid)
        if not given.rates:
            async with Memory(settings=settings) as memory:
                await _latency(memory, url, report, times=100 if given.quick else 500)
        await _throughput(url, pid, report, rounds=4 if given.quick else 12)
        await _sampling(at, report, samples=20 if given.quick else 60)
        if not given.rates:
            await _listeners(at, url, process, report, events=20 if given.quick else 100)


def _environment(at: Endpoints, folder: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AFTERMIND_")}
    return env | {
        "AFTERMIND_DATABASE_URL": at.app_url,
        "AFTERMIND_REPLICA_URLS": "[" + ", ".join(f'"{each}"' for each in at.replica_urls) + "]",
        "AFTERMIND_BROKER_URL": at.redis_url,
        "AFTERMIND_EMBEDDER": "hash",
        "AFTERMIND_STATE_DIR": str(folder / "web"),
        "AFTERMIND_WEB_RATE_PER_KEY": "0",  # one key sends as much as the service can answer
    }


async def _latency(memory: Memory, url: str, report: Report, *, times: int) -> None:
    talk, client = Talk(seed=7), web.KeptConnection(url)
    said = [text for _, _, text in talk.turns(times)]
    asked = [(f"user-{number % SIZE.users}", talk.question(text)) for number, text in enumerate(said)]

    async def recall(number: int) -> None:
        user, text = asked[number]
        block = await memory.recall(text, user_id=user)
        assert not block.degraded, block.degraded

    async def recall_http(number: int) -> None:
        user, text = asked[number]
        block = await client.post(f"/v1/users/{user}/recall", {"query": text})
        assert not block["degraded"], block["degraded"]

    async def remember(number: int) -> None:
        await memory.remember(said[number], user_id=f"fresh-{number}", session_id="s")

    async def remember_http(number: int) -> None:
        await client.post(f"/v1/users/fresh-http-{number}/turns", {"messages": said[number], "session_id": "s"})

    for name, inside, outside in (("recall", recall, recall_http), ("remember", remember, remember_http)):
        for number in range(20):  # pools, caches, prepared statements
            await inside(number)
            await outside(number)
        here, there = await _in_turns(inside, outside, times)
        report.add(f"{name}_http_p50_ms", percentile(there, 0.5), note="over HTTP")
        report.add(f"{name}_in_process_p50_ms", percentile(here, 0.5), note="the same, in this process")
        report.add(f"{name}_http_p99_ms", percentile(there, 0.99))
    client.close()


async def _in_turns(
    one: Callable[[int], Awaitable[None]], other: Callable[[int], Awaitable[None]], times: int
) -> tuple[list[float], list[float]]:
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(times):
        for place, call in enumerate((one, other)):
            started = time.perf_counter()
            await call(number)
            taken[place].append((time.perf_counter() - started) * 1e3)
    return taken


async def _throughput(url: str, pid: int, report: Report, *, rounds: int) -> None:
    """Each load in turn, round after round, from a process of its own: all meet the same state of the machine."""
    process, latencies = psutil.Process(pid), {load: list[float]() for load in Load}
    elapsed, cpu = dict.fromkeys(Load, 0.0), dict.fromkeys(Load, 0.0)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as clients:
        for number in range(-1, rounds):  # the first is not counted: pools, caches, prepared statements
            for load in Load if number % 2 else reversed(Load):
                before = _cpu_seconds(process)
                taken, seconds = await asyncio.wrap_future(clients.submit(_send, url, load, number))
                if number >= 0:
                    latencies[load] += taken
                    elapsed[load] += seconds
                    cpu[load] += _cpu_seconds(process) - before
    rates = {load: len(latencies[load]) / elapsed[load] for load in Load}
    spent = {load: cpu[load] / len(latencies[load]) for load in Load}
    note = f"{CLIENTS} connections, one service process, {rounds} rounds of {SLICE_SECONDS:g} s each"
    report.add("requests_per_s", rates[Load.RECALL], note=f"recall; {note}")
    report.add("baseline_requests_per_s", rates[Load.PLAIN], note="the same by FastAPI's default path")
    report.add("ratio_to_baseline", rates[Load.RECALL] / rates[Load.PLAIN], at_least=1.5)
    report.add("cpu_ratio_to_baseline", spent[Load.PLAIN] / spent[Load.RECALL], note="by CPU time of the service")
    report.add("write_requests_per_s", rates[Load.REMEMBER], note="remember")
    for load in Load:
        report.add(f"{load}_p50_ms", percentile(latencies[load], 0.5) * 1e3)
        report.add(f"{load}_p99_ms", percentile(latencies[load], 0.99) * 1e3)
        report.add(f"{load}_cpu_ms", spent[load] * 1e3, note="of the service, per request")


def _send(url: str, load: Load, seed: int) -> tuple[list[float], float]:
    """In the process of the clients: seconds of each request, and of all of them together."""
    return asyncio.run(_send_all(url, load, seed))


async def _send_all(url: str, load: Load, seed: int) -> tuple[list[float], float]:
    texts = [text for _, _, text in Talk(seed=100 + seed).turns(200)]
    taken: list[float] = []
    started = time.perf_counter()

    async def send(which: int) -> None:
        client, count = web.KeptConnection(url), 0
        while (began := time.perf_counter()) < started + SLICE_SECONDS:
            text, user = texts[(which * 31 + count) % len(texts)], f"user-{(which * 7 + count) % SIZE.users}"
            match load:
                case Load.REMEMBER:
                    await client.post(f"/v1/users/load-{which}/turns", {"messages": text, "session_id": "s"})
                case Load.RECALL:
                    await client.post(f"/v1/users/{user}/recall", {"query": text})
                case Load.PLAIN:
                    await client.post(f"/v1/plain/users/{user}/recall", {"query": text})
            taken.append(time.perf_counter() - began)
            count += 1
        client.close()

    await asyncio.gather(*(send(which) for which in range(CLIENTS)))
    return taken, time.perf_counter() - started


async def _sampling(at: Endpoints, report: Report, *, samples: int) -> None:
    """CPU of a sample of the metrics' history and of the checks before it, here and in Postgres, per minute."""
    database, now = PostgresDatabase(at.relay_url), datetime.now(UTC).replace(second=0, microsecond=0)
    owner = await connect(at.postgres_url)
    try:
        await owner.execute(_JOBS, now, samples + 11, JOBS_PER_MINUTE)
        async with database.transaction() as tx:
            row = await pg(tx).row(sql("SELECT pg_backend_pid() AS pid"))
            assert row is not None
            backend, me = psutil.Process(row.pid), psutil.Process()
            before = _cpu_seconds(backend) + _cpu_seconds(me)
            for number in range(samples):
                for _ in range(CHECKS_PER_MINUTE):
                    await metric_history.due(tx)
                await metric_history.sample(tx, now - number * metric_history.MINUTE, {})
            spent = _cpu_seconds(backend) + _cpu_seconds(me) - before
        note = f"{samples} samples, {JOBS_PER_MINUTE} jobs a minute; reconciler and Postgres together"
        report.add("sampling_core_share", spent / samples / 60, at_most=0.01, note=note)
    finally:
        await owner.close()
        await database.close()


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def _listeners(at: Endpoints, url: str, process: psutil.Process, report: Report, *, events: int) -> None:
    await asyncio.sleep(SETTLE_SECONDS)
    before = process.memory_info().rss
    ears = await _connect(url, ["crowd"] * LISTENERS)
    await asyncio.sleep(SETTLE_SECONDS)
    report.add("listeners", len(ears))
    report.add("rss_mb_per_1000_listeners", _megabytes(process.memory_info().rss - before), at_most=60.0)
    idle = process.cpu_times()
    await asyncio.sleep(5.0)
    busy = process.cpu_times()
    report.add("idle_cpu_share", (busy.user + busy.system - idle.user - idle.system) / 5.0, note="of one core, idle")

    gc.collect()
    gc.freeze()  # what the benchmark itself has loaded is not the service's to collect
    times, lost = await _told(at, ears, events)
    report.add("fanout_p99_ms", percentile(times, 0.99), at_most=250.0, note=f"{events} events at each of them")
    report.add("fanout_p50_ms", percentile(times, 0.5))
    report.add("fanout_missed", events * len(ears) - len(times), at_most=0)
    report.details |= {"fanout_max_ms": max(times), "connections_lost": lost}
    for ear in ears:
        ear.close()
    await asyncio.sleep(SETTLE_SECONDS)

    before = process.memory_info().rss
    ears = await _connect(url, [f"lone-{number}" for number in range(LISTENERS)])
    await asyncio.sleep(SETTLE_SECONDS)
    grown = _megabytes(process.memory_info().rss - before)
    report.add("rss_mb_per_1000_owners", grown, note="each of another user; what the first thousand left is used again")
    for ear in ears:
        ear.close()


async def _connect(url: str, users: list[str]) -> list[web.Ear]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(user: str) -> web.Ear:
        async with gate:
            return await web.listen(url, user)

    return await asyncio.gather(*(one(user) for user in users))


async def _told(at: Endpoints, ears: list[web.Ear], events: int) -> tuple[list[float], int]:
    """Milliseconds of each event to each listener, a worker's commit included."""
    link, database = RedisLink(at.redis_url, timeout=5.0, name="benchmark"), PostgresDatabase(at.relay_url)
    bus, begun = EventBus(database, link, Keys()), {}
    try:
        for _ in range(events):
            event = MemoryUpdateCompleted(scope=Scope(user_id="crowd"), at=datetime.now(UTC), message_count=2)
            started = time.perf_counter()
            async with database.transaction() as tx:
                (kept,) = await bus.append(tx, [event])
            await bus.publish([kept])
            number = int(kept.cursor or 0)
            begun[number] = started
            with suppress(NeverHappened):  # who missed it is counted
                everywhere = partial(_is_everywhere, ears, number)
                await wait_until(everywhere, timeout=10, description="the event is everywhere")
            await asyncio.sleep(0.05)
    finally:
        await bus.close()
        await link.close()
        await database.close()
    lost = sum(ear.is_lost for ear in ears)
    return [(ear.heard[n] - at_) * 1e3 for ear in ears for n, at_ in begun.items() if n in ear.heard], lost


def _is_everywhere(ears: list[web.Ear], number: int) -> bool:
    return all(number in ear.heard for ear in ears)


def _megabytes(size: int) -> float:
    return size / 1_048_576 * 1_000 / LISTENERS


if __name__ == "__main__":
    raise SystemExit(main())
