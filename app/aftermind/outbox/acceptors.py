"""The two places that a turn can be handed over to: Redis, or the ledger on the primary."""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial

from aftermind import errors
from aftermind.db.base import Database
from aftermind.ledger.base import Ledger
from aftermind.outbox.group import Landing
from aftermind.outbox.ringing import Ringing
from aftermind.types import JobId
from aftermind.wire.channel import UnknownScriptError
from aftermind.wire.connection import RedisLink
from aftermind.wire.pending import BELLS, Accepted, Offer, Pending, PendingLimits
from aftermind.wire.resp import Answer


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

    def start(self, offers: Sequence[Offer], landing: Landing) -> None:
        """See `Acceptor`. Where the connection stands, no task is made: the answer is read as it arrives."""
        bells = self._ringing.messages([offer.turn.job_id for offer in offers[: self._most_bells]])
        channel = self._link.channel()
        if channel is None:
            _begin(self._accept(offers, bells), landing, self._tasks)
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
            _begin(self._accept(offers, bells), landing, self._tasks)
        else:
            landing(_named(error))

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

    def start(self, offers: Sequence[Offer], landing: Landing) -> None:
        """See `Acceptor`."""
        _begin(self._accept(offers), landing, self._tasks)

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


def _new(offers: Sequence[Offer], accepted: list[Accepted]) -> list[JobId]:
    pairs = zip(offers, accepted, strict=True)
    return [offer.turn.job_id for offer, became in pairs if not became.known and became.refusal is None]


def _begin(
    work: Coroutine[None, None, list[Accepted]], landing: Landing, tasks: set[asyncio.Task[list[Accepted]]]
) -> None:
    def landed(task: asyncio.Task[list[Accepted]]) -> None:
        tasks.discard(task)
        error = errors.RedisUnavailable("the event loop ends") if task.cancelled() else task.exception()
        landing(task.result() if error is None else _named(error))

    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)  # a loop holds its tasks by weak references only
    task.add_done_callback(landed)


def _named(error: BaseException) -> errors.AftermindError:
    return error if isinstance(error, errors.AftermindError) else errors.Bug(f"{type(error).__name__}: {error}")
