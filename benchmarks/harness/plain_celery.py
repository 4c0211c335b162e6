"""The baseline's run: the same schedule on plain Celery jobs, and how many of the acknowledged have no effect."""

import asyncio
import json
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import asyncpg
import redis.asyncio as aioredis
from redis.exceptions import RedisError

from benchmarks.harness import fault_schedule, history, plain_celery_app
from benchmarks.harness.faults import Striker
from benchmarks.harness.fleet import Fleet, LoadProcess, Member, client
from benchmarks.harness.history import now
from benchmarks.harness.phase import START
from benchmarks.harness.rate import Load, Pace, environment
from benchmarks.harness.servers import Site

WORKERS = 2
DRAIN = 120.0  # seconds: what a worker took with it is restored after VISIBILITY, and perhaps again
PREFIX = "aftermind:"  # kombu's keys stand under the same prefix as ours


@dataclass(frozen=True, slots=True, kw_only=True)
class BareResult:
    """What became of the baseline's jobs. `left` lay in Redis still when the wait was over: it is not lost."""

    jobs: int
    lost: int
    duplicated: int
    kills: int
    left: int


async def run(site: Site, pace: Pace, *, root: Path) -> BareResult:
    """Load, faults, drain, compare."""
    await _create_table(site.database.url)
    # As the owner of its table, so that no right of ours stands in its way.
    own = {**site.settings(site.workers_door), "AFTERMIND_DATABASE_URL": site.database.url}
    env = environment({**own, **pace.settings()}, root=root)
    argv = (
        sys.executable,
        "-m",
        "celery",
        "-A",
        "benchmarks.harness.plain_celery_app",
        "worker",
        "-Q",
        plain_celery_app.QUEUE,
    )
    flags = ("--without-gossip", "--without-mingle", "--loglevel", "WARNING")
    members = [Member(name=f"bare-{n}", argv=(*argv, *flags, "-n", f"bare-{n}@%h"), env=env) for n in range(WORKERS)]
    logs = site.folder / "logs"
    async with Fleet(members, root=root, logs=logs) as fleet:
        await asyncio.sleep(3.0)  # Celery needs two to start; jobs sent before would only wait
        striker = Striker(site, fleet, model_faults=asyncio.sleep)
        producers = [_producer(site, pace, number, root=root) for number in range(pace.producers)]
        faults = fault_schedule.plan(pace.seconds, seed=pace.seed, lease=pace.lease)
        await striker.run(faults)
        for producer in producers:
            await producer.ended(timeout=START)
        left = await _drain(site.redis_url)
    return await _result(site, striker.kills, left=left)


def _producer(site: Site, pace: Pace, number: int, *, root: Path) -> LoadProcess:
    load = Load(
        producer=number,
        folder=str(site.folder),
        seconds=pace.seconds,
        rate=pace.rate / pace.producers,
        lanes=pace.lanes,
    )
    env = environment({**site.settings(site.agents_door), **pace.settings()}, root=root)
    return client(
        "benchmarks.harness.plain_celery_producer",
        json.dumps(asdict(load)),
        name=f"bare-producer-{number}",
        env=env,
        root=root,
        logs=site.folder / "logs",
    )


async def _drain(redis_url: str) -> int:
    """Wait until nothing lies in the queue or with a worker; how much does."""
    began, empty, left = now(), 0, -1
    while now() - began < DRAIN and empty < 6:
        with suppress(RedisError, OSError):
            async with aioredis.Redis.from_url(redis_url, socket_timeout=2) as link:
                left = await link.llen(PREFIX + plain_celery_app.QUEUE) + await link.hlen(f"{PREFIX}unacked")
        empty = empty + 1 if left == 0 else 0
        await asyncio.sleep(0.25)
    return max(left, 0)


async def _create_table(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(plain_celery_app.CREATE)
    finally:
        await connection.close()


async def _result(site: Site, kills: int, *, left: int) -> BareResult:
    told = {entry.marker for entry in history.remembered(site.folder) if entry.type == "ok"}
    connection = await asyncpg.connect(site.database.url)
    try:
        stored = Counter(row["marker"] for row in await connection.fetch("SELECT marker FROM public.bare"))
    finally:
        await connection.close()
    return BareResult(
        jobs=len(told),
        lost=max(0, len(told - stored.keys()) - left),
        duplicated=sum(count > 1 for count in stored.values()),
        kills=kills,
        left=left,
    )
