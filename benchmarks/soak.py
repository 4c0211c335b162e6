"""Load for a long time with everything that clears away: do tables, Redis and workers keep their size?

Turns of many users, recalls beside them, users who are forgotten, a retention policy and short schedules for what is
finished. Every ten seconds the sizes are noted; the line through the last two thirds of them says what grows.
"""

import argparse
import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import redis.asyncio as aioredis
from rich.console import Console

from aftermind import Memory, Settings
from aftermind.cli import stack_processes
from aftermind.stack import Endpoints, Stack
from benchmarks.common import Report, Value, arguments, embedded_stack
from tests.support.servers import migrate, psql

USERS = 200
EVERY = 10.0  # seconds between looks
RECALLS = 2.0  # a second
FORGETS = 0.2  # a second: one user every five
KEPT = timedelta(minutes=2)  # of episodes, jobs, attempts, events and tombstones of forgets
LEVEL = 0.10  # of its mean a size may grow, along the line through the last two thirds
LONG_ENOUGH = 10.0  # minutes: what is kept for two has come and gone several times then; before, nothing is promised
DAY_OF = KEPT / timedelta(days=1)

# As deployments run it, but for ages: what they see in months has to happen in minutes.
SCHEDULES: Mapping[str, str] = {
    "AFTERMIND_JOB_RETENTION_DAYS": str(DAY_OF),
    "AFTERMIND_ATTEMPT_RETENTION_DAYS": str(DAY_OF),
    "AFTERMIND_EVENT_RETENTION_DAYS": str(DAY_OF),
    "AFTERMIND_TOMBSTONE_RETENTION_DAYS": str(DAY_OF),
    "AFTERMIND_HOUSEKEEPING_SECONDS": "5",
    "AFTERMIND_RETENTION_EVERY_SECONDS": "60",
    "AFTERMIND_EXTRACT_QUIET_SECONDS": "2",
    "AFTERMIND_EXTRACTOR": "rules",
    "AFTERMIND_EMBEDDER": "hash",
}
ERR = Console(stderr=True, highlight=False, soft_wrap=True)
DAYS = 100  # people name new numbers all the time, and the same words again; GIN keeps a key for each for ever
CITIES = ("Oslo", "Lima", "Kyoto", "Accra", "Quito", "Turin", "Perth", "Hanoi")

_SIZES = "SELECT relname, pg_total_relation_size(c.oid), greatest(reltuples, 0)::bigint FROM pg_class c "
_SIZES += "WHERE relnamespace = 'aftermind'::regnamespace AND relkind = 'r' ORDER BY 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Sizes in bytes at one moment."""

    seconds: float
    tables: Mapping[str, int]
    redis: int
    keys: int
    workers: Mapping[str, int]


@dataclass(slots=True, kw_only=True)
class Load:
    """What was done so far."""

    counts: Counter[str] = field(default_factory=Counter)
    late: float = 0.0  # seconds that the load was behind at most


def more(parser: argparse.ArgumentParser) -> None:
    """The switches of this benchmark."""
    parser.add_argument("--minutes", type=float, default=30.0, help="how long")
    parser.add_argument("--turns", type=float, default=50.0, help="turns a second")


async def load(memory: Memory, done: Load, *, seconds: float, rate: float) -> None:
    """Turns at a steady rate; recalls and forgets among them."""
    started, chosen = time.monotonic(), random.Random(7)
    async with asyncio.TaskGroup() as tasks:
        for number in count():
            due = started + number / rate
            if due - started > seconds:
                return
            wait = due - time.monotonic()
            done.late = max(done.late, -wait)
            if wait > 0:
                await asyncio.sleep(wait)
            user = f"user-{chosen.randrange(USERS)}"
            tasks.create_task(_turn(memory, done, user, number, chosen))
            if chosen.random() < RECALLS / rate:
                tasks.create_task(_recall(memory, done, user))
            if chosen.random() < FORGETS / rate:
                tasks.create_task(_forget(memory, done, user))


async def _turn(memory: Memory, done: Load, user: str, number: int, chosen: random.Random) -> None:
    said = f"I moved to {chosen.choice(CITIES)} and it is day {number % DAYS}. I like {chosen.choice(CITIES)} tea."
    await memory.remember(
        [{"role": "user", "content": said}, {"role": "assistant", "content": f"Noted, day {number % DAYS}."}],
        user_id=user,
        session_id=f"s{number // 5_000}",
    )
    done.counts["turns"] += 1


async def _recall(memory: Memory, done: Load, user: str) -> None:
    block = await memory.recall("Where do I live, and what do I like?", user_id=user)
    done.counts["recalls"] += 1
    done.counts["degraded"] += block.degraded is not None


async def _forget(memory: Memory, done: Load, user: str) -> None:
    await memory.forget(user_id=user)
    done.counts["forgets"] += 1


async def look(stack: Stack, endpoints: Endpoints, client: "aioredis.Redis", started: float) -> Look:
    """One look at everything that could grow."""
    rows = await asyncio.to_thread(psql, endpoints.admin_url, _SIZES)
    sizes = [line.split("|") for line in rows.splitlines()]
    memory = await client.info("memory")
    return Look(
        seconds=time.monotonic() - started,
        tables={name: int(size) for name, size, _ in sizes},
        redis=int(memory["used_memory"]),
        keys=int(await client.dbsize()),
        workers=await asyncio.to_thread(_workers, stack),
    )


def _workers(stack: Stack) -> dict[str, int]:
    """Private bytes of each worker and reconciler, children included: shared pages would count once for each."""
    found = {}
    for each in stack.status():
        if each.pid is not None and each.name.startswith(("worker", "reconciler")):
            root = psutil.Process(each.pid)
            found[each.name] = sum(one.memory_full_info().uss for one in (root, *root.children(recursive=True)))
    return found


async def run(stack: Stack, endpoints: Endpoints, *, minutes: float, rate: float, report: Report) -> None:
    """The whole of it."""
    settings = Settings(state_dir=stack.logs.parent, embedder="hash", extractor="rules")
    plan = stack_processes.plan(settings, endpoints, stack.status())
    stack.supervise([each for each in plan.commands() if each.name.startswith(("worker", "reconciler"))])
    done, looks, started = Load(), list[Look](), time.monotonic()
    async with Memory(settings=settings) as memory, aioredis.Redis.from_url(endpoints.redis_url) as client:
        await memory.retention.set(max_age=KEPT)
        working = asyncio.create_task(load(memory, done, seconds=minutes * 60, rate=rate))
        while not working.done():
            await asyncio.wait([working], timeout=EVERY)
            looks.append(await look(stack, endpoints, client, started))
            if len(looks) % 6 == 0:
                _tell(looks[-1], done)
        await working
        health = await memory.health()
    figures(report, looks, done, level=LEVEL if minutes >= LONG_ENOUGH else None)
    report.details["dead"] = sum(work.dead for work in health.work)


def figures(report: Report, looks: Sequence[Look], done: Load, *, level: float | None) -> None:
    """What the looks say."""
    policy = "tombstones"  # those of a policy stay for a day, longer than a run: their own figure, without a bound
    tables = [sum(size for name, size in each.tables.items() if name != policy) for each in looks]
    for name, value in done.counts.items():
        report.add(name, value)
    report.add("late_max_s", done.late)
    report.add("tables_mb", tables[-1] / 2**20)
    report.add("tables_growth", growth(looks, tables), at_most=level, note="along the line, of the mean")
    report.add("tombstones_mb", looks[-1].tables[policy] / 2**20, note="of policies: kept for a day")
    report.add("redis_mb", looks[-1].redis / 2**20)
    report.add("redis_growth", growth(looks, [each.redis for each in looks]), at_most=level)
    report.add("redis_keys", looks[-1].keys)
    for name in sorted({name for each in looks for name in each.workers}):
        sizes = [each.workers.get(name, 0) for each in looks]
        report.add(f"{name}_mb", sizes[-1] / 2**20)
        report.add(f"{name}_growth", growth(looks, sizes), at_most=level)
    report.details["looks"] = [
        {
            "seconds": round(each.seconds),
            "tables": dict(each.tables),
            "redis": each.redis,
            "keys": each.keys,
            "workers": dict(each.workers),
        }
        for each in looks
    ]


def growth(looks: Sequence[Look], sizes: Sequence[float]) -> float:
    """What the straight line through the last two thirds rises from its first look to its last, of their mean."""
    begin = len(looks) // 3
    at, size = np.array([each.seconds for each in looks[begin:]]), np.array(sizes[begin:], dtype=float)
    slope = float(np.polyfit(at - at[0], size, 1)[0])
    return slope * float(at[-1] - at[0]) / float(size.mean())


def _tell(now: Look, done: Load) -> None:
    sizes = f"tables {sum(now.tables.values()) / 2**20:.0f} MB, redis {now.redis / 2**20:.1f} MB"
    workers = ", ".join(f"{name} {size / 2**20:.0f}" for name, size in now.workers.items())
    ERR.print(f"{now.seconds / 60:5.1f} min  {done.counts['turns']:,} turns, {sizes}, {workers} MB")


def main() -> int:
    """Run it."""
    given = arguments(__doc__ or "", more=more)
    minutes = 1.0 if given.quick else given.minutes
    os.environ.update(SCHEDULES)
    facts: dict[str, Value] = {"minutes": minutes, "turns a second": given.turns, "users": USERS}
    report = Report(title="soak", facts=facts)
    with embedded_stack(replica=True) as (stack, endpoints):
        migrate(endpoints.postgres_url)
        os.environ["AFTERMIND_STATE_DIR"] = str(Path(stack.logs.parent))
        asyncio.run(run(stack, endpoints, minutes=minutes, rate=given.turns, report=report))
    return report.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
