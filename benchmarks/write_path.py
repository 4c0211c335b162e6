"""What remember() costs its caller: beside a PING, a synced SET and Celery's own send_task, and while Redis is away.

Runs alone on the embedded stack (append-only file synced on every write), with no worker. Then once more with the file
synced every second, which is how most Redis servers are run.
"""

import asyncio
import gc
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import psutil
import redis
from celery import Celery
from redis.asyncio import Redis

from aftermind import Memory, Message, Settings
from aftermind.db.migrate import apply
from aftermind.stack import Endpoints, Stack
from aftermind.wire.queues import STORE, TASK
from benchmarks.common import Report, arguments, embedded_stack, percentile, redis_facts
from tests.support.redis_cluster import running_redis_cluster

USER, ASSISTANT = "What theme do I like? " * 9, "You told me that you prefer dark mode. " * 15  # 200 and 600 characters
TASKS = 200
PAUSE = 0.001  # seconds
Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The write path as an agent's process has it."""

    memory: Memory

    async def remember(self, user: str = "alice") -> bool:
        """A typical turn; whether it was spooled."""
        turn = [Message.user(USER[:200]), Message.assistant(ASSISTANT[:600])]
        return (await self.memory.remember(turn, user_id=user, session_id="s1")).spooled


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Where the servers of the run are."""

    store: str
    redis: str

    def agent(
        self, folder: str, *, accept: str = "redis", redis: str | None = None, cluster: str | None = None
    ) -> Agent:
        """An agent with a state folder of its own; nothing is limited, so that a long run is not refused."""
        changed: dict[str, Any] = {"state_dir": Path(folder), "pending_max_turns_per_user": 10**9, "accept": accept}
        # Any: settings by name
        broker = redis or self.redis
        return Agent(memory=Memory(self.store, broker=broker, redis=cluster or broker, settings=Settings(**changed)))


async def latencies(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, taken in turns so that noise of the machine falls on all alike.

    A millisecond lies between two calls: back to back, each would find Redis awake or asleep by what came before it,
    and no agent remembers back to back.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds + rounds // 10):
        for name, call in calls.items():
            await asyncio.sleep(PAUSE)
            started = time.perf_counter()
            await call()
            if i >= rounds // 10:
                taken[name].append((time.perf_counter() - started) * 1e3)
    return taken


async def one_by_one(report: Report, world: World, agent: Agent, rounds: int, suffix: str = "") -> None:
    """PING, a synced SET of a turn's size and remember(), in turns."""
    client = Redis.from_url(world.redis)
    await agent.remember()
    await asyncio.sleep(1.0)  # Celery is imported in a thread meanwhile; the first turn does not wait for it either
    payload = b"x" * 1_000
    calls: dict[str, Call] = {
        "ping": client.ping,
        "set": lambda: client.set("aftermind:bench", payload),
        "remember": agent.remember,
    }
    taken = await latencies({**calls, "send_task": sending_tasks(world.redis)}, rounds)
    p50 = {name: percentile(values, 0.5) for name, values in taken.items()}
    await client.aclose()
    report.add(f"ping{suffix}_p50_ms", p50["ping"], note="redis.asyncio, as users call it")
    report.add(f"set{suffix}_p50_ms", p50["set"], note="1,000 bytes, in the append-only file")
    report.add(f"remember{suffix}_p50_ms", p50["remember"])
    report.add(f"remember{suffix}_p99_ms", percentile(taken["remember"], 0.99))
    report.add(f"send_task{suffix}_p50_ms", p50["send_task"], note="blocks the loop for as long; keeps no pending turn")
    report.add(
        f"send_task{suffix}_ratio_p50", p50["remember"] / p50["send_task"], at_most=1.0, note="remember / send_task"
    )
    bound = 2.0 if suffix else None
    report.add(f"ratio{suffix}_p50", p50["remember"] / p50["ping"], at_most=bound, note="remember / PING")
    report.add(
        f"ratio_set{suffix}_p50", p50["remember"] / p50["set"], at_most=2.0, note="remember / SET, both in the file"
    )


def sending_tasks(url: str) -> Call:
    """Celery's own send_task, with a bare id as its only argument; it blocks its caller, and so the loop."""
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.update(task_ignore_result=True, broker_transport_options={"global_keyprefix": "aftermind:bench:"})

    async def send() -> None:
        job_id = str(uuid4())
        app.send_task(TASK, args=[job_id], task_id=job_id, queue=STORE)

    return send


async def together(report: Report, agent: Agent, turns: int, suffix: str = "") -> None:
    """200 tasks of one process, each handing over one turn after the other."""

    async def one(task: int) -> None:
        for _ in range(turns // TASKS):
            await agent.remember(f"user-{task}")

    started = time.perf_counter()
    await asyncio.gather(*(one(task) for task in range(TASKS)))
    rate = turns / (time.perf_counter() - started)
    report.add(f"concurrent{suffix}_turns_per_s", rate, at_least=5_000, note=f"{TASKS} tasks of one process")


@contextmanager
def longest_callback() -> Iterator[list[float]]:
    """The thread CPU time of the longest callback of any loop within the block, in ms, as the list's only item."""
    longest = [0.0]
    run = asyncio.Handle._run  # the one place through which every callback goes

    def timed(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        run(handle)
        longest[0] = max(longest[0], (time.thread_time() - started) * 1e3)

    with mock.patch.object(asyncio.Handle, "_run", timed):
        yield longest


async def paced(call: Call, count: int) -> None:
    """As a busy agent: a call every other millisecond, a few under way at once."""
    tasks = []
    for _ in range(count):
        tasks.append(asyncio.ensure_future(call()))
        await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)


def blocked(call_on: Callable[[Agent], Call], world: World, count: int, *, redis: str | None = None) -> float:
    """The longest callback of a fresh loop and agent, from its first turn on."""

    async def run(folder: str) -> float:
        agent = world.agent(folder, redis=redis)
        # What the benchmark itself has piled up and imported is not an agent's: a full collection of it takes 70 ms.
        gc.collect()
        gc.freeze()
        with longest_callback() as longest:
            await paced(call_on(agent), count)
        await agent.memory.close()
        return longest[0]

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(folder))


def loop_blocks(report: Report, world: World, redis_pid: int, count: int) -> None:
    """What a turn keeps the loop from, in a healthy, a frozen and a refusing world, and when nothing happens."""

    async def nothing() -> None:
        return None

    def remember(agent: Agent) -> Call:
        return agent.remember

    found = {"healthy": blocked(remember, world, count)}
    psutil.Process(redis_pid).send_signal(signal.SIGSTOP)
    try:
        found["frozen"] = blocked(remember, world, count)
    finally:
        psutil.Process(redis_pid).send_signal(signal.SIGCONT)
    found["refused"] = blocked(remember, world, count, redis="redis://127.0.0.1:1/0")
    idle = blocked(lambda agent: nothing, world, count)
    report.add(
        "loop_block_max_ms", max(found.values()), at_most=5.0, note=", ".join(f"{k} {v:.2f}" for k, v in found.items())
    )
    report.add("loop_block_idle_ms", idle, note="the same loop, doing nothing")
    report.details["loop_block_ms"] = {**found, "idle": idle}


async def by_postgres(report: Report, world: World, rounds: int) -> None:
    """The same with `accept="postgres"`: committed on the primary, synced, before it returns."""
    with tempfile.TemporaryDirectory() as folder:
        agent = world.agent(folder, accept="postgres")
        await agent.remember()
        taken = await latencies({"remember": agent.remember}, rounds)
        await agent.memory.close()
    report.add("remember_postgres_p50_ms", percentile(taken["remember"], 0.5), note='accept="postgres"')
    report.add("remember_postgres_p99_ms", percentile(taken["remember"], 0.99))


async def on_a_cluster(report: Report, world: World, rounds: int) -> None:
    """remember() on three primaries of a Redis Cluster and on one server, alternating; both sync every second."""
    with (
        running_redis_cluster() as cluster,
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as more,
    ):
        for node in cluster.primaries:
            set_sync(node.url, "everysec")
        alone, spread = world.agent(one), world.agent(more, cluster=cluster.url)
        users = itertools.cycle(f"user-{number}" for number in range(50))
        for _ in range(100):  # each shard's connection is made, and the functions are loaded
            user = next(users)
            await alone.remember(user)
            await spread.remember(user)
        calls: dict[str, Call] = {
            "one": lambda: alone.remember(next(users)),
        }
        taken = await latencies({**calls, "cluster": lambda: spread.remember(next(users))}, rounds)
        await alone.memory.close()
        await spread.memory.close()
    p50 = {name: percentile(values, 0.5) for name, values in taken.items()}
    report.add("remember_cluster_p50_ms", p50["cluster"], note="three primaries, everysec, 50 users")
    report.add(
        "remember_cluster_ratio_p50", p50["cluster"] / p50["one"], at_most=1.3, note="a cluster / one server, in turns"
    )


def set_sync(url: str, policy: str) -> None:
    """Sync the append-only file `always` or `everysec`."""
    with redis.Redis.from_url(url) as client:
        client.config_set("appendfsync", policy)
        client.flushall()


def measure(report: Report, stack: Stack, endpoints: Endpoints, *, quick: bool) -> None:
    """Everything, in this order: what disturbs comes last."""
    url = endpoints.redis_url
    world = World(store=endpoints.app_url, redis=url)
    asyncio.run(apply(endpoints.postgres_url))
    rounds, turns = (1_500, 10_000) if quick else (10_000, 60_000)

    async def latency_and_rate(suffix: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            agent = world.agent(folder)
            await one_by_one(report, world, agent, rounds, suffix)
            await together(report, agent, turns, suffix)
            await agent.memory.close()

    asyncio.run(latency_and_rate(""))
    set_sync(url, "everysec")
    asyncio.run(latency_and_rate("_everysec"))
    asyncio.run(on_a_cluster(report, world, rounds // 2))
    set_sync(url, "always")
    asyncio.run(by_postgres(report, world, rounds // 5))
    pid = next(component.pid for component in stack.status() if component.name == "redis")
    assert pid is not None
    loop_blocks(report, world, pid, 300 if quick else 1_500)


def main() -> int:
    """Run it."""
    given = arguments(__doc__ or "")
    report = Report(title="The write path: what remember() costs its caller")
    with embedded_stack() as (stack, endpoints):
        report.facts |= redis_facts(endpoints.redis_url)
        measure(report, stack, endpoints, quick=given.quick)
    return report.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
