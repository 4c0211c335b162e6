"""What of a long text is shown: the passage with the question's words, and how much of them any text has."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from aftermind.ranking.passages import BORDERS, PASSAGE_BYTES
from aftermind.ranking.tokenizer import stem, tokens

PASSAGE_CHARACTERS = PASSAGE_BYTES  # of a text without indexed passages
READ_CHARACTERS = 524_288  # of one text; a message holds 256 KiB
LEAST_PREFIX = 3  # letters of a word that has to be in the text as they are
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True, kw_only=True)
class QuestionWords:
    """The words of a question and what each is worth, to be found in texts without stemming these."""

    words: Sequence[str]
    worths: Sequence[float]

    @classmethod
    def of(cls, text: str, worth_of: dict[str, float], language: str) -> "QuestionWords":
        """The question's words as their stems begin, each worth what its term is worth."""
        found: dict[str, float] = {}
        for word in tokens(text):
            term = stem(word, language)
            begins = _common_beginning(word, term)
            if worth_of.get(term, 0.0) > 0:
                found[begins if len(begins) >= LEAST_PREFIX else word] = worth_of[term]
        return cls(words=tuple(found), worths=tuple(found.values()))

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        if not self.words:
            return None
        longest_first = sorted(self.words, key=len, reverse=True)
        return re.compile("|".join(_beginning(word) for word in longest_first), re.IGNORECASE)

    @cached_property
    def _worth_of(self) -> dict[str, float]:
        return dict(zip(self.words, self.worths, strict=True))

    def share(self, text: str) -> float:
        """The share of the question's worth that the text has, 0 to 1."""
        whole = sum(self.worths)
        if self._pattern is None or not whole:
            return 0.0
        found = {match.group().casefold() for match in self._pattern.finditer(text[:READ_CHARACTERS])}
        return min(sum(self._worth_of.get(word, 0.0) for word in found) / whole, 1.0)

    def passage(self, text: str, characters: int = PASSAGE_CHARACTERS) -> int:
        """Where the passage of this length begins that has most of the question's worth; 0 if none has any."""
        if self._pattern is None or len(text) <= characters:
            return 0
        places = [(m.start(), m.group().casefold()) for m in self._pattern.finditer(text[:READ_CHARACTERS])]
        best, start = 0.0, 0
        first = 0
        inside: dict[str, int] = {}
        worth = 0.0
        for place, word in places:
            if not inside.get(word):
                worth += self._worth_of.get(word, 0.0)
            inside[word] = inside.get(word, 0) + 1
            while place - places[first][0] > characters // 2:
                gone = places[first][1]
                inside[gone] -= 1
                worth -= 0.0 if inside[gone] else self._worth_of.get(gone, 0.0)
                first += 1
            if worth > best + 1e-9:
                best, start = worth, places[first][0]
        return _border_before(text, start, characters // 4) if best > 0 else 0


def excerpt(text: str, start: int, characters: int) -> str:
    """A number of characters of a text from `start` on, to the end of a word, with an ellipsis for omitted parts.

    Near the end of the text it begins earlier, so that the length is the same.
    """
    if len(text) <= characters:
        return text
    begin = min(start, max(len(text) - characters, 0))
    part = text[begin : begin + characters]
    head = "" if begin == 0 else f"{ELLIPSIS} "
    if begin + characters >= len(text):
        return f"{head}{part.lstrip()}"
    whole_words = part.rsplit(None, 1)[0] if " " in part[len(part) // 2 :] else part
    return f"{head}{whole_words.strip()} {ELLIPSIS}"


def _common_beginning(word: str, term: str) -> str:
    same = (place for place, (left, right) in enumerate(zip(word, term, strict=False)) if left != right)
    return word[: next(same, min(len(word), len(term)))]


def _border_before(text: str, place: int, most: int) -> int:
    """The beginning of the sentence or line around a place, at most that many characters before it."""
    least = max(place - most, 0)
    if least == 0:
        return 0
    for border, width in BORDERS:
        found = text.rfind(border, least, place)
        if found >= 0:
            return found + width
    return place


def _beginning(word: str) -> str:
    """A pattern for texts with this beginning of a word; scripts without blanks have no beginnings."""
    return rf"(?<![^\W_]){re.escape(word)}" if word.isascii() else re.escape(word)
