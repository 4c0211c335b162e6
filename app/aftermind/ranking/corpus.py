"""Entries of any source brought into the arrays that are scored: what a store found, what is pending, or both."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from aftermind.ranking import bm25
from aftermind.ranking.windows import Scores, Turns, Weights, score
from aftermind.ranking.words import is_stop_word, terms, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, in words: its distinct `terms`, and every word of it, to see whom it names."""

    text: str
    terms: tuple[str, ...]
    words: frozenset[str]
    language: str = "english"

    @classmethod
    def of(cls, text: str, *, language: str = "english", most_terms: int = 64) -> "Question":
        """Its terms in order of appearance; a question of more than `most_terms` is a document, its start will do."""
        found = tuple(terms(text, language)[:most_terms])
        return cls(text=text, terms=found, words=frozenset(tokens(text)), language=language)

    def names(self, speaker: str | None) -> bool:
        """Whether it names the speaker, by any part of the name that is a word of its own."""
        if not speaker:
            return False
        return any(part in self.words and not is_stop_word(part) for part in tokens(speaker))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One turn to be scored. `terms` are of the same kind as the question's keys that it is compared with.

    `candidate` False: it is there for its neighbours only. `similarity` None: it has no vector yet.
    """

    session: Hashable
    position: int
    terms: Collection[Hashable]
    similarity: float | None = None
    name: str | None = None
    asking: bool = False
    candidate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequencies:
    """In how many of the owner's `episodes` each key of the question occurs."""

    episodes: int
    having: Sequence[int] = field(default=())

    @classmethod
    def of(cls, keys: Sequence[Hashable], entries: Sequence[Entry]) -> "Frequencies":
        """Counted over entries that are everything there is."""
        return cls(episodes=len(entries), having=[sum(key in entry.terms for entry in entries) for key in keys])


def score_entries(
    entries: Sequence[Entry],
    question: Question,
    *,
    keys: Sequence[Hashable] | None = None,
    frequencies: Frequencies | None = None,
    session: Hashable = None,
    weights: Weights = Weights(),  # noqa: B008
) -> Scores:
    """Score the entries for the question, in their own order.

    `keys` stand for the question's terms where entries keep something else than text (default: the terms). Without
    `frequencies` the entries are everything. `session` is the one that asks. A term that is the name of a speaker does
    not count as a word: it is in every other greeting, and the speaker's bonus says more.
    """
    wanted = list(question.terms if keys is None else keys)
    known = frequencies or Frequencies.of(wanted, entries)
    idfs = bm25.idf(known.episodes, known.having)
    speakers = {name for name in {entry.name for entry in entries} if question.names(name)}
    spoken = {term for name in speakers if name for term in terms(name, question.language)}
    idfs[[index for index, term in enumerate(question.terms) if term in spoken]] = 0.0
    turns = _turns(entries, wanted, speakers, session)
    return score(turns, idfs, candidates=np.array([e.candidate for e in entries], dtype=np.bool_), weights=weights)


def _turns(
    entries: Sequence[Entry], keys: Sequence[Hashable], speakers: Collection[str | None], session: Hashable
) -> Turns:
    codes: dict[Hashable, int] = {}
    hits = np.zeros((len(entries), len(keys)), dtype=np.bool_)
    for row, entry in enumerate(entries):
        for column, key in enumerate(keys):
            hits[row, column] = key in entry.terms
    similarity = [np.nan if entry.similarity is None else entry.similarity for entry in entries]
    return Turns(
        session=np.array([codes.setdefault(entry.session, len(codes)) for entry in entries], dtype=np.int64),
        position=np.array([entry.position for entry in entries], dtype=np.int64),
        hits=hits,
        length=np.array([len(entry.terms) for entry in entries], dtype=np.int64),
        similarity=np.array(similarity, dtype=np.float64),
        named=np.array([entry.name in speakers for entry in entries], dtype=np.bool_),
        asking=np.array([entry.asking for entry in entries], dtype=np.bool_),
        current=np.array([session is not None and entry.session == session for entry in entries], dtype=np.bool_),
    )
