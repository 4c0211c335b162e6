"""loomflow's weighting of words and meaning in a search."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from aftermind import errors
from aftermind.integrations.message_records import Records
from aftermind.memory import Memory
from aftermind.recall import RecallOptions
from aftermind.types import Episode, Match

RANK_OFFSET = 60  # of reciprocal rank fusion, as in loomflow
FUSED_EPISODES = 40  # of each search at least: one in the middle of both lists can be better than the first of one
MAX_FUSED_EPISODES = 500  # of each search: a recall returns at most 1,000 messages, and an episode is two

RECORDS = Records(
    framework="loomflow",
    role=lambda record: "user" if "input" in record else "assistant",
    text_at=lambda record: ("input",) if "input" in record else ("output",),
)


async def search_weighted(
    memory: Memory, query: str, options: RecallOptions, *, alpha: float, limit: int, **whose: Any
) -> dict[str, Match]:
    """The best match of each of loomflow's episodes by its id, best first.

    `alpha` 0 searches by words only, 1 by meaning only, and 0.5 is the hybrid search of Aftermind. Any other value is
    the weight of meaning, and the rest that of words, in a fusion by ranks. Raises `InvalidQuery`.
    """
    if not 0.0 <= alpha <= 1.0:
        raise errors.InvalidQuery("alpha", alpha, "it must be between 0 and 1.")

    async def search(mode: Literal["hybrid", "vector", "lexical"], depth: int) -> dict[str, Match]:
        asked = options | RecallOptions(mode=mode, limit=2 * depth, load=("history",))
        return _best_of_episodes(await memory.recall_scored(query, **asked, **whose))

    if alpha == 0.5:
        found = await search("hybrid", limit)
    elif alpha in (0.0, 1.0):
        found = await search("vector" if alpha else "lexical", limit)
    else:
        depth = max(limit, min(max(4 * limit, FUSED_EPISODES), MAX_FUSED_EPISODES))
        found = _fuse(*await asyncio.gather(search("vector", depth), search("lexical", depth)), alpha)
    return dict(list(found.items())[:limit])


def episode_id(said: Episode) -> str:
    """The id of loomflow's episode that a message is half of; its own if another part of the program remembered it."""
    record = RECORDS.from_episode(said)
    return str(said.id) if record is None or "id" not in record else str(record["id"])


def _best_of_episodes(found: Sequence[Match]) -> dict[str, Match]:
    best: dict[str, Match] = {}
    for match in found:
        if isinstance(match.item, Episode):
            best.setdefault(episode_id(match.item), match)
    return best


def _fuse(by_meaning: Mapping[str, Match], by_words: Mapping[str, Match], alpha: float) -> dict[str, Match]:
    """Both lists as one by weighted reciprocal ranks (Cormack, Clarke and Buettcher, 2009), with both scores."""
    shares: dict[str, float] = {}
    for found, weight in ((by_meaning, alpha), (by_words, 1.0 - alpha)):
        for rank, id_ in enumerate(found, start=1):
            shares[id_] = shares.get(id_, 0.0) + weight / (RANK_OFFSET + rank)
    fused = {}
    for id_ in sorted(shares, key=lambda id_: -shares[id_]):
        match = by_meaning.get(id_) or by_words[id_]
        words = by_words.get(id_)
        fused[id_] = replace(match, score=shares[id_], lexical_score=words.lexical_score if words else None)
    return fused
