"""Which language a text is in, and the stop words of each language.

Detection counts function words, each weighted by how few languages share it, and letters where a script belongs to one
language. A chat message of five words often gives too little evidence; then the language is undecided, and callers have
a default. There is no statistical model to load.
"""

import re
import tomllib
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import stopwordsiso

from aftermind.ranking.accents import fold_accents

DETECTION_WORDS = 60  # the first words of a text decide
ACRONYM_CHARACTERS = 500  # of a text that are searched for acronyms
MAX_ACRONYM_SHARE = 0.25  # of the words; more in capitals are emphasis
MAX_STOP_WORD_LETTERS = 6  # longer entries of the package are content words as often as not: trabajar, personnes
MIN_SCORE = 0.9  # one function word that no other language has, or three that another one shares
MIN_MARKERS = 2  # different words of a language, unless one is a first-person word: "care" alone is Romanian
FIRST_PERSON_WEIGHT = 1.5  # of a first-person word, relative to 1 for any other word that occurs in one language only
MIN_SHARE = 0.12  # of the words of a text: an English text may quote a French phrase
MARGIN = 1.25  # of the best language over the second
TITLES = frozenset({"dr", "mr", "mrs", "ms", "prof", "sr", "jr"})  # stop words of some languages, in names of all

# Snowball has two more algorithms for some languages.
_FURTHER_STEMMERS: Mapping[str, str] = {"porter": "en", "dutch_porter": "nl", "serbian": "sr"}
_SCRIPTS: Mapping[str, re.Pattern[str]] = {
    "ja": re.compile(r"[\u3040-\u30ff]"),
    "ko": re.compile(r"[\uac00-\ud7af]"),
    "zh": re.compile(r"[\u4e00-\u9fff]"),
    "th": re.compile(r"[\u0e00-\u0e7f]"),
    "el": re.compile(r"[\u0370-\u03ff]"),
    "hy": re.compile(r"[\u0530-\u058f]"),
    "ta": re.compile(r"[\u0b80-\u0bff]"),
    "bn": re.compile(r"[\u0980-\u09ff]"),
    "gu": re.compile(r"[\u0a80-\u0aff]"),
}
_ACRONYM = re.compile(r"\b[A-Z]{2,}\b")
_LETTER = re.compile(r"[^\W\d_]")
_NON_LATIN = re.compile(r"[\u0370-\u1cff\u2e80-\uffdc]")
# Scripts of several languages: the one that is meant where no function word decides.
_SHARED_SCRIPTS: tuple[tuple[re.Pattern[str], frozenset[str], str], ...] = (
    (re.compile(r"[\u0400-\u04ff]"), frozenset({"ru", "uk", "bg", "sr"}), "ru"),
    (re.compile(r"[\u0600-\u06ff]"), frozenset({"ar", "fa"}), "ar"),
    (re.compile(r"[\u0900-\u097f]"), frozenset({"hi", "ne"}), "hi"),
    (re.compile(r"[\u0590-\u05ff]"), frozenset({"he", "yi"}), "he"),
)


def language_name(code: str) -> str:
    """The English name of a language of `detect_language`."""
    return str(_languages()[code]["name"])


@cache
def word_variants(language: str) -> Mapping[str, str]:
    """The usual word of each variant, of a Snowball algorithm or an ISO 639-1 code: "mother" of "mum"."""
    code = _code_of(language)
    groups = [group.split() for group in _languages()[code].get("variants", "").split(";")] if code else []
    return MappingProxyType({form: word for word, *forms in filter(None, groups) for form in forms})


def english_words(name: str) -> Sequence[str]:
    """A list of words that only English has: `speaking`, `spoken` or `unspecific`."""
    words: str = _languages()["en"][name]
    return words.split()


def stemmer_of(code: str) -> str | None:
    """The Snowball algorithm of a language, or None."""
    return _languages()[code].get("stemmer")


@cache
def stop_words(language: str) -> frozenset[str]:
    """Stop words of a Snowball algorithm, an ISO 639-1 code or `simple` (none), with and without accents."""
    code = _code_of(language)
    if code is None:
        return frozenset()
    content = _table()["content_words"].split()
    return _function_words(code).difference(content, map(fold_accents, content))


def detect_language(text: str, words: Sequence[str], *, expected: str | None = None) -> str | None:
    """The ISO 639-1 code of the language of a text with these words (lower case), or None where it is not clear.

    Where the script narrows it down to a few and no word decides, it is the `expected` language (a Snowball algorithm)
    if that is one of them, else the one with the most speakers.
    """
    candidates: frozenset[str] | None = None
    default = None
    if not text.isascii():
        sample = unicodedata.normalize("NFC", text[:2_000])  # a decomposed syllable is several letters of no script
        letters = len(_LETTER.findall(sample)) or 1
        if len(_NON_LATIN.findall(sample)) * 2 > letters:
            for code, pattern in _SCRIPTS.items():
                if len(pattern.findall(sample)) * (5 if code == "ja" else 2) > letters:
                    return code
            for pattern, languages, fallback in _SHARED_SCRIPTS:
                if len(pattern.findall(sample)) * 2 > letters:
                    known = None if expected is None else _code_of(expected)
                    candidates, default = languages, known if known in languages else fallback
    return _by_function_words(_without_acronyms(text, words[:DETECTION_WORDS]), candidates) or default


def _without_acronyms(text: str, words: Sequence[str]) -> Sequence[str]:
    """The words without those in capitals if these are few: "MIT" is no German word, "ICH WOHNE" is no acronym."""
    acronyms = {word.casefold() for word in _ACRONYM.findall(text[:ACRONYM_CHARACTERS])}
    left = [word for word in words if word not in acronyms] if acronyms else words
    return left if len(words) - len(left) <= MAX_ACRONYM_SHARE * len(words) else words


def _by_function_words(words: Sequence[str], candidates: frozenset[str] | None) -> str | None:
    markers = _markers()
    scores: dict[str, float] = defaultdict(float)
    counts: dict[str, float] = defaultdict(float)
    distinct = dict.fromkeys(words)
    for word in distinct:
        for code, weight in markers.get(word, ()):
            if candidates is None or code in candidates:
                scores[code] += weight
                counts[code] += MIN_MARKERS if weight > 1 else 1
    if not scores:
        return None
    (best, score), (_, second) = (*sorted(scores.items(), key=lambda each: -each[1]), ("", 0.0))[:2]
    if score < max(MIN_SCORE, MIN_SHARE * len(distinct)) or score < MARGIN * second:
        return None
    return best if candidates is not None or counts[best] >= MIN_MARKERS else None


@cache
def _markers() -> Mapping[str, tuple[tuple[str, float], ...]]:
    """Words with the languages that they speak for, each with its weight there."""
    shared: dict[str, list[str]] = defaultdict(list)
    for code in _languages():
        for word in _function_words(code) if code != "st" else ():  # syllables that occur in names everywhere
            if len(word) > 1 and word not in TITLES:
                shared[word].append(code)
    # English has the whole list: a text is taken for another language only on strong evidence.
    broad = {word for word in stopwordsiso.stopwords("en") if len(word) > 2}
    english = broad | _function_words("en")
    for word in english:
        shared[word] = sorted({*shared[word], "en"})
    found = {word: dict.fromkeys(codes, 1 / len(codes)) for word, codes in shared.items()}
    spoken = {code: _with_plain_forms(each.get("first_person", "")) for code, each in _languages().items()}
    for code, forms in spoken.items():
        for word in forms - english:
            if len(word) == 1:
                continue
            sharing = sum(word in others for others in spoken.values())
            found.setdefault(word, {})[code] = FIRST_PERSON_WEIGHT / sharing
    return MappingProxyType({word: tuple(weights.items()) for word, weights in found.items()})


@cache
def _function_words(code: str) -> frozenset[str]:
    own = _languages()[code].get("function_words", "")
    if own or not stopwordsiso.has_lang(code):
        return _with_plain_forms(own)
    listed = [word for word in stopwordsiso.stopwords(code) if len(word) <= MAX_STOP_WORD_LETTERS]
    return _with_plain_forms(" ".join(listed))


def _with_plain_forms(listed: str) -> frozenset[str]:
    """Words of a list, also as they are spelt without accents; not the shortest, which are words of other languages."""
    words = {part for part in re.split(r"[\s'\u2019.-]+", listed.casefold()) if part}
    return frozenset(words | {fold_accents(word) for word in words if len(word) > 2})


def _code_of(language: str) -> str | None:
    if language in _languages():
        return language
    if language in _FURTHER_STEMMERS:
        return _FURTHER_STEMMERS[language]
    return next((code for code, each in _languages().items() if each.get("stemmer") == language), None)


def _languages() -> Mapping[str, Mapping[str, str]]:
    languages: Mapping[str, Mapping[str, str]] = _table()["languages"]
    return languages


@cache
def _table() -> Mapping[str, Any]:  # Any: TOML
    return tomllib.loads((files("aftermind.ranking") / "languages.toml").read_text("utf-8"))
