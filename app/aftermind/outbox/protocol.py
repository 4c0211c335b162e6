"""The interface that `Memory` uses to hand over turns, to workers or to this process."""

from dataclasses import dataclass
from typing import Protocol

from aftermind.outbox.turn_positions import Positions
from aftermind.types import JobId, Scope, Turn
from aftermind.types.tombstone import Tombstone


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Where a turn is now.

    `spooled`: on this host's disk, and sent when Redis is back. `known`: the same job id was handed over before.
    """

    base: int
    spooled: bool = False
    known: bool = False


class Outbox(Protocol):
    """Takes turns. Constructing one connects nothing; it can be used from any event loop of the process."""

    @property
    def positions(self) -> Positions:
        """Places in the order for the messages of a turn."""

    async def send(self, turn: Turn) -> Sent:
        """Hand the turn over; it is safe when this returns.

        Raises `IdempotencyConflict`, `QueueFull`, `SpoolFull`, `SpoolUnavailable`, `TenantMoved`, or what keeps Redis
        away where the spool is switched off.
        Whatever it raises, the same turn can be sent again.
        """

    async def pending(self, owner: Scope) -> tuple[Turn, ...]:
        """The owner's turns that only this host has, oldest first: recall merges them."""

    async def forget(self, stone: Tombstone) -> list[JobId]:
        """Drop turns that only this host has and the tombstone covers whole; which."""

    def find_orphans(self) -> None:
        """Begin to send what ended processes of this host have left; repeated for as long as the loop runs."""

    async def drained(self) -> None:
        """Wait until this process has nothing left to send."""

    async def close(self) -> None:
        """Close connections and files. Unsent turns stay on disk. It can be used again afterwards."""
