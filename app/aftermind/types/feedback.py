"""Feedback: which recalled episodes and facts helped, and how often."""

from dataclasses import dataclass
from math import log
from uuid import UUID

MAX_IDS = 200  # of one feedback: more than a block shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """The ids of episodes and facts that helped to answer, and of those that did not."""

    helpful: tuple[UUID, ...] = ()
    unhelpful: tuple[UUID, ...] = ()

    def __str__(self) -> str:
        """As it is shown of a dead letter."""
        parts = (("helpful", self.helpful), ("unhelpful", self.unhelpful))
        return "; ".join(f"{name}: {', '.join(map(str, ids))}" for name, ids in parts if ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackCount:
    """How often an episode or fact helped, and how often it did not."""

    helpful: int = 0
    unhelpful: int = 0

    @property
    def log_ratio(self) -> float:
        """The logarithm of (1 + helpful) / (1 + unhelpful): 0 without feedback."""
        return log((1 + self.helpful) / (1 + self.unhelpful))

    def adjusted(self, confidence: float, *, weight: int) -> float:
        """A confidence of `weight` observations with those of the feedback: the mean of a beta distribution."""
        return (confidence * weight + self.helpful) / (weight + self.helpful + self.unhelpful)
