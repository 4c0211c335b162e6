"""Pauses claims of work whose dependency is unavailable."""

from dataclasses import dataclass, field
from datetime import timedelta

from aftermind.types import JobKind

LONGEST = timedelta(seconds=5)  # a restarted server is noticed within it; asking a dead one costs a refused connection


@dataclass(slots=True)
class ClaimPause:
    """Shut by an outage, for a wait that doubles while it lasts; the first batch after the wait is the probe."""

    shut_until: float = 0.0
    outages: int = 0

    def wait(self, now: float) -> float:
        """Seconds until work may be claimed again; 0 where it may."""
        return max(0.0, self.shut_until - now)

    def shut(self, now: float, pause: timedelta) -> None:
        """An outage: `pause`, doubled for each one since the last success. A longer pause is taken as it is."""
        longest = max(pause, LONGEST)
        doubled = pause * 2 ** min(self.outages, 10)
        self.shut_until = now + min(doubled, longest).total_seconds()
        self.outages += 1

    def opened(self) -> None:
        """A batch succeeded."""
        self.outages = 0
        self.shut_until = 0.0


@dataclass(slots=True)
class Gates:
    """One gate for each kind of work, of one process; of pending turns one for each shard of a Redis Cluster."""

    _made: dict[tuple[JobKind, int | None], ClaimPause] = field(default_factory=dict)

    def gate(self, kind: JobKind, shard: int | None = None) -> ClaimPause:
        """The gate of the kind, or of one shard of it; open at first."""
        return self._made.setdefault((kind, shard), ClaimPause())
