"""What every event bus promises. Bound to each in `test_buses.py`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import pytest

from aftermind import errors
from aftermind.db.database_protocol import Database, Transaction, Watermark
from aftermind.events.types import MemoryEvent, MemoryUpdateCompleted, MemoryUpdateStarted
from aftermind.types import Scope

ALICE, BOB = Scope(user_id="alice"), Scope(user_id="bob")
PATIENCE = 60.0  # seconds for an event that is to come


class Bus(Protocol):
    """What the contract needs of a bus."""

    async def append(self, tx: Transaction, events: Sequence[MemoryEvent]) -> list[MemoryEvent]:
        """Keep events with their effect."""

    async def publish(self, events: Sequence[MemoryEvent], watermark: Watermark | None = None) -> None:
        """Tell them."""

    async def past(self, owner: Scope, *, after: str, limit: int = 500) -> list[MemoryEvent]:
        """What is kept of them."""

    async def last(self, owner: Scope) -> str:
        """The newest one's cursor."""

    def subscribe(self, owner: Scope, *, after: str | None = None) -> AsyncGenerator[MemoryEvent, None]:
        """Hear them."""


class _RolledBack(Exception):
    """What ends a transaction that is to leave nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A bus with the database that keeps its record."""

    db: Database
    bus: Bus

    async def keep(self, *events: MemoryEvent) -> list[MemoryEvent]:
        """Commit events, and tell nobody."""
        async with self.db.transaction() as tx:
            return await self.bus.append(tx, events)

    async def tell(self, *events: MemoryEvent) -> list[MemoryEvent]:
        """Commit events and publish them."""
        kept = await self.keep(*events)
        await self.bus.publish(kept)
        return kept


class Heard:
    """A subscriber that notes what it hears."""

    def __init__(self, rig: Rig, owner: Scope = ALICE, *, after: str | None = None) -> None:
        self._stream = rig.bus.subscribe(owner, after=after)

    async def next(self, count: int = 1) -> list[str]:
        """The ids of the next events."""
        async with asyncio.timeout(PATIENCE):
            return [(await anext(self._stream)).id for _ in range(count)]

    async def __aenter__(self) -> "Heard":
        return self

    async def __aexit__(self, *_: object) -> None:
        async with aclosing(self._stream):  # type: ignore[type-var]  # a generator, as every bus makes it
            pass


def completed(owner: Scope = ALICE, **more: object) -> MemoryUpdateCompleted:
    """An event of a commit."""
    return MemoryUpdateCompleted(scope=owner, at=datetime.now(UTC), message_count=2, **more)  # type: ignore[arg-type]


def ids(events: Sequence[MemoryEvent]) -> list[str]:
    """Their ids."""
    return [event.id for event in events]


class BusContract:
    """Subclasses give the fixture `rig`."""

    async def test_events_get_cursors_in_the_order_of_their_commits(self, rig: Rig) -> None:
        first = await rig.keep(completed(), completed(BOB), completed())
        second = await rig.keep(completed())

        assert [event.cursor for event in [*first, *second]] == ["1", "1", "2", "3"]

    async def test_a_subscriber_that_returns_gets_what_it_missed_and_then_what_comes(self, rig: Rig) -> None:
        missed = await rig.tell(*(completed() for _ in range(4)))

        async with Heard(rig, after=missed[0].cursor) as heard:
            assert await heard.next(3) == ids(missed[1:])
            live = await rig.tell(completed())
            assert await heard.next() == ids(live)

    async def test_a_subscriber_that_missed_nothing_hears_nothing_twice(self, rig: Rig) -> None:
        seen = await rig.tell(completed(), completed())

        async with Heard(rig, after=seen[-1].cursor) as heard:
            listening = asyncio.create_task(heard.next())
            await asyncio.wait([listening], timeout=0.5)  # several checks of a store that processes share
            assert not listening.done()
            new = await rig.tell(completed())
            assert await listening == ids(new)

    async def test_a_subscriber_without_a_cursor_hears_only_what_comes(self, rig: Rig) -> None:
        await rig.tell(completed())

        async with Heard(rig) as heard:
            listening = asyncio.create_task(heard.next())
            told: list[str] = []
            while not listening.done():  # the subscription stands some time after it was asked for
                told += ids(await rig.tell(completed()))
                await asyncio.wait([listening], timeout=0.05)

        assert (await listening)[0] in told

    async def test_a_subscriber_that_does_not_keep_up_misses_nothing(self, rig: Rig) -> None:
        async with Heard(rig, after="0") as heard:
            first = await rig.tell(completed())
            assert await heard.next() == ids(first)

            told = [event for _ in range(5) for event in await rig.tell(*(completed() for _ in range(500)))]

            assert await heard.next(len(told)) == ids(told)

    async def test_an_event_that_is_told_again_is_heard_once(self, rig: Rig) -> None:
        async with Heard(rig, after="0") as heard:
            kept = await rig.tell(completed(), completed())
            await rig.bus.publish(kept)
            last = await rig.tell(completed())

            assert await heard.next(3) == ids([*kept, *last])

    async def test_what_is_heard_says_what_was_told(self, rig: Rig) -> None:
        scope = Scope(user_id="alice", session_id="s1", agent_id="a1")
        mark = Watermark(system=1, timeline=2, lsn=3)
        (kept,) = await rig.keep(completed(scope, job_id="j1", duration_ms=1.5))

        stream = rig.bus.subscribe(ALICE, after="1")
        listening = asyncio.create_task(_first(stream))
        while not listening.done():
            await rig.bus.publish([MemoryUpdateStarted(scope=scope, at=kept.at, job_id="j1", id="live")], mark)
            await asyncio.wait([listening], timeout=0.05)

        event = await listening
        assert (event.id, event.scope, event.at, event.job_id) == ("live", scope, kept.at, "j1")
        assert event.cursor is None
        async with Heard(rig, after="0") as heard:
            assert await heard.next() == [kept.id]

    async def test_events_of_a_transaction_that_rolled_back_never_were(self, rig: Rig) -> None:
        with suppress(_RolledBack):
            async with rig.db.transaction() as tx:
                await rig.bus.append(tx, [completed()])
                raise _RolledBack
        (kept,) = await rig.keep(completed())

        assert kept.cursor == "1"
        async with Heard(rig, after="0") as heard:
            assert await heard.next() == [kept.id]

    async def test_nobody_hears_the_events_of_another_owner(self, rig: Rig) -> None:
        others = [BOB, Scope(), Scope(namespace="other", user_id="alice"), Scope(user_id="alice*"), Scope(user_id="%")]

        async with Heard(rig, after="0") as heard:
            for other in others:
                await rig.tell(completed(other))
            mine = await rig.tell(completed())

            assert await heard.next() == ids(mine)

    async def test_many_subscribers_hear_all_in_order(self, rig: Rig) -> None:
        subscribers = [Heard(rig, after="0") for _ in range(20)]
        hearing = [asyncio.create_task(each.next(30)) for each in subscribers]

        told = [event for _ in range(10) for event in await rig.tell(*(completed() for _ in range(3)))]

        assert await asyncio.gather(*hearing) == [ids(told)] * 20
        for each in subscribers:
            await each.__aexit__()

    @pytest.mark.parametrize("cursor", ["-5", "1.0", "", "٣", "9" * 5_000])
    async def test_a_number_that_is_no_cursor_is_refused(self, rig: Rig, cursor: str) -> None:
        with pytest.raises(errors.InvalidQuery, match="cursor"):
            await rig.bus.past(ALICE, after=cursor)

    async def test_a_cursor_that_is_none_is_refused(self, rig: Rig) -> None:
        with pytest.raises(errors.InvalidQuery, match="cursor"):
            await _first(rig.bus.subscribe(ALICE, after="yesterday"))

    async def test_what_is_kept_can_be_read_without_waiting(self, rig: Rig) -> None:
        assert (await rig.bus.last(ALICE), await rig.bus.past(ALICE, after="0")) == ("0", [])
        kept = [*await rig.keep(completed(), completed()), *await rig.keep(completed())]
        await rig.keep(completed(BOB))

        assert await rig.bus.last(ALICE) == "3"
        assert ids(await rig.bus.past(ALICE, after="0")) == ids(kept)
        assert ids(await rig.bus.past(ALICE, after="1", limit=1)) == ids(kept[1:2])
        assert await rig.bus.past(ALICE, after="3") == []
        with pytest.raises(errors.InvalidQuery, match="cursor"):
            await rig.bus.past(ALICE, after="yesterday")

    async def test_commits_of_one_owner_at_one_moment_get_cursors_without_gaps(self, rig: Rig) -> None:
        kept = await asyncio.gather(*(rig.tell(completed(), completed(BOB)) for _ in range(12)))

        cursors = sorted(int(event.cursor or 0) for events in kept for event in events if event.scope == ALICE)
        assert cursors == list(range(1, 13))
        async with Heard(rig, after="0") as heard:
            assert len(set(await heard.next(12))) == 12


async def _first(stream: AsyncIterator[MemoryEvent]) -> MemoryEvent:
    async with asyncio.timeout(PATIENCE):
        async with aclosing(stream):  # type: ignore[type-var]  # a generator, as every bus makes it
            return await anext(stream)
