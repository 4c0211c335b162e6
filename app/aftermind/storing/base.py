"""The `AtOnce` protocol: all that storing turns writes, in one trip to the database and committed with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from aftermind.db.base import Watermark
from aftermind.db.event_log import EventRow
from aftermind.stores.base import Vector
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, JobId, NewJob, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A turn on its way into the store: the episodes that are kept of it, and its events as their record has them."""

    turn: Turn
    episodes: Sequence[Episode]
    events: Sequence[EventRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """The jobs that follow turns (`NewJob.follows`): put in by `Ledger.enqueue`, or pushed by `Ledger.debounce` to run
    after `quiet`, `at_most` so long after the first of them. One that follows only turns that are not new is left out.
    """

    enqueued: Sequence[NewJob] = ()
    debounced: Sequence[NewJob] = ()
    quiet: timedelta = timedelta(0)
    at_most: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What was committed: turns that nobody stored before, jobs that were enqueued, and event cursors by event id.

    `took_ms` is how long it took, and is added to the `duration_ms` of events. `watermark` was taken after the commit.
    """

    new: frozenset[JobId]
    enqueued: frozenset[JobId]
    cursors: Mapping[str, int]
    took_ms: float
    watermark: Watermark | None


class AtOnce(Protocol):
    """The short way into the store."""

    async def store(
        self,
        given: Sequence[Arrived],
        vectors: Mapping[EpisodeId, Vector],
        following: Following | None = None,
        *,
        embedder: EmbedderIdentity | None = None,
    ) -> Written | None:
        """Ledger rows, episodes, jobs that follow and events of turns of one tenant, committed or not there at all.

        None: nothing was written, for an owner is new or may have forgotten something, a session was counted from
        elsewhere before (types.counting), a job that was to be pushed has just been taken, or `embedder`, which made
        the vectors, is not the active one; the long way handles that. Raises `StoreUnavailable`; whether it was
        committed is unknown then.
        """
