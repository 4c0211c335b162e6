"""Brings every dead letter of a leg back, as an operator would, while the replayer is killed again and again."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from aftermind import errors
from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres.replay_plans import Replays
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.types.replay import ItemState, JobFilter, ReplayPlan
from benchmarks.harness.history import now

PLAN = NewPlan(
    name="nothing lost",
    reason="the model server is well again",
    actor="benchmark",
    rate=50.0,
    concurrency=50,
    max_failure_share=1.0,  # all of them, whatever happens: the comparison says what failed again
)
LOOK = 0.1  # seconds


async def replay_all(database_url: str, *, kill: Callable[[], None], kills: int, timeout: float) -> ReplayPlan | None:
    """The plan when it is done, or when the time is over; None where there was no dead letter."""
    database = PostgresDatabase(database_url)
    replays = Replays(database)
    try:
        plan = await replays.create(JobFilter(), replace(PLAN, rate=_rate(kills)))
        await replays.start(plan.id)
        return await _follow(replays, plan, kill=kill, kills=kills, timeout=timeout)
    except errors.InvalidFilter:
        return None
    finally:
        await database.close()


async def _follow(
    replays: Replays, plan: ReplayPlan, *, kill: Callable[[], None], kills: int, timeout: float
) -> ReplayPlan:
    """Kill whoever replays at even distances of progress, and wait for the end."""
    began, killed = now(), 0
    while not plan.state.is_final and now() - began < timeout:
        moved = plan.size - plan.counts.get(ItemState.WAITING, 0)
        if killed < kills and moved * (kills + 1) >= plan.size * (killed + 1):
            kill()
            killed += 1
        await asyncio.sleep(LOOK)
        plan = await replays.get(plan.id) or plan
    return plan


def _rate(kills: int) -> float:
    return PLAN.rate if not kills else 10.0  # slowly, so that there is a middle to be killed in
