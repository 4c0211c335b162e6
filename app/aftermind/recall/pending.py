"""Turns that no store has committed yet, brought into the ranking beside the stored ones."""

from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from aftermind.llm.base import Embedder
from aftermind.ranking import Entry, Frame, Question, cosine, spoken
from aftermind.stores.base import EpisodeFilter
from aftermind.stores.searching import entry_of
from aftermind.types import Episode, EpisodeId, Turn

Vector = NDArray[np.float32]

KEPT = 2_000  # pending episodes whose terms and vectors are kept: a chat asks again while its last turns still wait


class PendingTurns:
    """Episodes at hand as a frame. What is costly of one (stems, a vector) is worked out once."""

    def __init__(self, embedder: Embedder | None, *, language: str = "english") -> None:
        self._embedder = embedder if embedder is not None and embedder.inline else None
        self._language = language
        self._entries: OrderedDict[EpisodeId, Entry] = OrderedDict()
        self._vectors: OrderedDict[EpisodeId, Vector] = OrderedDict()

    async def frame(
        self,
        episodes: Sequence[Episode],
        question: Question,
        vector: Vector | None,
        wanted: EpisodeFilter,
    ) -> Frame:
        """The episodes, compared with the question: by words, and by vector where the embedder is inline."""
        similarity = await self._similarity(episodes, vector)
        entries = [
            self._entry(episode, None if similarity is None else float(similarity[place]), wanted)
            for place, episode in enumerate(episodes)
        ]
        return Frame.of(entries, question.terms)

    def _entry(self, episode: Episode, similarity: float | None, wanted: EpisodeFilter) -> Entry:
        known = self._entries.get(episode.id)
        if known is None:
            known = self._entries[episode.id] = entry_of(episode, language=self._language)
            _trim(self._entries)
        return Entry(
            session=known.session,
            position=episode.position,
            terms=known.terms,
            similarity=similarity,
            name=known.name,
            asking=known.asking,
            candidate=wanted.fits(episode),
        )

    async def _similarity(self, episodes: Sequence[Episode], vector: Vector | None) -> NDArray[np.float64] | None:
        if self._embedder is None or vector is None or not episodes:
            return None
        new = [episode for episode in episodes if episode.id not in self._vectors]
        if new:
            made = await self._embedder.embed([spoken(episode.name, episode.content) for episode in new])
            for episode, row in zip(new, made, strict=True):
                self._vectors[episode.id] = row
        found = cosine(np.stack([self._vectors[episode.id] for episode in episodes]), vector)
        _trim(self._vectors)
        return found


def episodes_of(turns: Sequence[Turn], known_at: datetime | None) -> list[Episode]:
    """The turns' episodes, each once however many sources had its turn, as known at a moment.

    A turn of which nothing is to be kept is not stored, so it is not recalled while it waits either.
    """
    found: dict[EpisodeId, Episode] = {}
    for turn in turns:
        if not turn.keep:
            continue
        if known_at is None or turn.remembered_at <= known_at:
            found.update((episode.id, episode) for episode in turn.episodes(pending=True))
    return list(found.values())


def _trim(kept: OrderedDict[EpisodeId, Entry] | OrderedDict[EpisodeId, Vector]) -> None:
    while len(kept) > KEPT:
        kept.popitem(last=False)
