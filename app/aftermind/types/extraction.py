"""Extraction outcome of an episode: facts, nothing, or still waiting."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Self

from aftermind.types.scope import EpisodeId, JobId


class ExtractionState(StrEnum):
    """How an episode ended as a source of facts. Only `WAITING` changes by itself."""

    FACTS = "facts"
    EMPTY = "empty by decision"
    NOT_NEEDED = "not needed"
    WAITING = "waiting"
    DEAD = "dead"

    @classmethod
    def of(cls, outcome: str | None, job_state: str | None) -> Self:
        """From the outcome of its mining, if it was mined, and the state of the job that is to mine it."""
        if outcome is not None:
            return cls(outcome)
        return cls(cls.DEAD if job_state in ("dead", "discarded") else cls.WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionResult:
    """The outcome of one episode. `reason`: why it gave no fact, what it waits for, or why its job is dead.

    `facts` counts the claims that rest on it; `extractor` and `job_id` are what mined it, or will.
    """

    episode_id: EpisodeId
    session_id: str | None
    occurred_at: datetime
    state: ExtractionState
    reason: str | None = None
    facts: int = 0
    extractor: str | None = None
    job_id: JobId | None = None
