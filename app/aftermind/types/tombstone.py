"""Tombstones of erasures, and the numbers that order turns and erasures. No clock is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from aftermind.types.message import MEMBER, Episode, Turn
from aftermind.types.scope import EpisodeId, Scope

MAX_ERASURE_NUMBER = 10**18  # of an erasure, as a bound of what callers can give


class Generation:
    """The number of the last erasure that a process has received; None until it has received any."""

    def __init__(self) -> None:
        self.known: int | None = None

    def learn(self, number: int) -> None:
        """Record that there was an erasure with this number; 0 is none."""
        if number > (self.known or 0):
            self.known = number

    @property
    def as_argument(self) -> int | str:
        """As an argument of a script: '' is none."""
        return "" if self.known is None else self.known


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What was forgotten: all of the owner that was stored or accepted before, and fits the labels and ids given; of a
    group, with `member`, only what that user wrote in it.

    `generation` is its number: a turn that was accepted under a lower one came before it. `at` is the database's time,
    which decides for a turn without a number, spooled while neither Redis nor Postgres answered.
    `by_policy`: of a retention policy, not of a request; its ids were stored long ago.
    """

    owner: Scope
    generation: int = 0
    at: datetime | None = None
    session_id: str | None = None
    before: datetime | None = None
    ids: frozenset[EpisodeId] = frozenset()
    member: str | None = None
    by_policy: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether everything of the owner is meant."""
        return self.session_id is None and self._is_of_all

    @property
    def is_session(self) -> bool:
        """Whether everything of a session is meant."""
        return self.session_id is not None and self._is_of_all

    @property
    def marks_turns(self) -> bool:
        """Whether turns that it leaves without a message are marked in their jobs.

        Jobs of a whole owner or session are emptied instead, and turns of a policy were stored long ago.
        """
        return not (self.by_policy or self.is_whole or self.is_session)

    @property
    def _is_of_all(self) -> bool:
        return self.before is None and not self.ids and self.member is None

    def fits(self, episode: Episode) -> bool:
        """Whether the episode is one of those that were meant, whenever it came."""
        if self.member is not None and episode.metadata.get(MEMBER) != self.member:
            return False
        if self.ids:
            return episode.id in self.ids
        if self.session_id is not None and episode.scope.session_id != self.session_id:
            return False
        return self.before is None or episode.occurred_at < self.before

    def precedes(self, turn: Turn) -> bool:
        """Whether the turn was accepted after it, which leaves the turn alone."""
        if turn.generation is not None:
            return turn.generation >= self.generation
        return self.at is not None and turn.remembered_at > self.at

    def covers_all(self, turn: Turn) -> bool:
        """Whether nothing of the turn may be written or shown any more."""
        return not self.precedes(turn) and all(map(self.fits, turn.episodes()))

    def without_erased(self, turn: Turn) -> Turn | None:
        """The turn without what it covers: the same where that is nothing, None where it is everything."""
        return turn if self.precedes(turn) else turn.without(self.fits)


def without_erased(turn: Turn, stones: Sequence[Tombstone]) -> Turn | None:
    """The turn without what any tombstone of its owner covers, or for a turn of a group one of its author."""
    left: Turn | None = turn
    for stone in stones:
        if left is not None and stone.owner == turn.scope.owner:
            left = stone.without_erased(left)
        elif stone.is_whole and stone.owner == turn.author and not stone.precedes(turn):
            return None
    return left
