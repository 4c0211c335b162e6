"""The baseline's run: the same schedule on plain Celery jobs, and how many of the acknowledged have no effect."""

import asyncio
import json
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import asyncpg
import redis.asyncio as aioredis
from redis.exceptions import RedisError

from benchmarks.harness import fault_schedule, history, plain_celery_app
from benchmarks.harness.faults import Striker
from benchmarks.harness.fleet import Fleet, LoadProcess, Member, client
from benchmarks.harness.history import now
from benchmarks.harness.phase import START, is_ready
from benchmarks.harness.run_settings import Load, Pace, environment
from benchmarks.harness.servers import Site
from tests.support.waiting import wait_until

WORKERS = 2
DRAIN = 120.0  # seconds: what a worker took with it is restored after VISIBILITY, and perhaps again
PROBE = "probe"  # the job that shows that a worker runs jobs; it is not counted


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
    flags = ("--without-gossip", "--without-mingle", "--loglevel", "INFO")
    members = [Member(name=f"bare-{n}", argv=(*argv, *flags, "-n", f"bare-{n}@%h"), env=env) for n in range(WORKERS)]
    logs = site.folder / "logs"
    async with Fleet(members, root=root, logs=logs) as fleet:
        for member in members:
            ready = partial(is_ready, logs / f"{member.name}.log")
            await wait_until(ready, timeout=START, description=f"{member.name} is ready")
        await _probe(site)
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
                left = await link.llen(plain_celery_app.QUEUE) + await link.hlen("unacked")
        empty = empty + 1 if left == 0 else 0
        await asyncio.sleep(0.25)
    return max(left, 0)


async def _probe(site: Site) -> None:
    """Run one job before the faults, so that a baseline that does not work at all is an error, not a result."""
    app = plain_celery_app.app

    def send() -> None:
        with app.connection_for_write(site.redis_url) as link:
            app.send_task(plain_celery_app.TASK, args=[PROBE], queue=plain_celery_app.QUEUE, connection=link)

    async def is_stored() -> bool:
        return PROBE in await _stored(site.database.url)

    await asyncio.to_thread(send)
    await wait_until(is_stored, timeout=START, description="plain Celery runs a job")


async def _stored(url: str) -> Counter[str]:
    connection = await asyncpg.connect(url)
    try:
        return Counter(row["marker"] for row in await connection.fetch("SELECT marker FROM public.bare"))
    finally:
        await connection.close()


async def _create_table(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(plain_celery_app.CREATE)
    finally:
        await connection.close()


async def _result(site: Site, kills: int, *, left: int) -> BareResult:
    told = {entry.marker for entry in history.remembered(site.folder) if entry.type == "ok"}
    stored = await _stored(site.database.url)
    return BareResult(
        jobs=len(told),
        lost=max(0, len(told - stored.keys()) - left),
        duplicated=sum(count > 1 for count in stored.values()),
        kills=kills,
        left=left,
    )
