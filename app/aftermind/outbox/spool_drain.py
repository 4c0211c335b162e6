"""Sending the spool when Redis answers again: in order, once, and without delaying what is new."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from aftermind import errors
from aftermind.outbox.group_commit import MAX_TURNS, Acceptor, hand_over
from aftermind.outbox.single_background_task import OneTask
from aftermind.outbox.spool import Spool
from aftermind.telemetry.logger import get_logger
from aftermind.types.message import Turn, without_key
from aftermind.wire.pending import Accepted, Offer, PendingLimit
from aftermind.wire.redis_keys import owner_part
from aftermind.wire.turn_encoding import encode_turn

log = get_logger(__name__)

PROBE_SECONDS = (0.1, 1.0)  # first and longest wait between two checks; one PING per second is negligible
WINDOW = 10 * MAX_TURNS  # turns that are read from the spool together


# Hands over turns of a namespace that has moved, to the database that serves it.
Follow = Callable[[str, str, Sequence[Offer]], Awaitable[list[Accepted]]]


class Drain:
    """The single task of a process that sends spooled turns; it runs while there are any.

    `away` is the reason why Redis is unavailable, until it answers again: until then new turns are spooled immediately,
    without waiting for an answer.
    """

    def __init__(self, acceptor: Acceptor, spool: Spool, *, follow: Follow | None = None) -> None:
        self._acceptor, self._spool, self._follow = acceptor, spool, follow
        self.away: errors.AftermindError | None = None
        self.task = OneTask()

    def begin(self, *, away: errors.AftermindError | None = None) -> None:
        """Run from the running loop, unless it runs already."""
        if away is not None and self.away is None:
            self.away = away
            log.warning("turns are spooled", extra={"reason": str(away)})
        self.task.start(self._run)

    async def stop(self) -> None:
        """End it; what is unsent stays in the spool."""
        await self.task.cancel()
        self.away = None

    async def _run(self) -> None:
        wait, longest = PROBE_SECONDS
        while True:
            try:
                await self._acceptor.probe()
                if await self._send_all():
                    return
            except errors.AftermindError as exc:
                self.away = self.away or exc
            except Exception:  # the edge of a background task: whatever it is, the spool is tried again
                log.exception("the spool was not sent")
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)

    async def _send_all(self) -> bool:
        """Whether nothing is left; False where turns were refused."""
        if not await self._spool.take_over():
            self._back()
        passing: set[str] = set()  # owners whose turns were refused: they wait, those of others do not
        while self._spool.unsent:
            window = await self._spool.next(WINDOW, passing=frozenset(passing))
            if not window:
                return False
            while window:
                refused = await self._send_apart(window[:MAX_TURNS])
                if refused is None:
                    return False  # no owner may have more
                passing |= refused
                window = [each for each in window[MAX_TURNS:] if owner_part(each.scope) not in passing]
        return True

    async def _send_apart(self, spooled: Sequence[Turn]) -> set[str] | None:
        """Hand turns over, and if that fails while the acceptor answers, those of each tenant and owner apart: what one
        of them holds in it must not stop the others. Returns owners whose turns were refused; None: all are.
        """
        try:
            return await self._send(spooled)
        except errors.AftermindError as exc:
            parts = _apart(spooled)
            await self._acceptor.probe()
            if len(parts) == 1 and len(spooled) > 1:
                return await self._send_halves(spooled)
            if len(parts) == 1:
                log.warning("a user's turn was refused", extra={"error": str(exc)})
                return {owner_part(spooled[0].scope)}
        refused: set[str] = set()
        for part in parts:
            of_part = await self._send_apart(part)
            if of_part is None:
                return None
            refused |= of_part
        return refused

    async def _send_halves(self, spooled: Sequence[Turn]) -> set[str] | None:
        """The turns of one owner in order, fewer at a time: a slow primary cannot take many within a call's budget."""
        middle = len(spooled) // 2
        refused = await self._send_apart(spooled[:middle])
        return await self._send_apart(spooled[middle:]) if refused == set() else refused

    async def _send(self, spooled: Sequence[Turn]) -> set[str] | None:
        """Hand them over; the owners whose turns were refused by their limit. None: by one for all."""
        offers = [_offer(each, now=datetime.now(UTC)) for each in spooled]
        answers = await self._hand_over(offers)
        self._back()  # not at the probe: a Redis that is full answers PING and takes no turn
        pairs = list(zip(offers, answers, strict=True))
        # Its key was used for another turn in between. It was accepted anyway: it becomes a separate turn.
        others = [(offer.turn, without_key(offer.turn)) for offer, answer in pairs if answer.conflict]
        if others:
            for turn, other in others:
                ids = {"job_id": str(turn.job_id), "stored_as": str(other.job_id)}
                log.error("an idempotency key was used for two turns: both are kept", extra=ids)
            again = [_offer(other, now=datetime.now(UTC)) for _, other in others]
            taken = iter(await self._hand_over(again))
            pairs = [(offer, next(taken) if answer.conflict else answer) for offer, answer in pairs]
        await self._spool.sent(offer.turn.job_id for offer, answer in pairs if answer.refusal is None)
        refused = [(offer, answer.refusal) for offer, answer in pairs if answer.refusal is not None]
        if any(limit is not PendingLimit.USER for _, limit in refused):
            return None
        return {owner_part(offer.turn.scope) for offer, _ in refused}

    async def _hand_over(self, offers: Sequence[Offer]) -> list[Accepted]:
        """The answer to each; turns of a tenant that has moved are sent to its database.

        The ledger refuses a group for one such tenant. It is raised where the group has turns of others.
        """
        try:
            answers = await hand_over(self._acceptor, offers)
        except errors.TenantMoved as exc:
            is_alone = all(offer.turn.scope.namespace == exc.namespace for offer in offers)
            if exc.database is None or self._follow is None or not is_alone:
                raise
            return await self._follow(exc.namespace, exc.database, offers)
        moved: dict[tuple[str, str], list[int]] = {}
        for place, answer in enumerate(answers):
            if answer.moved is not None:
                moved.setdefault((offers[place].turn.scope.namespace, answer.moved), []).append(place)
        for (namespace, database), places in moved.items():
            if self._follow is None:
                raise errors.TenantMoved(namespace, database=database, other=database)
            found = await self._follow(namespace, database, [offers[place] for place in places])
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
        return answers

    def _back(self) -> None:
        if self.away is not None:
            log.info("turns are taken again", extra={"spooled": self._spool.unsent})
            self.away = None


def _offer(turn: Turn, *, now: datetime) -> Offer:
    """A spooled turn with the time that it has waited: two readings of one clock."""
    turn = replace(turn, spooled_seconds=max(0.0, (now - turn.remembered_at).total_seconds()))
    return Offer(turn=turn, payload=encode_turn(turn), is_spooled=True)


def _apart(spooled: Sequence[Turn]) -> list[list[Turn]]:
    """By tenant, or if they are of one, by owner."""
    by_tenant, by_owner = dict[str, list[Turn]](), dict[str, list[Turn]]()
    for each in spooled:
        by_tenant.setdefault(each.scope.namespace, []).append(each)
        by_owner.setdefault(owner_part(each.scope), []).append(each)
    return list((by_tenant if len(by_tenant) > 1 else by_owner).values())
