"""The heartbeat beside the work."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar
from uuid import uuid4

import pytest

from aftermind import errors
from aftermind.types import JobId
from aftermind_workers.lease_heartbeat import Renew, held
from tests.support.waiting import wait_until

JOB = JobId(uuid4())
T = TypeVar("T")


class Renewals:
    """What renewing answers, one after the other; the last for ever."""

    def __init__(self, *answers: bool | Exception) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self) -> bool:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def never() -> None:
    await asyncio.Event().wait()


async def while_held(work: Awaitable[T], renew: Renew, *, every: float = 0.01, lasts: float = 10.0) -> T:
    async with asyncio.timeout(180), held(renew, job_id=JOB, every=every, lasts=lasts):
        return await work


async def test_the_answer_of_the_work_is_returned_and_the_beating_ends() -> None:
    renew = Renewals(True)

    async def work() -> str:
        await wait_until(lambda: renew.asked >= 2, description="two heartbeats")
        return "done"

    assert await while_held(work(), renew) == "done"
    assert len(asyncio.all_tasks()) == 1


async def test_work_whose_lease_is_gone_is_cancelled() -> None:
    was_cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await never()
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    with pytest.raises(errors.LeaseLost):
        await while_held(work(), Renewals(True, False))
    assert was_cancelled.is_set()


async def test_an_outage_shorter_than_the_lease_does_not_stop_the_work() -> None:
    renew = Renewals(errors.RedisUnavailable("away"), errors.RedisUnavailable("away"), True)

    async def work() -> str:
        await wait_until(lambda: renew.asked >= 4, description="heartbeats again after the outage")
        return "done"

    assert await while_held(work(), renew) == "done"


@pytest.mark.parametrize("turns", range(5))
async def test_work_that_ends_just_as_its_lease_is_renewed_ends(turns: int) -> None:
    """Both in one turn of the loop: the heartbeat that is cancelled has its answer already."""
    answered = asyncio.Event()

    async def renew() -> bool:
        await answered.wait()
        return True

    async def work() -> str:
        await asyncio.sleep(0.05)
        answered.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        return "done"

    assert await while_held(work(), renew, every=0.03) == "done"


async def test_an_outage_longer_than_the_lease_stops_the_work() -> None:
    with pytest.raises(errors.LeaseLost):
        await while_held(never(), Renewals(errors.RedisUnavailable("away")), lasts=0.05)


async def test_an_error_of_the_work_comes_out_as_it_is() -> None:
    async def work() -> None:
        raise errors.StoreUnavailable("db", "away")

    with pytest.raises(errors.StoreUnavailable):
        await while_held(work(), Renewals(True))


async def test_cancelling_from_outside_is_a_cancellation() -> None:
    task = asyncio.ensure_future(while_held(never(), Renewals(True)))
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
