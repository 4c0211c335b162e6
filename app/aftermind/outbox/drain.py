"""Sending the spool when Redis answers again: in order, once, and without delaying what is new."""

import asyncio
import logging
from collections.abc import Sequence

from aftermind import errors
from aftermind.outbox.group import MOST_TURNS, Acceptor, hand_over
from aftermind.outbox.spool import Spool, Spooled
from aftermind.wire.keys import owner_part
from aftermind.wire.pending import Accepted, Offer

log = logging.getLogger(__name__)

PROBE_SECONDS = (0.1, 1.0)  # first and longest wait between two looks; one PING a second costs nobody anything
WINDOW = 10 * MOST_TURNS  # turns that are looked up in the spool at once


class Drain:
    """The one task of a process that sends what is spooled; it runs while there is something to send.

    `away` is what keeps Redis away, until it answers again: new turns go to the spool at once meanwhile, without
    waiting for an answer that will not come.
    """

    def __init__(self, acceptor: Acceptor, spool: Spool) -> None:
        self._acceptor, self._spool = acceptor, spool
        self.away: errors.AftermindError | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, *, away: errors.AftermindError | None = None) -> None:
        """Run from the running loop, unless it runs already (on this loop or another that is alive)."""
        if away is not None and self.away is None:
            self.away = away
            log.warning("Redis is away; turns go to the spool", extra={"reason": str(away)})
        if self._task is None or self._task.done() or self._task.get_loop().is_closed():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def done(self) -> None:
        """Wait until nothing is left to send; for the loop that it runs on."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """End it; what is unsent stays in the spool."""
        task, self._task = self._task, None
        if task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            await asyncio.wait([task])
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
            await asyncio.sleep(wait)
            wait = min(wait * 2, longest)

    async def _send_all(self) -> bool:
        """Whether nothing is left; False where turns were refused by a limit."""
        if not await self._spool.take_over():
            self._back()
        refused: set[str] = set()
        while self._spool.unsent:
            window = await self._spool.next(WINDOW, passing=frozenset(refused))
            if not window:
                return False
            for start in range(0, len(window), MOST_TURNS):
                refused |= await self._send(window[start : start + MOST_TURNS])
        return True

    async def _send(self, spooled: Sequence[Spooled]) -> set[str]:
        """Owners whose turns were refused; theirs wait, the others' do not."""
        offers = [Offer(turn=each.turn, payload=each.payload, keep_base=True) for each in spooled]
        answers = await hand_over(self._acceptor, offers)
        self._back()  # not at the probe: a Redis that is full answers PING and takes no turn
        await self._spool.sent(
            offer.turn.job_id for offer, answer in zip(offers, answers, strict=True) if answer.refusal is None
        )
        return _refused(offers, answers)

    def _back(self) -> None:
        if self.away is not None:
            log.info("Redis is back", extra={"spooled": self._spool.unsent})
            self.away = None


def _refused(offers: Sequence[Offer], answers: Sequence[Accepted]) -> set[str]:
    pairs = zip(offers, answers, strict=True)
    return {owner_part(offer.turn.scope) for offer, answer in pairs if answer.refusal is not None}
