"""`Match` and `RecallBlock`: the result of a recall."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from html import escape

from aftermind.types.blocks_summaries_profiles import Block, Profile, Summary
from aftermind.types.fact import Fact
from aftermind.types.message import Episode, shorten
from aftermind.types.scope import EpisodeId, FactId


class ServedBy(StrEnum):
    """Which node's rows a recall read."""

    REPLICA = "replica"
    PRIMARY = "primary"
    PROCESS = "process"  # a store inside this process
    NONE = "none"  # degraded: no store answered in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of a long text: where it is, in characters and half-open, and its number, from 1, of `count`."""

    start: int
    end: int
    number: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An episode or a fact that was found, with every score and its rank in each list (from 1; None = not in it).

    Scores are scaled to 0..1 by the best of their list; `score` is what the order follows. `passage` is the part of a
    long message that matches. `superseded_at` is when the fact that a message states ceased to be true.
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
    passage: Passage | None = None
    superseded_at: datetime | None = None

    def __repr__(self) -> str:
        return f"<Match {self.score:.2f} {self.item!r}>"

    def _repr_html_(self) -> str:
        return _table([self])


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLine:
    """One item of a block as its text shows it, in `section`, under the heading `day` and after the name of `speaker`.

    `text` is escaped. `source_id` is the id of an episode or fact; `is_whole` is False if its text is shortened.
    """

    section: str
    text: str
    speaker: str = ""
    day: str = ""
    source_id: EpisodeId | FactId | None = None
    is_whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallBlock:
    """The result of a recall.

    `text` is XML for a system prompt, at most `tokens_used` tokens; `matches` are the chunks in it, best first, and
    `lines` the same in the order of the text, with the ids of their episodes and facts. `degraded` is the reason if a
    part may be missing, None if it is complete. `served_by` names the node.
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
    lines: tuple[BlockLine, ...] = ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        served = f"degraded: {self.degraded}" if self.degraded else f"from {self.replica or self.served_by}"
        chunks = f"{self.chunks_included} of {self.chunks_available} chunks"
        return f"<RecallBlock {shorten(self.query)!r}: {chunks}, {self.tokens_used} tokens, {served}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{_table(self.matches)}<details><summary>Block</summary>" + (
            f"<pre>{escape(self.text)}</pre></details>"
        )

    def __bool__(self) -> bool:
        return bool(self.matches or self.blocks or self.summary or self.profile)


def _table(matches: Sequence[Match]) -> str:
    """Matches for a notebook. Every text is escaped: it is content of users."""
    rows = "".join(
        f"<tr><td>{each.rank}</td><td>{each.score:.2f}</td><td>{type(each.item).__name__}</td>"
        f'<td style="text-align:left">{escape(_text(each.item))}</td></tr>'
        for each in matches
    )
    return f"<table><tr><th>Rank</th><th>Score</th><th>Kind</th><th>Text</th></tr>{rows}</table>"


def _text(item: Episode | Fact | Summary | Block) -> str:
    if isinstance(item, Episode):
        return shorten(f"{item.role}: {item.content}", characters=300)
    return shorten(item.content if isinstance(item, Block) else item.text, characters=300)
