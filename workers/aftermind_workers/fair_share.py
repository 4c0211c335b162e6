"""Fair share: how many of a process's places the jobs of one namespace may hold."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Places:
    """Jobs or batches that a process runs side by side, and how many of them each namespace may have.

    A namespace may hold as many places as are free (a dynamic threshold: Choudhury and Hahne, 1998). Alone it gets half
    of them, so that another tenant finds a free place at any time; two get a third each.

    A doorbell whose claim was restricted for lack of places is spent. So if a place is freed after such a claim, or
    counts for other namespaces, claims are to be repeated (`take_repeat`).
    """

    total: int
    claiming: asyncio.Lock = field(default_factory=asyncio.Lock)  # one claim sees what the one before it took
    look_at: float = 0.0  # before then, a claim would find what the last one found: nothing
    _taken: int = 0
    _restricted: int = 0  # claims that found no free place, or left something out
    _repeat: bool = False
    _held: Counter[str] = field(default_factory=Counter)

    @property
    def free(self) -> int:
        """Places that nothing holds."""
        return max(0, self.total - self._taken)

    def full_namespaces(self) -> list[str]:
        """Namespaces that hold their share."""
        free = self.free
        return [namespace for namespace, count in self._held.items() if count >= free]

    def note_restricted(self) -> None:
        """A claim found no free place, or left out what others may hold places for."""
        self._restricted += 1

    def take_repeat(self) -> bool:
        """Whether a restricted claim may find more by now: the caller is to claim again, or to send a doorbell."""
        repeat, self._repeat = self._repeat, False
        return repeat

    @contextmanager
    def hold(self, *namespaces: str) -> Iterator["Hold"]:
        """One place, for a job or batch of these namespaces."""
        self._taken += 1
        held = Hold(self)
        held.charge(namespaces)
        try:
            yield held
        finally:
            self._taken -= 1
            held.charge(())


class Hold:
    """A place that is held, and the namespaces that it counts for."""

    def __init__(self, places: Places) -> None:
        self._places, self._restricted = places, places._restricted
        self._charged: frozenset[str] = frozenset()

    def charge(self, namespaces: Collection[str]) -> None:
        """Count the place for these namespaces from now on."""
        places = self._places
        places._held = places._held - Counter(self._charged) + Counter(namespaces)
        self._charged = frozenset(namespaces)
        places._repeat |= places._restricted != self._restricted
        self._restricted = places._restricted
