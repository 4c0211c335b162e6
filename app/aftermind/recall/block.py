"""Matches and what else is known of a user, put together into one block within its budget."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from time import perf_counter

from aftermind.recall.budget import MOST_CHARACTERS, Chunk, cut, fit
from aftermind.recall.query import Query
from aftermind.recall.render import Item, line_of, profile_line, section_of, text_of
from aftermind.stores.searching import Briefing
from aftermind.types import Block, Episode, Fact, Match, Profile, RecallBlock, ServedBy, Summary

# Above every match, whose scores end at 1: what a user or an agent pinned, who the user is, what was just talked about.
PINNED, KNOWN, SUMMARY = 3.0, 2.0, 1.5
STANDING_SHARE = 0.5  # of the budget at most for what stands in every block, so that there is room for what was asked


@dataclass(frozen=True, slots=True)
class _Part:
    chunk: Chunk
    source: Match | Block | Summary | str


def build(
    query: Query,
    matches: Sequence[Match],
    briefing: Briefing,
    *,
    count: Callable[[str], int],
    available: int,
    served_by: ServedBy,
    replica: str | None,
    degraded: str | None,
    started: float,
) -> RecallBlock:
    """The block: standing parts and matches by value, shown by kind and in time order."""
    parts = _within(_standing(briefing), int(query.token_budget * STANDING_SHARE), count)
    parts = [_Part(replace(part.chunk, key=key), part.source) for key, part in enumerate(parts)]
    longest = MOST_CHARACTERS * query.token_budget
    parts += [_part(match, key, longest) for key, match in enumerate(matches, start=len(parts))]
    fitted = fit([part.chunk for part in parts], query.token_budget, count)
    sources = [parts[chunk.key].source for chunk in fitted.chunks]
    traits = [source for source in sources if isinstance(source, str)]
    return RecallBlock(
        query=query.text,
        text=fitted.text,
        matches=tuple(source for source in sources if isinstance(source, Match)),
        tokens_used=fitted.tokens,
        chunks_included=len(fitted.chunks),
        chunks_available=available + len(_standing(briefing)),
        duration_ms=(perf_counter() - started) * 1000,
        served_by=served_by,
        replica=replica,
        degraded=degraded,
        blocks=tuple(source for source in sources if isinstance(source, Block)),
        summary=next((source for source in sources if isinstance(source, Summary)), None),
        profile=_shown(briefing.profile, traits),
    )


def _standing(briefing: Briefing) -> list[_Part]:
    parts = [_Part(_chunk(block, 0, PINNED, place), block) for place, block in enumerate(briefing.blocks)]
    if briefing.profile is not None:
        for place, name in enumerate(sorted(briefing.profile.traits)):
            line = profile_line(name, briefing.profile)
            parts.append(_Part(Chunk(key=0, section="profile", line=line, value=KNOWN, order=place), name))
    if briefing.summary is not None:
        parts.append(_Part(_chunk(briefing.summary, 0, SUMMARY, 0), briefing.summary))
    return parts


def _within(parts: list[_Part], budget: int, count: Callable[[str], int]) -> list[_Part]:
    """As many standing parts, the pinned ones first, as their share of the budget holds."""
    if not parts:
        return []
    fitted = fit([replace(part.chunk, key=key) for key, part in enumerate(parts)], budget, count)
    return [_Part(chunk, parts[chunk.key].source) for chunk in fitted.chunks]


def _part(match: Match, key: int, longest: int) -> _Part:
    return _Part(_chunk(match.item, key, match.score, _when(match.item), longest), match)


def _chunk(item: Item, key: int, value: float, order: float, longest: int = sys.maxsize) -> Chunk:
    """Of a text that cannot fit whole, no more than `longest` characters are escaped; it is shortened in any case."""
    text = text_of(item)
    return Chunk(
        key=key,
        section=section_of(item),
        line=line_of(item, text[: longest + 1] if len(text) > longest else None),
        value=value,
        order=order,
        shortened=lambda characters: line_of(item, cut(text_of(item), characters)),
    )


def _when(item: Item) -> float:
    """Where it stands among its kind: episodes as they were said, facts since when they hold."""
    if isinstance(item, Episode):
        # By the day and minute it was said, then by its place: a backfilled session keeps its order.
        return item.occurred_at.timestamp() + (item.position % 10**12) / 10**13
    moment: datetime = (item.valid_from or item.recorded_at) if isinstance(item, Fact) else item.updated_at
    return moment.timestamp()


def _shown(profile: Profile | None, traits: Sequence[str]) -> Profile | None:
    if profile is None or not traits:
        return None
    return Profile(
        scope=profile.scope,
        traits={name: profile.traits[name] for name in traits},
        version=profile.version,
        updated_at=profile.updated_at,
    )
