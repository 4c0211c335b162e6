"""Text to terms: what a lexical search compares. One truth for stored, pending and in-process episodes."""

import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import snowballstemmer

from aftermind import errors
from aftermind.ranking.accents import fold_accents
from aftermind.ranking.languages import detect_language, stemmer_of, stop_words, word_variants

_EMOJI = (
    "[\U0001f1e6-\U0001f1ff]{2}|[\u2049\u231a-\u23ff\u25aa-\u25fe\u2600-\u27bf\u2934-\u2935\u2b05-\u2b55"
    "\U0001f000-\U0001f1e5\U0001f200-\U0001f3fa\U0001f400-\U0001faff]"
)
# Vowel signs and accents are parts of words, though \w leaves them out; so are joiners of Persian and Indic scripts.
_MARKS = "".join(
    chr(code) for code in (*range(0x0300, 0x2100), 0x3099, 0x309A) if unicodedata.category(chr(code)) in ("Mn", "Mc")
)
_WORD = re.compile(rf"[^\W_]+(?:[{_MARKS}\u200c\u200d]+[^\W_]*)*|{_EMOJI}")
_POSSESSIVE = re.compile(r"['\u2019]s\b")
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
)
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
LONGEST_WORD = 64  # bytes of base64 and the like are no words; cut, they still match themselves
# Particles that Korean nouns carry, the longest first: "부산에서" is 부산 with one.
_PARTICLES = re.compile(
    "(?<=[\uac00-\ud7af])(?:에서는|에서도|으로는|에게서|한테서|이라고|입니다|이에요|에서|에게|한테|으로|까지|부터|처럼|보다|마다|이랑|하고|"
    "에는|에도|예요|라고|은|는|이|가|을|를|에|의|도|만|로|와|과|랑|께|나|야)$"
)
_HANGUL = re.compile("[\uac00-\ud7af]+")
STEMS_KEPT = 16_384  # in a process: more words than people use; those that never come again must not stay
MOST_TERMS = 5_000  # of one text: a message may have 256 KiB, and queries do not use its ten-thousandth distinct word

LONG_CHARACTERS = 4_096  # of a text whose terms may have been computed elsewhere: see `indexed`


class IndexedText(NamedTuple):
    """The terms of a text, and those of each of its passages if it is long."""

    terms: Sequence[str]
    passages: Sequence[Sequence[str]] = ()


_NOTHING: Mapping[tuple[str, str], IndexedText] = MappingProxyType({})
_indexed: ContextVar[Mapping[tuple[str, str], IndexedText]] = ContextVar("indexed", default=_NOTHING)

_WITHOUT_ACCENTS = frozenset({"english", "porter", "indonesian", "dutch_porter"})
LANGUAGES = frozenset({"simple", *snowballstemmer.algorithms()})
LanguageFor = Callable[[str], str]  # the language of a namespace's texts
_stemmers = threading.local()  # a stemmer keeps its word in itself, and handlers run in threads


def tokens(text: str) -> list[str]:
    """The words and emoji of a text in order, in lower case and without accents.

    Scripts without blanks give overlapping pairs of characters, and Chinese characters alone too; so do Korean words
    without their particle.
    """
    return [fold_accents(word) for word in _words(text)]


def terms(text: str, language: str = "english") -> list[str]:
    """The distinct terms of a text in order of appearance: stemmed, without stop words and accents.

    `language` is a Snowball algorithm, or `simple`: no stemming and no stop words. A text that is evidently in another
    language loses the stop words of that one and also gives its stems, so that a question in either language and a bare
    name both find it. At most `MOST_TERMS`.
    """
    if (known := find_indexed(text, language)) is not None:
        return list(known.terms)
    words = _words(text)
    spoken_in = None if language == "simple" else detect_language(text, words, expected=language)
    also = stemmer_of(spoken_in) if spoken_in else None
    stop = stop_words(spoken_in or language)
    seen: dict[str, None] = {}
    for word in words:
        if word in stop:
            continue
        seen[stem(word, language)] = None
        if also is not None and also != language:
            seen[stem(word, also)] = None
        if len(seen) >= MOST_TERMS:
            break
    return list(seen)[:MOST_TERMS]


def english(_namespace: str) -> str:
    """The language of every namespace where no setting decides."""
    return "english"


def check_language(variable: str, language: str) -> None:
    """Raise `InvalidSettings` for a language without a stemmer."""
    if language not in LANGUAGES:
        why = f"it is simple, or a Snowball algorithm: {', '.join(sorted(LANGUAGES - {'simple'}))}."
        raise errors.InvalidSettings(variable, language, why)


def language_of(text: str) -> str | None:
    """The ISO 639-1 code of the language that a text is evidently in, or None."""
    return detect_language(text, _words(text))


def find_indexed(text: str, language: str) -> IndexedText | None:
    """The terms of a long text that were computed elsewhere."""
    return _indexed.get().get((language, text)) if len(text) > LONG_CHARACTERS else None


@contextmanager
def indexed(found: Mapping[tuple[str, str], IndexedText]) -> Iterator[None]:
    """Within the block the terms of long texts and their passages are taken from here, by language and text.

    A writer of texts has their terms computed before its transaction, outside the event loop.
    """
    token = _indexed.set(found)
    try:
        yield
    finally:
        _indexed.reset(token)


@lru_cache(maxsize=STEMS_KEPT)
def stem(word: str, language: str = "english") -> str:
    """The stem of the word, or of the usual word that it is a variant of, without accents.

    It takes 25 µs the first time, and most words repeat.

    English words lose their accents first, because the English stemmer does not support them: "café" and "cafe" are one
    word. In other languages accents belong to the endings that are removed.
    """
    if language == "simple":
        return fold_accents(word)
    stemmer = getattr(_stemmers, language, None)
    if stemmer is None:
        check_language("language", language)
        stemmer = snowballstemmer.stemmer(language)
        setattr(_stemmers, language, stemmer)
    usual = word_variants(language).get(word, word)
    if language in _WITHOUT_ACCENTS:
        return str(stemmer.stemWord(fold_accents(usual)))
    return fold_accents(str(stemmer.stemWord(usual)))


def is_stop_word(word: str) -> bool:
    """Whether an English word has no weight in a query or turn."""
    return word in stop_words("english")


def spoken(name: str | None, content: str) -> str:
    """What an embedder is given for an episode: with its speaker's name, vectors alone find 0.50 instead of 0.30."""
    return f"{name}: {content}" if name else content


def ends_asking(content: str) -> bool:
    """Whether a turn ends in a question: its subject is usually in the next turn, the answer."""
    return content.rstrip().endswith(("?", "\uff1f", "\u061f"))  # Latin, full-width, Arabic


def _words(text: str) -> list[str]:
    """The words of a text in lower case, with their accents."""
    found: list[str] = []
    composed = text if text.isascii() else unicodedata.normalize("NFC", text)
    for word in _WORD.findall(_POSSESSIVE.sub("", composed.casefold())):
        if word.isascii():
            found.append(word[:LONGEST_WORD])
        elif _HANGUL.search(word):
            found += _pairs(_PARTICLES.sub("", word))
        elif _UNSPACED.search(word):
            found += _pairs(word)
            found += _HAN.findall(word) if len(word) > 1 else []  # often a whole word
        else:
            found.append(word[:LONGEST_WORD])
    return found


def _pairs(word: str) -> list[str]:
    return [word] if len(word) < 2 else [word[start : start + 2] for start in range(len(word) - 1)]
