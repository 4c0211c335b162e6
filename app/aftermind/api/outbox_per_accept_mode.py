"""The outboxes of a process, one per accept mode, created at first use."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from aftermind import errors
from aftermind.outbox.protocol import Outbox
from aftermind.settings import Settings
from aftermind.types import Scope, Turn

Accept = Literal["redis", "postgres"]


class Outboxes:
    """Where turns are sent, and which of them only this host has."""

    def __init__(self, settings: Settings, make: Callable[[Accept], Outbox]) -> None:
        self._usual: Accept = settings.accept
        self._make = make
        self._made: dict[Accept, Outbox] = {}

    def get(self, accept: Accept | None = None) -> Outbox:
        """The outbox for an accept mode; None is the configured one. Raises `InvalidSettings`."""
        wanted = self._usual if accept is None else accept
        made = self._made.get(wanted)
        if made is not None:
            return made
        if wanted not in get_args(Accept):
            raise errors.InvalidSettings("accept", accept, f"a turn is accepted by {' or '.join(get_args(Accept))}.")
        self._made[wanted] = self._make(wanted)
        return self._made[wanted]

    def all(self) -> Sequence[Outbox]:
        """Every outbox that was used, and the configured one: an earlier process may have spooled turns there."""
        self.get()
        return tuple(self._made.values())

    async def local_turns(self, owner: Scope) -> list[Turn]:
        """The owner's turns that only this host has: spooled, or queued in this process."""
        return [turn for outbox in self.all() for turn in await outbox.pending(owner)]

    async def close(self) -> None:
        """Close every outbox; what is unsent stays on disk."""
        made, self._made = self._made, {}
        for outbox in made.values():
            await outbox.close()
