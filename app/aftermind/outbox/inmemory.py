"""The queue of stores that live in one process: turns are rows of the ledger, and this very process works them off.

Handlers belong to the workers' side and are found by entry point, so that the library never imports them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points

from aftermind import errors
from aftermind.db.database_protocol import Database, Transaction
from aftermind.ledger.protocol import Ledger
from aftermind.outbox.ledger_backlog_limits import LedgerLimits
from aftermind.outbox.protocol import Sent
from aftermind.outbox.single_background_task import OneTask
from aftermind.outbox.turn_positions import Positions
from aftermind.settings import Settings
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId, Scope, Turn
from aftermind.types.session_order import placed_after, session_columns
from aftermind.types.tombstone import Tombstone
from aftermind.wire.pending import PendingLimits
from aftermind.wire.turn_encoding import decode_turn, encode_turn

log = get_logger(__name__)

GROUP, ENTRY = "aftermind.handlers", "in_process"
POLL_SECONDS = 0.05  # between checks for due jobs: a debounce, a back-off
IDLE_CHECK_SECONDS = 2.0  # between checks of an idle process for jobs of others that have ended
POLLS_BETWEEN_WAKES = 40  # of an idle worker: then it also works on replay plans and retention policies

# Claims runnable jobs, runs them, and returns whether there were any.
Work = Callable[[], Awaitable[bool]]
OpenWork = Callable[[], Work]
Prepare = Callable[[], Awaitable[None]]
# Work on stored rows without a job; returns whether some of it remains.
Tidy = Callable[[], Awaitable[bool]]
# Whether there are jobs that no process works on.
Abandoned = Callable[[], Awaitable[bool]]
# Notifies workers of turns; returns immediately.
Notify = Callable[[Sequence[JobId]], None]


def load_work(*arguments: object, **named: object) -> Work:
    """The handlers of this installation, bound to the parts of a memory (`aftermind_tasks.inmemory.open_work`)."""
    return _find_handlers()(*arguments, **named)


@cache  # to read what all installed packages offer takes 6 ms
def _find_handlers() -> Callable[..., Work]:
    found = [entry for entry in entry_points(group=GROUP) if entry.name == ENTRY]
    if not found:
        raise errors.InvalidSettings("handlers", ENTRY, "no package offers handlers; install aftermind whole.")
    open_work: Callable[..., Work] = found[0].load()
    return open_work


class InProcessQueue:
    """An `Outbox` without Redis. `work` is called for as long as it finds something; it is made at the first turn,
    after `prepare`. `tidy` is called when no job is left, `replay` before each check for jobs: it puts in those of
    replay plans, and returns whether a plan still runs. With `abandoned`, of a store of several processes, an idle
    process takes over the jobs of those that have ended. With `notify` this process runs no jobs: workers do.

    Bounded like pending: beyond a limit of `settings.pending_max_*` `send` raises `QueueFull`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        db: Database,
        ledger: Ledger,
        open_work: OpenWork,
        prepare: Prepare | None = None,
        tidy: Tidy | None = None,
        replay: Tidy | None = None,
        abandoned: Abandoned | None = None,
        notify: Notify | None = None,
    ) -> None:
        self._db, self._ledger, self._open_work, self._prepare = db, ledger, open_work, prepare
        self._tidy, self._replay, self._abandoned, self._notify = tidy, replay, abandoned, notify
        self._runs_jobs = settings.run_jobs and notify is None
        if abandoned is None and not settings.run_jobs:
            why = "only stores of several processes have workers: sqlite:, redis:// and sql+…. Leave it out."
            raise errors.InvalidSettings("run_jobs", False, why)
        self._limits = PendingLimits.from_settings(settings)
        self._turn_limits = LedgerLimits(ledger, self._limits)
        self._work: Work | None = None
        self._task = OneTask()
        self.positions = Positions()
        self._is_closing = False
        self._is_woken = False
        self._next_check: asyncio.TimerHandle | None = None

    async def send(self, turn: Turn) -> Sent:
        async with self._db.transaction(namespace=turn.scope.namespace) as tx:
            number = turn.accepted_under(await self._db.generation(tx))
            turn = await self._placed(tx, replace(turn, generation=number, counted_from=self.positions.began))
            payload = encode_turn(turn)
            refused = await self._turn_limits.refusal(tx, turn.scope, size=len(payload))
            if refused is not None:
                raise errors.QueueFull(*refused, self._limits.of(refused[0]))
            is_new = await self._ledger.accept(tx, turn, payload)
            if not is_new and turn.content_hash != await self._ledger.content_hash(tx, turn.scope, turn.job_id):
                raise errors.IdempotencyConflict(turn.idempotency_key)
        if self._notify is not None:
            self._notify([turn.job_id])
        self.wake()
        return Sent(base=turn.base, known=not is_new)

    def wake(self) -> None:
        """Begin what was put into the ledger: by a turn, or by a call such as `undo`."""
        if not self._runs_jobs:
            return
        self._is_closing = False
        self._is_woken = True
        self._task.start(self._work_off)

    async def serve(self) -> None:
        """Run the jobs that other processes put in, until cancelled."""
        while True:
            try:
                for _ in range(POLLS_BETWEEN_WAKES):
                    if await self._is_unfinished():
                        break
                    await asyncio.sleep(POLL_SECONDS)
            except errors.AftermindError as exc:  # the next check tries again
                log.warning("the store is not checked for jobs", extra={"error": str(exc)})
                await asyncio.sleep(IDLE_CHECK_SECONDS)
            self.wake()
            await self.drained()

    async def _placed(self, tx: Transaction, turn: Turn) -> Turn:
        """The turn after those of other processes in its session that are not stored yet, whichever is stored first."""
        if self._abandoned is None:
            return turn
        last = (await self._ledger.accepted_order(tx, [turn.scope])).get(session_columns(turn.scope))
        if last is None or last.counted_from == turn.counted_from:
            return turn
        return placed_after(turn, last)

    async def pending(self, owner: Scope) -> tuple[Turn, ...]:
        """The owner's turns that are not stored yet, oldest first."""
        async with self._db.transaction(namespace=owner.namespace, read_only=True) as tx:
            payloads = await self._ledger.unstored(tx, owner)
        return tuple(decode_turn(payload) for payload in payloads)

    async def forget(self, stone: Tombstone) -> list[JobId]:
        """Nothing to do: all turns are in the store, where the tombstone applies."""
        return []

    def find_orphans(self) -> None:
        """There are none: a turn is in the store when it is accepted."""

    async def drained(self) -> None:
        """Wait until every job is done that was put in so far, those that wait for their time included."""
        await self._task.wait()

    async def close(self) -> None:
        """Finish what can run now; what waits for its time stays with the store."""
        self._is_closing = True
        if self._next_check is not None:
            self._next_check.cancel()
        await self._task.wait()

    async def _work_off(self) -> None:
        try:
            await self._prepare_once()
            while self._is_woken:  # again if a job was added after the last check
                self._is_woken = False
                while await self._step():
                    pass
                if self._tidy is not None and not self._is_closing:
                    self._is_woken = await self._tidy() or self._is_woken
                    while await self._step():
                        pass
        except Exception as exc:  # the edge of a background task; the next turn starts it again, and no row is lost
            if _is_exit(exc):
                return
            log.exception("background work stopped")
        self._check_later()

    def _check_later(self) -> None:
        if self._abandoned is not None and not self._is_closing:
            loop = asyncio.get_running_loop()
            if self._next_check is not None:  # set before a wake; it would check once more, even after close()
                self._next_check.cancel()
            self._next_check = loop.call_later(IDLE_CHECK_SECONDS, self._task.start, self._check)

    async def _check(self) -> None:
        """Take over jobs of processes that have ended."""
        assert self._abandoned is not None
        try:
            self._is_woken = await self._abandoned() or self._is_woken
        except errors.AftermindError as exc:  # the next check tries again
            log.info("the store is not checked for jobs", extra={"error": str(exc)})
        except RuntimeError as exc:
            if _is_exit(exc):
                return
            raise
        if self._is_woken:
            await self._work_off()
        else:
            self._check_later()

    async def _prepare_once(self) -> None:
        if self._prepare is None:
            return
        try:
            await self._prepare()
        except errors.AftermindError as exc:  # a model that cannot be loaded: its jobs report it, others run
            log.warning("background work is not prepared", extra={"error": str(exc)})
        else:
            self._prepare = None

    async def _step(self) -> bool:
        """Check the ledger once; returns whether to check again."""
        if self._work is None:
            self._work = self._open_work()
        is_replaying = self._replay is not None and not self._is_closing and await self._replay()
        if await self._work():
            return True
        if self._is_closing or not (is_replaying or await self._is_unfinished()):
            return False
        await asyncio.sleep(POLL_SECONDS)
        return True

    async def _is_unfinished(self) -> bool:
        return any(each.runnable or each.running or each.waiting for each in await self._ledger.backlog())


def _is_exit(exc: Exception) -> bool:
    """Whether a thread was refused because the interpreter exits, while the blocking API's loop still runs.

    The memory was not closed then. Its jobs stay with the store, for the next process.
    """
    return isinstance(exc, RuntimeError) and "cannot schedule new futures" in str(exc)
