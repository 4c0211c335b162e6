"""What HTTP costs beside the same memory in the process, and what a thousand listeners to events cost.

One service as `aftermind web` starts it, with the embedded stack (a replica too) and 5,000 episodes of 50 users.
Remember and recall are asked in turns over HTTP (one kept-alive connection) and in this process, so that both meet the
same machine. `fanout` is from before the commit of an event to its arrival at each listener, all of one user; the
benchmark itself, which reads all their sockets, runs on the same cores.
"""

import asyncio
import gc
import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil

from aftermind import Memory, Settings
from aftermind.db.engine import PostgresDatabase
from aftermind.events.bus import EventBus
from aftermind.events.types import MemoryUpdateCompleted
from aftermind.stack import Endpoints
from aftermind.types import Scope
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from benchmarks.common import Report, arguments, embedded_stack, percentile, redis_facts
from benchmarks.harness import web
from benchmarks.synthetic import Size, Talk, fill
from tests.support.waiting import NeverHappened, wait_until

SIZE = Size(users=50, episodes=100)
LISTENERS = 1_000
CLIENTS = 16  # of the requests per second
AT_ONCE = 50  # listeners that connect at the same moment
SETTLE_SECONDS = 2.0


def main() -> int:
    """Measure, print, write."""
    given = arguments(__doc__ or "")
    report = Report(title="The service")
    web.allow_files(4 * LISTENERS)
    with embedded_stack(replica=True) as (_, at), tempfile.TemporaryDirectory(prefix="aftermind-bench-") as folder:
        asyncio.run(_measure(at, given, report, Path(folder)))
    return report.finish(given.json)


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
    with web.service(_environment(at, folder), folder / "web.log") as (url, pid):
        process = psutil.Process(pid)
        async with Memory(settings=settings) as memory:
            await _latency(memory, url, report, times=100 if given.quick else 500)
        await _throughput(url, report, seconds=4.0 if given.quick else 15.0)
        await _listeners(at, url, process, report, events=20 if given.quick else 100)


def _environment(at: Endpoints, folder: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AFTERMIND_")}
    return env | {
        "AFTERMIND_DATABASE_URL": at.app_url,
        "AFTERMIND_REPLICA_URLS": "[" + ", ".join(f'"{each}"' for each in at.replica_urls) + "]",
        "AFTERMIND_BROKER_URL": at.redis_url,
        "AFTERMIND_EMBEDDER": "hash",
        "AFTERMIND_STATE_DIR": str(folder / "web"),
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


async def _throughput(url: str, report: Report, *, seconds: float) -> None:
    """Three recalls to each turn remembered, by clients that ask again as soon as they are answered."""
    texts = [text for _, _, text in Talk(seed=8).turns(200)]
    counts, ends_at = [0] * CLIENTS, time.perf_counter() + seconds

    async def ask(which: int) -> None:
        client = web.KeptConnection(url)
        while time.perf_counter() < ends_at:
            text, user = texts[counts[which] % len(texts)], f"user-{(which * 7 + counts[which]) % SIZE.users}"
            if counts[which] % 4 == 3:
                await client.post(f"/v1/users/load-{which}/turns", {"messages": text, "session_id": "s"})
            else:
                await client.post(f"/v1/users/{user}/recall", {"query": text})
            counts[which] += 1
        client.close()

    started = time.perf_counter()
    await asyncio.gather(*(ask(which) for which in range(CLIENTS)))
    rate = sum(counts) / (time.perf_counter() - started)
    report.add("requests_per_s", rate, note=f"{CLIENTS} clients, 3 recalls to 1 remember, one process")


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
