"""What recall answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from aftermind.types.documents import Block, Profile, Summary
from aftermind.types.fact import Fact
from aftermind.types.message import Episode


class ServedBy(StrEnum):
    """Which node's rows a recall read."""

    REPLICA = "replica"
    PRIMARY = "primary"
    PROCESS = "process"  # a store inside this process
    NONE = "none"  # degraded: no store answered in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An episode or a fact that was found, with every score and its rank in each list (from 1; None = not in it).

    Scores are scaled to 0..1 by the best of their list; `score` is what the order follows.
    """

    item: Episode | Fact | Summary | Block
    score: float
    lexical_score: float | None = None
    vector_score: float | None = None
    rerank_score: float | None = None
    rank: int = 0
    lexical_rank: int | None = None
    vector_rank: int | None = None
    detail: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallBlock:
    """The result of a recall.

    `text` is XML for a system prompt, at most `tokens_used` tokens; `matches` are the chunks in it, best first.
    `degraded` is the reason if a part may be missing, None if it is complete. `served_by` names the node.
    """

    query: str
    text: str
    matches: tuple[Match, ...]
    tokens_used: int
    chunks_included: int
    chunks_available: int
    duration_ms: float
    served_by: ServedBy
    replica: str | None = None
    degraded: str | None = None
    blocks: tuple[Block, ...] = ()
    summary: Summary | None = None
    profile: Profile | None = None

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.matches or self.blocks or self.summary or self.profile)
