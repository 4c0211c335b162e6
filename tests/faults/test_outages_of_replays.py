"""An outage of the database and Redis while dead letters are replayed loses none, doubles none and uses no attempt."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from aftermind import Memory, Settings
from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.ledger.protocol import Failure
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.types import JobKind
from aftermind.types.replay import ItemState, JobFilter, PlanState
from aftermind.wire import queues
from aftermind_workers import claim_and_run_loop, replay_scheduler
from aftermind_workers.lifecycle import Worker
from tests.support.local_worker import worker_without_celery
from tests.support.proxy import Side, StepCounter, proxy_to
from tests.support.servers import Database, psql_async
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

BROKEN = Failure(reason_code="bug:X", error_class="X", error="it broke", fingerprint="x")
FOREVER = 10**9
SUCCESSORS = """
    SELECT old.state, new.state, new.attempts, new.lost_leases, count(*) FROM aftermind.jobs AS old
    JOIN aftermind.jobs AS new ON new.origin_job_id = old.id GROUP BY 1, 2, 3, 4
"""


async def bury_all(database: Database) -> None:
    """Make dead letters of all turns that wait in the ledger."""
    direct = PostgresDatabase(database.url)
    ledger = PostgresLedger(direct)
    while leases := await ledger.claim(JobKind.STORE, worker="w", for_=timedelta(minutes=1), limit=100):
        for lease in leases:
            await ledger.mark_dead(None, lease, BROKEN)
    await direct.close()


async def replay(worker: Worker) -> None:
    """What a worker of replays does, until it is cancelled."""

    async def step() -> None:
        await replay_scheduler.run(worker.runtime, until=lambda: False, pause=asyncio.sleep)

    async with asyncio.TaskGroup() as group:
        group.create_task(step())
        while True:
            await claim_and_run_loop.serve(worker, queues.REPLAY)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "cuts",
    [pytest.param((3, 8, 13, 18, 23), id="some"), pytest.param(range(1, 40, 2), id="all", marks=pytest.mark.long)],
)
@pytest.mark.timeout(900)
async def test_outages_during_a_replay_store_each_turn_once_and_use_no_attempt(
    database: Database, valkey: Valkey, tmp_path: Path, cuts: Sequence[int]
) -> None:
    users = [f"user-{number}" for number in range(4 * len(cuts))]
    steps = StepCounter()
    agent = Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        redis_url=valkey.url,
        broker_url=valkey.url,
        state_dir=tmp_path / "agent",
        embedder="hash",
        extractor="off",
        accept="postgres",
        remember_budget_seconds=30.0,
    )
    async with (
        Memory(settings=agent) as memory,
        proxy_to(database.relay_url, steps=steps) as postgres,
        proxy_to(valkey.url, steps=steps) as redis,
    ):
        for user in users:
            await memory.remember("I live in Oslo.", user_id=user)
        await bury_all(database)
        through = {"redis_url": redis.url(valkey.url), "broker_url": redis.url(valkey.url), "relay_url": None}
        through |= {"database_url": postgres.url(database.relay_url), "state_dir": tmp_path / "worker"}
        settings = Settings(embedder="hash", extractor="off", lease_seconds=600.0, **through)
        new = NewPlan(name="again", reason="r", actor="a", rate=100.0, concurrency=2)
        plan = await memory.replays.create(JobFilter(), new)

        async def is_done() -> bool:
            return (await memory.replays.get(plan.id)).state is PlanState.DONE

        async def is_cut_or_done() -> bool:
            return steps.is_cut or await is_done()

        async with worker_without_celery(settings) as worker:
            replaying = worker.loop.submit(replay(worker))
            await memory.replays.start(plan.id)
            for number, cut in enumerate(cuts):
                steps.arm(cut, list(Side)[number % 2])
                await wait_until(is_cut_or_done, description=f"step {cut}")
                steps.arm(FOREVER, Side.AFTER)
                postgres.let_pass()
                redis.let_pass()
            await wait_until(is_done, description="the plan is done")
            replaying.cancel()
        found = await memory.replays.get(plan.id)
        histories = [[each.content for each in await memory.history(user_id=user)] for user in users]

    assert found.counts[ItemState.DONE] == len(users)
    assert histories == [["I live in Oslo."]] * len(users)
    assert await psql_async(database.admin_url, SUCCESSORS) == f"replayed|done|1|0|{len(users)}"
