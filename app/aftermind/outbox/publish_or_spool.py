"""The transport of `remember()`: one call to Redis, or the local spool, within the time budget."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from weakref import WeakKeyDictionary

from aftermind import errors
from aftermind.outbox.doorbell_sender import DoorbellSender
from aftermind.outbox.generation_from_postgres import GenerationLookup
from aftermind.outbox.group_commit import Acceptor, Group, LateError, hand_over
from aftermind.outbox.protocol import Sent
from aftermind.outbox.spool import Spool
from aftermind.outbox.spool_drain import Drain
from aftermind.outbox.turn_positions import Positions
from aftermind.settings import Settings
from aftermind.types import JobId, Scope, Turn
from aftermind.types.tombstone import Tombstone
from aftermind.wire.pending import Accepted, Offer, PendingLimits
from aftermind.wire.redis_keys import owner_part
from aftermind.wire.turn_encoding import encode_turn

ORPHANS_SECONDS = 5.0  # interval between checks for spooled turns of ended processes
CLOSING_SECONDS = 1.0  # for which a process that ends continues to send a spool while Redis answers

_Session = tuple[asyncio.AbstractEventLoop, str, str | None]
Recorded = Callable[[Turn], Awaitable[str | None]]  # the hash of what was recorded under the id of the turn


class Publisher:
    """Hands turns over, from any event loop of the process. Constructing it connects nothing."""

    def __init__(
        self,
        settings: Settings,
        *,
        acceptor: Acceptor,
        ringing: DoorbellSender,
        spool: Spool,
        positions: Positions | None = None,
        asking: GenerationLookup | None = None,
        recorded: Recorded | None = None,
    ) -> None:
        self._settings, self._acceptor, self._ringing, self.spool = settings, acceptor, ringing, spool
        self.positions, self._asking, self._recorded = positions or Positions(), asking or GenerationLookup(), recorded
        self._limits = PendingLimits.from_settings(settings)
        self._drain = Drain(acceptor, spool, follow=self._follow_move)
        self._groups: WeakKeyDictionary[asyncio.AbstractEventLoop, Group] = WeakKeyDictionary()
        self._checks: dict[_Session, asyncio.Future[None]] = {}  # of keys, the latest of each session
        self._orphans_at = 0.0
        self._next_checks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.TimerHandle] = WeakKeyDictionary()
        self._acceptor_seconds = 0.0
        self._divide_budget()

    async def send(self, turn: Turn) -> Sent:
        """Hand the turn over; it is safe when this returns. Within the budget, the spool's write and sync included.

        Raises `IdempotencyConflict`, `QueueFull` (by `when_full="refuse"`), `SpoolFull`, `SpoolUnavailable`,
        `TenantMoved` with the database that serves the tenant now, and what keeps Redis away where the spool is
        switched off. Whatever it raises, the turn was not taken, or the same turn can be sent again.
        """
        began = time.monotonic()
        if turn.content_hash is not None or self._checks:
            await self._in_order_of_calls(turn)
        self.find_orphans()
        if self._drain.away is not None:
            return await self._spooled(turn, began, self._drain.away)
        if self.spool.holds(owner_part(turn.scope), turn.scope.session_id or ""):
            # Behind those of its session that are still here: Redis keeps the order in which they come.
            return await self._spooled(turn, began, errors.RedisUnavailable("the spool is being sent"))
        budget = self._settings.remember_budget_seconds
        asking = asyncio.get_running_loop().call_later(budget / 2, self._asking.begin)
        try:
            accepted = await self._group().send(Offer(turn=turn, payload=encode_turn(turn)))
        except LateError as exc:
            return await self._spooled(turn, began, exc)
        except errors.Bug as exc:  # a key that the script of this turn, or of another one of the call, could not use
            return await self._spooled(turn, began, exc)
        except errors.TenantMoved as exc:  # of this turn's tenant, or of another one of the call
            if exc.database is not None and exc.namespace == turn.scope.namespace:
                raise
            return await self._spooled(turn, began, exc)
        except errors.Unavailable as exc:
            self._drain.begin(away=exc)
            return await self._spooled(turn, began, exc)
        finally:
            asking.cancel()
        if accepted.moved is not None:
            raise errors.TenantMoved(turn.scope.namespace, database=accepted.moved, other=accepted.moved)
        if accepted.conflict:
            raise errors.IdempotencyConflict(turn.idempotency_key)
        if accepted.refusal is not None:
            return await self._refused(turn, began, accepted)
        self._asking.begin_once()
        self.positions.passed(accepted.base + len(turn.messages) - 1)
        return Sent(base=accepted.base, known=accepted.known)

    async def pending(self, owner: Scope) -> tuple[Turn, ...]:
        self.find_orphans()
        return await self.spool.pending(owner)

    async def forget(self, stone: Tombstone) -> list[JobId]:
        gone = await self.spool.forget(stone)
        self.find_orphans()
        return gone

    async def drained(self) -> None:
        """Wait until the spool of this process is empty and Redis answers."""
        await self._drain.task.wait()

    def find_orphans(self) -> None:
        """Begin to send turns that ended processes have left in the spool, and to delete files that are not needed any
        more; repeated for as long as the loop runs.
        """
        now = time.monotonic()
        if now < self._orphans_at:
            return
        self._orphans_at = now + ORPHANS_SECONDS
        if self.spool.has_files():
            self._drain.begin()
        self.spool.report_foreign_files()
        loop = asyncio.get_running_loop()
        if (waiting := self._next_checks.get(loop)) is not None:
            waiting.cancel()
        self._next_checks[loop] = loop.call_later(ORPHANS_SECONDS + 0.01, self.find_orphans)

    async def close(self) -> None:
        """Stop sending; what is in the spool stays there for the next process. It can be used again afterwards."""
        if self._drain.away is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING_SECONDS):
                    await self._drain.task.wait()
        for waiting in self._next_checks.values():
            waiting.cancel()
        self._next_checks.clear()
        self._orphans_at = 0.0
        await self._ringing.close()
        await self._drain.stop()
        await self._asking.task.cancel()
        await asyncio.to_thread(self.spool.close)

    def _group(self) -> Group:
        loop = asyncio.get_running_loop()
        group = self._groups.get(loop)
        if group is None:
            for closed in [known for known in self._groups if known.is_closed()]:
                del self._groups[closed]
            group = Group(self._acceptor, budget_seconds=self._acceptor_seconds)
            self._groups[loop] = group
        return group

    def _divide_budget(self) -> None:
        """Keep back of the budget what the spool's write takes; the acceptor gets the rest, at least half."""
        budget = self._settings.remember_budget_seconds
        kept = self.spool.write_allowance_seconds if self._settings.spool_max_bytes else 0.0
        self._acceptor_seconds = budget - min(kept, budget / 2)
        self._acceptor.set_budget(self._acceptor_seconds)
        for group in list(self._groups.values()):
            group.budget_seconds = self._acceptor_seconds

    async def _spooled(self, turn: Turn, began: float, why: errors.AftermindError) -> Sent:
        if self._settings.spool_max_bytes == 0:
            self._drain.begin()
            raise why
        left = began + self._acceptor_seconds - time.monotonic()
        # Without any number, the host's clock would decide about an erasure.
        timeout = left if self._asking.is_unknown else min(left, self._acceptor_seconds / 4)
        number = await self._asking.number(since=began, timeout=timeout)
        turn = replace(turn, generation=turn.accepted_under(number))
        await self.spool.append(turn, encode_turn(turn))
        self._divide_budget()
        self._drain.begin()
        return Sent(base=turn.base, spooled=True)

    async def accept_elsewhere(self, offers: Sequence[Offer]) -> list[Accepted]:
        """Hand over spooled turns that another publisher could not, because their tenant has moved here."""
        return await hand_over(self._acceptor, offers)

    async def _follow_move(self, namespace: str, database: str, offers: Sequence[Offer]) -> list[Accepted]:
        self._settings.follow_move(namespace, database)
        parts = self._settings.moved.parts
        if parts is None:
            raise errors.TenantMoved(namespace, database=database, other=database)
        accepted: list[Accepted] = await parts(database).outboxes.get().accept_elsewhere(offers)
        return accepted

    async def _in_order_of_calls(self, turn: Turn) -> None:
        """Check the turn's key, and let earlier calls of its session finish theirs, so that none is overtaken.

        Checks run side by side and have the same deadline: the wait is never longer than a check.
        """
        loop = asyncio.get_running_loop()
        session = (loop, owner_part(turn.scope), turn.scope.session_id)
        earlier = self._checks.get(session)
        if turn.content_hash is None and earlier is None:
            return
        mine: asyncio.Future[None] = loop.create_future()
        self._checks[session] = mine
        try:
            if turn.content_hash is not None:
                await self._check_key(turn)
            if earlier is not None:
                await asyncio.wait([earlier])
        finally:
            mine.set_result(None)
            if self._checks.get(session) is mine:
                del self._checks[session]

    async def _check_key(self, turn: Turn) -> None:
        """Whether its key was used for another turn, as far as can be seen: one that is stored, or spooled here.

        Raises `IdempotencyConflict`. What is pending, the accepting call itself compares.
        """
        known = self.spool.content_hash(turn.job_id)
        if known is None and self._recorded is not None:
            with suppress(errors.Unavailable, TimeoutError):
                async with asyncio.timeout(self._settings.remember_budget_seconds / 4):
                    known = await self._recorded(turn)
        if known is not None and known != turn.content_hash:
            raise errors.IdempotencyConflict(turn.idempotency_key)

    async def _refused(self, turn: Turn, began: float, accepted: Accepted) -> Sent:
        assert accepted.refusal is not None
        full = errors.QueueFull(accepted.refusal, accepted.value, self._limits.of(accepted.refusal))
        if self._settings.when_full == "refuse":
            raise full
        return await self._spooled(turn, began, full)
