"""A server's clock as a process can compute it between two answers of the server."""

import sys
import time

VALID_SECONDS = 3_600.0  # after an answer: two clocks that differ by 100 ppm drift apart by 0.36 s in an hour
MAX_JUMP_SECONDS = 0.25  # of this host's clock against its monotonic one: it was set, or the host was suspended
MAX_TRIP_SECONDS = 0.25  # of a call whose answer has the time: that answer is at most so old

_MONOTONIC = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC  # continues during a suspension


class ServerClock:
    """The latest time of a server that was read, plus the time since then by this host's monotonic clock."""

    def __init__(self) -> None:
        self._offset: float | None = None  # of the server's clock from the monotonic one, in seconds
        self._read_at = self._jumps_from = 0.0

    def read(self, server_ms: int, *, took: float) -> None:
        """Take the time of an answer that has just arrived, `took` seconds after its call.

        One that took longer than an earlier answer is less exact: the earlier one is used until it is no longer valid,
        or the server's clock was set back.
        """
        if took > MAX_TRIP_SECONDS:
            return
        now = time.clock_gettime(_MONOTONIC)
        offset = server_ms / 1000 - now
        is_exact = self._offset is None or not -MAX_TRIP_SECONDS < offset - self._offset < 0
        if is_exact or not self._is_valid(now):
            self._offset, self._read_at, self._jumps_from = offset, now, time.time() - now

    def now_ms(self) -> int | None:
        """The server's time now, in ms; None before the first answer, an hour after it, and after a jump of a clock."""
        now = time.clock_gettime(_MONOTONIC)
        return None if self._offset is None or not self._is_valid(now) else int((now + self._offset) * 1000)

    def _is_valid(self, now: float) -> bool:
        return now - self._read_at < VALID_SECONDS and abs(time.time() - now - self._jumps_from) < MAX_JUMP_SECONDS
