"""Marks and terms of texts: computed here where they are short, else in the process for texts."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

from aftermind.llm import text_process_pool
from aftermind.llm.injection import detect
from aftermind.ranking import passages
from aftermind.ranking.tokenizer import IndexedText
from aftermind.types import Episode, EpisodeId, Scope

CALL_CHARACTERS = text_process_pool.SHORT_CHARACTERS  # of several turns in one call


async def marks(turns: Sequence[Sequence[Episode]]) -> dict[EpisodeId, str]:
    """Why episodes resemble instructions, by id; each inner sequence is one turn.

    A turn that exceeds the deadline is marked completely: what cannot be checked is suspicious.
    """
    if sum(_size(turn) for turn in turns) <= text_process_pool.INLINE_CHARACTERS:
        return detect.mark_turns(turns)
    found: dict[EpisodeId, str] = {}
    for group in _groups(turns):
        found |= await _mark_turns(group)
    return found


async def marks_in_time(turns: Sequence[Sequence[Episode]], *, seconds: float) -> dict[EpisodeId, str]:
    """As `marks`; what is not checked within `seconds` is marked as not checked. Short turns are checked first.

    For readers: the long texts of one user must not delay the others, whose long texts wait for the same process.
    """
    found = {episode.id: detect.UNCHECKED for turn in turns for episode in turn}
    try:
        async with asyncio.timeout(seconds):
            for group in _groups(sorted(turns, key=_size)):
                marked = await marks(group)
                for episode_id in (episode.id for turn in group for episode in turn):
                    del found[episode_id]
                found |= marked
    except TimeoutError:
        pass
    return found


def by_turn(episodes: Iterable[Episode]) -> list[list[Episode]]:
    """Episodes of each turn together: their marks depend on their neighbours too."""
    turns: dict[tuple[Scope, datetime], list[Episode]] = {}
    for episode in episodes:
        turns.setdefault((episode.scope, episode.remembered_at), []).append(episode)
    return list(turns.values())


async def terms(texts: Sequence[str], language: str) -> dict[tuple[str, str], IndexedText]:
    """Terms for `tokenizer.indexed`; a text that takes longer than the deadline is found by no word."""
    found: dict[tuple[str, str], IndexedText] = {}
    for text in texts:
        try:
            found[language, text] = await text_process_pool.run(len(text), passages.index_text, text, language)
        except text_process_pool.TextTimeout:
            found[language, text] = IndexedText(terms=())
    return found


async def without_instructions(text: str) -> str:
    """A model's text without the sentences that read like instructions; empty if the rest still does.

    A long text is checked in a process for texts, and is empty if that exceeds its deadline.
    """
    if len(text) <= text_process_pool.INLINE_CHARACTERS:
        return _without_instructions(text)
    try:
        return await text_process_pool.run(len(text), _without_instructions, text)
    except text_process_pool.TextTimeout:
        return ""


def _without_instructions(text: str) -> str:
    parts = re.split(r"(?<=[.!?])(\s+)|(\n+)", text)
    kept = "".join(part for part in parts if part and detect.suspicion(part) is None).strip()
    return "" if detect.suspicion(kept) else kept


async def _mark_turns(turns: Sequence[Sequence[Episode]]) -> dict[EpisodeId, str]:
    try:
        return await text_process_pool.run(sum(map(_size, turns)), detect.mark_turns, turns)
    except text_process_pool.TextTimeout:
        if len(turns) == 1:
            return {episode.id: detect.UNCHECKED for episode in turns[0]}
    found: dict[EpisodeId, str] = {}
    for turn in turns:
        found |= await _mark_turns([turn])
        await asyncio.sleep(0)
    return found


def _groups(turns: Sequence[Sequence[Episode]]) -> list[list[Sequence[Episode]]]:
    groups: list[list[Sequence[Episode]]] = []
    room = 0
    for turn in turns:
        size = _size(turn)
        if not groups or size > room:
            groups.append([])
            room = CALL_CHARACTERS
        groups[-1].append(turn)
        room -= size
    return groups


def _size(turn: Sequence[Episode]) -> int:
    return sum(len(episode.content) + len(episode.name or "") for episode in turn)
