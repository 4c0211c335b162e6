"""Batches side by side, and one alone."""

import asyncio
from collections.abc import Awaitable, Callable

from aftermind_workers.last_attempt_isolation import Solitude
from tests.support.waiting import wait_until


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


async def nothing(alone: bool) -> str | None:  # as a batch is called
    return "taken" if alone else None


class Held:
    """A batch that runs until it is let go, beside others."""

    def __init__(self) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self, alone: bool) -> str | None:  # as a batch is called
        assert not alone
        self.began.set()
        await self.may_end.wait()
        return "held"


async def test_batches_run_side_by_side_and_nobody_asks_for_more_where_they_find_work() -> None:
    solitude, one, other = Solitude(), Held(), Held()
    tasks = [asyncio.create_task(solitude.run("store", each, never)) for each in (one, other)]
    await asyncio.gather(one.began.wait(), other.began.wait())
    for each in (one, other):
        each.may_end.set()

    assert await asyncio.gather(*tasks) == ["held", "held"]


async def never() -> bool:
    raise AssertionError("a batch that found work asks for nothing")


async def test_a_claim_that_found_nothing_ends_there_unless_a_last_chance_is_next() -> None:
    assert await Solitude().run("store", nothing, no) is None
    assert await Solitude().run("store", nothing, yes) == "taken"


async def test_what_must_be_alone_waits_for_the_others_and_they_for_it() -> None:
    solitude, held, later = Solitude(), Held(), Held()
    running = asyncio.create_task(solitude.run("store", held, never))
    await held.began.wait()
    is_alone, may_end = asyncio.Event(), asyncio.Event()

    async def alone_at_last(alone: bool) -> str | None:  # as a batch is called
        if not alone:
            return None
        assert running.done()
        is_alone.set()
        await may_end.wait()
        return "alone"

    waiting = asyncio.create_task(solitude.run("store", alone_at_last, yes))
    await asyncio.sleep(0.05)
    assert not is_alone.is_set()
    held.may_end.set()
    await is_alone.wait()
    after = asyncio.create_task(solitude.run("store", later, never))
    await asyncio.sleep(0.05)
    assert not later.began.is_set()
    may_end.set()
    await wait_until(later.began.is_set, description="the next batch has begun")
    later.may_end.set()

    assert await asyncio.gather(running, waiting, after) == ["held", "alone", "held"]


async def test_of_several_that_would_be_alone_one_is_and_only_while_there_is_what_for() -> None:
    solitude, left, asked = Solitude(ask_seconds=0.0), ["the suspect"], asyncio.Event()

    async def is_left() -> bool:
        await asked.wait()
        return bool(left)

    async def take(alone: bool) -> str | None:
        return left.pop() if alone else None

    tasks = [asyncio.create_task(solitude.run("store", take, is_left)) for _ in range(3)]
    await asyncio.sleep(0.05)
    asked.set()

    assert sorted(filter(None, await asyncio.gather(*tasks))) == ["the suspect"]


async def test_one_last_chance_follows_the_other_at_once() -> None:
    solitude, left = Solitude(ask_seconds=3600.0), ["first", "second", "third"]

    async def is_left() -> bool:
        return bool(left)

    async def take(alone: bool) -> str | None:
        return left.pop(0) if alone else None

    assert [await solitude.run("store", take, is_left) for _ in range(4)] == ["first", "second", "third", None]


async def test_what_finds_nothing_asks_once_in_a_while() -> None:
    asked: list[str] = []

    def asking(kind: str) -> Callable[[], Awaitable[bool]]:
        async def ask() -> bool:
            asked.append(kind)
            return False

        return ask

    solitude = Solitude(ask_seconds=60.0)
    for kind in ("store", "store", "embed"):
        await solitude.run(kind, nothing, asking(kind))

    assert asked == ["store", "embed"]
