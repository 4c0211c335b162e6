"""Group commit: turns that arrive during a call share the next one."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from aftermind import errors
from aftermind.wire.pending import Accepted, Offer

MAX_TURNS = 50  # of one call: Redis is blocked for 2 ms; 200 per call were not faster
MAX_BYTES = 1_048_576
MOST_IN_FLIGHT = 2  # one is carried out while the next is packed; more would only make groups smaller


class LateError(errors.RedisUnavailable):
    """The turn had to wait for others of its process; Redis itself may be healthy."""


Landing = Callable[[list[Accepted] | errors.AftermindError], None]


class Acceptor(Protocol):
    """Where turns are handed over: Redis, or the ledger on the primary."""

    def set_budget(self, seconds: float) -> None:
        """Set the time limit of turns that are handed over from now on."""

    def start(self, offers: Sequence[Offer], landing: Landing) -> None:
        """Hand over without waiting, and call `landing` once: an answer for each in order, or the error of all."""

    async def probe(self) -> None:
        """Whether it answers and takes writes; raises `Unavailable` where not."""


@dataclass(slots=True)
class _Waiter:
    offer: Offer
    future: asyncio.Future[Accepted]
    timer: asyncio.TimerHandle | None = None


class Group:
    """The turns of one event loop for one acceptor: calls in flight, and turns that wait for the next call.

    The first is sent immediately. There is no separate task: a cancelled caller cancels no other; its turn is left out
    if it was not sent yet, and accepted completely if it was.
    """

    def __init__(self, acceptor: Acceptor, *, budget_seconds: float) -> None:
        self._acceptor, self.budget_seconds = acceptor, budget_seconds
        self._waiting: deque[_Waiter] = deque()
        self._in_flight = 0
        self._most_in_flight = 1  # until one was answered: the second call's connection may be open before the first's

    async def send(self, offer: Offer) -> Accepted:
        """What became of the turn. Raises `Unavailable` within the budget, and then it may have been taken or not."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(offer, loop.create_future())
        self._waiting.append(waiter)
        if self._in_flight < self._most_in_flight:
            self._flush()
        else:
            waiter.timer = loop.call_later(self.budget_seconds, _expire, waiter.future, self.budget_seconds)
        return await waiter.future

    def _flush(self) -> None:
        batch = self._next_batch()
        if not batch:
            return
        self._in_flight += 1
        self._acceptor.start([waiter.offer for waiter in batch], partial(self._landed, batch))

    def _next_batch(self) -> list[_Waiter]:
        batch: list[_Waiter] = []
        size = 0
        while self._waiting and len(batch) < MAX_TURNS and size < MAX_BYTES:
            waiter = self._waiting.popleft()
            if not waiter.future.done():  # cancelled, or out of time
                batch.append(waiter)
                size += len(waiter.offer.payload)
        return batch

    def _landed(self, batch: list[_Waiter], outcome: list[Accepted] | errors.AftermindError) -> None:
        self._in_flight -= 1
        self._most_in_flight = 1 if isinstance(outcome, errors.AftermindError) else MOST_IN_FLIGHT
        if isinstance(outcome, errors.AftermindError):
            # Turns that gathered during the call would wait for the same failure again: their budget is running.
            batch, self._waiting = [*batch, *self._waiting], deque()
            for waiter in batch:
                _end(waiter, outcome)
            return
        while self._waiting and self._in_flight < self._most_in_flight:
            self._flush()  # the next groups are sent before this one's callers wake up
        for waiter, accepted in zip(batch, outcome, strict=True):
            _end(waiter, accepted)


async def hand_over(acceptor: Acceptor, offers: Sequence[Offer]) -> list[Accepted]:
    """Hand over several turns of one caller and wait; returns the result of each."""
    future: asyncio.Future[list[Accepted]] = asyncio.get_running_loop().create_future()

    def landed(outcome: list[Accepted] | errors.AftermindError) -> None:
        if future.done():
            return
        if isinstance(outcome, errors.AftermindError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    acceptor.start(offers, landed)
    return await future


def _end(waiter: _Waiter, outcome: Accepted | errors.AftermindError) -> None:
    if waiter.timer is not None:
        waiter.timer.cancel()
    if waiter.future.done():
        return
    if isinstance(outcome, Accepted):
        waiter.future.set_result(outcome)
    else:
        waiter.future.set_exception(outcome)


def _expire(future: asyncio.Future[Accepted], budget: float) -> None:
    if not future.done():
        future.set_exception(LateError(f"no turn to send within {budget:g} s"))
