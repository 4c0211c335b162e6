"""`accept="postgres"`: committed on the primary before remember() returns; Redis only rings."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aftermind import errors
from aftermind import receipt as receipt_module
from aftermind.db.postgres import PostgresDatabase
from aftermind.events.bus import EventBus
from aftermind.events.types import MemoryUpdateCompleted
from aftermind.ledger.postgres import PostgresLedger
from aftermind.outbox.publisher import Publisher
from aftermind.outbox.wiring import make_publisher, remember_link
from aftermind.receipt import Receipt, StepState
from aftermind.settings import Settings
from aftermind.types import JobKind, JobState, Scope, Turn
from aftermind.wire.keys import Keys
from aftermind.wire.payloads import decode_turn
from aftermind.wire.queues import STORE
from tests.support.proxy import proxy_to
from tests.support.servers import Database
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

    def __init__(self, url: str, redis_url: str, state_dir: Path) -> None:
        self.settings = Settings(state_dir=state_dir, accept="postgres")  # type: ignore[call-arg]
        self.db = PostgresDatabase(url)
        self.ledger = PostgresLedger(self.db)
        self.link = remember_link(self.settings, redis_url)
        self.publisher: Publisher = make_publisher(
            self.settings, broker=redis_url, link=self.link, database=self.db, ledger=self.ledger
        )

    async def remember(self, user: str = "alice", *texts: str) -> tuple[Turn, bool]:
        turn = turn_of(user, *texts, base=self.publisher.position(max(1, len(texts))))
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
async def agent_on(url: str, valkey: Valkey, state_dir: Path) -> AsyncIterator[Agent]:
    agent = Agent(url, valkey.url, state_dir)
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

        await wait_until(rung, timeout=20, description="the bell")


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

        for turn in turns:
            assert await agent.unstored(turn.scope.owner) == [turn.messages[0].content]


@pytest.mark.parametrize("fault", ["reset", "blackhole"])
async def test_without_postgres_the_turn_is_spooled_and_committed_later(
    database: Database, valkey: Valkey, tmp_path: Path, fault: str
) -> None:
    async with proxy_to(database.url) as proxy, agent_on(proxy.url(database.url), valkey, tmp_path) as agent:
        await agent.remember("alice", "before")
        proxy.reset() if fault == "reset" else proxy.blackhole()

        started = time.monotonic()
        _, spooled = await agent.remember("alice", "meanwhile")
        took = time.monotonic() - started
        _, also = await agent.remember("alice", "and then")

        assert spooled
        assert also
        assert took < agent.settings.remember_budget_seconds + 0.4
        assert texts_of(await agent.publisher.pending(ALICE)) == ["meanwhile", "and then"]
        if fault == "blackhole":
            proxy.reset()  # what was swallowed leaves the connections out of step
        proxy.let_pass()
        await asyncio.wait_for(agent.publisher.drained(), 20)
        assert await agent.unstored() == ["before", "meanwhile", "and then"]


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

        waiting = asyncio.create_task(receipt.stored(timeout=10))
        [lease] = await agent.ledger.claim(JobKind.STORE, worker="w", for_=timedelta(seconds=30))
        async with agent.db.transaction() as tx:
            await agent.ledger.finish(tx, lease)

        await waiting
        assert (await receipt.status()).stored is StepState.DONE
        await receipt.embedded(timeout=1)  # no such job: not wanted


async def test_a_receipt_is_woken_by_the_event_and_does_not_wait_for_the_next_look(
    database: Database, valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_module, "FIRST_LOOK", 60.0)
    async with agent_on(database.url, valkey, tmp_path) as agent:
        events = EventBus(agent.db, agent.link, Keys())
        turn, spooled = await agent.remember("alice", "I moved to Oslo.")
        waiting = asyncio.create_task(
            Receipt(turn, spooled=spooled, ledger=agent.ledger, news=events).stored(timeout=20)
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

        await asyncio.wait_for(waiting, 5)
        await events.close()
