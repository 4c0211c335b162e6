"""A worker obeys the pauses of operators from its first claim on."""

import asyncio

import pytest

from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres import job_admin
from aftermind.types import JobKind
from aftermind_workers.operator_pauses import JobPauses
from tests.support.servers import Database


@pytest.fixture
async def primary(database: Database):
    db = PostgresDatabase(database.url)
    yield db
    await db.close()


async def test_a_worker_that_begins_with_all_its_loops_at_once_claims_nothing_that_is_paused(
    primary: PostgresDatabase,
) -> None:
    async with primary.transaction() as tx:
        await job_admin.pause(tx, None, None, reason="maintenance", actor="ops")
        await job_admin.pause(tx, JobKind.EXTRACT, "acme", reason="maintenance", actor="ops")
    pauses = JobPauses(primary, job_admin)

    found = await asyncio.gather(*(pauses.is_paused(kind) for kind in JobKind), *(pauses.is_paused(JobKind.EMBED),) * 3)

    assert all(found)
    assert await pauses.namespaces(JobKind.EXTRACT) == ["acme"]


async def test_before_any_pause_was_read_every_job_is_paused() -> None:
    away = PostgresDatabase("postgresql://none:x@127.0.0.1:1/nowhere")

    assert await JobPauses(away, job_admin).is_paused(JobKind.EXTRACT)
    await away.close()


async def test_one_slow_read_of_pauses_holds_up_no_other_loop(primary: PostgresDatabase) -> None:
    pauses = JobPauses(primary, job_admin)
    assert not await pauses.is_paused(JobKind.EMBED)
    async with pauses._reading, asyncio.timeout(1):  # as a loop has it while the store is slow
        assert not await pauses.is_paused(JobKind.EXTRACT)
