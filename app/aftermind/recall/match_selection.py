"""From scores to matches: ranked, over the bar, diverse where that is asked for."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import log1p
from operator import attrgetter
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from aftermind.facts.apply_assertions import effective_start
from aftermind.facts.learned_procedures import LEAST_CONFIDENCE, PROCEDURE, with_feedback
from aftermind.facts.predicates import EXCLUSIVE, OPPOSITES, folded, relation_text, searched_text
from aftermind.ranking import (
    Frame,
    Question,
    Scores,
    capitalised_words,
    covering_value,
    diversified,
    fact_value,
    is_stop_word,
    lifted,
    named_speakers,
    overlap,
    ranks,
    sureness,
    terms,
    tokens,
)
from aftermind.ranking.passages import split_sentences
from aftermind.recall.excerpts import QuestionWords
from aftermind.recall.question_time import IN_PERIOD, MENTIONED_LATER, READ_CHARACTERS, QuestionTime, rescored, shifted
from aftermind.stores.search import FactHit
from aftermind.types import Cardinality, Episode, EpisodeId, Fact, FactId, Match, Passage
from aftermind.types.fact import USER
from aftermind.types.feedback import FeedbackCount

# Where a question asks for nothing but a period: the least score of its turns, and a factor for those of others.
IN_PERIOD_ALONE, OUTSIDE_PERIOD = 0.3, 0.01
WITHOUT_WORDS = 0.05  # the least score of its turns where the question's other words are in no turn and no fact
FEW_TERMS = 3  # of a message, with which it is half as likely to report what happened: thanks have fewer
LEAST_IN_PERIOD = 0.001  # before the period counts: a block may have space for what happened then
SUPERSEDED = -3.0  # added to the log-odds of a turn whose statement is no longer true
ENDED = -1.0  # likewise, where nothing took its place: "Do I have a dog?" is answered by a dog that died, too
# Of what the best fact of a turn has more of the question than the worst: with less it is about something else.
ASKED_SHARE = 0.5
BEHIND_OWN = 0.5  # of the score of the user's own fact, which facts about others have at most: see `_behind_own`
FOLLOWING = 0.9  # of its score, which the turns of the fact that took its place have at least
# Of the best score of a burst, which its messages that match less have in the block: of chats in bursts, blocks of 500
# and 1,000 tokens show 0.011 and 0.020 more of the evidence's text so (0.3; 0.6 finds the same).
OF_BURST = 0.3
# Times log(1 + names), added to the log-odds of a turn: one that names a place, a title or a person answers likelier
# than "Thanks, that means a lot". Recall@10 is 0.005 higher with MiniLM and 0.004 with the hash embedder, each half by
# coefficients fitted on the other; 0.5 to 1.1 find the same within 0.003.
NAMING = 0.8
MOST_NAMES = 3  # counted of a turn: a list of names, or a text in capitals, is no better
_YEAR = re.compile(r"(?:19|20)\d\d")
_ABOUT_END = re.compile(
    r"\b(?:away|until|after|divorced?|laid off|let go|retired?|end(?:ed)?|stop(?:ped)?|quit|le(?:ave|aving|ft)|"
    r"resign(?:ed)?|los[et]|sold|di(?:e|ed)|fired)\b",
    re.IGNORECASE,
)
# Up to what a question names as the later of two: not "before I worked at Oslo University", nor of several ("Which
# cities").
_BEFORE = re.compile(
    r"^(?!.*\b(?:all|(?:which|what) (?!was\b|is\b|does\b)\w+s)\b).*"
    r"\b(?:before|prior to|vor|avant|antes de) (?:(?:moving|joining|to|in|at|the|my|nach|bei|à|chez|en) )*",
    re.IGNORECASE | re.DOTALL,
)
_IN_THE_PAST = re.compile(r"\b(?:did|was|were|had)\b", re.IGNORECASE)
_ABOUT_NOW = re.compile(
    r"^\W*(?:do|am|is|are) (?:i|we|my|our)\b|\b(?:now|currently|today|anymore|longer|not|no)\b|n['\u2019]t\b",
    re.IGNORECASE,
)
_NOT_LIKED = re.compile(
    r"(?:n['\u2019]t|\b(?:not|cannot|dont|never))(?: \w+){0,2}? (?:like|love|enjoy|prefer)\b", re.IGNORECASE
)
_LIKED = re.compile(r"\b(?:like|love|enjoy|prefer)\b", re.IGNORECASE)
COMPARED_CHARACTERS = 1_000  # of a text, where the unlikeness of matches is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRank:
    """Where one candidate came out."""

    id: EpisodeId
    score: float
    lexical: float
    vector: float
    lexical_rank: int | None
    vector_rank: int | None
    detail: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFormer:
    """The former facts that a question is about, and those that took their place and that it names ("before Oslo").

    `is_last`: of several former ones they are the last before those. `named` are those of `facts` that it names in
    place of the current ones. `is_of_end`: it is about their end ("When did I leave Oslo?").
    """

    facts: Sequence[Fact]
    successors: Sequence[Fact]
    is_last: bool
    named: frozenset[FactId]
    is_of_end: bool


def places(
    ids: Sequence[EpisodeId],
    frame: Frame,
    scores: Scores,
    *,
    min_score: float | None,
    most: int,
    among: Collection[EpisodeId] | None = None,
) -> tuple[list[CandidateRank], int]:
    """The best candidates, of equals the newest, and how many score at all and not below `min_score`.

    With None also those that score nothing. `among` are the only ones that count, if it is given.
    """
    enough = (
        frame.candidate if min_score is None else frame.candidate & (scores.total > 0) & (scores.total >= min_score)
    )
    if among is not None:
        wanted = {id_.int for id_ in among}  # the hash of a UUID is a call of Python, for each of 100,000 turns
        enough = enough & np.fromiter(map(wanted.__contains__, map(attrgetter("int"), ids)), bool, len(ids))
    rows = np.flatnonzero(enough)
    best = rows[np.lexsort((-frame.position[rows], -scores.total[rows]))][:most]
    columns = (scores.total, scores.lexical, scores.vector, scores.lexical_window, scores.vector_window)
    placed = (ranks(scores.lexical), ranks(scores.vector))
    values = zip(best.tolist(), *(column[best].tolist() for column in (*columns, *placed)), strict=True)
    found = [
        CandidateRank(
            id=ids[row],
            score=total,
            lexical=lexical,
            vector=vector,
            lexical_rank=lexical_rank if lexical > 0 else None,
            vector_rank=vector_rank if vector > 0 else None,
            detail={"lexical_window": lexical_window, "vector_window": vector_window},
        )
        for row, total, lexical, vector, lexical_window, vector_window, lexical_rank, vector_rank in values
    ]
    return found, len(rows)


def years_alone(facts: Sequence[FactHit], frame: Frame, question: Question, worths: NDArray[np.float64]) -> list[str]:
    """The years of a question about a period that no candidate has together with another of its words.

    They are its time and not its subject: "My passport is valid since 2025" is no answer to "Where did I work in 2025?"
    if another candidate has the work, and the budget "for 2024" is one to "What is my budget for 2024?".
    """
    years = [each for each in question.terms if _YEAR.fullmatch(each)]
    is_year = np.isin(question.terms, years)
    is_other = ~is_year & (worths > 0)
    if not years or not is_other.any():
        return []
    hits = frame.hits[frame.candidate]
    with_other = hits[:, is_other].any(axis=1)
    is_together = bool((hits[:, is_year].any(axis=1) & with_other).any())
    has_other = with_other.any() or any(is_other[place] for hit in facts for place in hit.places)
    return years if has_other and not is_together else []


def admit_period(scores: Scores, frame: Frame, time: QuestionTime, *, is_alone: bool, has_words: bool) -> Scores:
    """The scores with the turns of a period at `LEAST_IN_PERIOD` at least, also without a word of the question.

    If the question asks for the period alone, each of its turns answers, and the others come behind: what is likest to
    such a question is chance. If it asks for more, and nothing has its words (not `has_words`), a turn of the period
    is likelier to answer than one that is hardly like the question.
    """
    if time.start is None or time.end is None:
        return scores
    within = frame.candidate & (frame.said_at >= time.start.timestamp()) & (frame.said_at < time.end.timestamp())
    if is_alone or not has_words:
        likely = (IN_PERIOD_ALONE if is_alone else WITHOUT_WORDS) * frame.length / (frame.length + FEW_TERMS)
        answering = np.maximum(likely + (1 - likely) * scores.total, LEAST_IN_PERIOD)
        is_later = frame.said_at < (time.end + MENTIONED_LATER).timestamp()
        is_near = within | ((frame.said_at >= time.end.timestamp()) & is_later)
        outside = np.where(is_alone & ~is_near, OUTSIDE_PERIOD, 1.0)
        return replace(scores, total=np.where(within, answering, scores.total * outside))
    return replace(scores, total=np.where(within, np.maximum(scores.total, LEAST_IN_PERIOD), scores.total))


def burst_scores(
    ids: Sequence[EpisodeId], frame: Frame, scores: Scores, found: Sequence[CandidateRank], *, limit: int
) -> dict[EpisodeId, float]:
    """The messages of the utterances that the first `limit` candidates are from, with what they are worth for them."""
    if scores.utterance is None or not found:
        return {}
    row_of = {id_: row for row, id_ in enumerate(ids)}
    best: dict[int, float] = {}
    for place in found[:limit]:
        best.setdefault(int(scores.utterance[row_of[place.id]]), place.score)
    members = np.flatnonzero(frame.candidate & np.isin(scores.utterance, list(best)))
    return {ids[row]: OF_BURST * best[int(scores.utterance[row])] for row in members.tolist()}


def matched(place: CandidateRank, episode: Episode, rank: int, passage: Passage | None = None) -> Match:
    """A place with its episode, as it is shown."""
    return Match(
        item=episode,
        score=place.score,
        lexical_score=place.lexical,
        vector_score=place.vector,
        rank=rank,
        lexical_rank=place.lexical_rank,
        vector_rank=place.vector_rank,
        detail=place.detail,
        passage=passage,
    )


def prefer_names(matches: Sequence[Match]) -> list[Match]:
    """The matches with turns likelier that name something besides the speakers, by capital letters in a sentence."""
    turns = _turns(matches)
    speakers = {part for name in {turn.name for _, turn in turns} if name for part in tokens(name)}
    named = [_count_names(match, turn, speakers) for match, turn in turns]
    if not any(named):
        return list(matches)
    pairs = zip(turns, named, strict=True)
    scores = [shifted(match.score, NAMING * log1p(count)) if count else match.score for (match, _), count in pairs]
    return rescored([match for match, _ in turns], scores)


def about_named(
    hits: Sequence[FactHit], frame: Frame, question: Question, shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The shares of facts; where the question names speakers, 0 for a fact about another speaker."""
    named = named_speakers(frame, question)
    if not hits or not named:
        return shares
    others = {name.casefold() for name in set(frame.name) if name and name not in named}
    names = {term for name in named for term in terms(name, question.language)}
    is_about_other = [
        hit.subject.casefold() in others and names.isdisjoint(question.terms[place] for place in hit.places)
        for hit in hits
    ]
    return np.where(is_about_other, 0.0, shares)


def weighed(
    hits: Sequence[FactHit], ids: Sequence[EpisodeId], frame: Frame, scores: Scores, shares: NDArray[np.float64]
) -> Scores:
    """The scores of turns, with those lifted that a fact came from which fits the question."""
    if not hits:
        return scores
    rows = {id_: row for row, id_ in enumerate(ids)}
    sources = [[rows[each] for each in hit.sources if each in rows] for hit in hits]
    worth = shares * np.array([sureness(hit.confidence) for hit in hits])
    return lifted(scores, worth, sources, frame.candidate)


def score_facts(
    facts: Sequence[Fact],
    shares: Mapping[FactId, float],
    matches: Sequence[Match],
    *,
    passed_on: Mapping[FactId, float],
    words: QuestionWords,
    question: str,
) -> list[Match]:
    """Facts by the share of the query that they cover, or after their best source turn; of equals the user's and the
    newest first.

    Other facts have a small value: a block may have space for them. `passed_on` are scores of turns that they replace.
    "Where do I live?" is about the user's home, however certain a sister's is; "What don't I like?" is about dislikes.
    """
    turns = _turns(matches)
    is_negated = _NOT_LIKED.search(question) is not None and not _LIKED.search(_NOT_LIKED.sub("", question))
    scores = {turn.id: match.score for match, turn in turns}
    related = _related_shares(facts, [turn for _, turn in turns], words)
    found: list[Match] = []
    newest_first = sorted(facts, key=lambda fact: fact.id, reverse=True)  # stores have other orders
    for fact in sorted(newest_first, key=lambda fact: fact.subject != USER):
        share = max(shares.get(fact.id, 0.0), related.get(fact.id, 0.0))
        if is_negated and fact.predicate in OPPOSITES:
            share = words.share(searched_text(replace(fact, predicate=OPPOSITES[fact.predicate])))
        best = max((scores.get(each, 0.0) for each in fact.sources), default=0.0)
        score = max(fact_value(share, fact.confidence, best), passed_on.get(fact.id, 0.0) * sureness(fact.confidence))
        found.append(Match(item=fact, score=score, lexical_score=share))
    placed = _behind_own(found, set(tokens(question)), related)
    return sorted(placed, key=lambda match: -match.score)


def _behind_own(found: Sequence[Match], asked: Collection[str], related: Collection[FactId]) -> list[Match]:
    """Matches of facts, with those about others behind the user's own of their predicate that cover as much, unless the
    question names the other or a relation leads to them.
    """
    facts = [(match, match.item) for match in found if isinstance(match.item, Fact)]
    own = [(match, fact.predicate) for match, fact in facts if fact.subject == USER]
    placed = []
    for match, fact in facts:
        if fact.subject != USER and fact.id not in related and not any(part in asked for part in tokens(fact.subject)):
            covered = match.lexical_score or 0.0
            above = [
                each.score for each, name in own if name == fact.predicate and (each.lexical_score or 0.0) >= covered
            ]
            match = replace(match, score=min([match.score, *(BEHIND_OWN * score for score in above)]))
        placed.append(match)
    return placed


def _related_shares(facts: Sequence[Fact], turns: Sequence[Episode], words: QuestionWords) -> dict[FactId, float]:
    """Shares of facts about a person that a fact of the user leads to: "Where does my sister live?" is answered by
    `Ines lives_in Faro`, if a message about "my sister Ines" has given `user has_sibling Ines`.

    The words of the question are counted in the sentences that gave the relation, and in the fact.
    """
    others = [fact for fact in facts if fact.subject != USER]
    if not others:
        return {}
    people = {folded(fact.subject) for fact in others}
    relations: dict[str, list[str]] = {}
    for fact in facts:
        if fact.subject == USER and folded(fact.object) in people:
            about = [turn for turn in turns if turn.id in fact.sources]
            given = [text for turn in about for text in _sentences_with([fact], turn)[0]]
            relations.setdefault(folded(fact.object), []).extend(given or [relation_text(fact)])
    found: dict[FactId, float] = {}
    for fact in others:
        texts = relations.get(folded(fact.subject), ())
        of_fact = words.share(fact.text) if texts else 0.0
        for text in texts if of_fact else ():
            share = words.share(f"{text} {fact.text}")
            if share > max(of_fact, words.share(text), found.get(fact.id, 0.0)):
                found[fact.id] = share
    return found


def _sentences_with(facts: Sequence[Fact], turn: Episode) -> tuple[list[str], list[str]]:
    """The sentences of a turn that name the object of one of the facts, and the others."""
    objects = [set(tokens(fact.object)) for fact in facts]
    naming: list[str] = []
    others: list[str] = []
    for sentence in split_sentences(turn.content[:READ_CHARACTERS]):
        spoken = set(tokens(sentence))
        (naming if any(each <= spoken for each in objects) else others).append(sentence)
    return naming, others


def alternative_sources(facts: Sequence[Fact], ids: Collection[EpisodeId]) -> set[EpisodeId]:
    """The other turns that state the facts of turns, or facts that took their place or whose place they took:
    `supersede` and `raise_former` may raise these, however unlikely they are by themselves.
    """
    exclusive = [fact for fact in facts if _has_one(fact)]
    about = {_about(fact) for fact in exclusive if not frozenset(fact.sources).isdisjoint(ids)}
    former = {_about(fact) for fact in exclusive if fact.valid_to is not None}
    return {each for fact in exclusive if _about(fact) in about & former for each in fact.sources}


def supersede(
    matches: Sequence[Match],
    facts: Sequence[Fact],
    words: QuestionWords,
    *,
    moment: datetime,
    is_past: bool,
    start: datetime | None = None,
    names_user: bool = False,
    named: Collection[FactId] = (),
    question: str,
) -> tuple[list[Match], dict[FactId, float]]:
    """Matches with those marked, and less likely, whose statement was no longer true at a moment.

    What took its place answers instead: the fact that is true then and its turns get the score, by fact. A question
    about the past only gets the marks, except for what had ended before the `start` of its period. A turn that states
    more keeps its score for questions about the rest; one whose facts have no successor loses less, and nothing if the
    question has a past tense ("What was my dog called?"). One with the user's name does not pass its score on where the
    question `names_user` and has no word of what ended. What began after the moment passes its score on
    likewise, to what it took the place of. A turn of a `named` fact keeps its score, and passes it on. Turns that have
    nothing of the question get no more than what they took the place of keeps: they may be about the lesser part of it
    ("Is my school near where I live?").
    """
    current = [fact for fact in facts if fact.is_valid_at(moment)]
    ended = [fact for fact in facts if fact.valid_to is not None and fact.valid_to <= moment]
    held = {_about(fact) for fact in current if _has_one(fact)}
    alone = 0.0 if _IN_THE_PAST.search(question) else ENDED
    replaced = {_about(fact) for fact in current if fact.cardinality is Cardinality.SINGLE}
    later = [fact for fact in facts if fact.valid_from and fact.valid_from > moment and _about(fact) in replaced]
    passed_on: dict[FactId, float] = {}
    kept: dict[FactId, float] = {}  # likewise, of the scores that are left to the statements themselves
    found = []
    for match, turn in _turns(matches):
        stands = [fact for fact in current if turn.id in fact.sources]
        ends = [*_ended_after(turn, ended), *(fact for fact in later if turn.id in fact.sources)]
        if ends:
            ends = [] if _is_elsewhere(turn, ends, words) else _select_asked(ends, stands, words)
        if not ends:
            found.append(match)
            continue
        ended_at = [(fact, fact.valid_to) for fact in ends if fact.valid_to and fact.valid_to <= moment]
        at = max((end for _, end in ended_at), default=None)
        is_answer = at is not None and is_past and (start is None or at > start)
        is_named = any(fact.id in named for fact in ends)
        penalty = SUPERSEDED if any(_about(fact) in held for fact in ends) else alone
        score = match.score if is_answer or is_named else shifted(match.score, penalty)
        found.append(replace(match, superseded_at=_first_end_of_asked(ended_at, words), score=score))
        is_by_name = names_user and any(fact.names_user for fact in stands)
        about = {_about(fact) for fact in ends if not is_by_name or words.share(searched_text(fact))}
        for fact in () if is_answer else current:
            # Of a predicate with several objects, another one has taken no place: a dog is not a cat that died.
            if _about(fact) in about and _has_one(fact):
                passed_on[fact.id] = max(passed_on.get(fact.id, 0.0), match.score)
                kept[fact.id] = max(kept.get(fact.id, 0.0), min(score, FOLLOWING * match.score))
    sources = [(source, fact.id) for fact in current if fact.id in passed_on for source in fact.sources]
    least = {source: FOLLOWING * passed_on[id_] for source, id_ in sources}
    unlike = {source: kept[id_] for source, id_ in sources}
    raised = [
        match
        if match.superseded_at
        else replace(match, score=max(match.score, (least if match.score > 0 else unlike).get(turn.id, 0.0)))
        for match, turn in _turns(found)
    ]
    return _ranked(raised), passed_on


def asked_former(
    former: Sequence[Fact], current: Sequence[Fact], time: QuestionTime, words: QuestionWords, question: str
) -> AskedFormer:
    """The former facts that a question is about: by its words where it is about the past, by what took their place
    ("before Oslo"), or by name.
    """
    of_then = time.facts_of_then([fact for fact in former if words.share(searched_text(fact))])
    is_before = time.is_undated_past and not time.is_ever
    successors = _successors_of(of_then or former, current, words) if is_before else []
    replaced = {_about(fact) for fact in successors}
    facts = of_then or [fact for fact in former if _about(fact) in replaced]
    last = _last_before_named(facts, [*former, *current], question) if is_before else {}
    if last:
        facts, successors = list(last.values()), list(last)
    named = [] if facts else _named_former(former, current, question)
    return AskedFormer(
        facts=facts or named,
        successors=successors,
        is_last=bool(last),
        named=frozenset(fact.id for fact in named),
        is_of_end=_ABOUT_END.search(question) is not None,
    )


def _named_former(former: Sequence[Fact], current: Sequence[Fact], question: str) -> list[Fact]:
    """The former facts whose object the question names in place of the current one ("When did I move to Bergen?").

    Also those that nothing took the place of ("Did I work at Acme?"). None for a question about now, or with a negation
    ("I don't live in Bergen anymore: where do I live?").
    """
    if _ABOUT_NOW.search(question):
        return []
    asked = set(tokens(question))
    named = {_about(fact) for fact in current if asked.issuperset(tokens(fact.object))}
    replaced = {_about(fact) for fact in current if fact.cardinality is Cardinality.SINGLE} - named
    if _IN_THE_PAST.search(question):
        replaced |= {_about(fact) for fact in former} - {_about(fact) for fact in current}
    return [fact for fact in former if _about(fact) in replaced and asked.issuperset(tokens(fact.object))]


def _last_before_named(former: Sequence[Fact], facts: Sequence[Fact], question: str) -> dict[Fact, Fact]:
    """By each fact that the question names, the last of the former ones before it: of several homes "before Oslo"."""
    before = _BEFORE.match(question)
    if before is None:
        return {}
    last: dict[Fact, Fact] = {}
    later = folded(question[before.end() :])
    for named in facts:
        if named.cardinality is not Cardinality.SINGLE or not f"{later} ".startswith(f"{folded(named.object)} "):
            continue
        start = effective_start(named)
        earlier = [
            fact for fact in former if _about(fact) == _about(named) and fact.valid_to and fact.valid_to <= start
        ]
        if earlier:
            last[named] = max(earlier, key=effective_start)
    return last


def _successors_of(former: Sequence[Fact], current: Sequence[Fact], words: QuestionWords) -> list[Fact]:
    """The current facts that took the place of former ones and are named in the question ("before Oslo")."""
    about = {_about(fact) for fact in former}
    return [
        fact
        for fact in current
        if fact.cardinality is Cardinality.SINGLE and _about(fact) in about and words.share(fact.object)
    ]


def raise_former(
    matches: Sequence[Match], former: AskedFormer, words: QuestionWords
) -> tuple[list[Match], dict[FactId, float]]:
    """For a question about the past: what was true then, and is not now, is likelier to answer, and so are its turns.
    Those of `successors` come behind ("Where did I live before Oslo?"), and pass their score on if the question has no
    word of what they took the place of ("my job before Northern Rail"), or means the last of several. So do the turns
    that state the end of what was named, or, if the question is about its end, those that state its start.

    Also scores of the former facts, by their own words or their best turn.
    """
    then = former.facts
    sources = {source for fact in then for source in fact.sources}
    behind = {source for fact in former.successors for source in fact.sources} - sources
    if former.named and (endings := _endings(then, matches)):
        asked = endings if former.is_of_end else sources - endings
        sources, behind = asked, behind | (sources - asked)
    least = 0.0
    if former.is_last or not any(words.share(searched_text(fact)) for fact in then):
        least = max((match.score for match, turn in _turns(matches) if turn.id in behind), default=0.0)
    raised = [
        replace(match, score=max(shifted(match.score, IN_PERIOD), least)) if turn.id in sources else match
        for match, turn in _turns(matches)
    ]
    scores = {turn.id: match.score for match, turn in _turns(raised)}
    passed_on = {
        fact.id: max(
            [
                shifted(covering_value(words.share(searched_text(fact))), IN_PERIOD),
                least,
                *(scores.get(each, 0.0) for each in fact.sources),
            ]
        )
        for fact in then
    }
    most = FOLLOWING * max(passed_on.values(), default=0.0)
    capped = [
        replace(match, score=min(match.score, most)) if turn.id in behind else match for match, turn in _turns(raised)
    ]
    return _ranked(capped), passed_on


def _endings(facts: Sequence[Fact], matches: Sequence[Match]) -> set[EpisodeId]:
    """The sources that state the end of a fact, of those with another source from before it."""
    times = {turn.id: turn.occurred_at for _, turn in _turns(matches)}
    found: set[EpisodeId] = set()
    for fact in facts:
        given = [each for each in fact.sources if each in times]
        late = {each for each in given if fact.valid_to is not None and times[each] >= fact.valid_to}
        found |= late if len(late) < len(given) else set()
    return found


def _count_names(match: Match, turn: Episode, speakers: set[str]) -> int:
    start, end = (0, COMPARED_CHARACTERS) if match.passage is None else (match.passage.start, match.passage.end)
    words = capitalised_words(turn.content[start:end])
    return min(sum(not is_stop_word(word) for word in words - speakers), MOST_NAMES) if words else 0


def _turns(matches: Sequence[Match]) -> list[tuple[Match, Episode]]:
    return [(match, match.item) for match in matches if isinstance(match.item, Episode)]


def _ranked(matches: Sequence[Match]) -> list[Match]:
    ordered = sorted(matches, key=lambda match: (-match.score, match.superseded_at is not None))
    return [match if match.rank == rank else replace(match, rank=rank) for rank, match in enumerate(ordered, start=1)]


def _has_one(fact: Fact) -> bool:
    """Whether a new object of its predicate takes the place of another."""
    return fact.cardinality is Cardinality.SINGLE or fact.predicate in EXCLUSIVE


def _about(fact: Fact) -> tuple[str, str]:
    return fact.subject, fact.predicate


def _ended_after(episode: Episode, ended: Sequence[Fact]) -> list[Fact]:
    """The facts of a turn that ended after the turn: its statements about the past stay true."""
    return [
        fact for fact in ended if episode.id in fact.sources and fact.valid_to and episode.occurred_at < fact.valid_to
    ]


def _is_elsewhere(turn: Episode, ends: Sequence[Fact], words: QuestionWords) -> bool:
    """Whether the question is about a sentence without what has ended: "I live in Minsk. We had pancakes." is as good
    an answer about breakfast after the user has moved.
    """
    naming, others = _sentences_with(ends, turn)
    if not naming or not others:
        return False
    of_ends = max(words.share(f"{' '.join(naming)} {searched_text(fact)}") for fact in ends)
    return words.share(" ".join(others)) > of_ends


def _first_end_of_asked(ended_at: Sequence[tuple[Fact, datetime]], words: QuestionWords) -> datetime | None:
    """When the first of the ended facts that have the most of the question was no longer true; of those that have none
    the last.
    """
    shares = [words.share(searched_text(fact)) for fact, _ in ended_at]
    best = max(shares, default=0.0)
    ends = [end for (_, end), share in zip(ended_at, shares, strict=True) if share == best]
    return (min if best else max)(ends, default=None)


def _select_asked(ends: Sequence[Fact], stands: Sequence[Fact], words: QuestionWords) -> list[Fact]:
    """Of the ended facts of a turn, those that the question is about; none, if it is about what still is true.

    A word that all of them have decides nothing, nor does a name, unless it is asked for: questions have the names of
    their subjects. Without any word, and where nothing still is true, it may be about each of them.
    """
    stands = [fact for fact in stands if fact.predicate != "name" or words.share("name")]
    of_ends = [words.share(searched_text(fact)) for fact in ends]
    shares = [*of_ends, *(words.share(searched_text(fact)) for fact in stands)]
    low, best = min(shares), max(of_ends)
    if stands and (not best or best < max(shares)):
        return []
    return [fact for fact, share in zip(ends, of_ends, strict=True) if share - low >= (best - low) * ASKED_SHARE]


def decayed(matches: Sequence[Match], *, half_life: timedelta, now: datetime) -> list[Match]:
    """The matches with each score halved for every half-life since an episode occurred, or a fact became true."""
    found = [
        replace(match, score=match.score * 0.5 ** (max(now - since, timedelta()) / half_life))
        if (since := _since(match.item)) is not None
        else match
        for match in matches
    ]
    found.sort(key=lambda match: -match.score)
    return [replace(match, rank=rank) for rank, match in enumerate(found, start=1)]


def _since(item: object) -> datetime | None:
    if isinstance(item, Episode):
        return item.occurred_at
    return item.valid_from or item.recorded_at if isinstance(item, Fact) else None


def reinforced(matches: Sequence[Match], counts: Mapping[UUID, FeedbackCount], *, weight: float) -> list[Match]:
    """The matches, likelier or less so by feedback about them."""
    if not weight or not counts:
        return list(matches)
    return _ranked(
        [
            replace(match, score=shifted(match.score, weight * counts[match.item.id].log_ratio))
            if isinstance(match.item, Episode | Fact) and match.item.id in counts
            else match
            for match in matches
        ]
    )


def judged(facts: Sequence[Match], counts: Mapping[UUID, FeedbackCount]) -> list[Match]:
    """The facts, with procedures as confident as feedback makes them."""
    return [
        replace(match, item=with_feedback(match.item, counts)) if isinstance(match.item, Fact) else match
        for match in facts
    ]


def confident(facts: Sequence[Match]) -> list[Match]:
    """The facts without procedures that are not confident enough."""
    return [
        match
        for match in facts
        if not isinstance(match.item, Fact)
        or match.item.predicate != PROCEDURE
        or match.item.confidence >= LEAST_CONFIDENCE
    ]


def spread(matches: Sequence[Match], *, amount: float, limit: int) -> list[Match]:
    """The matches, each next one good and unlike those before it."""
    texts = [match.item.content[:COMPARED_CHARACTERS] if isinstance(match.item, Episode) else "" for match in matches]
    words = [frozenset(terms(text)) for text in texts]
    chosen = diversified(np.array([m.score for m in matches]), overlap(words), amount=amount, count=limit)
    return [replace(matches[index], rank=rank) for rank, index in enumerate(chosen, start=1)]
