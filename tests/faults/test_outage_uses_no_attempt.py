"""An outage of the store or of Redis in the middle of a job counts neither an attempt nor a lost lease."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from aftermind import Settings, errors
from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.types import JobId, JobKind, JobState, Lease, LeaseToken, NewJob, Scope
from aftermind.wire.pending import ClaimedTurn, Offer, Pending, PendingLimits
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from aftermind.wire.turn_encoding import encode_turn
from aftermind_tasks import store
from aftermind_tasks.job_outcome_types import Done, Outcome
from aftermind_tasks.job_runner import Handler, perform
from aftermind_tasks.runtime import Runtime, open_runtime
from tests.support.proxy import Proxy, proxy_to
from tests.support.servers import Database
from tests.support.turns import turn_of
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

LEASE = timedelta(milliseconds=200)
OUTAGES = 4  # more than lost leases make a dead letter
LIMITS = PendingLimits(turns=100, size_bytes=1_000_000, age=timedelta(hours=1), turns_of_user=100)


@pytest.fixture
async def postgres_proxy(database: Database) -> AsyncIterator[Proxy]:
    async with proxy_to(database.url) as proxy:
        yield proxy


@pytest.fixture
async def redis_proxy(valkey: Valkey) -> AsyncIterator[Proxy]:
    async with proxy_to(valkey.url) as proxy:
        yield proxy


@pytest.fixture
async def runtime(
    database: Database, valkey: Valkey, postgres_proxy: Proxy, redis_proxy: Proxy, tmp_path: Path
) -> AsyncIterator[Runtime]:
    """A worker's, whose connections to both servers can be cut."""
    settings = Settings(
        database_url=postgres_proxy.url(database.relay_url),
        redis_url=redis_proxy.url(valkey.url),
        broker_url=valkey.url,
        embedder="hash",
        extractor="off",
        state_dir=tmp_path,
    )
    opened = await open_runtime(settings, worker="worker")
    yield opened
    await opened.close()


async def test_outages_of_the_store_during_a_model_call_bury_no_job(
    database: Database, runtime: Runtime, postgres_proxy: Proxy
) -> None:
    direct = PostgresDatabase(database.url)
    ledger = PostgresLedger(direct)
    job = NewJob(id=JobId(uuid4()), kind=JobKind.EMBED, scope=Scope(user_id="alice"), payload={}, effect_key="one")
    async with direct.transaction() as tx:
        await ledger.enqueue(tx, [job])

    async def call_a_model(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
        postgres_proxy.reset()
        async with runtime.db.transaction() as tx:
            await runtime.ledger.finish_all(tx, leases)
        return {lease.job.id: Done() for lease in leases}

    handler = Handler(kind=JobKind.EMBED, run=call_a_model, at_once=lambda _: 1, deadline=lambda _: 30.0)
    for _ in range(OUTAGES):
        (lease,) = await ledger.claim(JobKind.EMBED, worker=runtime.worker, for_=LEASE, alone=True)
        await perform(runtime, handler, [lease])
        await wait_until(ledger.expire_leases, description="the lease has run out, and counts")
        postgres_proxy.let_pass()

        async def is_uncounted() -> bool:
            found = await ledger.job(job.id)
            return found is not None and (found.lost_leases, found.attempts) == (0, 0)

        await wait_until(is_uncounted, description="the worker has taken the count back")
    found = await ledger.job(job.id)
    await direct.close()

    assert found is not None
    assert found.state is JobState.QUEUED


@pytest.mark.parametrize("error", [errors.BadModelAnswer("scripted", "no JSON"), ValueError("a bug")])
async def test_a_failure_that_cannot_be_written_counts_nothing_and_is_written_after_the_outage(
    database: Database, runtime: Runtime, postgres_proxy: Proxy, error: Exception
) -> None:
    direct = PostgresDatabase(database.url)
    ledger = PostgresLedger(direct)
    job = NewJob(id=JobId(uuid4()), kind=JobKind.EMBED, scope=Scope(user_id="alice"), payload={}, effect_key="one")
    async with direct.transaction() as tx:
        await ledger.enqueue(tx, [job])

    async def fail(runtime: Runtime, leases: Sequence[Lease]) -> Mapping[JobId, Outcome]:
        raise error

    handler = Handler(kind=JobKind.EMBED, run=fail, at_once=lambda _: 1, deadline=lambda _: 30.0)
    one_attempt = replace(runtime, settings=runtime.settings.model_copy(update={"max_attempts": 1}))
    (lease,) = await ledger.claim(JobKind.EMBED, worker=runtime.worker, for_=timedelta(minutes=1), alone=True)
    postgres_proxy.reset()
    assert (await perform(one_attempt, handler, [lease])).dead == 0
    assert await state_of(ledger, job.id) is JobState.RUNNING
    postgres_proxy.let_pass()

    async def is_returned() -> bool:
        found = await ledger.job(job.id)
        return found is not None and (found.state, found.attempts) == (JobState.QUEUED, 0)

    await wait_until(is_returned, description="the worker has handed the job back, uncounted")
    (lease,) = await ledger.claim(JobKind.EMBED, worker=runtime.worker, for_=timedelta(minutes=1), alone=True)
    assert (await perform(one_attempt, handler, [lease])).dead == 1
    assert await state_of(ledger, job.id) is JobState.DEAD
    await direct.close()


async def state_of(ledger: PostgresLedger, job_id: JobId) -> JobState:
    found = await ledger.job(job_id)
    assert found is not None
    return found.state


async def test_a_worker_that_does_not_come_back_still_counts(database: Database) -> None:
    direct = PostgresDatabase(database.url)
    ledger = PostgresLedger(direct)
    job = NewJob(id=JobId(uuid4()), kind=JobKind.EMBED, scope=Scope(user_id="alice"), payload={}, effect_key="one")
    async with direct.transaction() as tx:
        await ledger.enqueue(tx, [job])

    for _ in range(3):
        await ledger.claim(JobKind.EMBED, worker="worker", for_=LEASE, alone=True)
        await wait_until(ledger.expire_leases, description="the lease has run out")
    found = await ledger.job(job.id)
    await direct.close()

    assert found is not None
    assert (found.state, found.reason_code) == (JobState.DEAD, "worker_lost")


async def test_outages_of_both_servers_while_turns_are_stored_count_nothing(
    valkey: Valkey, runtime: Runtime, postgres_proxy: Proxy, redis_proxy: Proxy
) -> None:
    link = RedisLink(valkey.url, timeout=2.0)
    pending = Pending(link, Keys())
    turn = turn_of("alice", "I play the cello")
    await pending.accept([Offer(turn=turn, payload=encode_turn(turn))], limits=LIMITS)

    async def claim(lasts: timedelta) -> list[ClaimedTurn]:
        return await pending.claim(
            worker=runtime.worker,
            token=LeaseToken(uuid4()),
            for_=lasts,
            turns=10,
            size_bytes=1_000_000,
            max_lost=3,
            alone=True,
        )

    for _ in range(OUTAGES):
        (held,) = await claim(LEASE)
        assert (held.lost_leases, held.attempts) == (0, 1)
        postgres_proxy.reset()
        redis_proxy.reset()
        await store.store_pending(runtime, [held])
        (other,) = await wait_until(lambda: claim(timedelta(minutes=1)), description="another worker has the turn")
        assert other.lost_leases == 1
        postgres_proxy.let_pass()
        redis_proxy.let_pass()

        def is_uncounted() -> bool:
            with valkey.client() as client:
                return client.hget(Keys().turn(turn.job_id), "lost") == b"0"

        await wait_until(is_uncounted, description="the worker has taken the count back")
        await pending.release([turn.job_id], token=other.token)
    await link.close()
