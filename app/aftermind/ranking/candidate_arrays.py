"""Entries of any source brought into the arrays that are scored: what a store found, what is pending, or both."""

import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from aftermind.ranking import bm25
from aftermind.ranking.fitted_coefficients import Models, models_of
from aftermind.ranking.languages import english_words
from aftermind.ranking.name_variants import capitalised_words, is_variant
from aftermind.ranking.tokenizer import is_stop_word, terms, tokens
from aftermind.ranking.turn_features import Features, Scores, Turns, Worths, features, score

# "What did I mention about rent?" asks for rent: every message was spoken.
_SPOKEN = "|".join(english_words("spoken"))
_OFTEN = "(?: (?:ever|already|just|once|last|first|never))?"
_OF_CONVERSATION = re.compile(
    rf"\b(?:(?:did|have|had) (?:i|we|you){_OFTEN} (?:{'|'.join(english_words('speaking'))}|{_SPOKEN})|"
    rf"(?:i|we|you)(?:'ve| have| had)?{_OFTEN} (?:{_SPOKEN}))\b",
    re.IGNORECASE,
)
# Words of a question that are about no subject: "last", "two weeks ago", and "name" in "my sister's name",
# which most messages with the word have of the user.
_UNIT = r"(?:days?|weeks?|weekends?|months?|years?)"
_UNINFORMATIVE = re.compile(
    rf"\b(?:(?:last|next|past)(?! names?\b)(?:(?: \w+)? {_UNIT}\b)?|\w+ {_UNIT} ago\b|ago\b)|"
    r"(?<!user['\u2019]s )(?<=['\u2019]s )names?\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query in words: its distinct `terms`, and every word of it, to detect names of speakers.

    `capitalised` words within a sentence may be variants of a name. `user_names` are terms that name the user,
    `uninformative` others that are about no subject ("last", "two weeks ago").
    """

    text: str
    terms: tuple[str, ...]
    words: frozenset[str]
    language: str = "english"
    capitalised: frozenset[str] = frozenset()
    user_names: frozenset[str] = frozenset()
    uninformative: frozenset[str] = frozenset()

    @classmethod
    def of(cls, text: str, *, language: str = "english", most_terms: int = 64) -> "Question":
        """Its terms in order of appearance; a question of more than `most_terms` is a document, its start will do."""
        found = tuple((terms(_OF_CONVERSATION.sub(" ", text), language) or terms(text, language))[:most_terms])
        words = frozenset(tokens(text))
        capitals = capitalised_words(text) if len(found) < most_terms else frozenset()
        empty = frozenset(term for each in _UNINFORMATIVE.findall(text) for term in terms(each, language))
        return cls(
            text=text,
            terms=found,
            words=words,
            language=language,
            capitalised=capitals,
            uninformative=frozenset() if empty.issuperset(found) else empty,
        )

    def naming_user(self, names: Iterable[str]) -> "Question":
        """The question where these terms name the user: all turns are about the user, so the names decide nothing.

        A name that is written as a word ("Where is the rose?") is none, and a question for nothing but a name keeps it.
        """
        capitalised = {term for word in self.capitalised for term in terms(word, self.language)}
        found = self.user_names.union(capitalised.intersection(names)).intersection(self.terms)
        return replace(self, user_names=found) if found and len(found) < len(self.terms) else self

    def ignoring(self, empty: Iterable[str]) -> "Question":
        """The question where these terms are about no subject."""
        return replace(self, uninformative=self.uninformative.union(empty))

    def names(self, speaker: str | None) -> bool:
        """Whether it names the speaker, by any part of the name that is a complete word."""
        if not speaker:
            return False
        return any(part in self.words and not is_stop_word(part) for part in tokens(speaker))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One turn to be scored. `terms` are of the same kind as the question's keys that it is compared with.

    `candidate` False: it is there for its neighbours only. `similarity` None: it has no vector yet.
    `sentence_similarity` is that of its best sentence, None where it is compared as a whole. `said_at` is in seconds
    since 1970.
    """

    session: Hashable
    position: int
    terms: Collection[Hashable]
    similarity: float | None = None
    sentence_similarity: float | None = None
    name: str | None = None
    asking: bool = False
    candidate: bool = True
    said_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequencies:
    """In how many of the owner's `episodes` each key of the question occurs."""

    episodes: int
    having: Sequence[int] = field(default=())

    @classmethod
    def of(cls, keys: Sequence[Hashable], entries: Sequence[Entry]) -> "Frequencies":
        """Counted over entries that are everything there is."""
        return cls(episodes=len(entries), having=[sum(key in entry.terms for entry in entries) for key in keys])


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Turns column by column: the fast form of entries. `hits` has a column for each key of the question.

    `candidate` False is a turn that is there for its neighbours only. `sentence_similarity` is that of the best
    sentence, or of the turn where it is compared as a whole; None where no sentences are compared.
    """

    session: Sequence[Hashable]
    position: NDArray[np.int64]
    hits: NDArray[np.bool_]
    length: NDArray[np.int64]
    similarity: NDArray[np.float64]
    sentence_similarity: NDArray[np.float64] | None = None
    name: Sequence[str | None]
    asking: NDArray[np.bool_]
    candidate: NDArray[np.bool_]
    said_at: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.session)

    @classmethod
    def of(cls, entries: Sequence[Entry], keys: Sequence[Hashable]) -> "Frame":
        """The entries, compared with the question's keys."""
        hits = np.zeros((len(entries), len(keys)), dtype=np.bool_)
        for row, entry in enumerate(entries):
            for column, key in enumerate(keys):
                hits[row, column] = key in entry.terms
        similarity = np.array([np.nan if each.similarity is None else each.similarity for each in entries], dtype=float)
        best = [np.nan if each.sentence_similarity is None else each.sentence_similarity for each in entries]
        return cls(
            session=[entry.session for entry in entries],
            position=np.array([entry.position for entry in entries], dtype=np.int64),
            hits=hits,
            length=np.array([len(entry.terms) for entry in entries], dtype=np.int64),
            similarity=similarity,
            sentence_similarity=None if np.isnan(best).all() else np.where(np.isnan(best), similarity, best),
            name=[entry.name for entry in entries],
            asking=np.array([entry.asking for entry in entries], dtype=np.bool_),
            candidate=np.array([entry.candidate for entry in entries], dtype=np.bool_),
            said_at=np.array([entry.said_at for entry in entries], dtype=np.float64),
        )

    def joined(self, other: "Frame") -> "Frame":
        """These turns, then the other's, of the same question."""
        return Frame(
            session=[*self.session, *other.session],
            position=np.concatenate([self.position, other.position]),
            hits=np.concatenate([self.hits, other.hits]),
            length=np.concatenate([self.length, other.length]),
            similarity=np.concatenate([self.similarity, other.similarity]),
            sentence_similarity=_joined(self, other),
            name=[*self.name, *other.name],
            asking=np.concatenate([self.asking, other.asking]),
            candidate=np.concatenate([self.candidate, other.candidate]),
            said_at=np.concatenate([self.said_at, other.said_at]),
        )


def _joined(one: Frame, other: Frame) -> NDArray[np.float64] | None:
    """The similarities of best sentences, if either has them."""
    if one.sentence_similarity is None and other.sentence_similarity is None:
        return None
    return np.concatenate(
        [each.similarity if each.sentence_similarity is None else each.sentence_similarity for each in (one, other)]
    )


def score_frame(
    frame: Frame,
    question: Question,
    frequencies: Frequencies,
    *,
    session: Hashable = None,
    models: Models | None = None,
    worths: NDArray[np.float64] | None = None,
) -> Scores:
    """Score the turns for the query, in their order; `session` is the current one, `worths` are of `worths_of`.

    A term that is the name of a speaker does not count as a word: greetings contain it often, and the speaker is a
    separate feature. `models` default to those for embedders without fitted ones.
    """
    given = worths_of(frame, question, frequencies) if worths is None else worths
    turns, weighed = _turns(frame, question, frequencies, session, given)
    return score(turns, weighed, candidates=frame.candidate, models=models or models_of())


def features_of(frame: Frame, question: Question, frequencies: Frequencies) -> Features:
    """The features of the turns, in their own order: what models are fitted to."""
    turns, worths = _turns(frame, question, frequencies, None, worths_of(frame, question, frequencies))
    return features(turns, worths, candidates=frame.candidate)


def worths_of(frame: Frame, question: Question, frequencies: Frequencies) -> NDArray[np.float64]:
    """What each term of the question is worth: 0 for names and uninformative ones, the most for a term that no turn
    has.
    """
    worths = bm25.idf(frequencies.episodes, np.maximum(np.asarray(frequencies.having), 1))
    worths[worthless_terms(frame, question)] = 0.0
    return worths


def _turns(
    frame: Frame, question: Question, frequencies: Frequencies, session: Hashable, worths: NDArray[np.float64]
) -> tuple[Turns, Worths]:
    turns = Turns(
        session=numbered(frame.session),
        position=frame.position,
        hits=frame.hits,
        length=frame.length,
        similarity=frame.similarity,
        sentence_similarity=frame.sentence_similarity,
        named=_among(frame.name, named_speakers(frame, question)),
        asking=frame.asking,
        current=_among(frame.session, set() if session is None else {session}),
        speaker=np.where(_among(frame.name, {None}), -1, numbered(frame.name)),
        said_at=frame.said_at,
    )
    said = np.where(np.asarray(frequencies.having) > 0, worths, 0.0)
    return turns, Worths(terms=said, whole=float(worths.sum()), episodes=frequencies.episodes)


def numbered(labels: Sequence[Hashable]) -> NDArray[np.int64]:
    """Numbers for labels, from 0; equal labels get equal numbers."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.fromiter(map(numbers.__getitem__, labels), dtype=np.int64, count=len(labels))


def _among(labels: Sequence[Hashable], wanted: Collection[Hashable]) -> NDArray[np.bool_]:
    if not wanted:
        return np.zeros(len(labels), dtype=np.bool_)
    return np.fromiter(map(wanted.__contains__, labels), dtype=np.bool_, count=len(labels))


def worthless_terms(frame: Frame, question: Question) -> list[int]:
    """The indexes of the query's terms that are worth nothing: uninformative ones, names of the user, and those of
    speakers, whose bonus covers them.
    """
    spoken = {*question.user_names, *question.uninformative}
    for name in named_speakers(frame, question):
        spoken.update(terms(name, question.language))
        spoken.update(term for word in _variants_of(name, question) for term in terms(word, question.language))
    return [place for place, term in enumerate(question.terms) if term in spoken]


def named_speakers(frame: Frame, question: Question) -> set[str]:
    """The speakers that the query names, also by a nickname or misspelt; a variant of several names is none of them."""
    speakers = {name for name in set(frame.name) if name}
    named = {name for name in speakers if question.names(name)}
    others = {name: _variants_of(name, question) for name in speakers - named} if question.capitalised else {}
    exact = {part for name in named for part in tokens(name)}
    for word in question.capitalised - exact:
        meant = [name for name, variants in others.items() if word in variants]
        named.update(meant if len(meant) == 1 else ())
    return named


def _variants_of(speaker: str, question: Question) -> set[str]:
    parts = [part for part in tokens(speaker) if not is_stop_word(part)]
    words = question.capitalised.difference(parts)
    return {word for word in words if any(is_variant(word, part) for part in parts)}


def score_entries(
    entries: Sequence[Entry],
    question: Question,
    *,
    frequencies: Frequencies | None = None,
    session: Hashable = None,
    models: Models | None = None,
) -> Scores:
    """Score entries whose terms are text. Without `frequencies` the entries are everything there is."""
    known = frequencies or Frequencies.of(question.terms, entries)
    frame = Frame.of(entries, question.terms)
    return score_frame(frame, question, known, session=session, models=models)
