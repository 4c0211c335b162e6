"""The two places that a turn can be handed over to: Redis, or the ledger on the primary."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import monotonic

from aftermind import errors
from aftermind.db.database_protocol import Database, Transaction
from aftermind.freshness import WatermarkDelivery
from aftermind.ledger.protocol import Ledger
from aftermind.outbox.doorbell_sender import DoorbellSender
from aftermind.outbox.group_commit import Landing
from aftermind.outbox.ledger_backlog_limits import LedgerLimits
from aftermind.outbox.send_within_budget import Flights, named
from aftermind.types import JobId, Scope, Turn
from aftermind.types.session_order import Counted, counted, placed_after, session_columns
from aftermind.wire.pending import BELLS, Accepted, Offer, Pending, PendingLimits
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis.connection import UnknownScriptError
from aftermind.wire.redis.resp import Answer
from aftermind.wire.turn_encoding import encode_turn

RAISE_SHARE = 0.4  # of the budget of remember(), for raising watermarks once the turn is committed
PAUSE_SECONDS = 1.0  # after Redis took longer than that, before a turn waits for it again
RESERVE_AGAIN_SECONDS = 1.0  # after a Redis that did not answer


class RedisAcceptor:
    """Pending, index and doorbell in one call to Redis, within `budget_seconds` with the connecting."""

    def __init__(
        self,
        link: RedisLink,
        pending: Pending,
        ringing: DoorbellSender,
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
        self._flights.budget_seconds = seconds
        self._link.set_timeout(min(self._answer_seconds, seconds))

    def start(self, offers: Sequence[Offer], landing: Landing) -> None:
        """On an open connection, no task is created: the answer is read when it arrives."""
        bells = self._ringing.messages([offer.turn.job_id for offer in offers[: self._most_bells]])
        channel = self._link.channel()
        if channel is None:
            self._flights.start(self._accept(offers, bells), landing)
            return
        command = self._pending.accept_command(offers, self._limits, bells, self._most_bells)
        channel.submit(command, partial(self._arrived, offers, bells, landing, monotonic()))

    async def probe(self) -> None:
        await self._link.call("PING")

    def _arrived(
        self,
        offers: Sequence[Offer],
        bells: list[bytes],
        landing: Landing,
        began: float,
        answer: Answer,
        error: Exception | None,
    ) -> None:
        if error is None:
            landing(self._rung(offers, bells, self._pending.accepted(offers, answer, took=monotonic() - began)))
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
        ringing: DoorbellSender,
        *,
        delivery: WatermarkDelivery | None = None,
        pending: Pending | None = None,
        limits: PendingLimits,
        budget_seconds: float,
    ) -> None:
        self._limits = LedgerLimits(ledger, limits)
        self._database, self._ledger, self._ringing, self._pending = database, ledger, ringing, pending
        self._delivery, self._raise_seconds, self._wait_again_at = delivery, budget_seconds * RAISE_SHARE, 0.0
        self._raising: set[asyncio.Task[None]] = set()
        self._reserve_seconds, self._reserve_at = budget_seconds / 5, 0.0
        self._flights = Flights(budget_seconds, partial(errors.StoreUnavailable, "primary"))

    def set_budget(self, seconds: float) -> None:
        self._flights.budget_seconds = seconds

    def start(self, offers: Sequence[Offer], landing: Landing) -> None:
        self._flights.start(self._accept(offers), landing)

    async def probe(self) -> None:
        await self._database.watermark()

    async def _accept(self, offers: Sequence[Offer]) -> list[Accepted]:
        accepted: list[Accepted] = []
        turns, conflicts = await self._reserved([offer.turn for offer in offers])
        async with self._database.transaction(namespace=offers[0].turn.scope.namespace) as tx:
            number = await self._database.generation(tx)
            order: dict[str, dict[tuple[str, str], Counted]] = {}  # of the sessions, by namespace
            for offer, turn in zip(offers, turns, strict=True):
                if turn.job_id in conflicts:
                    accepted.append(Accepted(base=turn.base, known=True, conflict=True))
                    continue
                namespace, key = turn.scope.namespace, session_columns(turn.scope)
                await tx.enter(namespace)
                if namespace not in order:
                    scopes = [each.scope for each in turns if each.scope.namespace == namespace]
                    order[namespace] = dict(await self._ledger.accepted_order(tx, scopes))
                turn = placed_after(turn, order[namespace].get(key))
                turn = turn if offer.is_spooled else replace(turn, generation=turn.accepted_under(number))
                accepted.append(await self._accept_one(tx, turn))
                if _is_new(accepted[-1]):
                    order[namespace][key] = counted(turn)
        self._ringing.ring_soon(_new(offers, accepted))
        if self._pending is not None:
            self._pending.generation.learn(number)
        await self._raise([offer.turn.scope.owner for offer in offers])
        return accepted

    async def _accept_one(self, tx: Transaction, turn: Turn) -> Accepted:
        payload = encode_turn(turn)
        refused = await self._limits.refusal(tx, turn.scope, size=len(payload))
        if refused is not None and await self._ledger.content_hash(tx, turn.scope, turn.job_id) is None:
            return Accepted(base=turn.base, refusal=refused[0], value=refused[1])
        if await self._ledger.accept(tx, turn, payload):
            return Accepted(base=turn.base)
        is_other = turn.content_hash is not None and turn.content_hash != await self._ledger.content_hash(
            tx, turn.scope, turn.job_id
        )
        return Accepted(base=turn.base, known=True, conflict=is_other)

    async def _reserved(self, turns: list[Turn]) -> tuple[list[Turn], frozenset[JobId]]:
        """The turns with their places, and those whose idempotency key belongs to another turn in Redis.

        In the order of what Redis accepts of their sessions; by this process's own count where it does not answer.

        It is not waited for long, and not asked again for as long as a second: turns come here to do without it.
        """
        if self._pending is None or monotonic() < self._reserve_at:
            return turns, frozenset()
        try:
            async with asyncio.timeout(self._reserve_seconds):
                return await self._pending.reserve(turns)
        except (errors.RedisUnavailable, TimeoutError):
            self._reserve_at = monotonic() + RESERVE_AGAIN_SECONDS
            return turns, frozenset()

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
    return [offer.turn.job_id for offer, became in pairs if _is_new(became)]


def _is_new(accepted: Accepted) -> bool:
    return not accepted.known and accepted.refusal is None and accepted.moved is None
