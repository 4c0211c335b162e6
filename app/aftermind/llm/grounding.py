"""Grounding: whether an assertion is in the words of the turns that it cites.

A model that obeys a text in its input can claim anything and cite any turn, but it cannot change the words of a turn.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from unicodedata import normalize

from aftermind.llm import text_process_pool
from aftermind.llm.injection.detect import suspicion
from aftermind.llm.protocols import TurnText
from aftermind.ranking.tokenizer import terms, tokens
from aftermind.types.assertion import Assertion, Operation
from aftermind.types.fact import USER

MIN_QUOTE_CHARACTERS = 3  # a letter is found in every turn
MAX_PREDICATE_WORDS = 8

_PREDICATE = re.compile(rf"\w+(?:[ -]\w+){{0,{MAX_PREDICATE_WORDS - 1}}}")
_DENIALS = frozenset({"no", "not", "never", "none", "nor", "without"})  # stop words that turn a meaning round
_CONTRACTED = re.compile(r"n't\b")
_DATE = re.compile(r"\d{4}(?:-\d{1,2}){0,2}")
_RELATIVE = re.compile(
    r"\b(?:today|yesterday|tomorrow|tonight|now|ago|since|last|next|this|coming|past|recently|just|in)\b|"
    r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b"
)
_GROUPED = re.compile(r"\d{1,3}(?:[,.' ]\d{3})+(?!\d)")
_ONES = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_FIRST_HALF = ("january", "february", "march", "april", "may", "june")
_MONTHS = (*_FIRST_HALF, "july", "august", "september", "october", "november", "december")
_VALUES = {word: at for at, word in enumerate((*_ONES, *_TEENS), 1)}
_VALUES |= {word: 10 * at for at, word in enumerate(_TENS, 2)}
_VALUES |= {name: at for at, word in enumerate(_MONTHS, 1) for name in (word, word[:3])}


async def ground(
    claims: Iterable[Assertion], turns: Sequence[TurnText], *, subjects: Iterable[str] = ()
) -> tuple[Assertion, ...]:
    """`grounded`, in a process for texts if the turns are long; none of the claims if that exceeds its deadline."""
    claims, subjects = list(claims), list(subjects)
    characters = sum(len(turn.content) for turn in turns)
    if not claims or characters <= text_process_pool.INLINE_CHARACTERS:
        return grounded(claims, turns, subjects=subjects)
    try:
        return await text_process_pool.run(characters, grounded, claims, turns, subjects=subjects)
    except text_process_pool.TextTimeout:
        return ()


def grounded(
    claims: Iterable[Assertion], turns: Sequence[TurnText], *, subjects: Iterable[str] = ()
) -> tuple[Assertion, ...]:
    """The assertions that are in trusted turns, each with only those sources that contain it.

    The quote occurs in the source, and so do the content words of the object, by their stems; dates and numbers may be
    written differently. Of an end the quote is enough ("we broke up" ends `engaged`); no answer of a model has one.
    The subject is the user, a speaker, one of the given `subjects`, or named by a trusted turn. No field resembles an
    instruction.
    """
    trusted = {turn.id: _QuotableTurn(turn) for turn in turns if turn.trusted}
    known = {_folded(subject) for subject in subjects} | {USER}
    kept: list[Assertion] = []
    for claim in claims:
        sources = [each for each in dict.fromkeys(claim.sources) if each in trusted]
        sources = [each for each in sources if trusted[each].supports(claim)]
        if sources and _is_known(claim.subject, known, trusted.values()) and _is_plain(claim):
            said_at = max(trusted[each].turn.occurred_at for each in sources)
            kept.append(replace(claim, sources=tuple(sources), said_at=said_at))
    return tuple(kept)


def _is_known(subject: str, known: set[str], turns: Iterable["_QuotableTurn"]) -> bool:
    asked = [term for term in terms(subject) if term != USER]  # "user's dog" is named by "my dog"
    if not asked:
        return _folded(subject) in known
    return _folded(subject) in known or all(any(term in turn.terms for turn in turns) for term in asked)


def _is_plain(claim: Assertion) -> bool:
    predicate = claim.predicate.replace("_", " ").strip()
    fields = (claim.subject, predicate, claim.object, claim.quote or "")
    return bool(_PREDICATE.fullmatch(predicate)) and suspicion("\n".join(fields)) is None


class _QuotableTurn:
    """A turn, with its words made comparable once for all claims."""

    def __init__(self, turn: TurnText) -> None:
        self.turn = turn

    def supports(self, claim: Assertion) -> bool:
        """Whether the quote occurs here, and every content word of the object is in the turn."""
        if claim.quote is not None and not self._holds(claim.quote):
            return False
        is_end = claim.operation is Operation.END and claim.quote is not None
        return is_end or self._names(claim.object)

    @cached_property
    def text(self) -> str:
        return _folded(self.turn.content)

    @cached_property
    def terms(self) -> frozenset[str]:
        return frozenset(terms(f"{self.turn.name or ''} {self.text}"))

    @cached_property
    def values(self) -> frozenset[int]:
        """Every number that is named: in digits, as an ordinal, in English words, as a month."""
        found = {int(digits) for digits in re.findall(r"\d{1,15}", self.text)}
        found |= {int(re.sub(r"\D", "", digits)[:15]) for digits in _GROUPED.findall(self.text)}
        words = tokens(self.text)
        found |= {_VALUES[word] for word in words if word in _VALUES}
        pairs = pairwise(words)
        return frozenset(found | {_VALUES[ten] + _VALUES[one] for ten, one in pairs if ten in _TENS and one in _ONES})

    @cached_property
    def denies(self) -> bool:
        return not _DENIALS.isdisjoint(tokens(self.text)) or _CONTRACTED.search(self.text) is not None

    def _holds(self, quote: str) -> bool:
        words = _folded(quote)
        if words == self.text:
            return bool(words)
        return len(words) >= MIN_QUOTE_CHARACTERS and bool(terms(words)) and _contains_words(words, self.text)

    def _names(self, wanted: str) -> bool:
        words = _folded(wanted)
        if not words:
            return False
        if _contains_words(words, self.text):
            return True
        asked = terms(words)
        if not asked or (not _DENIALS.isdisjoint(tokens(words)) and not self.denies):
            return False
        if _DATE.fullmatch(words) and _RELATIVE.search(self.text):
            return True
        return all(term in self.terms or _value(term) in self.values for term in asked)


def _value(word: str) -> int | None:
    return int(word) if word.isdecimal() and len(word) < 16 else _VALUES.get(word)


def _contains_words(words: str, whole: str) -> bool:
    """As whole words, where the script has blanks between them."""
    start = r"(?<!\w)" if words[0].isascii() and words[0].isalnum() else ""
    end = r"(?!\w)" if words[-1].isascii() and words[-1].isalnum() else ""
    return re.search(f"{start}{re.escape(words)}{end}", whole) is not None


def _folded(text: str) -> str:
    return " ".join(normalize("NFKC", text).casefold().replace("\u2019", "'").split())
