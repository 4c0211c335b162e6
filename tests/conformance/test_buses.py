"""Every bus keeps the bus's promises; and what only Redis beside a record can show."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest

from aftermind import errors
from aftermind.db.engine import PostgresDatabase
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.db.record_store_journals.protocol import AnyJournal
from aftermind.events import inmemory
from aftermind.events.bus import EventBus
from aftermind.events.inmemory import LocalBus
from aftermind.events.types import MemoryGap, MemoryUpdateStarted
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from tests.conformance.bus_contract import ALICE, BOB, BusContract, Heard, Rig, completed, ids
from tests.support.journals import reading_each_time
from tests.support.proxy import proxy_to
from tests.support.servers import Database, psql_async, wait_for_output
from tests.support.waiting import wait_until

MARKED = "SELECT count(*) FROM aftermind.events WHERE published_at IS NOT NULL"
NOBODY = "redis://127.0.0.1:1/0"  # port 1: refused at once


class TestLocalBus(BusContract):
    """The twin."""

    @pytest.fixture
    def rig(self) -> Rig:
        """A bus of one process."""
        database = MemoryDatabase()
        return Rig(db=database, bus=LocalBus(database))

    async def test_a_subscriber_that_is_too_slow_for_what_is_kept_gets_a_gap(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(inmemory, "MAX_KEPT_EVENTS", 100)
        monkeypatch.setattr(inmemory, "MAX_QUEUED_EVENTS", 10)
        stream = rig.bus.subscribe(ALICE, after="0")
        await rig.tell(completed())
        assert (await anext(stream)).cursor == "1"

        kept = await rig.tell(*(completed() for _ in range(300)))

        heard = [await anext(stream) for _ in range(10 + 1 + 100)]
        assert ids(heard[:10]) == ids(kept[:10])
        assert isinstance(heard[10], MemoryGap)
        assert ids(heard[11:]) == ids(kept[-100:])


class TestJournaledBus(BusContract):
    """The bus of one process whose events are written by each journal."""

    @pytest.fixture
    async def rig(self, journal: AnyJournal) -> AsyncIterator[Rig]:
        """A bus of one process, which reads its events back each time."""
        database = reading_each_time(journal)
        yield Rig(db=database, bus=LocalBus(database))
        await database.close()


class TestRedisBus(BusContract):
    """Redis, beside the record in Postgres."""

    @pytest.fixture
    async def open_bus(self, database: Database) -> AsyncIterator[Callable[..., EventBus]]:
        """Buses of the test's own, on a Redis by its URL."""
        opened: list[tuple[EventBus, RedisLink, PostgresDatabase]] = []

        def make(url: str, **options: float) -> EventBus:
            link, db = RedisLink(url, timeout=2.0, name="test"), PostgresDatabase(database.url)
            opened.append((EventBus(db, link, Keys("test:"), **options), link, db))
            return opened[-1][0]

        yield make
        for bus, link, db in opened:
            await bus.close()
            await link.close()
            await db.close()

    @pytest.fixture
    async def rig(self, database: Database, redis_url: str, open_bus: Callable[[str], EventBus]) -> AsyncIterator[Rig]:
        """The session's Redis and a database of the test's own."""
        db = PostgresDatabase(database.url)
        yield Rig(db=db, bus=open_bus(redis_url))
        await db.close()

    async def test_a_subscription_outlives_outages_of_postgres_and_of_redis(
        self, rig: Rig, database: Database, redis_url: str
    ) -> None:
        async with proxy_to(database.url) as postgres, proxy_to(redis_url) as redis:
            db, link = PostgresDatabase(postgres.url(database.url)), RedisLink(redis.url(redis_url), timeout=1.0)
            bus = EventBus(db, link, Keys("test:"))
            stream = bus.subscribe(ALICE, after="0")
            try:
                [first] = await rig.tell(completed())
                assert (await anext(stream)).id == first.id
                postgres.reset()
                redis.reset()  # it has to read the record, which does not answer
                heard = asyncio.ensure_future(anext(stream))
                [second] = await rig.tell(completed())
                assert not (await asyncio.wait([heard], timeout=2.5))[0]

                postgres.let_pass()
                redis.let_pass()

                async with asyncio.timeout(180):
                    assert (await heard).id == second.id
            finally:
                await stream.aclose()  # type: ignore[attr-defined]  # a generator
                await bus.close()
                await link.close()
                await db.close()

    async def test_a_live_copy_that_arrives_after_its_stored_event_is_dropped(self, rig: Rig) -> None:
        assert isinstance(rig.bus, EventBus)
        stream = rig.bus.subscribe(ALICE, after="0")
        one = completed()
        [begun] = await rig.tell(MemoryUpdateStarted(id="job:started", scope=one.scope, at=one.at, job_id=one.job_id))
        assert (await anext(stream)).id == begun.id

        await rig.bus.publish([replace(begun, cursor=None)])
        [ended] = await rig.tell(one)

        async with asyncio.timeout(180):
            assert (await anext(stream)).id == ended.id
        await stream.aclose()  # type: ignore[attr-defined]  # a generator

    async def test_what_retention_deletes_under_a_subscription_is_a_gap(
        self, rig: Rig, database: Database, redis_url: str
    ) -> None:
        assert isinstance(rig.bus, EventBus)
        async with proxy_to(redis_url) as redis:
            link = RedisLink(redis.url(redis_url), timeout=1.0)
            db = PostgresDatabase(database.url)
            bus = EventBus(db, link, Keys("test:"))
            stream = bus.subscribe(ALICE, after="0")
            try:
                await rig.tell(completed())
                assert (await anext(stream)).cursor == "1"
                redis.reset()
                await rig.tell(completed(), completed())
                await _execute(database, "UPDATE aftermind.events SET created_at = created_at - interval '1 day'")
                assert await rig.bus.prune(older_than=timedelta(hours=1), limit=100) == 3
                [last] = await rig.tell(completed())
                redis.let_pass()

                async with asyncio.timeout(180):
                    gap, event = await anext(stream), await anext(stream)
                assert isinstance(gap, MemoryGap)
                assert (gap.cursor, event.id) == ("3", last.id)
            finally:
                await stream.aclose()  # type: ignore[attr-defined]  # a generator
                await bus.close()
                await link.close()
                await db.close()

    async def test_the_relay_tells_what_its_worker_did_not_get_to(self, rig: Rig, database: Database) -> None:
        kept = await rig.keep(completed())
        assert isinstance(rig.bus, EventBus)

        assert await rig.bus.relay() == 0  # its worker is about to tell it
        await _execute(database, "UPDATE aftermind.events SET created_at = created_at - interval '2 seconds'")
        async with Heard(rig, after="0") as heard:
            assert await rig.bus.relay() == 1
            assert await heard.next() == ids(kept)

        assert await rig.bus.relay() == 0

    async def test_told_events_are_marked_together_and_at_the_latest_when_the_bus_closes(
        self, rig: Rig, database: Database, redis_url: str, open_bus: Callable[..., EventBus]
    ) -> None:
        late = Rig(db=rig.db, bus=open_bus(redis_url, mark_after=0.3))
        for number in range(3):
            await late.tell(completed(job_id=f"j{number}"))
        assert await psql_async(database.url, MARKED) == "0"
        await wait_for_output(database.url, MARKED, "3", description="they are marked")
        assert await psql_async(database.url, "SELECT count(DISTINCT published_at) FROM aftermind.events") == "1"

        await late.tell(completed(job_id="last"))
        assert isinstance(late.bus, EventBus)
        await late.bus.close()
        assert await psql_async(database.url, MARKED) == "4"

    async def test_what_was_told_and_not_marked_is_heard_once_though_the_relay_tells_it_again(
        self, rig: Rig, database: Database, redis_url: str, open_bus: Callable[..., EventBus]
    ) -> None:
        late = Rig(db=rig.db, bus=open_bus(redis_url, mark_after=60))
        assert isinstance(late.bus, EventBus)
        async with Heard(late, after="0") as heard:
            kept = await late.tell(completed(job_id="first"))
            assert await heard.next() == ids(kept)
            await _execute(database, "UPDATE aftermind.events SET created_at = created_at - interval '2 seconds'")
            assert await late.bus.relay() == 1
            assert await late.bus.relay() == 0
            kept = await late.tell(completed(job_id="second"))
            assert await heard.next() == ids(kept)

    async def test_a_row_of_an_unknown_kind_or_of_no_event_holds_up_no_other(
        self, rig: Rig, database: Database, redis_url: str
    ) -> None:
        assert isinstance(rig.bus, EventBus)
        odd = ['{"event": "MemoryDreamt", "at": "2030-01-01T00:00:00Z"}', "5", '{"event": ["x"]}', "null", "{}"]
        mine = [await rig.keep(completed(), completed(BOB)) for _ in range(2)]
        for number, event in enumerate(odd, start=100):
            await _execute(
                database,
                f"INSERT INTO aftermind.events (namespace, user_id, seq, id, event) "
                f"VALUES ('default', 'carol', {number}, 'odd-{number}', '{event}'), "
                f"('default', repeat('x', 600), {number}, 'odd-{number}', '{event}')",
            )
        await _execute(database, "UPDATE aftermind.events SET created_at = created_at - interval '2 seconds'")

        async with Heard(rig, after="0") as heard, Heard(rig, BOB, after="0") as other:
            assert await rig.bus.relay() == 4 + len(odd)
            assert await heard.next(2) == [events[0].id for events in mine]
            assert await other.next(2) == [events[1].id for events in mine]

        assert rig.bus.unreadable == 2  # those that are no object; the others are for listeners of another release
        assert await rig.bus.relay() == 0

    async def test_a_message_that_is_no_event_of_the_owner_is_dropped_and_counted(
        self, rig: Rig, redis_url: str
    ) -> None:
        assert isinstance(rig.bus, EventBus)
        forged = [
            b"5",
            b"\xff",
            b"[]",
            b'{"event": "MemoryDreamt"}',
            b'{"event": "MemoryUpdateCompleted"}',
            b'{"event": {}}',
            b'{"event": "MemoryUpdateCompleted", "at": "2030-01-01T00:00:00Z", "user_id": "alice", "cursor": "x"}',
            b'{"event": "MemoryUpdateCompleted", "at": "2030-01-01T00:00:00Z", "user_id": "bob", "cursor": "2"}',
            b'{"event": "MemoryUpdateCompleted", "at": "2030-01-01T00:00:00Z", "user_id": 7}',
        ]
        link = RedisLink(redis_url, timeout=2.0, name="test")

        async with Heard(rig, after="0") as heard:
            first = await rig.tell(completed())
            assert await heard.next() == ids(first)
            channel = Keys("test:").events(ALICE)

            async def is_subscribed() -> bool:
                _, listeners = await link.call("PUBSUB", "NUMSUB", channel)
                return bool(listeners)

            await wait_until(is_subscribed, description="the bus listens: the first event may come from the record")
            for message in forged:
                await link.call("PUBLISH", channel, message)
            await link.close()
            second = await rig.tell(completed())
            assert await heard.next() == ids(second)
            # The event may come from the record, before the messages of the channel have been read.
            bus = rig.bus
            await wait_until(lambda: bus.unreadable >= len(forged), description="every forged message is counted")

        assert rig.bus.unreadable == len(forged)

    async def test_while_redis_is_away_events_come_from_the_record(
        self, rig: Rig, open_bus: Callable[[str], EventBus]
    ) -> None:
        cut_off = Rig(db=rig.db, bus=open_bus(NOBODY))

        async with Heard(cut_off, after="0") as heard:
            kept = await cut_off.keep(completed())
            assert await heard.next() == ids(kept)
            with pytest.raises(errors.RedisUnavailable):
                await cut_off.bus.publish(await cut_off.keep(completed()))
            await heard.next()

    async def test_a_cursor_older_than_the_record_gets_a_gap(self, rig: Rig, database: Database) -> None:
        assert isinstance(rig.bus, EventBus)
        await rig.tell(*(completed() for _ in range(3)))
        await _execute(database, "UPDATE aftermind.events SET created_at = created_at - interval '8 days'")
        (kept,) = await rig.tell(completed())

        assert await rig.bus.prune(older_than=timedelta(days=7), limit=100) == 3

        stream = rig.bus.subscribe(ALICE, after="1")
        async with aclosing(stream):  # type: ignore[type-var]  # a generator
            gap, event = await anext(stream), await anext(stream)
        assert isinstance(gap, MemoryGap)
        assert gap.cursor == "3"
        assert event.id == kept.id


async def _execute(database: Database, statement: str) -> None:
    connection = await asyncpg.connect(database.url)
    await connection.execute(statement)
    await connection.close()
