"""A store worker that ends at any step between its claim and the `Completed` event loses and doubles no turn.

The worker runs here, and its servers are cut off at the step: for them, that is a kill -9.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aftermind import Episode, Memory, MemoryUpdateCompleted, Receipt, Settings
from aftermind.wire import queues
from aftermind_workers import claim_and_run_loop
from aftermind_workers.lifecycle import Worker
from tests.faults.test_every_step import paused, settings_of
from tests.integration.workers.test_every_queue import ALL, BRISK
from tests.support.local_worker import worker_without_celery
from tests.support.proxy import Side, StepCounter, proxy_to
from tests.support.servers import Database, psql_async
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

SAID = "I live in Oslo."
MAX_STEPS = 60  # more than a store has
LEASE_SECONDS = 10.0  # longer than the worker needs for its steps; another one takes over afterwards
PATIENT = {"AFTERMIND_MAX_LOST_LEASES": "50"}  # on a slow machine a later worker may take an earlier one's turn
BUDGETS = ("recall_budget_seconds", "remember_budget_seconds", "redis_timeout_seconds", "db_timeout_seconds")
UNHURRIED = dict.fromkeys(BUDGETS, 30.0)  # what is late is no fault here
# The usual run tests every third step of two of the four, the long one each.
MATRIX = [
    pytest.param(accept, side, stride, marks=[pytest.mark.timeout(600), *([pytest.mark.long] if long else [])])
    for accept in ("redis", "postgres")
    for side in Side
    for stride, long in ((1, True), (3, False))
    if long or (accept, side) in {("redis", Side.AFTER), ("postgres", Side.BEFORE)}
]


@asynccontextmanager
async def doomed_worker(
    database: Database, redis_url: str, state_dir: Path
) -> AsyncIterator[tuple[Worker, StepCounter]]:
    """A worker, and the steps that it takes."""
    steps = StepCounter()
    async with (
        proxy_to(database.relay_url, steps=steps) as postgres,
        proxy_to(redis_url, steps=steps) as redis,
    ):
        settings = Settings(
            database_url=postgres.url(database.relay_url),
            redis_url=redis.url(redis_url),
            broker_url=redis.url(redis_url),
            embedder="hash",
            extractor="rules",
            lease_seconds=LEASE_SECONDS,
            heartbeat_seconds=LEASE_SECONDS - 0.1,
            max_lost_leases=int(PATIENT["AFTERMIND_MAX_LOST_LEASES"]),
            state_dir=state_dir,
        )
        async with worker_without_celery(settings) as worker:
            try:
                yield worker, steps
            finally:
                steps.cut()


async def store_until(worker: Worker, steps: StepCounter, step: int, side: Side) -> bool:
    """Answer a bell; whether the worker ended at the step. It may have finished before."""
    steps.arm(step, side)
    serving = worker.loop.submit(claim_and_run_loop.serve(worker, queues.STORE))
    await wait_until(lambda: steps.has_ended or serving.done(), timeout=180, description=f"step {step} or the end")
    return steps.has_ended


@pytest.mark.parametrize(("accept", "side", "stride"), MATRIX)
async def test_a_store_worker_that_ends_at_a_step_loses_and_doubles_nothing(
    database: Database, valkey: Valkey, tmp_path: Path, accept: str, side: Side, stride: int
) -> None:
    """At each step a recall shows the turn once, by a replica that lags; others then complete what is left."""
    receipts: list[Receipt] = []
    told: list[str] = []
    settings = settings_of(database, valkey.url, tmp_path).model_copy(update=UNHURRIED)
    async with Memory(settings=settings) as memory:

        async def shown(user: str) -> int:
            block = await memory.recall("Where do I live?", user_id=user)
            return sum(isinstance(each.item, Episode) and each.item.content == SAID for each in block.matches)

        async def listen(user: str) -> None:
            async for event in memory.events(user_id=user, after="0"):
                if isinstance(event, MemoryUpdateCompleted) and event.kind == "store":
                    assert await shown(user) == 1, "a recall after the event sees the turn"
                    told.append(user)
                    return

        async with paused(database), asyncio.TaskGroup() as listening:
            for step in range(1, MAX_STEPS + 1, stride):
                user = f"user{step}"
                receipts.append(await memory.remember(SAID, user_id=user, session_id="s", accept=accept))
                listening.create_task(listen(user))
                async with doomed_worker(database, valkey.url, tmp_path / "doomed") as (worker, steps):
                    has_ended = await store_until(worker, steps, step, side)
                assert await shown(user) == 1, f"step {step}, {side} it"
                if not has_ended:
                    break
            assert 3 < len(receipts) < MAX_STEPS / stride, "the store was cut at its steps, and carried out at last"
            env = environment(database.relay_url, valkey.url, **BRISK, **PATIENT)
            with workers(env, tmp_path, on=ALL):
                for receipt in receipts:
                    await receipt.extracted(timeout=120)
                await wait_until(
                    lambda: len(told) == len(receipts), timeout=180, description="every Completed event has come"
                )
        users = [f"user{1 + stride * number}" for number in range(len(receipts))]
        assert sorted(told) == sorted(users)
        for user in users:
            assert [each.content for each in await memory.history(user_id=user)] == [SAID]
            assert len(await memory.facts.query(user_id=user)) == 1
    ids = ", ".join(f"'{each.job_id}:completed'" for each in receipts)
    counted = f"SELECT count(*) FROM aftermind.events WHERE id IN ({ids})"
    assert await psql_async(database.url, counted) == str(len(receipts))
