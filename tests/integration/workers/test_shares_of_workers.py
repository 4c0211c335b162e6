"""One tenant with many slow jobs: another one's job begins without waiting for any of them to end."""

import asyncio
from pathlib import Path

from aftermind import Memory
from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.types import JobKind, JobState
from aftermind.wire import queues
from aftermind_workers.celery_config import CONCURRENCY
from aftermind_workers.lifecycle import PLACES_OF_BELL
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

PLACES = CONCURRENCY[queues.EXTRACT] * PLACES_OF_BELL
BRISK = {"AFTERMIND_EXTRACT_QUIET_SECONDS": "0.1", "AFTERMIND_RECONCILE_SECONDS": "0.5"}


async def test_a_job_begins_while_slow_jobs_of_another_tenant_run(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    db = PostgresDatabase(database.relay_url)
    ledger = PostgresLedger(db)
    loud = Memory(database.app_url, broker=redis_url, namespace="loud")
    quiet = Memory(database.app_url, broker=redis_url, namespace="quiet")
    with scripted_openai() as model:
        model.script.latency_seconds = 600.0  # longer than a bell lasts, and than the test waits
        asked = {"AFTERMIND_EXTRACTOR": "openai:scripted", "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": model.url}
        env = environment(database.relay_url, redis_url, **BRISK, **asked, AFTERMIND_SHUTDOWN_GRACE_SECONDS="1")
        with workers(env, tmp_path, on=f"{queues.STORE},{queues.EXTRACT}"):
            turns = (loud.remember(f"I like tea {n}.", user_id=f"u{n}", session_id="s") for n in range(2 * PLACES))
            await asyncio.gather(*turns)

            async def running(namespace: str) -> int:
                jobs = await ledger.jobs(kinds=[JobKind.EXTRACT], states=[JobState.RUNNING], limit=1_000)
                return sum(job.scope.namespace == namespace for job in jobs)

            async def is_full() -> bool:
                return await running("loud") >= PLACES // 2

            async def is_begun() -> bool:
                return await running("quiet") == 1

            await wait_until(is_full, description="the loud tenant has its share")
            await quiet.remember("I live in Oslo.", user_id="alice", session_id="s")
            await wait_until(is_begun, description="the quiet tenant's job begins")
            assert await running("loud") == PLACES // 2, "each of its jobs runs still, and no more than its share"
        await loud.close()
        await quiet.close()
        await db.close()
