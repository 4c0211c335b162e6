"""One tenant with many slow jobs: another one's job begins without waiting for any of them to end."""

import asyncio
from concurrent.futures import Future
from pathlib import Path

import asyncpg
import pytest
from pydantic import SecretStr

from aftermind import Memory, Receipt, Settings
from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.receipt import StepState
from aftermind.types import JobKind, JobState
from aftermind.wire import queues
from aftermind_tasks import embed, job_handlers
from aftermind_workers import batching, claim_and_run_loop
from aftermind_workers.celery_config import CONCURRENCY
from aftermind_workers.lifecycle import PLACES_OF_BELL
from tests.support.local_worker import answered_bells, worker_without_celery
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

BELLS = CONCURRENCY[queues.STORE]
PLACES = CONCURRENCY[queues.EXTRACT] * PLACES_OF_BELL
LONG_TEXT, LONG_TEXTS, SHORT_TEXTS = "The weather was mild. " * 2_000, 80, 200
BRISK = {"AFTERMIND_EXTRACT_QUIET_SECONDS": "0.1", "AFTERMIND_RECONCILE_SECONDS": "0.5"}


@pytest.fixture
def settings(database: Database, redis_url: str, tmp_path: Path) -> Settings:
    """Of a worker whose batches wait for the locks of a test."""
    return Settings(
        database_url=database.relay_url,
        redis_url=redis_url,
        broker_url=redis_url,
        embedder="hash",
        extractor="off",
        state_dir=tmp_path,
        db_timeout_seconds=120.0,
        redis_timeout_seconds=60.0,  # after a claim that timed out, only a reconciler would send another bell
    )


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


async def test_a_turn_is_stored_while_batches_of_another_tenant_cannot_commit(
    database: Database, redis_url: str, settings: Settings
) -> None:
    """Of the first batch, which both are in, and of one that comes later."""
    unhurried = {"remember_budget_seconds": 60.0, "redis_timeout_seconds": 60.0}
    loud, quiet = (
        Memory(database.app_url, broker=redis_url, namespace=name, settings=Settings(**unhurried))  # type: ignore[arg-type]
        for name in ("loud", "quiet")
    )
    users = [f"u{number}" for number in range(10)]
    held = await asyncpg.connect(database.url)
    changes = held.transaction()
    await changes.start()
    insert = "INSERT INTO aftermind.users (namespace, user_id) VALUES ('loud', $1)"
    await held.executemany(insert, [(user,) for user in users])  # who stores for them waits for this transaction

    async def loud_turns() -> list[Receipt]:
        return [await loud.remember("I like tea.", user_id=user, session_id="s") for user in users]

    receipts = await loud_turns()
    receipts.append(await quiet.remember("I live in Oslo.", user_id="alice", session_id="s"))
    async with worker_without_celery(settings) as worker, answered_bells(worker, queues.STORE, redis_url) as serving:
        await receipts[-1].stored(timeout=60)
        receipts += await loud_turns()
        for number in range(5):
            receipts.append(await quiet.remember(f"I have {number} cats.", user_id="alice", session_id="s"))
            await receipts[-1].stored(timeout=60)
        await wait_until(
            lambda: [each.done() for each in serving].count(False) == BELLS - 1,
            description="only those wait that have turns of the loud tenant",
        )
        await changes.rollback()
        for each in receipts:
            await each.stored(timeout=60)
    for close in (held.close, loud.close, quiet.close):
        await close()


async def test_a_turn_of_the_ledger_is_stored_while_batches_of_another_tenant_cannot_commit(
    database: Database, redis_url: str, settings: Settings
) -> None:
    loud, quiet = (Memory(database.app_url, broker=redis_url, namespace=name) for name in ("loud", "quiet"))
    held = await asyncpg.connect(database.url)
    changes = held.transaction()
    await changes.start()
    # Who stores for this user waits for this transaction.
    await held.execute("INSERT INTO aftermind.users (namespace, user_id) VALUES ('loud', 'bob')")

    async def remember(memory: Memory, user: str) -> Receipt:
        return await memory.remember("I like tea.", user_id=user, session_id="s", accept="postgres")

    async with worker_without_celery(settings) as worker:
        receipts: list[Receipt] = []
        for batch in range(1, BELLS):
            receipts.append(await remember(loud, "bob"))
            worker.loop.submit(claim_and_run_loop.serve(worker, queues.STORE))
            running = f"SELECT count(*) = {batch} FROM aftermind.jobs WHERE kind = 'store' AND state = 'running'"

            async def is_running(asked: str = running) -> bool:
                return bool(await held.fetchval(asked))

            await wait_until(is_running, description=f"batch {batch} waits")
        receipts.append(await remember(loud, "bob"))
        stored = await remember(quiet, "alice")
        worker.loop.submit(claim_and_run_loop.serve(worker, queues.STORE))
        await stored.stored(timeout=60)
        await changes.rollback()
        worker.loop.submit(claim_and_run_loop.serve(worker, queues.STORE))
        for each in receipts:
            await each.stored(timeout=60)
    for close in (held.close, loud.close, quiet.close):
        await close()


async def test_a_place_counts_for_the_tenants_whose_turns_it_still_stores(
    database: Database, redis_url: str, settings: Settings
) -> None:
    """The quiet tenant has more text than the loud one in each batch, and is stored before it."""
    loud, quiet = (Memory(database.app_url, broker=redis_url, namespace=name) for name in ("loud", "quiet"))
    held = await asyncpg.connect(database.url)
    changes = held.transaction()
    await changes.start()
    # Who stores for this user waits for this transaction.
    await held.execute("INSERT INTO aftermind.users (namespace, user_id) VALUES ('loud', 'bob')")
    receipts: list[Receipt] = []
    async with worker_without_celery(settings) as worker:
        for _ in range(BELLS - 1):
            receipts.append(await loud.remember("I like tea.", user_id="bob", session_id="s"))
            receipts.append(await quiet.remember("I live in Oslo. " * 50, user_id="alice", session_id="s"))
            worker.loop.submit(claim_and_run_loop.serve(worker, queues.STORE))
            await receipts[-1].stored(timeout=60)
        async with answered_bells(worker, queues.STORE, redis_url):
            receipts.append(await quiet.remember("I have three cats.", user_id="alice", session_id="s"))
            await receipts[-1].stored(timeout=60)
            await wait_until(
                lambda: worker.store_places.full_namespaces() == ["loud"],
                description="the quiet tenant gives back its place",
            )
            await changes.rollback()
            for each in receipts:
                await each.stored(timeout=60)
    for close in (held.close, loud.close, quiet.close):
        await close()


async def test_a_turn_whose_bell_found_no_free_place_is_stored_once_there_is_one(
    database: Database, redis_url: str, settings: Settings
) -> None:
    """No reconciler runs, and nothing sends another bell."""
    names = ("loud", "ledger", "quiet")
    loud, ledger, quiet = (Memory(database.app_url, broker=redis_url, namespace=name) for name in names)
    held = {name: await asyncpg.connect(database.url) for name in ("loud", "ledger")}
    changes = {name: connection.transaction() for name, connection in held.items()}
    for name, connection in held.items():  # who stores for these users waits for these transactions
        await changes[name].start()
        await connection.execute("INSERT INTO aftermind.users (namespace, user_id) VALUES ($1, 'bob')", name)

    async with worker_without_celery(settings) as worker:

        def ring() -> Future[int]:
            return worker.loop.submit(claim_and_run_loop.serve(worker, queues.STORE))

        receipts: list[Receipt] = []
        for memory, accept in ((loud, "redis"), (loud, "redis"), (ledger, "postgres")):
            receipts.append(await memory.remember("I like tea.", user_id="bob", session_id="s", accept=accept))  # type: ignore[arg-type]
            ring()
            left = BELLS - len(receipts)
            await wait_until(lambda left=left: worker.store_places.free == left, description="its batch waits")  # type: ignore[misc]
        receipts.append(await quiet.remember("I live in Oslo.", user_id="alice", session_id="s"))
        assert await asyncio.wrap_future(ring()) == 0, "no place is free"

        await changes["ledger"].rollback()
        for each in receipts[2:]:
            await each.stored(timeout=60)

        await changes["loud"].rollback()
        for each in receipts:
            await each.stored(timeout=60)
    for close in (*(each.close for each in held.values()), loud.close, ledger.close, quiet.close):
        await close()


@pytest.mark.long
async def test_short_texts_are_embedded_beside_a_bounded_share_of_another_tenants_long_ones(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    """Counted in characters that the model's server has embedded."""
    loud, quiet = (Memory(database.app_url, broker=redis_url, namespace=name) for name in ("loud", "quiet"))
    with scripted_openai() as model:
        settings = Settings(
            database_url=database.relay_url,
            redis_url=redis_url,
            broker_url=redis_url,
            embedder="openai:scripted",
            extractor="off",
            openai_api_key=SecretStr("k"),
            openai_base_url=model.url,
            embedding_dimension=384,
            state_dir=tmp_path,
        )
        long = [
            loud.remember(LONG_TEXT, user_id=f"u{number % 20}", session_id=f"s{number}") for number in range(LONG_TEXTS)
        ]
        receipts = await asyncio.gather(*long)
        short = (quiet.remember(f"I have {n} cats.", user_id=f"u{n % 5}", session_id="s") for n in range(SHORT_TEXTS))
        receipts += await asyncio.gather(*short)
        async with worker_without_celery(settings) as worker:
            while await asyncio.wrap_future(worker.loop.submit(claim_and_run_loop.serve(worker, queues.STORE))):
                pass

            async def is_embedded() -> bool:
                return all([(await each.status()).embedded is StepState.DONE for each in receipts[LONG_TEXTS:]])

            claims = 0
            while not await is_embedded():
                batch = batching.run_ledger_batch(worker, job_handlers.handler(JobKind.EMBED), False, replays=False)
                assert await asyncio.wrap_future(worker.loop.submit(batch)) is not None
                claims += 1
    await loud.close()
    await quiet.close()
    embedded = model.calls.tokens_in * 4
    assert claims <= 6, "at least half of each claim is for the tenant with short texts"
    assert embedded <= claims * (embed.CLAIM_CHARACTERS + len(LONG_TEXT))
    assert embedded < LONG_TEXTS * len(LONG_TEXT) / 3, "most long texts wait still"
