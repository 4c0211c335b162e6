"""Adds turns that no store job has committed yet to the ranking of stored ones."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.llm import text_process_pool
from aftermind.llm.injection import detect, screening
from aftermind.llm.protocols import Embedder, embed
from aftermind.ranking import (
    ComparedPassages,
    Entry,
    Frame,
    Question,
    compares_sentences,
    cosine,
    models_of,
    tokenizer,
)
from aftermind.ranking.passages import SpokenTexts, regroup
from aftermind.ranking.tokenizer import LanguageFor, english
from aftermind.ranking.vectors import part_vectors, whole
from aftermind.stores.protocol import EpisodeFilter, Store
from aftermind.stores.search import compare_passages, to_entry
from aftermind.types import Episode, EpisodeId, JobId, Scope, Turn
from aftermind.types.session_order import placed_on_view
from aftermind.types.tombstone import without_erased

Vector = NDArray[np.float32]

CHECK_SECONDS = 0.25  # for one text too long to be computed on the loop, so that others have time in the same recall
BEGINNING = 1_000  # characters of a text that are used if there is no time for all of it
BEGINNINGS_SECONDS = 0.05  # for short texts and beginnings after the deadline; one takes up to a millisecond
AT_ONCE = 20  # short texts computed on the loop before other tasks, and the deadline, have their turn
KEPT = 2_000  # pending episodes whose terms and vectors are kept: a chat asks again while its last turns still wait


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedPending:
    """Pending episodes as a frame, and how many were searched only by their beginning, or not at all."""

    episodes: Sequence[Episode]
    frame: Frame
    compared: Mapping[EpisodeId, ComparedPassages]
    cut: int
    left_out: int

    def gaps(self) -> list[str]:
        """What was not searched, in words."""
        found = []
        if self.cut:
            found.append(f"only the beginning of {self.cut} long pending messages was searched")
        if self.left_out:
            found.append(f"{self.left_out} pending messages were not searched, for lack of time")
        return found


class PendingTurns:
    """Episodes at hand as a frame. What is costly of one (stems, a vector) is worked out once."""

    def __init__(self, embedder: Embedder | None, *, language_for: LanguageFor = english) -> None:
        self._embedder = embedder if embedder is not None and embedder.inline else None
        self._sentences = self._embedder is not None and compares_sentences(models_of(self._embedder.name))
        self._language_for = language_for
        self._entries: OrderedDict[EpisodeId, Entry] = OrderedDict()
        self._passages: OrderedDict[EpisodeId, Sequence[Sequence[str]]] = OrderedDict()  # terms of those of long texts
        self._vectors: OrderedDict[EpisodeId, Vector] = OrderedDict()
        self._marks: OrderedDict[EpisodeId, str | None] = OrderedDict()
        self._cut: OrderedDict[EpisodeId, None] = OrderedDict()  # those of which only the beginning was read

    async def marked(self, episodes: Sequence[Episode], *, until: float) -> list[Episode]:
        """The episodes with the marks that storing gives them, so that none is shown without its caution.

        Half of the time until then (by the loop's clock) is used: the rest is for `search`. One that is not checked is
        shown as not checked, and judged again next time. Short turns are checked first.
        """
        turns = [turn for turn in screening.by_turn(episodes) if any(each.id not in self._marks for each in turn)]
        now = asyncio.get_running_loop().time()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(max(now + BEGINNINGS_SECONDS, (now + until) / 2)):
                for number, turn in enumerate(sorted(turns, key=_characters), start=1):
                    found = await screening.marks([turn])
                    self._marks.update((each.id, found.get(each.id)) for each in turn)
                    if number % AT_ONCE == 0:
                        await asyncio.sleep(0)
        marked = [replace(each, mark=self._marks.get(each.id, detect.UNCHECKED)) for each in episodes]
        _trim(self._marks)
        return marked

    async def search(
        self,
        episodes: Sequence[Episode],
        question: Question,
        vector: Vector | None,
        wanted: EpisodeFilter,
        *,
        until: float,
    ) -> "SearchedPending":
        """The episodes, compared with the question: by words, and by vector where the embedder is inline.

        Newest first, until then (by the loop's clock). Of long texts that are not reached, the beginning is searched;
        if there is no time for all beginnings either, the oldest are left out.
        """
        loop = asyncio.get_running_loop()
        newest_first = list(reversed(episodes))
        await self._embed_short(newest_first, vector, until=until)
        for episode in newest_first:
            if len(episode.content) > tokenizer.LONG_CHARACTERS:
                await self._index(episode, until=until)
                await self._embed_long(episode, vector, until=until)
        until = max(until, loop.time() + BEGINNINGS_SECONDS)
        entries: dict[EpisodeId, Entry] = {}
        for number, episode in enumerate(newest_first, start=1):
            entries[episode.id] = self._entry(episode)
            if number % AT_ONCE == 0:
                if loop.time() > until:
                    break
                await asyncio.sleep(0)
        found = [episode for episode in episodes if episode.id in entries]
        similarity = self._similarity(found, vector)
        best = self._best_sentences(found, vector)
        placed = [
            _in_place(entries[each.id], each, similarity.get(each.id), best.get(each.id), wanted) for each in found
        ]
        frame = Frame.of(placed, question.terms)
        compared = self._compared(found, question, vector)
        cut = sum(each.id in self._cut or self._is_unread(each) for each in found)
        _trim(self._entries, self._passages, self._vectors, self._cut)
        return SearchedPending(
            episodes=found, frame=frame, compared=compared, cut=cut, left_out=len(episodes) - len(found)
        )

    def _compared(
        self, episodes: Sequence[Episode], question: Question, vector: Vector | None
    ) -> dict[EpisodeId, ComparedPassages]:
        """The passages of the long ones whose terms are at hand."""
        read = [each for each in episodes if not self._is_unread(each) and each.id not in self._cut]
        return compare_passages(read, question, self._vectors, vector, indexed=self._passages)

    def _is_unread(self, episode: Episode) -> bool:
        return len(episode.content) > tokenizer.LONG_CHARACTERS and episode.id not in self._passages

    async def _index(self, episode: Episode, *, until: float) -> None:
        """Find the terms of a long text outside the loop; of one that takes too long by itself, those of its beginning.

        One for which no time is left is tried by a later recall.
        """
        if episode.id in self._entries and episode.id in self._passages:
            return
        try:
            async with _limit(until):
                language = self._language_for(episode.scope.namespace)
                found = await screening.terms([episode.content], language)
        except TimeoutError:
            if asyncio.get_running_loop().time() < until:
                self._cut[episode.id] = None
                self._entries[episode.id], self._passages[episode.id] = self._of_beginning(episode), ()
            return
        self._passages[episode.id] = found[language, episode.content].passages
        with tokenizer.indexed(found):
            self._entries[episode.id] = to_entry(episode, language=language)

    def _entry(self, episode: Episode) -> Entry:
        known = self._entries.get(episode.id)
        if known is None and len(episode.content) > tokenizer.LONG_CHARACTERS:
            return self._of_beginning(episode)
        if known is None:
            known = self._entries[episode.id] = self._to_entry(episode)
        return known

    def _of_beginning(self, episode: Episode) -> Entry:
        return self._to_entry(replace(episode, content=episode.content[:BEGINNING]))

    def _to_entry(self, episode: Episode) -> Entry:
        return to_entry(episode, language=self._language_for(episode.scope.namespace))

    async def _embed_short(self, episodes: Sequence[Episode], vector: Vector | None, *, until: float) -> None:
        """Vectors of short texts, a few of them also after the deadline."""
        if self._embedder is None or vector is None:
            return
        until = max(until, asyncio.get_running_loop().time() + BEGINNINGS_SECONDS)
        group: list[Episode] = []
        short = [each for each in episodes if len(each.content) <= tokenizer.LONG_CHARACTERS]
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                for episode in short:
                    if episode.id in self._vectors:
                        continue
                    if _characters([*group, episode]) > screening.CALL_CHARACTERS:
                        await self._embed(group)
                        group = []
                    group.append(episode)
                await self._embed(group)

    async def _embed_long(self, episode: Episode, vector: Vector | None, *, until: float) -> None:
        if self._embedder is None or vector is None or episode.id in self._vectors:
            return
        try:
            async with _limit(until):
                if await self._embed([episode]):
                    return
        except TimeoutError:
            if asyncio.get_running_loop().time() >= until:
                return
        with suppress(TimeoutError):
            async with _limit(until):
                await self._embed([replace(episode, content=episode.content[:BEGINNING])])

    async def _embed(self, episodes: Sequence[Episode]) -> bool:
        """Add the vectors of these; whether they could be computed within the deadline of the process for texts."""
        if not episodes:
            return True
        assert self._embedder is not None
        spoken = [SpokenTexts.of(each.name, each.content, sentences=self._sentences) for each in episodes]
        try:
            made = await embed(self._embedder, [text for each in spoken for text in each.texts])
        except (text_process_pool.TextTimeout, errors.BadModelAnswer):
            return False
        self._vectors.update(zip((each.id for each in episodes), regroup(made, spoken), strict=True))
        return True

    def _similarity(self, episodes: Sequence[Episode], vector: Vector | None) -> dict[EpisodeId, float]:
        known = [each.id for each in episodes if each.id in self._vectors]
        if self._embedder is None or vector is None or not known:
            return {}
        found = cosine(np.stack([whole(self._vectors[id_]) for id_ in known]), vector)
        return dict(zip(known, found.tolist(), strict=True))

    def _best_sentences(self, episodes: Sequence[Episode], vector: Vector | None) -> dict[EpisodeId, float]:
        if not self._sentences or vector is None:
            return {}
        short = [each.id for each in episodes if each.id in self._vectors and each.id not in self._passages]
        parts = {id_: part_vectors(self._vectors[id_]) for id_ in short}
        return {id_: float(cosine(matrix, vector).max()) for id_, matrix in parts.items() if len(matrix)}


def _limit(until: float) -> asyncio.Timeout:
    """For one text: until then, and not longer than `CHECK_SECONDS`."""
    return asyncio.timeout_at(min(until, asyncio.get_running_loop().time() + CHECK_SECONDS))


def _in_place(
    entry: Entry, episode: Episode, similarity: float | None, best_sentence: float | None, wanted: EpisodeFilter
) -> Entry:
    return replace(
        entry,
        position=episode.position,
        similarity=similarity,
        sentence_similarity=best_sentence,
        candidate=wanted.fits(episode),
        said_at=episode.occurred_at.timestamp(),
    )


def _characters(episodes: Sequence[Episode]) -> int:
    return sum(len(each.content) for each in episodes)


async def standing_turns(
    store: Store, tx: Transaction, owner: Scope, accepted: Sequence[Turn], local: Sequence[Turn]
) -> list[Turn]:
    """Turns that wait, without what was forgotten since they were accepted, where the order of their sessions has them.

    `local` are those that only this host has. A repetition of a stored turn adds nothing, and must not show what was
    forgotten of that one.
    """
    turns = {turn.job_id: turn for turn in (*local, *accepted)}
    if not turns:
        return []
    least = min(turn.generation or 0 for turn in turns.values())
    sessions = list({turn.scope.session_id for turn in turns.values()})
    found = await store.admission_state(tx, owner, sessions, generation=least, turns=list(turns))
    known = {turn.job_id for turn in accepted}
    stones = list(found.stones)
    for author in {turn.author for turn in turns.values() if turn.author is not None}:
        stones += (await store.admission_state(tx, author, [], generation=least)).stones
    waiting = [turn for turn in turns.values() if not _is_repeated(turn, found.erased_after)]
    left = [without_erased(turn, stones) for turn in waiting]
    rest = [turn for turn in left if turn is not None]
    if any(message.expires_at is not None for turn in rest for message in turn.messages):
        rest = unexpired(rest, await store.now(tx))
    return placed_on_view(
        [turn for turn in rest if turn.job_id in known],
        [turn for turn in rest if turn.job_id not in known],
        found.counted,
    )


def _is_repeated(turn: Turn, stored: Mapping[JobId, str | None]) -> bool:
    return turn.job_id in stored and stored[turn.job_id] in (None, turn.content_hash)


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


def _trim(*caches: OrderedDict[EpisodeId, Any]) -> None:  # Any: of whatever is kept
    for kept in caches:
        while len(kept) > KEPT:
            kept.popitem(last=False)
