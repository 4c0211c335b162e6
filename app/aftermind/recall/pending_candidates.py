"""Adds turns that no store job has committed yet to the ranking of stored ones."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermind.db.protocol import Transaction
from aftermind.llm import text_subprocess
from aftermind.llm.injection import detect, screening
from aftermind.llm.protocols import Embedder
from aftermind.ranking import ComparedPassages, Entry, Frame, Question, cosine, spoken, tokenizer
from aftermind.ranking.passages import regroup, spoken_texts
from aftermind.ranking.tokenizer import IndexedText
from aftermind.ranking.vectors import whole
from aftermind.stores.protocol import EpisodeFilter, Store
from aftermind.stores.search import compare_passages, to_entry
from aftermind.types import Episode, EpisodeId, Scope, Turn
from aftermind.types.session_order import placed_on_view
from aftermind.types.tombstone import without_erased

Vector = NDArray[np.float32]

CHECK_SECONDS = 0.25  # for texts too long to be computed on the loop: within a recall's budget of a second
BEGINNING = 1_000  # characters of a text that are used if there is no time for all of it
KEPT = 2_000  # pending episodes whose terms and vectors are kept: a chat asks again while its last turns still wait


class PendingTurns:
    """Episodes at hand as a frame. What is costly of one (stems, a vector) is worked out once."""

    def __init__(self, embedder: Embedder | None, *, language: str = "english") -> None:
        self._embedder = embedder if embedder is not None and embedder.inline else None
        self._language = language
        self._entries: OrderedDict[EpisodeId, Entry] = OrderedDict()
        self._passages: OrderedDict[EpisodeId, Sequence[Sequence[str]]] = OrderedDict()  # terms of those of long texts
        self._vectors: OrderedDict[EpisodeId, Vector] = OrderedDict()
        self._marks: OrderedDict[EpisodeId, str | None] = OrderedDict()

    async def marked(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes with the marks that storing gives them, so that none is shown without its caution.

        One that is not checked within `CHECK_SECONDS` is shown as not checked, and judged again next time.
        """
        turns = screening.by_turn(episodes)
        new = [turn for turn in turns if any(each.id not in self._marks for each in turn)]
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                for turn in new:
                    found = await screening.marks([turn])
                    self._marks.update((each.id, found.get(each.id)) for each in turn)
        except TimeoutError:
            pass
        marked = [replace(each, mark=self._marks.get(each.id, detect.UNCHECKED)) for each in episodes]
        _trim(self._marks)
        return marked

    async def frame(
        self,
        episodes: Sequence[Episode],
        question: Question,
        vector: Vector | None,
        wanted: EpisodeFilter,
    ) -> Frame:
        """The episodes, compared with the question: by words, and by vector where the embedder is inline."""
        similarity = await self._similarity(episodes, vector)
        await self._index(episodes)
        entries = [
            self._entry(episode, None if similarity is None else float(similarity[place]), wanted)
            for place, episode in enumerate(episodes)
        ]
        return Frame.of(entries, question.terms)

    def compared(
        self, episodes: Sequence[Episode], question: Question, vector: Vector | None
    ) -> dict[EpisodeId, ComparedPassages]:
        """The passages of the long ones among episodes of a frame, compared with the question."""
        return compare_passages(
            episodes, question, self._vectors, vector, language=self._language, indexed=self._passages
        )

    async def _index(self, episodes: Sequence[Episode]) -> None:
        """Find the terms of long texts outside the loop; of one that takes too long, those of its beginning."""
        for episode in episodes:
            if len(episode.content) <= tokenizer.LONG_CHARACTERS or episode.id in self._entries:
                continue
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    found = await screening.terms([episode.content], self._language)
            except TimeoutError:
                beginning = tokenizer.terms(episode.content[:BEGINNING], self._language)
                found = {(self._language, episode.content): IndexedText(terms=beginning)}
            self._passages[episode.id] = found[self._language, episode.content].passages
            with tokenizer.indexed(found):
                self._entries[episode.id] = to_entry(episode, language=self._language)
            _trim(self._passages)

    def _entry(self, episode: Episode, similarity: float | None, wanted: EpisodeFilter) -> Entry:
        known = self._entries.get(episode.id)
        if known is None:
            known = self._entries[episode.id] = to_entry(episode, language=self._language)
            _trim(self._entries)
        return Entry(
            session=known.session,
            position=episode.position,
            terms=known.terms,
            similarity=similarity,
            name=known.name,
            asking=known.asking,
            candidate=wanted.fits(episode),
            said_at=episode.occurred_at.timestamp(),
        )

    async def _similarity(self, episodes: Sequence[Episode], vector: Vector | None) -> NDArray[np.float64] | None:
        if self._embedder is None or vector is None or not episodes:
            return None
        new = [episode for episode in episodes if episode.id not in self._vectors]
        if new:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    texts = [spoken_texts(episode.name, episode.content) for episode in new]
                    made = await self._embedder.embed([text for each in texts for text in each])
                    rows = regroup(made, [len(each) for each in texts])
            except (TimeoutError, text_subprocess.TextTimeout):
                rows = list(await self._embedder.embed([spoken(each.name, each.content[:BEGINNING]) for each in new]))
            for episode, row in zip(new, rows, strict=True):
                self._vectors[episode.id] = row
        found = cosine(np.stack([whole(self._vectors[episode.id]) for episode in episodes]), vector)
        _trim(self._vectors)
        return found


async def standing_turns(
    store: Store, tx: Transaction, owner: Scope, accepted: Sequence[Turn], local: Sequence[Turn]
) -> list[Turn]:
    """Turns that wait, without what was forgotten since they were accepted, where the order of their sessions has them.

    `local` are those that only this host has.
    """
    turns = {turn.job_id: turn for turn in (*local, *accepted)}
    if not turns:
        return []
    least = min(turn.generation or 0 for turn in turns.values())
    sessions = list({turn.scope.session_id for turn in turns.values()})
    found = await store.admission_state(tx, owner, sessions, generation=least)
    known = {turn.job_id for turn in accepted}
    stones = list(found.stones)
    for author in {turn.author for turn in turns.values() if turn.author is not None}:
        stones += (await store.admission_state(tx, author, [], generation=least)).stones
    left = [without_erased(turn, stones) for turn in turns.values()]
    rest = [turn for turn in left if turn is not None]
    if any(message.expires_at is not None for turn in rest for message in turn.messages):
        rest = unexpired(rest, await store.now(tx))
    return placed_on_view(
        [turn for turn in rest if turn.job_id in known],
        [turn for turn in rest if turn.job_id not in known],
        found.counted,
    )


def unexpired(turns: Sequence[Turn], now: datetime) -> list[Turn]:
    """The turns without messages that have expired."""
    left = [turn.without(lambda episode: episode.is_expired(now)) for turn in turns]
    return [turn for turn in left if turn is not None]


def unforgotten_turns(turns: Sequence[Turn], last: int | None) -> list[Turn]:
    """Turns that no erasure can cover, `last` being the number of the last one of any owner: accepted after it.

    For readers without the store, which alone has the tombstones.
    """
    return [turn for turn in turns if last is None or (turn.generation is not None and turn.generation >= last)]


def to_episodes(turns: Sequence[Turn], known_at: datetime | None) -> list[Episode]:
    """The turns' episodes, each once even if several sources had its turn, as of a moment.

    A turn with an empty `save` is not stored, so it is not recalled while it is pending either.
    """
    found: dict[EpisodeId, Episode] = {}
    for turn in turns:
        if not turn.keep:
            continue
        if known_at is None or turn.remembered_at <= known_at:
            found.update((episode.id, episode) for episode in turn.episodes(pending=True))
    return list(found.values())


def _trim(kept: OrderedDict[EpisodeId, Any]) -> None:  # Any: of whatever is kept
    while len(kept) > KEPT:
        kept.popitem(last=False)
