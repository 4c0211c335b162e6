"""Positions in the order of a process's turns, for every acceptor."""

import time


class Positions:
    """Microseconds since 1970 as this host's clock has them, but never one twice and never backwards.

    What another place gave a turn is passed too: what follows in this process gets a later one.
    """

    def __init__(self) -> None:
        self._next = 0
        self._began: int | None = None

    def take(self, count: int) -> int:
        """The first of `count` positions."""
        first = max(time.time_ns() // 1000, self._next)
        self._next = first + count
        if self._began is None:
            self._began = first
        return first

    def passed(self, position: int) -> None:
        """This one is given."""
        self._next = max(self._next, position + 1)

    @property
    def began(self) -> int | None:
        """The first that was given."""
        return self._began
