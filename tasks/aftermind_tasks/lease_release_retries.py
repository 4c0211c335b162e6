"""`LeaseReturns`: releases leases again that could not be released, because their server did not answer.

A lease that runs out counts as lost, since its job may have ended its worker. After an outage that would be wrong: the
worker lives. So it tries again until the server answers, and then takes the count back as well.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from aftermind import errors
from aftermind.ledger.protocol import Ledger
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId, Lease, LeaseToken
from aftermind.wire.pending import Pending

log = get_logger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0  # seconds between two tries; they double
WHY = "the store did not answer"


class LeaseReturns:
    """Of one process. What a process that ends has not returned runs out, and counts."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def jobs(self, leases: Sequence[Lease]) -> None:
        """Hand these back in the background, attempt and lost lease uncounted."""
        self._start(lambda: self._ledger.return_leases(leases, why=WHY, uncount_loss=True))

    def turns(self, pending: Pending, ids: Sequence[JobId], token: LeaseToken) -> None:
        """Return lost leases of turns that are pending in Redis."""
        if ids:
            self._start(lambda: pending.release(ids, token=token, uncount_loss=True))

    def claim(self, claim_id: UUID, worker: str) -> None:
        """Return what a claim took whose answer never arrived."""
        self._start(lambda: self._ledger.return_claim(claim_id, worker=worker, why=WHY))

    def claimed_turns(self, pending: Pending, token: LeaseToken) -> None:
        """The same of turns that are pending in Redis."""
        self._start(lambda: pending.return_claim(token))

    async def close(self) -> None:
        """Stop trying, for good: a task that this cancels begins no other one."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, give_back: Callable[[], Awaitable[object]]) -> None:
        if self._is_closed:
            return
        task = asyncio.get_running_loop().create_task(self._return(give_back), name="aftermind lease return")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _return(self, give_back: Callable[[], Awaitable[object]]) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await give_back()
                return
            except errors.Unavailable:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            except errors.AftermindError as exc:
                log.warning("lease not returned", extra={"error": str(exc)})
                return
