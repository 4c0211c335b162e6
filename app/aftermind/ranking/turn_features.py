"""Features of a turn: its words and its vector, alone, in its window and in its session, and its speaker.

An answer rarely repeats the words of its question, and the subject of a turn is often in a neighbouring turn. So each
turn is scored by itself *and* as the window of the two turns before and after it: words count once, wherever in the
window they are; vectors as the mean of the window's similarities. An answer is often one sentence of a turn about
something else: so the best sentence of the turn, and that of the window, count besides. Windows end with the session,
and at a long pause. A logistic model of these features (`logistic`) gives the probability that the turn answers; its
coefficients are fitted by `benchmarks/fit_ranking.py`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aftermind.ranking.bm25 import length_weight
from aftermind.ranking.fitted_coefficients import Models
from aftermind.ranking.score_fusion import NOISE, scaled

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

REACH = 2  # neighbours on either side; one finds less (0.76 for 0.78), three begin to blur
BURST = 4  # messages of one speaker in a row that are one utterance; more of them blur the window
PAUSE_SECONDS = 6 * 3600.0  # without a message: what follows is another conversation, though it is the same session
BURST_SECONDS = 600.0  # between messages of one utterance
LONG_TEXT = 100  # distinct terms; a pasted document has every word, so beyond this a window counts its words for less


FEATURES = (
    "words",  # of the turn alone (BM25), by the best
    "words_window",
    "words_session",
    "coverage",  # the share of the question's words, by their worth, that the window has
    "vector",  # similarity of the turn alone, by the best
    "vector_window",
    "sentence",  # similarity of the best sentence of the turn, by the best
    "sentence_window",
    "speaker",  # is named by the question; 1 for all turns where it names none
    "asking",  # the turn ends in a question
    "answers",  # words of the turn before, if that one ends in a question
    "length",  # logarithm of its number of terms
    # The same for every turn of a question: they change probabilities, not the order. Of few turns each is likelier to
    # answer; but even the best of them may be unlike the question, which scales by the best hide.
    "few",  # logarithm of FITTED_TURNS by the owner's turns
    "few_similarity",  # times the greatest cosine
)
FEW = FEATURES.index("few")  # columns from here on are the same for every turn of a question
FITTED_TURNS = 550  # of a user that the models of the other features were fitted to
CURRENT = 0.3  # added to the log-odds of a turn of the session that asks: it breaks ties


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Turns to be scored, one array entry each, in any order; context turns are only neighbours.

    `hits` marks the terms of the query (columns) of each turn, `length` is its total number of distinct terms.
    `similarity` is the cosine to the query, NaN for a turn without a vector; `sentence_similarity` that of its best
    sentence, None where sentences are not compared. Positions order a session.
    """

    session: NDArray[np.int64]
    position: NDArray[np.int64]
    hits: Bools
    length: NDArray[np.int64]
    similarity: Floats
    sentence_similarity: Floats | None = None
    named: Bools
    asking: Bools
    current: Bools
    speaker: NDArray[np.int64]  # a number for each name, -1 if it is unknown
    said_at: Floats  # seconds

    def __len__(self) -> int:
        return len(self.session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worths:
    """What the question's terms are worth: each, 0 for one that no turn has; and `whole`, all together, those included.

    `episodes` is how many the owner has.
    """

    terms: Floats
    whole: float
    episodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Scores in the order of the turns. `total` is 0 to 1 and what counts; the others show where it comes from.

    `lexical` and `vector` are the turn alone, scaled by the best; `lexical_window` and `vector_window` likewise.
    `utterance` numbers the utterance of each turn, None if each is one.
    """

    total: Floats
    lexical: Floats
    vector: Floats
    lexical_window: Floats
    vector_window: Floats
    utterance: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Features of each turn, in the order of the turns: a column for each of `FEATURES`.

    `blind` turns have no vector in their windows. `utterance` is as in `Scores`. `has_words` and `has_meaning` are
    whether any turn has words or vectors that match.
    """

    columns: Floats
    blind: Bools
    utterance: NDArray[np.int64] | None
    has_words: bool
    has_meaning: bool


def compares_sentences(models: Models) -> bool:
    """Whether the best sentence counts: it does where vectors compare meaning, not where they compare words again."""
    return bool(models.both.coefficients[[FEATURES.index("sentence"), FEATURES.index("sentence_window")]].any())


def score(turns: Turns, question: Worths, *, candidates: Bools, models: Models) -> Scores:
    """Score every turn; `candidates` determine the scales and are the only possible matches.

    If no turn has a term, only vectors count, and vice versa; words alone count, too, for a turn whose window has no
    vector yet. A turn without any match scores 0, as do the others.
    """
    found = features(turns, question, candidates=candidates)
    columns = found.columns
    bonus = np.asarray(turns.current * CURRENT, dtype=np.float64)
    by_meaning = models.both if found.has_words else models.meaning
    total = (by_meaning if found.has_meaning else models.words).probabilities(columns, bonus)
    if found.has_meaning and found.blind.any():
        # New messages are embedded a moment later: until then their score must not be lower.
        total = np.where(found.blind, models.words.probabilities(columns, bonus), total)
    parts = dict(zip(FEATURES, columns.T, strict=True))
    evidence = parts["words_window"] + parts["words_session"] + parts["vector_window"] + parts["vector"]
    return Scores(
        total=np.where(candidates & (evidence + turns.named + turns.current > 0), total, 0.0),
        lexical=parts["words"],
        vector=parts["vector"],
        lexical_window=parts["words_window"],
        vector_window=parts["vector_window"],
        utterance=found.utterance,
    )


def features(turns: Turns, question: Worths, *, candidates: Bools) -> Features:
    """What speaks for each turn."""
    idfs = question.terms
    order = np.lexsort((turns.position, turns.session))
    said_at = turns.said_at[order]
    pauses = np.abs(said_at[1:] - said_at[:-1])
    talks = _conversations(turns.session[order], pauses)
    near = _Neighbours(talks, turns.speaker[order], pauses)
    hits, mask, length = turns.hits[order].astype(np.float64), candidates[order], turns.length[order]
    own = (hits @ idfs) * length_weight(length, float(length.mean()) if len(length) else 1.0)
    together = near.greatest(hits * np.minimum(1.0, LONG_TEXT / np.maximum(length, 1))[:, None]) @ idfs
    session = _spread_over_session(hits, talks) @ idfs
    alone, around, blind = _similarities(turns.similarity[order], near)
    by_sentence = None if turns.sentence_similarity is None else turns.sentence_similarity[order]
    best = _best_sentences(by_sentence, near, alone)
    parts = scaled(np.where(mask, np.stack([own, together, session, alone, around, *best]), 0.0))
    words, words_window, words_session, vector, vector_window, sentence, sentence_window = parts
    asking = turns.asking[order].astype(np.float64)
    few = np.log(FITTED_TURNS / min(max(question.episodes, 1), FITTED_TURNS))
    closest = np.where(mask, alone, 0.0).max(initial=0.0)
    columns = np.stack(
        [
            words,
            words_window,
            words_session,
            np.where(mask, together / max(question.whole, NOISE), 0.0),
            vector,
            vector_window,
            sentence,
            sentence_window,
            np.where(turns.named.any(), turns.named[order], 1.0),
            asking,
            near.before(words * asking),
            np.log1p(length),
            *np.outer([few, few * closest], np.ones(len(length))),
        ]
    )
    back = np.argsort(order)
    return Features(
        columns=np.ascontiguousarray(columns[:, back].T),
        blind=blind[back],
        utterance=None if near.are_turns else near.numbers()[back],
        has_words=bool(words_window.any()),
        has_meaning=bool(vector_window.any() or vector.any()),
    )


class _Neighbours:
    """The utterances up to REACH positions before and after each turn's in its session.

    Messages that one speaker sends in a row are one utterance: people split in chats what is one turn in a dialogue.
    """

    def __init__(self, sessions: NDArray[np.int64], speakers: NDArray[np.int64], pauses: Floats) -> None:
        self._starts = _utterances(sessions, speakers, pauses)
        self._sizes = _sizes(self._starts, len(sessions))
        self.are_turns = len(self._starts) == len(sessions)  # most dialogues: nothing to combine
        of = sessions[self._starts]
        self._steps: list[tuple[slice, slice, Floats]] = []
        for step in (*range(-REACH, 0), *range(1, REACH + 1)):
            here, there = slice(max(-step, 0), -step if step > 0 else None), slice(max(step, 0), min(step, 0) or None)
            self._steps.append((here, there, (of[here] == of[there]).astype(np.float64)))

    def numbers(self) -> NDArray[np.int64]:
        """The number of each turn's utterance."""
        return np.repeat(np.arange(len(self._starts)), self._sizes)

    def before(self, values: Floats) -> Floats:
        """The greatest value of the utterance before, 0 for the first of a session."""
        each = self._combined(values, np.maximum)
        result = np.zeros(len(each))
        here, there, same = self._steps[REACH - 1]
        result[here] = each[there] * same
        return self._of_turns(result)

    def greatest(self, values: Floats) -> Floats:
        """Of each column, the greatest in the window, at least 0 where it has other utterances."""
        each = self._combined(values, np.maximum)
        result = each.copy()
        for here, there, same in self._steps:
            np.maximum(result[here], (each[there].T * same).T, out=result[here])
        return self._of_turns(result)

    def mean(self, values: Floats) -> Floats:
        """The mean of the window's values that are not NaN; NaN where all are."""
        known = ~np.isnan(values)
        filled = self._combined(np.where(known, values, 0.0), np.add)
        counts = self._combined(known.astype(np.float64), np.add)
        total, count = filled.copy(), counts.copy()
        for here, there, same in self._steps:
            total[here] += filled[there] * same
            count[here] += counts[there] * same
        return self._of_turns(np.where(count > 0, total / np.maximum(count, 1), np.nan))

    def _combined(self, values: Floats, by: np.ufunc) -> Floats:
        if self.are_turns:
            return values
        return np.asarray(by.reduceat(values, self._starts, axis=0), dtype=np.float64)

    def _of_turns(self, values: Floats) -> Floats:
        return values if self.are_turns else np.repeat(values, self._sizes, axis=0)


def _conversations(sessions: NDArray[np.int64], pauses: Floats) -> NDArray[np.int64]:
    """A number for each turn's part of its session without a long pause; turns are in order, `pauses` between them."""
    found = np.zeros(len(sessions), dtype=np.int64)
    np.cumsum((sessions[1:] != sessions[:-1]) | (pauses > PAUSE_SECONDS), out=found[1:])
    return found


def _utterances(sessions: NDArray[np.int64], speakers: NDArray[np.int64], pauses: Floats) -> NDArray[np.int64]:
    """Where each utterance begins: of one named speaker without a pause, BURST messages long at most."""
    if not len(sessions):
        return np.zeros(0, dtype=np.int64)
    begins = np.ones(len(sessions), dtype=np.bool_)
    begins[1:] = (sessions[1:] != sessions[:-1]) | (speakers[1:] != speakers[:-1]) | (speakers[1:] < 0)
    begins[1:] |= pauses > BURST_SECONDS
    starts = np.flatnonzero(begins)
    sizes = _sizes(starts, len(sessions))
    if sizes.max() <= BURST:
        return starts
    return np.flatnonzero((np.arange(len(sessions)) - np.repeat(starts, sizes)) % BURST == 0)


def _sizes(starts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    return np.append(starts[1:], total) - starts


def _similarities(similarity: Floats, near: _Neighbours) -> tuple[Floats, Floats, Bools]:
    """Alone and in the window, and where there is none at all; a turn without a vector borrows its neighbours'."""
    around = near.mean(similarity)
    blind = np.isnan(around)
    around[blind] = 0.0
    return np.where(np.isnan(similarity), around, similarity), around, blind


def _best_sentences(similarity: Floats | None, near: _Neighbours, alone: Floats) -> tuple[Floats, Floats]:
    """Of the turn and of the window; nothing where no sentences are compared."""
    if similarity is None:
        return np.zeros(len(alone)), np.zeros(len(alone))
    return np.where(np.isnan(similarity), alone, similarity), near.greatest(np.nan_to_num(similarity))


def _spread_over_session(hits: Floats, sessions: NDArray[np.int64]) -> Floats:
    if not len(sessions):
        return hits
    starts = np.append(0, np.flatnonzero(sessions[1:] != sessions[:-1]) + 1)
    return np.repeat(np.maximum.reduceat(hits, starts, axis=0), _sizes(starts, len(sessions)), axis=0)
