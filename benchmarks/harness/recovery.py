"""Dead letters by the thousand, those who bring them back, and the count of what came of it."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import asyncpg

from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres.replay_plans import Replays
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.types.replay import ItemState, JobFilter, PlanId, ReplayPlan
from benchmarks.harness.fleet import Fleet, Member
from benchmarks.harness.run_settings import Pace, environment
from benchmarks.harness.servers import Site
from tests.support.waiting import wait_until

LEASE = 5.0  # seconds: what a killed worker held is taken up again after them
WORKER, REPLAYER = "replay-worker", "replayer"
SLACK = 60.0  # seconds beyond what the rate alone takes
SETTLED = 3.0  # seconds after an abort in which nothing more may come
LOOK = 0.05

# Dead letters as an outage of the embedding model leaves them: stored episodes without a vector.
_BURY = """
    WITH made AS (
        SELECT gen_random_uuid() AS job, gen_random_uuid() AS episode, number FROM generate_series(1, $1) AS number
    ), episodes AS (
        INSERT INTO aftermind.episodes (namespace, user_id, id, session_id, role, content, metadata, occurred_at,
                                        remembered_at, position, terms)
        SELECT 'default', 'user-' || number % 50, episode, 's', 'user', $2 || ' letter ' || number, '{}', now(), now(),
               number, '{}'
        FROM made
    )
    INSERT INTO aftermind.jobs (id, namespace, user_id, session_id, kind, state, payload, effect_key, attempts,
                                reason_code, error_class, error, fingerprint, created_at)
    SELECT job, 'default', 'user-' || number % 50, 's', 'embed', 'dead',
           jsonb_build_object('episodes', jsonb_build_array(episode)), 'embed:' || episode, 8,
           $2, 'ProviderDown', 'the provider did not answer', $2, now() + number * interval '1 microsecond'
    FROM made
"""
_COUNT = """
    SELECT count(*) FILTER (WHERE successors > 0) AS successors, count(*) FILTER (WHERE successors = 0) AS lost,
           coalesce(sum(greatest(successors - 1, 0)), 0) AS duplicated
    FROM (SELECT old.id, count(new.id) AS successors FROM aftermind.jobs old
          LEFT JOIN aftermind.jobs new ON new.origin_job_id = old.id
          WHERE old.reason_code = $1 AND old.origin_job_id IS NULL GROUP BY 1) AS letters
"""
_ENDS = """
    SELECT count(*) FILTER (WHERE state <> 'done') AS unfinished, min(created_at) AS first, max(created_at) AS last
    FROM aftermind.jobs WHERE replay_plan_id = $1
"""
_UNEMBEDDED = "SELECT count(*) FROM aftermind.episodes WHERE embedding IS NULL AND content LIKE $1 || ' %'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a plan. `rate` is that of the successors, from the first put in to the last."""

    letters: int
    successors: int
    duplicated: int
    lost: int
    unfinished: int
    unembedded: int
    kills: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """What came of an abort: how long after it was asked for the last successor was put in, and what stayed."""

    seconds: float
    waiting: int
    doubled: int


@asynccontextmanager
async def replayers(site: Site, *, root: Path) -> AsyncIterator[Fleet]:
    """A worker of `memory.replay`, a replayer beside it and a reconciler; ready when the block begins."""
    pace = Pace(seconds=0.0, lease=LEASE)
    env = {**environment(pace.settings(), root=root), **site.settings(site.workers_door)}
    celery = (sys.executable, "-m", "celery", "-A", "aftermind_workers.celery_app", "worker", "--loglevel", "INFO")
    argvs = {
        WORKER: (*celery, "--without-gossip", "--without-mingle", "-Q", "memory.replay", "-n", f"{WORKER}@%h"),
        REPLAYER: (sys.executable, "-m", "aftermind_workers.replay_scheduler"),
        "reconciler": (sys.executable, "-m", "aftermind_workers.reconciler"),
    }
    members = [Member(name=name, argv=argv, env=env) for name, argv in argvs.items()]
    logs = site.folder / "logs"
    async with Fleet(members, root=root, logs=logs) as fleet:
        log = logs / f"{WORKER}.log"
        await wait_until(lambda: " ready." in log.read_text(errors="replace"), timeout=20, description="it is ready")
        yield fleet


def kill(fleet: Fleet) -> None:
    """kill -9 of everybody who replays, in the middle of whatever they do."""
    for name in (WORKER, REPLAYER):
        fleet.kill(name)


async def replay(url: str, *, letters: int, rate: float, kills: int, kill: Callable[[], None]) -> Replayed:
    """Bury so many, bring them back under so many kills, and count."""
    cause = "outage"
    async with _opened(url) as (link, replays):
        await link.execute(_BURY, letters, cause)
        plan = await _started(replays, cause, rate)
        killed = await _follow(replays, plan, kill=kill, kills=kills, timeout=letters / rate * 1.5 + SLACK)
        counted = await link.fetchrow(_COUNT, cause)
        ends = await link.fetchrow(_ENDS, plan.id)
        assert counted is not None  # aggregates have one row
        assert ends is not None
        return Replayed(
            letters=letters,
            successors=counted["successors"],
            duplicated=int(counted["duplicated"]),
            lost=counted["lost"],
            unfinished=ends["unfinished"],
            unembedded=await link.fetchval(_UNEMBEDDED, cause),
            kills=killed,
            rate=(letters - 1) / max((ends["last"] - ends["first"]).total_seconds(), 0.001),
        )


async def abort(url: str, *, letters: int, rate: float) -> Aborted:
    """Bury so many, begin to bring them back, abort, and see when it stopped."""
    cause = "abort"
    async with _opened(url) as (link, replays):
        await link.execute(_BURY, letters, cause)
        plan = await _started(replays, cause, rate)
        await wait_until(partial(_has_moved, replays, plan.id, letters // 10), timeout=SLACK, description="it runs")
        asked: datetime = await link.fetchval("SELECT clock_timestamp()")
        await replays.abort(plan.id, note="enough was seen")
        returned: datetime = await link.fetchval("SELECT clock_timestamp()")
        await asyncio.sleep(SETTLED)  # what must not happen has no moment at which it could be waited for
        ends = await link.fetchrow(_ENDS, plan.id)
        counted = await link.fetchrow(_COUNT, cause)
        assert counted is not None  # aggregates have one row
        assert ends is not None
        stopped = max(returned, ends["last"])
        doubled = int(counted["duplicated"])
        return Aborted(seconds=(stopped - asked).total_seconds(), waiting=counted["lost"], doubled=doubled)


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[tuple["asyncpg.Connection[asyncpg.Record]", Replays]]:
    database = PostgresDatabase(url)
    link = await asyncpg.connect(url)
    try:
        yield link, Replays(database)
    finally:
        await link.close()
        await database.close()


async def _started(replays: Replays, cause: str, rate: float) -> ReplayPlan:
    new = NewPlan(
        name=cause, reason="the provider answers again", actor="benchmark", rate=rate, concurrency=int(10 * rate)
    )
    return await replays.start((await replays.create(JobFilter(reasons=(cause,)), new)).id)


async def _follow(replays: Replays, plan: ReplayPlan, *, kill: Callable[[], None], kills: int, timeout: float) -> int:
    """Kill at even distances of progress until the plan is final or the time is over; how many kills it took."""
    loop = asyncio.get_running_loop()
    deadline, killed = loop.time() + timeout, 0
    while not plan.state.is_final and loop.time() < deadline:
        moved = plan.size - plan.counts.get(ItemState.WAITING, 0)
        if killed < kills and moved * (kills + 1) >= plan.size * (killed + 1):
            kill()
            killed += 1
        await asyncio.sleep(LOOK)
        plan = await replays.get(plan.id) or plan
    return killed


async def _has_moved(replays: Replays, plan_id: PlanId, at_least: int) -> bool:
    plan = await replays.get(plan_id)
    return plan is not None and plan.size - plan.counts.get(ItemState.WAITING, 0) >= at_least
