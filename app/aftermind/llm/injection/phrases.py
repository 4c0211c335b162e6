"""Phrases of instructions in many languages, from `phrases.toml`, found in one pass over a text."""

import re
import tomllib
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from heapq import merge
from importlib.resources import files

MAX_GAP_CHARACTERS = 60  # between two terms of a rule
_FAMILIES = {
    "override": "override",
    "disclosure": "disclosure",
    "role": "new role",
    "memory": "planted memory",
}
_SENTENCE_END = re.compile(r"[.!?\u061f\u06d4\u0964\u3002]")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")
# An accent at the end distinguishes a past tense from an imperative: "oubli\u00e9" from "oublie", "olvid\u00e9" from
# "olvide".
_PAST = re.compile(r"(?<=\w\w\w)[\u00e9\u00f3](?!\w)")
_ONESELF = re.compile(
    r"(?:(?<!\w)(?:ich|wir|ik|jag|yo|je|nous|io|eu|saya|aku|ja|toi|ben|mimi|\u044f|\u043c\u044b) (?:\w{1,12} )?"
    r"|\u6211(?:\u4eec|\u5011)?|\u79c1\u306f|\ub098\ub294 )$"
)
# Letters that keyboards of a script have twice: Persian and Urdu forms of Arabic letters, the Turkish dotless i.
_VARIANTS = str.maketrans(
    "\u06cc\u06a9\u06c1\u06be\u0629\u0649\u06d2\u0131\u2019\u02bc\u00f8\u0142\u0111",
    "\u064a\u0643\u0647\u0647\u0647\u064a\u064ai''old",
)


@dataclass(frozen=True, slots=True)
class _Meaning:
    """Meaning of a term: a part (0 or 1) of a rule, or a complete rule (2)."""

    rule: int
    part: int
    is_prefix: bool


@dataclass(frozen=True, slots=True)
class _Table:
    """Terms as a pattern for each kind of script, what each term means, and the family of each rule."""

    ascii: re.Pattern[str]
    spaced: re.Pattern[str]
    unspaced: re.Pattern[str]
    meanings: Mapping[str, tuple[_Meaning, ...]]
    families: tuple[str, ...]


def languages() -> list[str]:
    """Codes of the languages of the table (ISO 639-1); English is not in it."""
    return sorted(_read())


def fold(text: str) -> str:
    """The text without case, accents and variants of a letter: the form that terms are compared in."""
    if text.isascii():
        return text.lower()
    apart = unicodedata.normalize("NFKD", _PAST.sub(r"\g<0>_", text.casefold()))
    bare = "".join([each for each in apart if not unicodedata.combining(each)])
    return unicodedata.normalize("NFC", bare).translate(_VARIANTS)


def family(text: str) -> str | None:
    """The family of the first rule that applies to a text, or None. Linear in the text."""
    table, folded = _table(), fold(text)
    ends: dict[tuple[int, int], int] = {}
    for found in _hits(table, folded):
        start, end = found.span()
        goes_on = end < len(folded) and folded[end].isalnum()
        for meaning in table.meanings[" ".join(found.group().split())]:
            if goes_on and not meaning.is_prefix:
                continue
            if meaning.part == 0 and _ONESELF.search(folded[max(0, start - 24) : start]):
                continue
            if meaning.part == 2:
                return table.families[meaning.rule]
            other = ends.get((meaning.rule, 1 - meaning.part))
            if (
                other is not None
                and start - other <= MAX_GAP_CHARACTERS
                and not _SENTENCE_END.search(folded, other, start)
            ):
                return table.families[meaning.rule]
            ends[meaning.rule, meaning.part] = end
    return None


def _hits(table: _Table, folded: str) -> Iterator[re.Match[str]]:
    """Terms in their order; a text is searched for those of its scripts alone."""
    if folded.isascii():
        return table.ascii.finditer(folded)
    patterns = (table.ascii, table.spaced, table.unspaced) if _UNSPACED.search(folded) else (table.ascii, table.spaced)
    return merge(*(pattern.finditer(folded) for pattern in patterns), key=re.Match.start)


def _read() -> Mapping[str, Mapping[str, Mapping[str, list[str]]]]:
    return tomllib.loads((files("aftermind.llm.injection") / "phrases.toml").read_text("utf-8"))


@cache
def _table() -> _Table:
    own: dict[str, list[_Meaning]] = defaultdict(list)
    families: list[str] = []
    for rules in _read().values():
        for name, parts in rules.items():
            for key, terms in parts.items():
                for term in terms:
                    stem = fold(term.removesuffix("*"))
                    is_prefix = term.endswith("*") or bool(_UNSPACED.search(stem))
                    place = {"first": 0, "second": 1, "alone": 2}[key]
                    own[stem].append(_Meaning(len(families), place, is_prefix))
            families.append(_FAMILIES[name])
    meanings = {stem: tuple(_with_shorter(stem, own)) for stem in own}
    latin = [stem for stem in own if stem[0].isascii()]
    unspaced = [stem for stem in own if _UNSPACED.match(stem)]
    others = own.keys() - {*latin, *unspaced}
    return _Table(
        ascii=re.compile(rf"(?<!\w)(?:{_alternatives(latin, own)})"),
        spaced=re.compile(rf"(?<!\w)(?:{_alternatives(others, own)})"),
        unspaced=re.compile(_alternatives(unspaced, own)),
        meanings=meanings,
        families=tuple(families),
    )


def _with_shorter(stem: str, own: Mapping[str, list[_Meaning]]) -> Iterator[_Meaning]:
    """What a stem means, and what the terms mean that it begins with: the pattern finds the longest alone."""
    yield from own[stem]
    for size in range(2, len(stem)):
        for meaning in own.get(stem[:size], ()):
            if meaning.is_prefix or not stem[size].isalnum():
                yield meaning


def _alternatives(stems: Iterable[str], own: Mapping[str, list[_Meaning]]) -> str:
    """Terms by their first character, the longest first, so that a place in a text is compared with few of them."""
    by_first: dict[str, list[str]] = defaultdict(list)
    for stem in sorted(stems, key=len, reverse=True):
        by_first[stem[0]].append(_term(stem, own[stem]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in sorted(by_first.items()))


def _term(stem: str, meanings: list[_Meaning]) -> str:
    rest = re.escape(stem[1:]).replace(r"\ ", r"\s{1,3}")
    return rest if any(meaning.is_prefix for meaning in meanings) else rest + r"(?!\w)"
