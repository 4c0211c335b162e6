"""How many tokens a text has: exact where the tokenizer is on this machine, else an estimate on the safe side."""

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec

# Letters by fours from each capital on, digits by threes, blanks by fours, a lone one not at all but before a digit,
# every other character by itself; what a character has beyond one byte is added to the number of matches.
_PIECES = re.compile(r"[a-z]{1,4}|[A-Z][a-z]{0,3}|[0-9]{1,3}|\s[\r\n\t ]{1,3}|\s(?=[0-9])|[^\S ]|[^A-Za-z0-9\s]")


def _kind(character: str) -> str:
    if character.isspace():
        return " " if character == " " else "\n"
    if character.isalpha():
        return "a" if character.islower() else "A"
    return "0" if character.isdigit() else "."


# The same pieces of ASCII by replacing, which is four times as quick: characters by their kind, longest pieces first;
# blanks side by side are left to the expression.
_KINDS = "".join(_kind(chr(code)) for code in range(128)).encode().ljust(256, b".")
_RUNS = (b"Aaaa", b"Aaa", b"Aa", b"aaaa", b"aaa", b"aa", b"000", b"00")
# No word of a vocabulary: keys, hashes, base64. Their characters are counted once more, each by itself.
_JUNK = re.compile(r"[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ0-9]{5,}")
_JUNK_KINDS = "".join("." if _JUNK.match(chr(code) * 5) else " " for code in range(128)).encode().ljust(256)
CHARACTERS = 4  # of a token in running text


def count(text: str) -> int:
    """Tokens of a text for the models of OpenAI (o200k), at least as many as there are.

    Never waits: the tokenizer is loaded in the background from the first call on, and the estimate serves until then.
    """
    return _tokenizer().count(text)


def is_exact() -> bool:
    """Whether the tokenizer itself counts by now; it comes with the `tokens` extra and needs its data at hand."""
    return _tokenizer().count is not estimate


def estimate(text: str) -> int:
    """An upper estimate without a tokenizer.

    A byte-pair tokenizer of 200,000 entries gives an English word 1 token up to about six letters, digits by threes,
    and never more tokens than bytes. On 2,760 turns of LoCoMo it is never below o200k's own count, and 1.45 times it on
    average. Only a coined word of over thirty letters has been seen to take more.
    """
    sent = text.encode()
    junk = sum(map(len, _JUNK.findall(text))) if b"....." in sent.translate(_JUNK_KINDS) else 0
    pieces = _ascii_pieces(text, sent) if text.isascii() else len(_PIECES.findall(text))
    return pieces + len(sent) - len(text) + junk + bool(text)


def cut(text: str, most: int) -> str:
    """The longest beginning of a text with at most `most` tokens by the estimate, so certainly by a tokenizer."""
    head = text[: most * CHARACTERS]
    if len(head) * 4 <= most or estimate(head) <= most:  # a character has at most four bytes, a byte is one token
        return head
    low, high = 0, len(head)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if estimate(head[:middle]) <= most else (low, middle - 1)
    return head[:low]


def _ascii_pieces(text: str, sent: bytes) -> int:
    kinds = sent.translate(_KINDS)
    if b"  " in kinds or b" \n" in kinds or b"\n " in kinds or b"\n\n" in kinds:
        return len(_PIECES.findall(text))
    uncounted = kinds.count(b" ") - kinds.count(b" 0")
    for run in _RUNS:
        kinds = kinds.replace(run, b".")
    return len(kinds) - uncounted


class _Tokenizer(threading.Thread):
    """Loads the tokenizer beside whoever counts: it takes a second, and a download at its very first use."""

    def __init__(self) -> None:
        super().__init__(name="aftermind tokenizer", daemon=True)
        self.count: Callable[[str], int] = estimate

    def run(self) -> None:
        with suppress(Exception):  # an extra, and a download: whatever fails, the estimate serves
            import tiktoken

            encoding = tiktoken.get_encoding("o200k_base")  # reads its cache; offline without one it raises
            self.count = lambda text: len(encoding.encode(text, disallowed_special=()))


@cache
def _tokenizer() -> _Tokenizer:
    loading = _Tokenizer()
    if find_spec("tiktoken") is not None:
        loading.start()
    return loading
