"""The number of tokens of a text: exact if the tokenizer is on this machine, else an estimate.

`estimate` is near the count, for budgets; `upper_bound` is never below it, for limits that a provider enforces.
"""

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec

import numpy as np

CHARACTERS = 4  # of a token in running text

# The upper bound counts letters by fours from each capital on, digits by threes, blanks by fours, a lone one not at all
# but before a digit, every other character by itself. A character's bytes beyond the first are added.
_PIECES = re.compile(r"[a-z]{1,4}|[A-Z][a-z]{0,3}|[0-9]{1,3}|\s[\r\n\t ]{1,3}|\s(?=[0-9])|[^\S ]|[^A-Za-z0-9\s]")


def _kind(character: str) -> str:
    if character.isspace():
        return " " if character == " " else "\n"
    if character.isalpha():
        return "a" if character.islower() else "A"
    return "0" if character.isdigit() else "."


# The same splitting of ASCII text by replacement, four times as fast: characters by their kind, longest pieces first;
# sequences of blanks are left to the expression.
_KINDS = "".join(_kind(chr(code)) for code in range(128)).encode().ljust(256, b".")
_RUNS = (b"Aaaa", b"Aaa", b"Aa", b"aaaa", b"aaa", b"aa", b"000", b"00")
# No word of a vocabulary: keys, hashes, base64. Their characters are counted once more, each by itself.
_JUNK = re.compile(r"[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ0-9]{5,}")
_JUNK_KINDS = "".join("." if _JUNK.match(chr(code) * 5) else " " for code in range(128)).encode().ljust(256)

# The estimate: a word counts 1 up to nine letters, as do three digits or three signs, a line break with the blanks
# before it, and an indentation. Fitted to o200k on chat, Python, Markdown, SQL and Lua: 1.04 to 1.11 times its counts.
_LETTERS, _CAPITALS, _DIGITS, _SIGNS = 9, 4, 3, 3  # of one token
_BETWEEN = b"\x80"  # between texts that are counted in one pass: no ASCII
_WORD_KINDS = _KINDS.replace(b"\n", b"n")[: ord("'")] + b"q" + _KINDS.replace(b"\n", b"n")[ord("'") + 1 : 128]
_WORD_KINDS = (_WORD_KINDS + _BETWEEN).ljust(256, b".")
_LONGEST = np.full(256, 1 << 30)
_LONGEST[list(b"aA0.")] = _LETTERS, _CAPITALS, _DIGITS, _SIGNS
_JUNK_WORD = re.compile(rb"(?=[0-9]*[A-Za-z])[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ0-9]{5,}")
_JUNK_RATE = 0.45  # tokens per character, in addition to the pieces that contain it
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
# Tokens of a character by its script, up to each code point: measured with o200k on sentences, 5 % added.
_RATES = (
    (0x250, 0.5), (0x370, 0.6), (0x400, 0.45), (0x530, 0.29), (0x590, 0.5), (0x600, 0.45), (0x700, 0.34),
    (0x900, 0.5), (0x980, 0.37), (0xE00, 0.45), (0xE80, 0.44), (0x1E00, 0.6), (0x1F00, 0.25), (0x2000, 0.6),
    (0x2070, 0.9), (0x2E80, 1.3), (0x3000, 1.0), (0x3040, 0.8), (0x3100, 0.76), (0x3400, 1.2), (0xA000, 0.8),
    (0xAC00, 1.0), (0xD7B0, 0.66), (0xFE00, 1.5), (0xFE10, 0.6), (0xFF00, 1.2), (0x10000, 0.9),
)  # fmt: skip
_EMOJI_RATE = 1.6
_RATE_OF = [next(rate for until, rate in _RATES if page << 4 < until) for page in range(0x1000)]


def count(text: str) -> int:
    """Tokens of a text for the models of OpenAI (o200k).

    Never waits: the tokenizer is loaded in the background from the first call on, and the estimate serves until then.
    """
    return count_each([text])[0]


def count_each(texts: Sequence[str]) -> list[int]:
    """Tokens of each text, as `count` returns them; together the lines of a block take a fifth of the time."""
    return _tokenizer().count_each(texts)


def is_exact() -> bool:
    """Whether the tokenizer itself counts by now; it comes with the `tokens` extra and needs its data at hand."""
    return _tokenizer().count_each is not estimate_each


def estimate(text: str) -> int:
    """The tokens of a text for the models of OpenAI (o200k), without a tokenizer.

    Within 15 % of the count on English chat, code, Chinese, Japanese, Korean and emoji of a line or more.
    """
    return estimate_each([text])[0]


def estimate_each(texts: Sequence[str]) -> list[int]:
    """The estimates of several texts in one pass."""
    if not texts:
        return []
    sent = [text.encode("ascii", "ignore") for text in texts]
    together = _BETWEEN.join(sent)
    has_junk = b"....." in together.translate(_JUNK_KINDS)
    return [
        _estimated(text, ascii_part, pieces, has_junk=has_junk)
        for text, ascii_part, pieces in zip(texts, sent, _word_pieces(together, len(texts)), strict=True)
    ]


def _estimated(text: str, sent: bytes, pieces: float, *, has_junk: bool) -> int:
    tokens = pieces
    if has_junk and b"....." in sent.translate(_JUNK_KINDS):
        tokens += _JUNK_RATE * sum(map(len, _JUNK_WORD.findall(sent)))
    if len(sent) != len(text):
        pages = [ord(character) >> 4 for character in _BEYOND_ASCII.findall(text)]
        tokens += sum(_RATE_OF[page] if page < len(_RATE_OF) else _EMOJI_RATE for page in pages)
    return max(round(tokens), int(bool(text)))


def upper_bound(text: str) -> int:
    """At least as many tokens as the text has, without a tokenizer.

    A byte-pair tokenizer of 200,000 entries gives an English word 1 token up to about six letters, digits by threes,
    and never more tokens than bytes. On 2,760 turns of LoCoMo it is never below o200k's own count, and 1.45 times it on
    average. Only a coined word of over thirty letters has been seen to take more.
    """
    sent = text.encode()
    junk = sum(map(len, _JUNK.findall(text))) if b"....." in sent.translate(_JUNK_KINDS) else 0
    pieces = _ascii_pieces(text, sent) if text.isascii() else len(_PIECES.findall(text))
    return pieces + len(sent) - len(text) + junk + bool(text)


def cut(text: str, most: int) -> str:
    """The longest beginning of a text with at most `most` tokens by the upper bound, so certainly by a tokenizer."""
    head = text[: most * CHARACTERS]
    if len(head) * 4 <= most or upper_bound(head) <= most:  # a character has at most four bytes, a byte is one token
        return head
    low, high = 0, len(head)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if upper_bound(head[:middle]) <= most else (low, middle - 1)
    return head[:low]


def _word_pieces(sent: bytes, texts: int) -> list[float]:
    """Words, numbers, runs of signs, line breaks and indentations of each text; a blank before a word is part of it."""
    kinds = sent.translate(_WORD_KINDS).replace(b"aqa", b"aa").replace(b"q", b".")
    codes = np.frombuffer(kinds + _BETWEEN, dtype=np.uint8)
    starts = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    starts = np.concatenate([[0], starts, [len(codes)]])
    length, starts = starts[1:] - starts[:-1], starts[:-1]
    kind = codes[starts]
    following = np.zeros_like(kind)
    following[:-1] = kind[1:]
    is_blank, before_break = kind == ord(" "), following == ord("n")
    begins_word = (kind == ord("A")) & (following == ord("a"))  # a capital belongs to the letters after it
    length -= begins_word
    length[1:] += begins_word[:-1]
    pieces = -(-length // _LONGEST[kind])
    pieces[is_blank] = ((length > 1) & ~before_break)[is_blank]
    pieces += is_blank & (following == ord("0"))
    pieces[kind == _BETWEEN[0]] = 0
    text_of = np.searchsorted(np.flatnonzero(codes == _BETWEEN[0]), starts)
    return list(np.bincount(text_of, weights=pieces, minlength=texts).tolist())


def _ascii_pieces(text: str, sent: bytes) -> int:
    kinds = sent.translate(_KINDS)
    if b"  " in kinds or b" \n" in kinds or b"\n " in kinds or b"\n\n" in kinds:
        return len(_PIECES.findall(text))
    uncounted = kinds.count(b" ") - kinds.count(b" 0")
    for run in _RUNS:
        kinds = kinds.replace(run, b".")
    return len(kinds) - uncounted


class _Tokenizer(threading.Thread):
    """Loads the tokenizer in the background: it takes a second, and a download at its first use."""

    def __init__(self) -> None:
        super().__init__(name="aftermind tokenizer", daemon=True)
        self.count_each: Callable[[Sequence[str]], list[int]] = estimate_each

    def run(self) -> None:
        with suppress(Exception):  # an extra, and a download: whatever fails, the estimate serves
            import tiktoken

            encoding = tiktoken.get_encoding("o200k_base")  # reads its cache; offline without one it raises
            self.count_each = lambda texts: [len(encoding.encode(text, disallowed_special=())) for text in texts]


@cache
def _tokenizer() -> _Tokenizer:
    loading = _Tokenizer()
    if find_spec("tiktoken") is not None:
        loading.start()
    return loading
