"""Text to terms: what a lexical search compares. One truth for stored, pending and in-process episodes."""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import MappingProxyType

import snowballstemmer

from aftermind import errors

# Postgres's english.stop: the list that the figures of recall quality were measured with.
_STOP_WORDS = """
i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself it
its itself they them their theirs themselves what which who whom this that these those am is are was were be been
being have has had having do does did doing a an the and but if or because as until while of at by for with about
against between into through during before after above below to from up down in out on off over under again further
then once here there when where why how all any both each few more most other some such no nor not only own same so
than too very s t can will just don should now
"""
_ENGLISH_STOP = frozenset(_STOP_WORDS.split())
_WORD = re.compile(r"[^\W_]+")
_POSSESSIVE = re.compile(r"['\u2019]s\b")
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
)
LONGEST_WORD = 64  # bytes of base64 and the like are no words; cut, they still match themselves
STEMS_KEPT = 16_384  # in a process: more words than people use; those that never come again must not stay
MOST_TERMS = 5_000  # of one text: a message holds 256 KiB, and nobody asks for its ten-thousandth distinct word

LONG_CHARACTERS = 4_096  # of a text whose terms may have been computed elsewhere: see `indexed`
_NOTHING: Mapping[tuple[str, str], Sequence[str]] = MappingProxyType({})
_indexed: ContextVar[Mapping[tuple[str, str], Sequence[str]]] = ContextVar("indexed", default=_NOTHING)

LANGUAGES = frozenset({"simple", *snowballstemmer.algorithms()})
_stemmers = threading.local()  # a stemmer keeps its word in itself, and handlers run in threads


def tokens(text: str) -> list[str]:
    """The words of a text in order, lower-cased; scripts without blanks give overlapping pairs of characters."""
    found: list[str] = []
    for word in _WORD.findall(_POSSESSIVE.sub("", text.casefold())):
        if word.isascii() or not _UNSPACED.search(word):
            found.append(word[:LONGEST_WORD])
        else:
            found += _pairs(word)
    return found


def terms(text: str, language: str = "english") -> list[str]:
    """The distinct terms of a text in order of appearance: stemmed, without stop words.

    `language` is a Snowball algorithm, or `simple`: no stemming and no stop words. At most `MOST_TERMS`.
    """
    if len(text) > LONG_CHARACTERS and (known := _indexed.get().get((language, text))) is not None:
        return list(known)
    stop = _ENGLISH_STOP if language == "english" else frozenset[str]()
    seen: dict[str, None] = {}
    for word in tokens(text):
        if word not in stop:
            seen[stem(word, language)] = None
            if len(seen) >= MOST_TERMS:
                break
    return list(seen)


@contextmanager
def indexed(found: Mapping[tuple[str, str], Sequence[str]]) -> Iterator[None]:
    """Within the block `terms` takes those of long texts from here, by language and text.

    A writer of texts has their terms computed before its transaction, outside the event loop.
    """
    token = _indexed.set(found)
    try:
        yield
    finally:
        _indexed.reset(token)


@lru_cache(maxsize=STEMS_KEPT)
def stem(word: str, language: str = "english") -> str:
    """The word's stem; 25 µs the first time, and most words come again."""
    if language == "simple":
        return word
    stemmer = getattr(_stemmers, language, None)
    if stemmer is None:
        if language not in LANGUAGES:
            why = f"it is simple, or a Snowball algorithm: {', '.join(sorted(LANGUAGES - {'simple'}))}."
            raise errors.InvalidSettings("language", language, why)
        stemmer = snowballstemmer.stemmer(language)
        setattr(_stemmers, language, stemmer)
    return str(stemmer.stemWord(word))


def is_stop_word(word: str) -> bool:
    """Whether an English question or turn says nothing by it."""
    return word in _ENGLISH_STOP


def spoken(name: str | None, content: str) -> str:
    """What an embedder is given for an episode: with its speaker's name, vectors alone find 0.50 instead of 0.30."""
    return f"{name}: {content}" if name else content


def ends_asking(content: str) -> bool:
    """Whether a turn ends in a question: what it asks about is rather said next door, in the answer."""
    return content.rstrip().endswith(("?", "\uff1f", "\u061f"))  # Latin, full-width, Arabic


def _pairs(word: str) -> list[str]:
    return [word] if len(word) < 2 else [word[start : start + 2] for start in range(len(word) - 1)]
