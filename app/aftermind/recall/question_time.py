"""The time that a question is about: a period that it names, or that it asks for one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from aftermind.facts.predicates import is_event
from aftermind.llm.offline import dates
from aftermind.ranking.languages import english_words
from aftermind.ranking.passages import split_sentences
from aftermind.ranking.tokenizer import stem
from aftermind.types import Episode, Fact, Match

# Added to the log-odds of a turn: of the 101 questions of LoCoMo's development half that name a period, 0.767 of the
# evidence is among the first ten without it, 0.866 with 2 and with 3. A turn with a time answers "when" no likelier
# among the first ten (0.776 in both cases), a little among the first five (0.7190 for 0.7176).
# A turn after a period that is over is about a later time if it neither mentions the period nor is of the past ("back
# then"); what a turn before it states can still be true in it ("I joined Zalando").
IN_PERIOD, WITH_TIME, LATER = 2.0, 1.0, 2.0
MENTIONED_LATER = timedelta(days=7)  # after a period: people talk of what they did last week; 0 to 14 find the same
LONGEST_MENTIONED = timedelta(days=366)  # "for the last ten years" is about none of them
CANDIDATES = 60  # turns that are read to be ordered by time
READ_CHARACTERS = 4_000  # of a turn whose times are read

_TIME = re.compile(
    r"\d|\b(?:when|ago|last|past|this|next|today|yesterday|tonight|since|until|before|after|date|day|week|month|year|time|"
    r"spring|summer|autumn|fall|winter|"
    r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)\b",
    re.IGNORECASE,
)
_ASKS_WHEN = re.compile(
    r"^\s*(?:when|since when|how long ago|what (?:date|day|month|year|time)|(?:in )?which (?:year|month|day|week))\b",
    re.IGNORECASE,
)
# Of a folded text. The first letters skip most positions: a turn takes 4 us instead of 13.
_MENTIONS_TIME = re.compile(
    r"(?=[ytalnrjwm\dsfod])\b(?:yesterday|today|tonight|tomorrow|ago|last|next|recently|just|week|weekend|month|year|\d{4}|"
    r"\d{1,2}(?:st|nd|rd|th)|(?:mon|tues|wednes|thurs|fri|satur|sun)day|"
    r"this (?:morning|spring|summer|autumn|fall|winter)|"
    r"january|february|march|april|june|july|august|september|october|november|december)\b"
)
_LOOKS_BACK = re.compile(
    r"\b(?:used to|back then|at (?:the|that) time|in those days|formerly|was|were|had|did|damals|früher|war|hatte)\b",
    re.IGNORECASE,
)
_UNTIL, _SINCE = (
    re.compile(r"\b(?:before|until|till)\b", re.IGNORECASE),
    re.compile(r"\b(?:after|since)\b", re.IGNORECASE),
)
# "In summer" or "in Q4", of a question about the past; a habit or a plan is about no one summer. Not "after the fall".
_BARE_SEASON = re.compile(
    r"\b(?:in|during)\s+(?:the\s+)?(?P<season>spring|summer|autumn|fall|winter|q[1-4])(?=\s*(?:[?.,!;]|$))",
    re.IGNORECASE,
)
_ASKS_PAST = re.compile(r"\b(?:did|was|were|had|happened)\b", re.IGNORECASE)
_HABIT = re.compile(r"\b(?:like|love|enjoy|prefer|usually|always|often)\b", re.IGNORECASE)
_MOMENT = (
    rf"(?:(?:the )?{dates.PART}|"
    + r"\d{4}-\d{2}(?:-\d{2})?\b|\d{4}\b(?!-)|(?:(?:the )?(?:\d{1,2}(?:st|nd|rd|th)? (?:of )?)?"
    r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|spring|summer|autumn|fall|winter)[a-z]*"
    r"(?: \d{1,2}(?:st|nd|rd|th)?\b)?(?:,? (?:of )?\d{4})?))"
)
_RANGE = re.compile(
    rf"\b(?:between|from|in|during) (?P<first>{_MOMENT}|(?:the )?{dates.PART_NAME}) "
    rf"(?:and|to|until|till|through|or) (?P<last>{_MOMENT})\b",
    re.IGNORECASE,
)
_AFTER = re.compile(rf"\bafter (?:the )?{_MOMENT}", re.IGNORECASE)  # not "after dinner yesterday"
_BY_END = re.compile(rf"\b(?:before|by|until|till) the end of {_MOMENT}", re.IGNORECASE)
_YEAR = re.compile(r"\b(?:19|20)\d{2}\b")
_RELATIVE = re.compile(
    r"\b(?:ago|last|past|this|next|today|yesterday|tonight|since|after|before|until|till)\b", re.IGNORECASE
)
_FORMERLY = re.compile(
    r"\b(?:used? to|before|former|formerly|previous|previously|earlier|originally|once|ago|"
    r"(?:was|were) (?:my|our|his|her|their|the) first|früher|bevor|vorher|zuvor|damals|auparavant|"
    r"vor [\w-]+ (?:gewohnt|gelebt|gearbeitet|studiert)|(?:wohnte|lebte|arbeitete|studierte) ich vor|"
    r"(?:habitais|vivais|travaillais|étudiais|habité|vécu|travaillé|étudié)\b.*\bavant|"
    r"(?:vivía|trabajaba|estudiaba|vivido|trabajado|estudiado)\b.*\bantes)\b",
    re.IGNORECASE,
)
# "Where have I lived?" and "Did I ever have a dog?" ask for all times until now; "how long have I lived here" does not,
# nor do verbs of speech ("As I've mentioned, …") and what continues ("have I been reading").
_PARTICIPLE = (
    r"(?!mentioned\b|asked\b|talked\b|shared\b|stored\b|listed\b|noted\b|need(?:ed)?\b)"
    r"(?:[a-z]+ed|had|met|seen|gone|done|kept|read|won|lost|spent|bought|sold|driven|eaten|written|learnt|grown|taken|"
    r"taught|left|ridden|held|quit|made|worn|run|sung|flown|built|drunk|caught|chosen|drawn|fallen|given|known)\b"
)
_NAME = r"(?-i:[A-Z])[\w'-]+"
_EVER = re.compile(
    r"\bever\b|"
    rf"\bha(?:ve|s) (?:{_NAME} and )?(?:i|we|he|she|they|my \w+|{_NAME}) (?:ever |already )?{_PARTICIPLE}|"
    rf"\b(?:i|we)(?:'ve| have) {_PARTICIPLE}",
    re.IGNORECASE,
)
_NOT_EVER = re.compile(r"\b(?:how long|since|lately|recently|these days|now|today|yet|just)\b", re.IGNORECASE)
# Of words by which a question names a period, or asks for whatever happened in it.
UNSPECIFIC_TERMS = frozenset(map(stem, english_words("unspecific")))
_BEGINNING = datetime.min.replace(tzinfo=UTC)
_LATEST_END = datetime.max.replace(tzinfo=UTC) - MENTIONED_LATER  # so that a week later is in the calendar


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionTime:
    """The time in a question: a half-open period, that it asks for a time, or that it is about the past.

    `is_ever`: about all times until now, whether or not it is still true.
    """

    start: datetime | None = None
    end: datetime | None = None
    asks_when: bool = False
    is_past: bool = False
    is_ever: bool = False

    @classmethod
    def of(cls, text: str, now: datetime) -> "QuestionTime":
        """Read it; relative times ("last May") are counted from `now`."""
        is_past = _FORMERLY.search(text) is not None
        if _TIME.search(text) is None:
            is_ever = not is_past and _asks_ever(text)
            return cls(is_past=is_past or is_ever, is_ever=is_ever)
        asks_when = _ASKS_WHEN.match(text) is not None
        between = _range_in(text, now)
        period = between or dates.find(text, now) or _bare_season(text, now)
        if period is None:
            return cls(asks_when=asks_when, is_past=is_past)
        start, end = period.start, period.end
        if between is not None:
            pass
        elif _BY_END.search(text):
            start = _BEGINNING
        elif _UNTIL.search(text):
            start, end = _BEGINNING, start
        elif _AFTER.search(text):
            start, end = end, now if end < now else _LATEST_END
        elif _SINCE.search(text):
            end = max(now, end)
        return cls(start=start, end=min(end, _LATEST_END), asks_when=asks_when, is_past=is_past or end <= now)

    @property
    def orders_turns(self) -> bool:
        """Whether turns of one time are preferred to others."""
        return self.end is not None or self.asks_when

    @property
    def is_undated_past(self) -> bool:
        """Whether it is about the past, and names no period of it."""
        return self.is_past and self.end is None

    def facts_of_then(self, former: Sequence[Fact]) -> list[Fact]:
        """Of facts that are true no more, those of the time that the question is about."""
        return list(former) if self.is_undated_past else self.valid_facts(former)

    def valid_facts(self, facts: Sequence[Fact]) -> list[Fact]:
        """The facts that were true at any time of the period, or happened in it; none without one."""
        start, end = self.start, self.end
        if start is None or end is None:
            return []
        return [fact for fact in facts if _is_within(fact, start, end)]

    def threshold(self, min_score: float) -> float:
        """The least score that a turn may have before it is preferred, to have `min_score` then."""
        return shifted(min_score, -(IN_PERIOD + WITH_TIME)) if self.orders_turns else min_score

    def moment(self, now: datetime) -> datetime:
        """When facts must be true to answer: at the end of the period, else now."""
        return now if self.end is None else min(now, self.end - timedelta(microseconds=1))

    def among(self, text: str, said_at: NDArray[np.float64]) -> "QuestionTime":
        """The time that the question means among turns of these times, in seconds since 1970: "in October" with no turn
        of the latest one is the latest that has any.

        A period that is counted from today stays, and so does one without a turn in any year.
        """
        if _RELATIVE.search(text) is not None:
            return self
        asked = self
        while asked.start is not None and asked.end is not None:
            end = (asked.end + MENTIONED_LATER).timestamp()
            if ((said_at >= asked.start.timestamp()) & (said_at < end)).any():
                return asked
            before = said_at[said_at < asked.start.timestamp()]
            if not len(before):
                break
            found = QuestionTime.of(text, datetime.fromtimestamp(float(before.max()), UTC))
            if found.start is None or found.start >= asked.start:
                break
            asked = replace(self, start=found.start, end=found.end)
        return self

    def preferred(self, matches: Sequence[Match]) -> list[Match]:
        """The matches with turns likelier that are of the period, or that mention a time if one is asked for."""
        return rescored(matches, [shifted(match.score, self._bonus(match.item)) for match in matches])

    def _bonus(self, item: object) -> float:
        if not isinstance(item, Episode):
            return 0.0
        text = item.content[:READ_CHARACTERS]
        bonus = WITH_TIME if self.asks_when and _MENTIONS_TIME.search(text.casefold()) is not None else 0.0
        if self.start is None or self.end is None:
            return bonus
        if self.start <= item.occurred_at < self.end + MENTIONED_LATER:
            return bonus + IN_PERIOD
        named = dates.find(text, item.occurred_at)
        is_near = named is not None and named.start < self.end and self.start < named.end
        if named is not None and is_near and named.end - named.start <= LONGEST_MENTIONED:
            return bonus + IN_PERIOD
        is_later = item.occurred_at >= self.end and not is_near and _LOOKS_BACK.search(text) is None
        return bonus - (LATER if is_later and self.is_past else 0.0)


def _is_within(fact: Fact, start: datetime, end: datetime) -> bool:
    if is_event(fact.predicate) and fact.valid_from is not None:
        return fact.valid_from < end and (fact.valid_to or _end_of_event(fact.valid_from)) > start
    return (fact.valid_from is None or fact.valid_from < end) and (fact.valid_to is None or fact.valid_to > start)


def _end_of_event(start: datetime) -> datetime:
    """Of one that started at the first instant of a year or a month: that year's or month's, as it was stated so."""
    if start != start.replace(day=1, hour=0, minute=0, second=0, microsecond=0):
        return start + timedelta(microseconds=1)
    found = dates.find(f"in {start:%Y}" if start.month == 1 else f"in {start:%Y-%m}", start)
    return start if found is None else found.end


def _asks_ever(text: str) -> bool:
    """Whether the last question, or without one the last sentence, is about all times until now."""
    sentences = split_sentences(text) or [""]
    question = ([each for each in sentences if each.endswith("?")] or sentences)[-1]
    return _EVER.search(question) is not None and _NOT_EVER.search(question) is None


def _range_in(text: str, now: datetime) -> dates.Period | None:
    """A period with two ends: "between July and September 2025", "from 2025-08-01 to 2025-08-14", "in May or June"."""
    for found in _RANGE.finditer(text):
        ended = _moment(found["last"], now)
        year = None if _YEAR.search(found["first"]) else _YEAR.search(found["last"])
        years = [""] if year is None else [f" {int(year.group()) - back}" for back in (0, 1)]
        for of_year in years:  # "between November and February 2025" begins in the year before
            began = _moment(f"{found['first']}{of_year}", now)
            if began is not None and ended is not None and began.start < ended.start:
                return dates.Period(start=began.start, end=ended.end)
    return None


def _moment(text: str, now: datetime) -> dates.Period | None:
    return dates.find(text, now) or dates.find(f"in {text}", now)  # "2024-05" is a month after such a word only


def _bare_season(text: str, now: datetime) -> dates.Period | None:
    """The latest season of the name that has begun."""
    found = _BARE_SEASON.search(text)
    if found is None or _ASKS_PAST.search(text) is None or _HABIT.search(text) is not None:
        return None
    of_years = (dates.find(f"{found['season']} {year}", now) for year in (now.year, now.year - 1))
    return next((each for each in of_years if each is not None and each.start <= now), None)


def rescored(matches: Sequence[Match], scores: Sequence[float]) -> list[Match]:
    """The matches with these scores, best first, and their new ranks."""
    ordered = sorted(zip(matches, scores, strict=True), key=lambda each: -each[1])
    return [
        match if match.rank == rank and match.score == score else replace(match, score=score, rank=rank)
        for rank, (match, score) in enumerate(ordered, start=1)
    ]


def shifted(score: float, bonus: float) -> float:
    """A probability with a number added to its log-odds."""
    if not bonus or not 0.0 < score < 1.0:
        return score
    return 1 / (1 + exp(-(log(score / (1 - score)) + bonus)))
