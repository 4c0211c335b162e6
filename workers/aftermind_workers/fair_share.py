"""Fair share: how many of a process's places the jobs of one namespace may hold."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Places:
    """Jobs or batches that a process runs side by side, and how many of them each namespace may have.

    A namespace may hold as many places as are free (a dynamic threshold: Choudhury and Hahne, 1998). Alone it gets half
    of them, so that another tenant finds a free place at any time; two get a third each.
    """

    total: int
    claiming: asyncio.Lock = field(default_factory=asyncio.Lock)  # one claim sees what the one before it took
    look_at: float = 0.0  # before then, a claim would find what the last one found: nothing
    _taken: int = 0
    _held: Counter[str] = field(default_factory=Counter)

    @property
    def free(self) -> int:
        """Places that nothing holds."""
        return max(0, self.total - self._taken)

    def full_namespaces(self) -> list[str]:
        """Namespaces that hold their share."""
        free = self.free
        return [namespace for namespace, count in self._held.items() if count >= free]

    @contextmanager
    def hold(self, *namespaces: str) -> Iterator[None]:
        """One place, for a job or batch of these namespaces."""
        self._taken += 1
        self._held.update(namespaces)
        try:
            yield
        finally:
            self._taken -= 1
            self._held -= Counter(namespaces)
