"""How many tokens a text has: exact where the tokenizer is on this machine, else an estimate on the safe side."""

import re
from collections.abc import Callable
from functools import cache

# Letters by fours, digits by threes, runs of blanks by fours, a lone blank not at all, every other character by itself;
# what a character has beyond one byte is added to the number of matches.
_PIECES = re.compile(r"[A-Za-z]{1,4}|[0-9]{1,3}|\s{2,4}|(?<=\s)\s|[^\S ]|[^A-Za-z0-9\s]")


def count(text: str) -> int:
    """Tokens of a text for the models of OpenAI (o200k), at least as many as there are."""
    return _counter()(text)


def is_exact() -> bool:
    """Whether the tokenizer itself counts; it comes with the `tokens` extra and needs its data on this machine."""
    return _counter() is not estimate


def estimate(text: str) -> int:
    """An upper estimate without a tokenizer.

    A byte-pair tokenizer of 200,000 entries gives an English word 1 token up to about six letters, digits by threes,
    and never more tokens than bytes. Words count one token for every four letters begun, digits one for three begun,
    a symbol one a byte, a run of blanks one for each four and none for a single blank, which joins the next word.
    """
    return len(_PIECES.findall(text)) + len(text.encode()) - len(text)


@cache
def _counter() -> Callable[[str], int]:
    try:
        import tiktoken

        encoding = tiktoken.get_encoding("o200k_base")  # reads its cache; offline without one it raises
    except Exception:  # an extra, and a download at its first use: whatever fails, the estimate serves
        return estimate
    return lambda text: len(encoding.encode(text, disallowed_special=()))
