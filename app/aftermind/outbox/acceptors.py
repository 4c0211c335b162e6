"""The two places that a turn can be handed over to: Redis, or the ledger on the primary."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from aftermind import errors
from aftermind.db.base import Database
from aftermind.ledger.base import Ledger
from aftermind.outbox.group import Answer
from aftermind.outbox.ringing import Ringing
from aftermind.wire.channel import UnknownScriptError
from aftermind.wire.connection import RedisLink
from aftermind.wire.pending import BELLS, Accepted, Offer, Pending, PendingLimits


class RedisAcceptor:
    """Pending, index and doorbell in one call to Redis, within `budget_seconds` with the connecting."""

    def __init__(
        self,
        link: RedisLink,
        pending: Pending,
        ringing: Ringing,
        *,
        limits: PendingLimits,
        most_bells: int = BELLS,
        budget_seconds: float,
    ) -> None:
        self._link, self._pending, self._ringing = link, pending, ringing
        self._limits, self._most_bells, self._budget = limits, most_bells, budget_seconds
        self._tasks: set[asyncio.Task[list[Accepted]]] = set()

    def start(self, offers: Sequence[Offer]) -> Answer:
        """See `Acceptor`. Where the connection stands, no task is made: the answer is read as it arrives."""
        bells = self._ringing.messages([offer.turn.job_id for offer in offers[: self._most_bells]])
        channel = self._link.channel()
        if channel is None:
            return _begun(self._accept(offers, bells), self._tasks)
        answer = asyncio.get_running_loop().create_future()
        raw = channel.send(self._pending.accept_command(offers, self._limits, bells, self._most_bells))
        raw.add_done_callback(lambda done: self._arrived(offers, bells, done, answer))
        return answer

    async def probe(self) -> None:
        """See `Acceptor`."""
        await self._link.call("PING")

    def _arrived(self, offers: Sequence[Offer], bells: list[bytes], raw: asyncio.Future[Any], answer: Answer) -> None:
        # Any: Redis's answer
        if answer.done():
            return
        exc = errors.RedisUnavailable("closed") if raw.cancelled() else raw.exception()
        if exc is None:
            answer.set_result(self._rung(offers, bells, self._pending.accepted(offers, raw.result())))
        elif isinstance(exc, UnknownScriptError):
            task = _begun(self._accept(offers, bells), self._tasks)
            task.add_done_callback(lambda done: _copy(done, answer))
        else:
            answer.set_exception(exc)

    async def _accept(self, offers: Sequence[Offer], bells: list[bytes]) -> list[Accepted]:
        try:
            async with asyncio.timeout(self._budget):
                accepted = await self._pending.accept(
                    offers, limits=self._limits, bells=bells, most_bells=self._most_bells
                )
        except TimeoutError as exc:
            raise errors.RedisUnavailable(f"no answer within {self._budget:g} s") from exc
        return self._rung(offers, bells, accepted)

    def _rung(self, offers: Sequence[Offer], bells: list[bytes], accepted: list[Accepted]) -> list[Accepted]:
        if not bells:
            self._ringing.ring_soon(_new(offers, accepted))
        return accepted


class LedgerAcceptor:
    """A row of the ledger, committed on the primary, then a bell: survives the loss of Redis altogether."""

    def __init__(self, database: Database, ledger: Ledger, ringing: Ringing, *, budget_seconds: float) -> None:
        self._database, self._ledger, self._ringing, self._budget = database, ledger, ringing, budget_seconds
        self._tasks: set[asyncio.Task[list[Accepted]]] = set()

    def start(self, offers: Sequence[Offer]) -> Answer:
        """See `Acceptor`."""
        return _begun(self._accept(offers), self._tasks)

    async def probe(self) -> None:
        """See `Acceptor`."""
        await self._database.watermark()

    async def _accept(self, offers: Sequence[Offer]) -> list[Accepted]:
        try:
            async with asyncio.timeout(self._budget), self._database.transaction() as tx:
                new = [await self._ledger.accept(tx, offer.turn, offer.payload) for offer in offers]
        except TimeoutError as exc:
            raise errors.StoreUnavailable("primary", f"no commit within {self._budget:g} s") from exc
        accepted = [Accepted(base=offer.turn.base, known=not is_new) for offer, is_new in zip(offers, new, strict=True)]
        self._ringing.ring_soon(_new(offers, accepted))
        return accepted


def _new(offers: Sequence[Offer], accepted: list[Accepted]) -> list[Any]:
    pairs = zip(offers, accepted, strict=True)
    return [offer.turn.job_id for offer, became in pairs if not became.known and became.refusal is None]


def _begun(work: Coroutine[None, None, list[Accepted]], tasks: set[asyncio.Task[list[Accepted]]]) -> Answer:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)  # a loop holds its tasks by weak references only
    task.add_done_callback(tasks.discard)
    return task


def _copy(done: Answer, answer: Answer) -> None:
    if answer.done() or done.cancelled():
        return
    exc = done.exception()
    if exc is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(exc)
