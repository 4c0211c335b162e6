"""The two places that a turn can be handed over to: Redis, or the ledger on the primary."""

import asyncio
from collections.abc import Sequence
from functools import partial

from aftermind import errors
from aftermind.db.base import Database
from aftermind.freshness import WatermarkDelivery
from aftermind.ledger.base import Ledger
from aftermind.outbox.flights import Flights, named
from aftermind.outbox.group import Landing
from aftermind.outbox.ringing import Ringing
from aftermind.types import JobId, Scope
from aftermind.wire.channel import UnknownScriptError
from aftermind.wire.connection import RedisLink
from aftermind.wire.pending import BELLS, Accepted, Offer, Pending, PendingLimits
from aftermind.wire.resp import Answer

RAISE_SHARE = 0.4  # of the budget of remember(), for raising watermarks once the turn is committed
PAUSE_SECONDS = 1.0  # after Redis took longer than that, before a turn waits for it again


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
        self._limits, self._most_bells = limits, most_bells
        self._answer_seconds = link.timeout
        self._flights = Flights(budget_seconds, errors.RedisUnavailable)

    def set_budget(self, seconds: float) -> None:
        """See `Acceptor`."""
        self._flights.budget_seconds = seconds
        self._link.set_timeout(min(self._answer_seconds, seconds))

    def start(self, offers: Sequence[Offer], landing: Landing) -> None:
        """See `Acceptor`. Where the connection stands, no task is made: the answer is read as it arrives."""
        bells = self._ringing.messages([offer.turn.job_id for offer in offers[: self._most_bells]])
        channel = self._link.channel()
        if channel is None:
            self._flights.start(self._accept(offers, bells), landing)
            return
        command = self._pending.accept_command(offers, self._limits, bells, self._most_bells)
        channel.submit(command, partial(self._arrived, offers, bells, landing))

    async def probe(self) -> None:
        """See `Acceptor`."""
        await self._link.call("PING")

    def _arrived(
        self, offers: Sequence[Offer], bells: list[bytes], landing: Landing, answer: Answer, error: Exception | None
    ) -> None:
        if error is None:
            landing(self._rung(offers, bells, self._pending.accepted(offers, answer)))
        elif isinstance(error, UnknownScriptError):
            self._flights.start(self._accept(offers, bells), landing)
        else:
            landing(named(error))

    async def _accept(self, offers: Sequence[Offer], bells: list[bytes]) -> list[Accepted]:
        accepted = await self._pending.accept(offers, limits=self._limits, bells=bells, most_bells=self._most_bells)
        return self._rung(offers, bells, accepted)

    def _rung(self, offers: Sequence[Offer], bells: list[bytes], accepted: list[Accepted]) -> list[Accepted]:
        if not bells:
            self._ringing.ring_soon(_new(offers, accepted))
        return accepted


class LedgerAcceptor:
    """A row of the ledger, committed on the primary, then a bell: survives the loss of Redis altogether.

    `delivery` raises the owners' watermarks, so that a recall of any process reads a node that has the row.
    """

    def __init__(
        self,
        database: Database,
        ledger: Ledger,
        ringing: Ringing,
        *,
        delivery: WatermarkDelivery | None = None,
        budget_seconds: float,
    ) -> None:
        self._database, self._ledger, self._ringing = database, ledger, ringing
        self._delivery, self._raise_seconds, self._wait_again_at = delivery, budget_seconds * RAISE_SHARE, 0.0
        self._raising: set[asyncio.Task[None]] = set()
        self._flights = Flights(budget_seconds, partial(errors.StoreUnavailable, "primary"))

    def set_budget(self, seconds: float) -> None:
        """See `Acceptor`."""
        self._flights.budget_seconds = seconds

    def start(self, offers: Sequence[Offer], landing: Landing) -> None:
        """See `Acceptor`."""
        self._flights.start(self._accept(offers), landing)

    async def probe(self) -> None:
        """See `Acceptor`."""
        await self._database.watermark()

    async def _accept(self, offers: Sequence[Offer]) -> list[Accepted]:
        new: list[bool] = []
        async with self._database.transaction(namespace=offers[0].turn.scope.namespace) as tx:
            for offer in offers:
                await tx.enter(offer.turn.scope.namespace)
                new.append(await self._ledger.accept(tx, offer.turn, offer.payload))
        accepted = [Accepted(base=offer.turn.base, known=not is_new) for offer, is_new in zip(offers, new, strict=True)]
        self._ringing.ring_soon(_new(offers, accepted))
        await self._raise([offer.turn.scope.owner for offer in offers])
        return accepted

    async def _raise(self, owners: Sequence[Scope]) -> None:
        """Raise the owners' watermarks; while Redis does not answer in the background, and not waited for."""
        if self._delivery is None:
            return
        loop = asyncio.get_running_loop()
        # The row itself is what is left to be delivered: see db.undelivered.
        task = loop.create_task(self._delivery.deliver_or_outlast(owners, ()), name="aftermind raise")
        self._raising.add(task)
        task.add_done_callback(self._raising.discard)
        if loop.time() >= self._wait_again_at:
            _, late = await asyncio.wait([task], timeout=self._raise_seconds)
            self._wait_again_at = loop.time() + PAUSE_SECONDS if late else 0.0


def _new(offers: Sequence[Offer], accepted: list[Accepted]) -> list[JobId]:
    pairs = zip(offers, accepted, strict=True)
    return [offer.turn.job_id for offer, became in pairs if not became.known and became.refusal is None]
