"""A statement that the database ends for one tenant costs that tenant attempts, and no other tenant anything."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import asyncpg
import pytest

from aftermind import Memory, Settings, errors
from aftermind.api.outbox_per_accept_mode import Accept
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.ranking.vectors import Matrix
from aftermind.types import JobId, JobKind, JobState, Lease, LeaseToken, Scope, Turn
from aftermind.wire.pending import ClaimedTurn
from aftermind.wire.turn_encoding import encode_turn
from aftermind_tasks import job_handlers, store
from aftermind_tasks.job_outcome_types import Outcome
from aftermind_tasks.job_runner import Tally, perform
from aftermind_tasks.runtime import Runtime, open_runtime
from tests.support.proxy import StepCounter, proxy_to
from tests.support.servers import Database, psql_async, wait_for_output
from tests.support.turns import ROOMY, offer, turn_of
from tests.support.valkey import Valkey
from tests.support.waiting import PATIENT_SETTINGS, wait_until
from tests.support.workers import environment, workers

# Rows of this text take longer than any statement may.
SLOW = """
    CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN IF NEW.content LIKE '%endless%' THEN PERFORM pg_sleep(600); END IF; RETURN NEW; END $$;
    CREATE TRIGGER slow BEFORE INSERT ON aftermind.episodes FOR EACH ROW EXECUTE FUNCTION public.slow();
"""
TENANTS = ("acme", "globex", "initech", "umbrella")
HELD = "SELECT FROM aftermind.users WHERE namespace = 'acme' FOR UPDATE"


class RemoteEmbedder(HashEmbedder):
    """An embedder whose work is I/O, so that it has jobs of its own."""

    inline = False


@asynccontextmanager
async def worker_on(
    database: Database, valkey: Valkey, folder: Path, *, db_timeout: float, **more: Any
) -> AsyncIterator[Runtime]:
    """What a worker uses, in a worker's role."""
    settings: dict[str, Any] = {  # Any: values of settings
        "database_url": database.relay_url,
        "redis_url": valkey.url,
        "broker_url": valkey.url,
        "embedder": "hash",
        "extractor": "off",
        "state_dir": folder,
        "db_timeout_seconds": db_timeout,
    }
    opened = await open_runtime(Settings(**settings | more), worker="worker")
    try:
        yield opened
    finally:
        await opened.close()


@asynccontextmanager
async def holding(database: Database, statement: str) -> AsyncIterator[None]:
    """The locks of a statement, held by another transaction."""
    connection = await asyncpg.connect(database.admin_url)
    try:
        async with connection.transaction():
            await connection.execute(statement)
            yield
    finally:
        await connection.close()


def turns_of_tenants(text: str) -> list[Turn]:
    return [turn_of("alice", f"{text} {name}.", namespace=name) for name in TENANTS]


async def claim(runtime: Runtime, turns: Sequence[Turn] = ()) -> list[ClaimedTurn]:
    """Turns that are pending, with those that are handed over now."""
    assert runtime.pending is not None
    if turns:
        await runtime.pending.accept([offer(turn) for turn in turns], limits=ROOMY)
    return await runtime.pending.claim(
        worker="worker",
        token=LeaseToken(uuid4()),
        for_=timedelta(minutes=5),
        turns=100,
        size_bytes=2**20,
        max_lost=3,
    )


async def pending_of(runtime: Runtime, namespace: str) -> int:
    assert runtime.pending is not None
    return (await runtime.pending.read(Scope(namespace=namespace, user_id="alice"), limit=100)).total


async def test_a_turn_whose_statement_times_out_is_a_dead_letter_and_other_tenants_are_stored_meanwhile(
    database: Database, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PATIENT_SETTINGS.items():
        monkeypatch.setenv(name, value)
    await psql_async(database.admin_url, SLOW)
    env = environment(database.relay_url, redis_url)
    env |= {"AFTERMIND_DB_TIMEOUT_SECONDS": "2", "AFTERMIND_MAX_ATTEMPTS": "2"}
    async with Memory(database.app_url, broker=redis_url) as memory:
        slow, others = [], []
        for accept in get_args(Accept):
            slow.append(await memory.remember("An endless story.", user_id="eve", namespace="acme", accept=accept))
            others.append(await memory.remember("A short one.", user_id="ann", namespace="globex", accept=accept))
        with workers(env, tmp_path):
            for receipt in others:
                await receipt.stored(timeout=180)
            for receipt in slow:
                with pytest.raises(errors.JobDead, match="statement_aborted"):
                    await receipt.stored(timeout=180)


async def test_a_turn_that_times_out_because_the_store_takes_no_writes_uses_no_attempt(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    async with worker_on(database, valkey, tmp_path, db_timeout=2.0) as runtime:
        (one,) = await claim(runtime, [turn_of("alice", "I live in Oslo.")])
        async with holding(database, "LOCK TABLE aftermind.episodes IN SHARE MODE"):  # as CREATE INDEX does
            tally, _ = await store.store_pending(runtime, [one])
        assert (tally.snoozed, tally.retried, tally.dead) == (1, 0, 0)
        assert tally.pause is not None

        (again,) = await wait_until(lambda: claim(runtime), description="the turn can be claimed")
        assert again.attempts == 1
        assert (await store.store_pending(runtime, [again]))[0] == Tally(done=1)


@pytest.mark.parametrize("accept", ["redis", "postgres"])
async def test_a_batch_of_several_tenants_is_stored_but_for_the_one_whose_rows_are_locked(
    database: Database, valkey: Valkey, tmp_path: Path, accept: str
) -> None:
    async with worker_on(database, valkey, tmp_path, db_timeout=120.0) as runtime:
        await store.store_pending(runtime, await claim(runtime, turns_of_tenants("I joined")))
        turns = turns_of_tenants("I left")

        async def store_all() -> Tally:
            if accept == "redis":
                return (await store.store_pending(runtime, await claim(runtime, turns)))[0]
            return await perform(runtime, job_handlers.handler(JobKind.STORE), await accepted(runtime, turns))

        async with holding(database, HELD):
            storing = asyncio.create_task(store_all())
            count = "SELECT count(*) FROM aftermind.episodes WHERE content LIKE 'I left%'"
            await wait_for_output(database.admin_url, count, "3", description="the other tenants' turns are stored")

            async def settled() -> bool:
                return sum([await pending_of(runtime, name) for name in TENANTS]) == (1 if accept == "redis" else 0)

            await wait_until(settled, description="only the locked tenant's turn is pending")
            assert not storing.done()
        assert await storing == Tally(done=4)


async def accepted(runtime: Runtime, turns: Sequence[Turn]) -> list[Lease]:
    """Leases of turns that the ledger has accepted."""
    for turn in turns:
        async with runtime.db.transaction(namespace=turn.scope.namespace) as tx:
            await runtime.ledger.accept(tx, turn, encode_turn(turn))
    return await runtime.ledger.claim(JobKind.STORE, worker="worker", for_=timedelta(minutes=5), limit=100)


async def test_vectors_of_a_tenant_are_written_while_another_tenants_rows_are_locked(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    async with worker_on(database, valkey, tmp_path, db_timeout=120.0) as runtime:
        runtime.embedder = RemoteEmbedder()
        await store.store_pending(runtime, await claim(runtime, turns_of_tenants("I joined")))
        leases = await runtime.ledger.claim(JobKind.EMBED, worker="worker", for_=timedelta(minutes=5), limit=100)
        assert len(leases) == 4

        async with holding(database, "SELECT FROM aftermind.episodes WHERE namespace = 'acme' FOR UPDATE"):
            embedding = asyncio.create_task(perform(runtime, job_handlers.handler(JobKind.EMBED), leases))
            count = "SELECT count(*) FROM aftermind.episodes WHERE embedding IS NOT NULL"
            await wait_for_output(database.admin_url, count, "3", description="the other tenants' vectors are written")
            assert not embedding.done()
        assert await embedding == Tally(done=4)


async def test_a_tenants_refused_text_fails_its_job_alone_and_is_named_in_no_other(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    class Refusing(RemoteEmbedder):
        """Refuses the whole call because of one text, and quotes it, as providers do."""

        async def embed(self, texts: Sequence[str]) -> Matrix:
            for text in texts:
                if "acme" in text:
                    raise errors.BadModelRequest("scripted", 400, f"cannot embed {text!r}")
            return await super().embed(texts)

    async with worker_on(database, valkey, tmp_path, db_timeout=30.0) as runtime:
        runtime.embedder = Refusing()
        await store.store_pending(runtime, await claim(runtime, turns_of_tenants("I joined")))
        leases = await runtime.ledger.claim(JobKind.EMBED, worker="worker", for_=timedelta(minutes=5), limit=100)

        assert await perform(runtime, job_handlers.handler(JobKind.EMBED), leases) == Tally(done=3, dead=1)

        found = {lease.job.scope.namespace: await runtime.ledger.job(lease.job.id) for lease in leases}
        assert {name for name, job in found.items() if job is not None and "acme" in (job.error or "")} == {"acme"}


async def test_a_tenant_whose_key_is_missing_waits_alone_for_its_vectors(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    async with worker_on(database, valkey, tmp_path, db_timeout=120.0) as runtime:
        runtime.embedder = RemoteEmbedder()
        await store.store_pending(runtime, await claim(runtime, turns_of_tenants("I joined")))
    named = Settings(database_url=database.relay_url, redis_url=valkey.url, namespace="acme", encryption_key="a" * 32)
    async with Memory(settings=named) as memory:
        await memory.encryption.encrypt(spread_seconds=0.1)

    async with worker_on(database, valkey, tmp_path, db_timeout=120.0, encryption_key="b" * 32) as runtime:
        runtime.embedder = RemoteEmbedder()
        leases = await runtime.ledger.claim(JobKind.EMBED, worker="worker", for_=timedelta(minutes=5), limit=100)
        assert len(leases) == 4

        assert await perform(runtime, job_handlers.handler(JobKind.EMBED), leases) == Tally(done=3, snoozed=1)


async def test_small_tenants_have_their_vectors_before_the_calls_of_a_large_one_end(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    class Waiting(RemoteEmbedder):
        """Takes as long for a text of acme as the test wants."""

        def __init__(self) -> None:
            super().__init__()
            self.may_end = asyncio.Event()

        async def embed(self, texts: Sequence[str]) -> Matrix:
            if any("acme" in text for text in texts):
                await self.may_end.wait()
            return await super().embed(texts)

    async with worker_on(database, valkey, tmp_path, db_timeout=30.0) as runtime:
        runtime.embedder = waiting = Waiting()
        large = turn_of("alice", *(f"I joined acme, {n}. {'and so on ' * 50}" for n in range(20)), namespace="acme")
        turns = [large, *turns_of_tenants("I joined")[1:]]
        await store.store_pending(runtime, await claim(runtime, turns))
        leases = await runtime.ledger.claim(JobKind.EMBED, worker="worker", for_=timedelta(minutes=5), limit=100)

        embedding = asyncio.create_task(perform(runtime, job_handlers.handler(JobKind.EMBED), leases))
        count = "SELECT count(*) FROM aftermind.episodes WHERE embedding IS NOT NULL AND namespace <> 'acme'"
        await wait_for_output(database.admin_url, count, "3", description="the small tenants' vectors are written")
        assert not embedding.done()
        waiting.may_end.set()
        assert await embedding == Tally(done=4)


async def test_a_worker_that_stops_returns_all_leases_of_a_batch_in_a_few_statements(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    steps = StepCounter()
    async with (
        proxy_to(database.relay_url, steps=steps) as proxy,
        worker_on(database, valkey, tmp_path, db_timeout=30.0, database_url=proxy.url(database.relay_url)) as runtime,
    ):
        leases = await accepted(runtime, [turn_of(f"user-{n}", "I live in Oslo.") for n in range(40)])
        began = asyncio.Event()

        async def run(_: Runtime, __: Sequence[Lease]) -> dict[JobId, Outcome]:
            began.set()
            await asyncio.sleep(600)
            return {}

        handler = replace(job_handlers.handler(JobKind.STORE), run=run)
        working = asyncio.create_task(perform(runtime, handler, leases))
        await began.wait()
        before = steps.sent
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

        assert steps.sent - before < len(leases) / 2
        for lease in leases:
            job = await runtime.ledger.job(lease.job.id)
            assert job is not None
            assert (job.state, job.attempts) == (JobState.QUEUED, 0)
