"""`accept="postgres"`: committed on the primary before remember() returns; Redis only rings."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aftermind import errors
from aftermind import receipt as receipt_module
from aftermind.db.engine import PostgresDatabase
from aftermind.events.bus import EventBus
from aftermind.events.types import MemoryUpdateCompleted
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.outbox.factory import make_publisher, remember_link
from aftermind.outbox.publish_or_spool import Publisher
from aftermind.receipt import Receipt, StepState
from aftermind.settings import Settings
from aftermind.types import JobKind, JobState, Scope, Turn
from aftermind.wire.queues import STORE
from aftermind.wire.redis_keys import Keys
from aftermind.wire.turn_encoding import decode_turn
from tests.support.loop_clock import loop_clock
from tests.support.proxy import proxy_to
from tests.support.servers import Database, psql_async
from tests.support.turns import texts_of, turn_of
from tests.support.valkey import Valkey, running_valkey
from tests.support.waiting import wait_until

ALICE = Scope(user_id="alice")


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with running_valkey() as server:
        yield server


class Agent:
    """An agent's write path that accepts by Postgres."""

    def __init__(self, url: str, redis_url: str, state_dir: Path, **changed: object) -> None:
        self.settings = Settings(state_dir=state_dir, accept="postgres", **changed)
        self.db = PostgresDatabase(url)
        self.ledger = PostgresLedger(self.db)
        self.link = remember_link(self.settings, redis_url)
        self.publisher: Publisher = make_publisher(
            self.settings, broker=redis_url, link=self.link, database=self.db, ledger=self.ledger
        )

    async def remember(self, user: str = "alice", *texts: str) -> tuple[Turn, bool]:
        turn = turn_of(user, *texts, base=self.publisher.positions.take(max(1, len(texts))))
        return turn, (await self.publisher.send(turn)).spooled

    async def unstored(self, owner: Scope = ALICE) -> list[str]:
        async with self.db.transaction(namespace=owner.namespace) as tx:
            payloads = await self.ledger.unstored(tx, owner)
        return texts_of([decode_turn(payload) for payload in payloads])

    async def close(self) -> None:
        await self.publisher.close()
        await self.link.close()
        await self.db.close()


@asynccontextmanager
async def agent_on(url: str, valkey: Valkey, state_dir: Path, **changed: object) -> AsyncIterator[Agent]:
    agent = Agent(url, valkey.url, state_dir, **changed)
    try:
        yield agent
    finally:
        await agent.close()


async def test_a_turn_is_a_committed_job_and_rung_for(database: Database, valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(database.url, valkey, tmp_path) as agent:
        turn, spooled = await agent.remember("alice", "I moved to Oslo.")

        job = await agent.ledger.job(turn.job_id)
        assert not spooled
        assert job is not None
        assert (job.kind, job.state) == (JobKind.STORE, JobState.QUEUED)

        def rung() -> bool:
            with valkey.client() as client:
                return bool(client.llen(Keys().queue(STORE)))

        await wait_until(rung, description="the bell")


async def test_a_turn_survives_the_loss_of_redis(database: Database, valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(database.url, valkey, tmp_path) as agent:
        await agent.remember("alice", "before")
        valkey.wipe()
        await agent.remember("alice", "between")
        valkey.kill()

        _, spooled = await agent.remember("alice", "after")

        assert not spooled
        assert await agent.unstored() == ["before", "between", "after"]


async def test_the_same_turn_again_changes_nothing(database: Database, valkey: Valkey, tmp_path: Path) -> None:
    async with agent_on(database.url, valkey, tmp_path) as agent:
        turn = turn_of("alice", "once")

        first, again = await agent.publisher.send(turn), await agent.publisher.send(turn)

        assert (first.known, again.known) == (False, True)
        assert await agent.unstored() == ["once"]


async def test_concurrent_turns_of_many_tenants_share_commits(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    async with agent_on(database.url, valkey, tmp_path) as agent:
        await agent.remember("warm")
        turns = [turn_of(f"u{i}", f"of {i}", namespace=f"tenant-{i % 3}") for i in range(60)]

        await asyncio.gather(*(agent.publisher.send(turn) for turn in turns))
        await agent.publisher.drained()  # a starved machine may spool one

        for turn in turns:
            assert await agent.unstored(turn.scope.owner) == [turn.messages[0].content]


LIMITS = {
    "pending turns": {"pending_max_turns": 1},
    "pending bytes": {"pending_max_bytes": 1_000},
    "pending turns of this user": {"pending_max_turns_per_user": 1},
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_beyond_a_limit_the_caller_gets_queue_full_if_that_is_set(
    database: Database, valkey: Valkey, tmp_path: Path, limit: str
) -> None:
    async with agent_on(database.url, valkey, tmp_path, when_full="refuse", **LIMITS[limit]) as agent:
        await agent.remember("alice", "first" * 120)

        with pytest.raises(errors.QueueFull) as caught:
            await agent.remember("alice", "second" * 120)

        assert caught.value.what == limit
        assert await agent.unstored() == ["first" * 120]


async def test_a_limit_of_one_user_or_namespace_does_not_refuse_others(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    limits = {"pending_max_turns": 2, "pending_max_turns_per_user": 1, "when_full": "refuse"}
    async with agent_on(database.url, valkey, tmp_path, **limits) as agent:
        await agent.remember("alice", "first")
        with pytest.raises(errors.QueueFull, match="this user"):
            await agent.remember("alice", "second")
        await agent.remember("bob", "third")
        with pytest.raises(errors.QueueFull, match="pending turns"):
            await agent.remember("carol", "fourth")

        await agent.publisher.send(turn_of("carol", "fifth", namespace="other"))

        assert await agent.unstored(Scope(namespace="other", user_id="carol")) == ["fifth"]


async def test_beyond_a_limit_the_turn_is_spooled_and_accepted_when_there_is_space(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    async with agent_on(database.url, valkey, tmp_path, pending_max_turns_per_user=1) as agent:
        await agent.remember("alice", "first")
        _, spooled = await agent.remember("alice", "second")
        before = await agent.unstored()

        [lease] = await agent.ledger.claim(JobKind.STORE, worker="w", for_=timedelta(seconds=30))
        async with agent.db.transaction() as tx:
            await agent.ledger.finish(tx, lease)
        await wait_until(agent.unstored, description="the second turn is accepted")

        assert spooled
        assert before == ["first"]
        assert await agent.unstored() == ["second"]


async def test_turns_that_workers_leave_for_too_long_stop_new_ones(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    async with agent_on(
        database.url, valkey, tmp_path, when_full="refuse", pending_max_age_seconds=3_600, pending_max_turns=2_000
    ) as agent:
        await agent.remember("alice", "first")
        await psql_async(database.url, "UPDATE aftermind.jobs SET created_at = created_at - interval '2 hours'")

        async def is_refused() -> bool:  # a count serves for a second
            try:
                await agent.remember("alice", "another")
            except errors.QueueFull as exc:
                return exc.what.startswith("age")
            return False

        await wait_until(is_refused, description="the age of the oldest turn refuses new ones")


@pytest.mark.parametrize("fault", ["reset", "blackhole"])
async def test_without_postgres_the_turn_is_spooled_and_committed_later(
    database: Database, valkey: Valkey, tmp_path: Path, fault: str
) -> None:
    hasty = {"remember_budget_seconds": 0.5, "db_timeout_seconds": 5.0, "db_connect_timeout_seconds": 2.0}
    async with proxy_to(database.url) as proxy, agent_on(proxy.url(database.url), valkey, tmp_path, **hasty) as agent:
        await agent.remember("alice", "before")
        await agent.publisher.drained()  # on a busy machine it may have missed the budget
        proxy.reset() if fault == "reset" else proxy.blackhole()

        async with loop_clock() as clock:
            _, spooled = await agent.remember("alice", "meanwhile")
        _, also = await agent.remember("alice", "and then")

        assert spooled
        assert also
        assert clock.seconds < agent.settings.remember_budget_seconds + 0.4
        assert texts_of(await agent.publisher.pending(ALICE)) == ["meanwhile", "and then"]
        if fault == "blackhole":
            proxy.reset()  # what was swallowed leaves the connections out of step
        proxy.let_pass()
        await asyncio.wait_for(agent.publisher.drained(), 180)
        assert await agent.unstored() == ["before", "meanwhile", "and then"]


SLOW = (
    "CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.05); RETURN new; END'",
    "CREATE TRIGGER be_slow BEFORE INSERT ON aftermind.jobs FOR EACH ROW EXECUTE FUNCTION be_slow()",
)


async def test_a_primary_too_slow_for_all_spooled_turns_of_a_user_takes_them_a_few_at_a_time(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    hasty = {"remember_budget_seconds": 0.5, "db_timeout_seconds": 5.0, "db_connect_timeout_seconds": 2.0}
    texts = [f"note {number}" for number in range(40)]  # 2 s in one call
    async with proxy_to(database.url) as proxy, agent_on(proxy.url(database.url), valkey, tmp_path, **hasty) as agent:
        proxy.reset()
        for text in texts:
            assert (await agent.remember("alice", text))[1]
        await psql_async(database.admin_url, *SLOW)

        proxy.let_pass()
        await asyncio.wait_for(agent.publisher.drained(), 180)

        assert await agent.unstored() == texts


class Silence:
    """Events that never come: what a receipt still has to be right without."""

    def subscribe(self, owner: Scope, *, after: str | None = None) -> AsyncIterator[object]:
        raise errors.RedisUnavailable("no events")


async def test_a_receipt_follows_the_ledger_where_events_are_missed(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    async with agent_on(database.url, valkey, tmp_path) as agent:
        turn, spooled = await agent.remember("alice", "I moved to Oslo.")
        receipt = Receipt(turn, spooled=spooled, ledger=agent.ledger, news=Silence())  # type: ignore[arg-type]

        assert (await receipt.status()).stored is StepState.WAITING
        with pytest.raises(errors.ReceiptTimeout, match="The turn is safe") as caught:
            await receipt.stored(timeout=0.1)
        assert caught.value.job_id == turn.job_id

        waiting = asyncio.create_task(receipt.stored(timeout=180))
        [lease] = await agent.ledger.claim(JobKind.STORE, worker="w", for_=timedelta(seconds=30))
        async with agent.db.transaction() as tx:
            await agent.ledger.finish(tx, lease)

        await waiting
        assert (await receipt.status()).stored is StepState.DONE
        await receipt.embedded(timeout=1)  # no such job: not needed


async def test_a_receipt_is_woken_by_the_event_and_does_not_wait_for_the_next_look(
    database: Database, valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_module, "FIRST_POLL_SECONDS", 60.0)
    async with agent_on(database.url, valkey, tmp_path) as agent:
        events = EventBus(agent.db, agent.link, Keys())
        turn, spooled = await agent.remember("alice", "I moved to Oslo.")
        waiting = asyncio.create_task(
            Receipt(turn, spooled=spooled, ledger=agent.ledger, news=events).stored(timeout=180)
        )

        def listens() -> bool:
            with valkey.client() as client:
                return bool(client.pubsub_numpat() or client.pubsub_channels())

        await wait_until(listens, description="the receipt listens")
        [lease] = await agent.ledger.claim(JobKind.STORE, worker="w", for_=timedelta(seconds=30))
        done = MemoryUpdateCompleted(scope=turn.scope, at=datetime.now(UTC), job_id=str(turn.job_id), message_count=1)
        async with agent.db.transaction() as tx:
            await agent.ledger.finish(tx, lease)
            kept = await events.append(tx, [done])
        await events.publish(kept)

        await asyncio.wait_for(waiting, 180)
        await events.close()
