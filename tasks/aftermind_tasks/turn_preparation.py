"""Marks, terms and vectors of turns, computed before the transaction that stores them and outside the event loop."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aftermind import errors
from aftermind.llm import text_process_pool
from aftermind.llm.injection import screening
from aftermind.llm.protocols import embed
from aftermind.ranking import compares_sentences, models_of, tokenizer
from aftermind.ranking.passages import SpokenTexts, regroup
from aftermind.ranking.tokenizer import IndexedText
from aftermind.stores.protocol import Vector
from aftermind.types import EpisodeId, Turn
from aftermind_tasks import embedder_selection
from aftermind_tasks.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Data written with the texts: the reasons for suspicion, vectors, and the terms of long texts.

    `is_embedded`: the vectors are those of the active embedder, so no embed job is needed.
    """

    marks: Mapping[EpisodeId, str]
    vectors: Mapping[EpisodeId, Vector]
    terms: Mapping[tuple[str, str], IndexedText]
    is_embedded: bool = False


async def prepare(runtime: Runtime, turns: Sequence[Turn]) -> Prepared:
    """Compute it. Never fails because of a text: one that takes too long is marked and gets no terms and no vector."""
    kept = [turn for turn in turns if turn.keep]
    is_embedded = await embedder_selection.embeds_inline(runtime)
    # Marks and terms of much text are computed by another process while this one computes vectors.
    marks, terms, vectors = await asyncio.gather(
        screening.marks([turn.episodes() for turn in kept]),
        _terms(runtime, kept),
        _vectors(runtime, kept if is_embedded else ()),
    )
    return Prepared(marks=marks, vectors=vectors or {}, terms=terms, is_embedded=is_embedded and vectors is not None)


async def _terms(runtime: Runtime, turns: Sequence[Turn]) -> dict[tuple[str, str], IndexedText]:
    """Of long texts, by their language and text."""
    long: dict[str, set[str]] = defaultdict(set)
    for turn in turns:
        language = runtime.settings.language_for(turn.scope.namespace)
        long[language] |= {each.content for each in turn.messages if len(each.content) > tokenizer.LONG_CHARACTERS}
    found: dict[tuple[str, str], IndexedText] = {}
    for language, texts in long.items():
        found |= await screening.terms(list(texts), language)
    return found


async def _vectors(runtime: Runtime, turns: Sequence[Turn]) -> dict[EpisodeId, Vector] | None:
    """Vectors of an embedder without I/O; for others, embed jobs compute them. None: its vectors cannot be used, and a
    job of each turn keeps the reason.
    """
    embedder = runtime.embedder
    if embedder is None:
        return {}
    sentences = runtime.settings.embed_sentences and compares_sentences(models_of(embedder.name))
    found: dict[EpisodeId, Vector] = {}
    for turn in turns:
        episodes = turn.episodes()
        try:
            spoken = [SpokenTexts.of(each.name, each.content, sentences=sentences) for each in episodes]
            made = await embed(embedder, [text for each in spoken for text in each.texts])
        except text_process_pool.TextTimeout:
            continue
        except errors.BadModelAnswer:
            return None
        found.update(zip((each.id for each in episodes), regroup(made, spoken), strict=True))
        await asyncio.sleep(0)  # other tasks of the loop run between two turns
    return found
