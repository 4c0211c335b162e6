"""Assembles matches and other memories of a user into one block within its budget."""

import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import perf_counter
from types import MappingProxyType

from aftermind.ranking import terms
from aftermind.recall.excerpts import QuestionWords, excerpt
from aftermind.recall.query import Query
from aftermind.recall.question_time import READ_CHARACTERS
from aftermind.recall.render import Item, line_of, place_of, profile_line, shortenable_text, superseded_mark
from aftermind.recall.token_budget import (
    LONG_CHARACTERS,
    MOST_CHARACTERS,
    Chunk,
    CountEach,
    Order,
    TurnWord,
    fit,
    fit_all,
    known_share,
)
from aftermind.stores.search import Briefing
from aftermind.types import (
    Block,
    BlockLine,
    Episode,
    EpisodeId,
    ExclusionReason,
    Fact,
    Match,
    Passage,
    Profile,
    RecallBlock,
    RecallId,
    ServedBy,
    Summary,
)

PINNED = 1_000.0  # above every match, however short: what a user or an agent wants in every block
PINNED_SHARE = 0.5  # of the budget for those, where matches and the rest would fill it
MIN_PINNED_TOKENS = 60  # that a smaller budget gives them too: a note is what a user or an agent wants in every block
# What a trait of the profile, the summary of the session, and of another one are worth to a question that shares no
# word with them, and what sharing all of its words adds.
TRAIT, SUMMARY, OTHER_SUMMARY, SHARED = 0.03, 0.1, 0.01, 0.3

Said = Mapping[EpisodeId, frozenset[str]]  # the words of messages
_NO_WORDS: frozenset[TurnWord] = frozenset()


@dataclass(frozen=True, slots=True)
class _Part:
    chunk: Chunk
    source: Match | Block | Summary | str


@dataclass(slots=True)
class Unfitted:
    """What a block had no space for: matches with the reason, and names of traits of the profile."""

    matches: list[tuple[Match, ExclusionReason]] = field(default_factory=list)
    traits: list[str] = field(default_factory=list)


def build(
    query: Query,
    matches: Sequence[Match],
    briefing: Briefing,
    *,
    words: QuestionWords,
    count_each: CountEach,
    available: int,
    served_by: ServedBy,
    replica: str | None,
    degraded: str | None,
    started: float,
    recall_id: RecallId,
    last_erasure: int | None = None,
    is_past: bool = False,
    unfitted: Unfitted | None = None,
) -> RecallBlock:
    """The block: what is expected to be worth most for its tokens, shown by kind and in time order.

    What it has no space for is added to `unfitted`; for a question about the past, what is no longer true is no reason.
    """
    longest = MOST_CHARACTERS * query.token_budget
    standing = _standing(briefing, words, query.scope.session_id)
    first = len(briefing.blocks)  # keys: blocks have their places
    rest = [_Part(replace(part.chunk, key=key), part.source) for key, part in enumerate(standing, start=first)]
    said = _words_of_sources(matches)
    rest += [_part(match, words, longest, key, said) for key, match in enumerate(matches, start=first + len(rest))]
    parts = [*_pinned(briefing.blocks, rest, query.token_budget, count_each), *rest]
    fitted = fit([part.chunk for part in parts], query.token_budget, count_each)
    by_key = {part.chunk.key: part.source for part in parts}
    sources = [by_key[chunk.key] for chunk in fitted.chunks]
    shown = [source for source in sources if isinstance(source, Match)]
    traits = [source for source in sources if isinstance(source, str)]
    if unfitted is not None:
        left_out = [_Part(_chunk(block, PINNED, (0, 0)), block) for block in briefing.blocks if block not in sources]
        in_block = {chunk.key for chunk in fitted.chunks}
        left_out += [part for part in parts if part.chunk.key not in in_block and not isinstance(part.source, Block)]
        present = {each for chunk in fitted.chunks for each in chunk.tells}
        _add_unfitted(unfitted, left_out, present=present, is_past=is_past)
    return RecallBlock(
        query=query.text,
        text=fitted.text,
        matches=tuple(sorted(shown, key=lambda match: match.rank)),
        tokens_used=fitted.tokens,
        chunks_included=len(fitted.chunks),
        chunks_available=available + len(briefing.blocks) + len(standing),
        duration_ms=(perf_counter() - started) * 1000,
        served_by=served_by,
        replica=replica,
        degraded=degraded,
        blocks=tuple(source for source in sources if isinstance(source, Block)),
        summary=next((source for source in sources if isinstance(source, Summary)), None),
        profile=_select_traits(briefing.profile, traits),
        lines=fitted.lines,
        id=recall_id,
        last_erasure=last_erasure,
    )


def _add_unfitted(unfitted: Unfitted, parts: Sequence[_Part], *, present: Set[TurnWord], is_past: bool) -> None:
    """Add these parts with the reasons; `present` are the words of messages that the block has."""
    for part in parts:
        source = part.source
        if isinstance(source, str):
            unfitted.traits.append(source)
            continue
        match = source if isinstance(source, Match) else Match(item=source, score=min(part.chunk.value, 1.0))
        if match.superseded_at is not None and not is_past:
            reason = ExclusionReason.SUPERSEDED
        elif known_share(part.chunk, present) >= 1.0:
            reason = ExclusionReason.REPEATED
        else:
            reason = ExclusionReason.BUDGET
        unfitted.matches.append((match, reason))


def _pinned(blocks: Sequence[Block], rest: Sequence[_Part], budget: int, count_each: CountEach) -> list[_Part]:
    """The blocks in their order: as much of them as their share holds, or as the rest leaves space for."""
    if not blocks:
        return []
    chunks = [_chunk(block, PINNED, (place, 0), key=place) for place, block in enumerate(blocks)]
    share = min(budget, max(int(budget * PINNED_SHARE), MIN_PINNED_TOKENS))
    fitted = fit(chunks, share, count_each, largest=1.0)
    if len(fitted.chunks) < len(chunks) or any(chunk.line != chunks[chunk.key].line for chunk in fitted.chunks):
        of_rest = [part.chunk for part in rest]
        if fit_all([*chunks, *of_rest], budget, count_each) is not None:
            return [_Part(replace(chunk, shortened=None), blocks[chunk.key]) for chunk in chunks]
        others = fit_all(of_rest, budget - share, count_each)
        if others is not None:
            fitted = fit(chunks, budget - others.tokens, count_each, largest=1.0)
    return [_Part(replace(chunk, shortened=None), blocks[chunk.key]) for chunk in fitted.chunks]


def _standing(briefing: Briefing, words: QuestionWords, session_id: str | None) -> list[_Part]:
    """Profile and summary, which compete with the matches by what they share with the question."""
    parts = []
    if briefing.profile is not None:
        for place, name in enumerate(sorted(briefing.profile.traits)):
            line = profile_line(name, briefing.profile)
            value = TRAIT + SHARED * words.share(line.text)
            parts.append(_Part(Chunk(key=0, line=line, value=value, order=(place, 0)), name))
    if briefing.summary is not None:
        is_current = briefing.summary.scope.session_id == session_id
        value = (SUMMARY if is_current else OTHER_SUMMARY) + SHARED * words.share(briefing.summary.text)
        parts.append(_Part(_chunk(briefing.summary, value, (0, 0)), briefing.summary))
    return parts


def _part(match: Match, words: QuestionWords, longest: int, key: int, said: Said) -> _Part:
    chunk = _chunk(
        match.item,
        match.score,
        _when(match.item),
        words=words,
        longest=longest,
        key=key,
        passage=match.passage,
        mark=superseded_mark(match.superseded_at),
        said=said,
    )
    return _Part(chunk, match)


def _chunk(
    item: Item,
    value: float,
    order: Order,
    *,
    words: QuestionWords | None = None,
    longest: int = sys.maxsize,
    key: int = 0,
    passage: Passage | None = None,
    mark: str = "",
    said: Said = MappingProxyType({}),
) -> Chunk:
    """Of a text that cannot fit whole, no more than `longest` characters are escaped; it is shortened in any case."""
    text = shortenable_text(item)
    words_of_turns, is_long = _words_of_turns(item, said), len(text) >= LONG_CHARACTERS
    return Chunk(
        key=key,
        line=line_of(item, text[: longest + 1] if len(text) > longest else None, mark),
        value=value,
        order=order,
        tells=_turn_words(type(item), words_of_turns),
        repeats=_turn_words(Fact if isinstance(item, Episode) else Episode, words_of_turns),
        shortened=_shortening(item, text, words, passage, mark) if is_long or isinstance(item, Block) else None,
    )


def _shortening(
    item: Item, text: str, words: QuestionWords | None, passage: Passage | None, mark: str
) -> Callable[[int], BlockLine]:
    """The item's line with that number of characters of its text; they begin with the `passage` that matches."""

    # Computed once; functools.cache takes longer to make.
    starts: list[int] = []
    places: list[str] = []

    def shortened(characters: int) -> BlockLine:
        if passage is not None:
            if not places:
                places.append(f"{place_of(item, passage)}{mark}")
            return line_of(item, _passage_excerpt(text, passage, characters, words), places[0])
        if not starts:
            starts.append(words.passage(text) if words is not None else 0)
        return line_of(item, excerpt(text, starts[0], characters), mark)

    return shortened


def _passage_excerpt(text: str, passage: Passage, characters: int, words: QuestionWords | None) -> str:
    """The passage and what follows it; where there is no space for the whole passage, the question's words in it."""
    start = passage.start
    if words is not None and characters < passage.end - passage.start:
        start += words.passage(text[passage.start : passage.end], characters)
    return excerpt(text, start, characters)


def _words_of_sources(matches: Sequence[Match]) -> Said:
    """The words of the messages among the matches that facts among them came from."""
    sources = {each for match in matches if isinstance(match.item, Fact) for each in match.item.sources}
    turns = [match.item for match in matches if isinstance(match.item, Episode) and match.item.id in sources]
    return {turn.id: frozenset(terms(turn.content[:READ_CHARACTERS])) for turn in turns}


def _words_of_turns(item: Item, said: Said) -> list[tuple[EpisodeId, str]]:
    """The words of messages that the item has: a message has all of them, a fact those of its sources."""
    if isinstance(item, Episode):
        return [(item.id, word) for word in said.get(item.id, ())]
    if not isinstance(item, Fact) or said.keys().isdisjoint(item.sources):
        return []
    words = frozenset(terms(item.text))
    return [(each, word) for each in item.sources if each in said for word in words & said[each]]


def _turn_words(kind: type, words: list[tuple[EpisodeId, str]]) -> frozenset[TurnWord]:
    return frozenset((kind, *each) for each in words) if words else _NO_WORDS


def _when(item: Item) -> Order:
    """Sort position within its kind: episodes by time and position, facts by their start."""
    if isinstance(item, Episode):
        # Messages of a turn have one time and positions that differ by 1. Added to the time, a float rounds that off.
        return item.occurred_at.timestamp(), item.position
    moment: datetime = (item.valid_from or item.recorded_at) if isinstance(item, Fact) else item.updated_at
    return moment.timestamp(), 0


def _select_traits(profile: Profile | None, traits: Sequence[str]) -> Profile | None:
    if profile is None or not traits:
        return None
    return Profile(
        scope=profile.scope,
        traits={name: profile.traits[name] for name in traits},
        version=profile.version,
        updated_at=profile.updated_at,
    )
