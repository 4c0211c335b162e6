"""The `AtOnce` protocol: all that storing turns writes, in one trip to the database and committed with it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aftermind.db.base import Transaction, Watermark
from aftermind.db.event_log import EventRow
from aftermind.stores.base import Vector
from aftermind.types import Episode, EpisodeId, JobId, Turn

Follow = Callable[[Transaction, frozenset[JobId]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A turn on its way into the store: the episodes that are kept of it, and its events as their record has them."""

    turn: Turn
    episodes: Sequence[Episode]
    events: Sequence[EventRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was committed: turns that nobody stored before, and the cursor of each of their events by its id.

    `took_ms` is how long it took, and is added to the `duration_ms` of events. `watermark` was taken after the commit.
    """

    new: frozenset[JobId]
    cursors: Mapping[str, int]
    took_ms: float
    watermark: Watermark | None


class AtOnce(Protocol):
    """The short way into the store."""

    async def store(
        self, given: Sequence[Arrived], vectors: Mapping[EpisodeId, Vector], *, follow: Follow | None = None
    ) -> Written | None:
        """Ledger rows, episodes and events of turns of one tenant, committed or not there at all.

        `follow` puts in what follows the turns that are new, in the same transaction; without it there is one trip.
        None: nothing was written, for an owner is new or may have forgotten something, and the long way looks into
        that. Raises `StoreUnavailable`; whether it was committed is unknown then.
        """
