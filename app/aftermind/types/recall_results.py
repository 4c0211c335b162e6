"""`Match` and `RecallBlock`: the result of a recall."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from html import escape

from aftermind.types.blocks_summaries_profiles import Block, Profile, Summary
from aftermind.types.fact import Fact, period
from aftermind.types.message import Episode, shorten
from aftermind.types.scope import EpisodeId, FactId, RecallId


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

    `score` is what the order follows: the estimated probability that it answers the query, from coefficients fitted to
    labelled questions. The other scores are scaled to 0..1 by the best of their list. `detail` has them for the text
    around an episode: `lexical_window` and `vector_window` are those of its neighbours in the session with
    it, which is how an answer is found that repeats no word of its question. The score of a fact comes from its words
    (`lexical_score`), its best source message and its confidence; one that has nothing in common with the query keeps
    a small score, and is shown if the budget has space for it. `passage` is the part of a long message that matches.
    `superseded_at` is when the fact that a message states ceased to be true.
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
    `lines` the same in the order of the text, with the ids of their episodes and facts. `chunks_included` counts the
    messages, facts, blocks, traits and the summary in it; `chunks_available` also those above `min_score` that the
    limit or the token budget left out. `text` is "" if there is nothing. `degraded` is the reason if a part may be
    missing, as in a block without text while no database answers, None if it is complete. `served_by` names the node.
    `id` is in traces and logs, and holds the time of the recall: `memory.explain(query, recall_id=block.id)` repeats it
    as of then. `last_erasure` is the number of the last erasure before it, for `memory.remember(recalled=block)`; None
    if it could not be read.
    """

    id: RecallId
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
    last_erasure: int | None = None

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


class ExclusionReason(StrEnum):
    """Why a candidate is not in a block; the first step that left it out."""

    FILTERED = "filtered"  # it does not fit `in_session`, `by_agent`, `roles`, `metadata`, `since` or `until`
    MIN_SCORE = "min_score"  # its score is below the threshold
    LOW_CONFIDENCE = "low_confidence"  # a procedure that is not confident enough, or that failed too often
    LIMIT = "limit"  # `limit` others ranked higher
    SIMILAR = "similar"  # `diversity` preferred others, which are less like those before them
    SUPERSEDED = "superseded"  # what it states was no longer true, which lowered its score
    REPEATED = "repeated"  # the block has its content already: a fact and the message that it came from
    BUDGET = "budget"  # others were worth more for their tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedMatch:
    """A candidate that is not in a block, and why. `tokens` are those of its whole line."""

    match: Match
    reason: ExclusionReason
    tokens: int

    def __repr__(self) -> str:
        return f"<ExcludedMatch {self.reason} {self.match!r}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallExplanation:
    """A block, and the candidates that are not in it, best first.

    `min_score` is the threshold of turns that was in force: the one asked for, or 0.001 if that is higher.
    `traits` are the names of traits of the profile for which the budget had no space. `known_at` is the time that the
    recall was repeated for, None for now.
    """

    block: RecallBlock
    excluded: tuple[ExcludedMatch, ...]
    min_score: float
    limit: int
    token_budget: int
    traits: tuple[str, ...] = ()
    known_at: datetime | None = None

    def __repr__(self) -> str:
        return f"<RecallExplanation {self.block!r}, {len(self.excluded)} excluded>"

    def _repr_html_(self) -> str:
        return self.block._repr_html_() + _table(
            [each.match for each in self.excluded], [each.reason for each in self.excluded]
        )


def _table(matches: Sequence[Match], reasons: Sequence[ExclusionReason] = ()) -> str:
    """Matches for a notebook, with the reasons of excluded ones. Every text is escaped: it is content of users."""
    heads = ["Rank", "Score", "Kind", *(["Not in the block because"] if reasons else []), "Text"]
    rows = [
        [str(each.rank), f"{each.score:.2f}", type(each.item).__name__, *reason, escape(_text(each))]
        for each, *reason in zip(matches, *([reasons] if reasons else []), strict=True)
    ]
    cells = "".join(
        f'<tr><td>{"</td><td>".join(row[:-1])}</td><td style="text-align:left">{row[-1]}</td></tr>' for row in rows
    )
    return f"<table><tr><th>{'</th><th>'.join(heads)}</th></tr>{cells}</table>"


def superseded_note(match: Match) -> str:
    """When what it states ceased to be true, in brackets after a space; empty if it is still so."""
    return "" if match.superseded_at is None else f" (superseded {match.superseded_at.date()})"


def _text(match: Match) -> str:
    item = match.item
    if isinstance(item, Episode):
        return shorten(f"{item.role}: {item.content}", characters=300) + superseded_note(match)
    if isinstance(item, Fact):
        return shorten(item.text, characters=300) + period(item)
    return shorten(item.content if isinstance(item, Block) else item.text, characters=300)
