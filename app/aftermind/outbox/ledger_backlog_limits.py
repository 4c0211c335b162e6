"""`LedgerLimits`: bounds on turns that the ledger accepted and no worker has stored yet."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from aftermind.db.database_protocol import Transaction
from aftermind.ledger.protocol import Ledger, Unstored
from aftermind.types import Scope
from aftermind.wire.pending_types import PendingLimit, PendingLimits

ALLOWANCE = 1 / 8  # of the space left: turns that are accepted before the next count, so that processes share the rest
MIN_INTERVAL_SECONDS = 1.0
MAX_INTERVAL_SECONDS = 10.0
COUNTED_PER_SECOND = 10_000  # of turns; a count of 10,000 index entries takes about 10 ms: 1 % of one connection
MAX_KEPT_COUNTS = 10_000  # owners; beyond it all are counted again


@dataclass(slots=True)
class _Count:
    """What was counted; for how many turns and bytes, and until when it serves."""

    refusal: PendingLimit | None
    value: float
    turns_left: float
    bytes_left: float
    until: float

    def is_good_for(self, size: int) -> bool:
        """Whether it serves for a turn of that size."""
        return self.refusal is not None or (self.turns_left >= 1 and self.bytes_left >= size)


class LedgerLimits:
    """The limits of one process. A namespace has those of all, because an agent's role sees no other tenant's jobs.

    Nothing is counted for most turns: a count serves for some seconds, and for a share of the space that it found. So
    several processes together can exceed a limit by what they accept between two counts.
    """

    def __init__(self, ledger: Ledger, limits: PendingLimits, *, clock: Callable[[], float] = monotonic) -> None:
        self._ledger, self._limits, self._clock = ledger, limits, clock
        self._counts: dict[tuple[str, str | None], _Count] = {}

    async def refusal(self, tx: Transaction, owner: Scope, *, size: int) -> tuple[PendingLimit, float] | None:
        """The limit that declines one more turn of the owner, and what was counted; None if it may be accepted."""
        counts = [await self._current(tx, owner.namespace, user, size) for user in (None, owner.user_column)]
        for count in counts:
            if count.refusal is not None:
                return count.refusal, count.value
        for count in counts:
            count.turns_left -= 1
            count.bytes_left -= size
        return None

    async def _current(self, tx: Transaction, namespace: str, user: str | None, size: int) -> _Count:
        now, known = self._clock(), self._counts.get((namespace, user))
        if known is not None and now < known.until and known.is_good_for(size):
            return known
        most = self._limits.turns if user is None else self._limits.turns_of_user
        found = await self._ledger.measure_unstored(tx, namespace, user, limit=most)
        refusal, value = self._judge(found, size) if user is None else self._judge_user(found)
        interval = min(MAX_INTERVAL_SECONDS, MIN_INTERVAL_SECONDS + found.turns / COUNTED_PER_SECOND)
        if len(self._counts) >= MAX_KEPT_COUNTS:
            self._counts.clear()
        count = self._counts[namespace, user] = _Count(
            refusal=refusal,
            value=value,
            turns_left=max(1.0, (most - found.turns) * ALLOWANCE),
            bytes_left=max(float(size), (self._limits.size_bytes - found.size_bytes) * ALLOWANCE),
            until=now + interval,
        )
        return count

    def _judge(self, found: Unstored, size: int) -> tuple[PendingLimit | None, float]:
        if found.turns >= self._limits.turns:
            return PendingLimit.TURNS, found.turns
        if found.size_bytes + size > self._limits.size_bytes:
            return PendingLimit.BYTES, found.size_bytes
        if found.oldest > self._limits.age:
            return PendingLimit.AGE, found.oldest / timedelta(seconds=1)
        return None, 0.0

    def _judge_user(self, found: Unstored) -> tuple[PendingLimit | None, float]:
        is_full = found.turns >= self._limits.turns_of_user
        return (PendingLimit.USER, found.turns) if is_full else (None, 0.0)
