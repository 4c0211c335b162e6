"""Variants of names: nicknames that shorten or lengthen a name, and misspelt names."""

import re

from aftermind.ranking.accents import fold_accents

SHORTEST_NICKNAME = 3  # characters: "Mel" for Melanie; two would be initials and words
LONGEST_ENDING = 3  # characters that a nickname may add: "Johnny" for John
SHORTEST_MISSPELT = 5  # characters: of shorter names, one letter makes another name ("Ann", "Anna", "Jan", "Jon")

# Within a sentence, a capital letter marks a name: "What car does Mel have?" names no Caroline.
# The search is for the capital first, and what is before it then: that takes a quarter of the time.
_CAPITALISED = re.compile(r"[^\W\d_a-z](?<=[^.!?\s]\s[^\W\d_a-z])[^\W\d_]*")


def capitalised_words(text: str) -> frozenset[str]:
    """The capitalised words of a text that do not begin a sentence, folded."""
    return frozenset(fold_accents(word.casefold()) for word in _CAPITALISED.findall(text) if word[0].isupper())


def is_variant(word: str, name: str) -> bool:
    """Whether a word is a nickname of a name, or the name misspelt by one letter. Both are folded, and differ."""
    short, long = sorted((word, name), key=len)
    if long.startswith(short) and len(short) >= SHORTEST_NICKNAME:
        return len(word) < len(name) or len(word) - len(name) <= LONGEST_ENDING
    return len(short) >= SHORTEST_MISSPELT and word[0] == name[0] and _differ_by_one(short, long)


def _differ_by_one(short: str, long: str) -> bool:
    """One letter replaced, added, left out, or exchanged with its neighbour."""
    if len(long) - len(short) > 1:
        return False
    start = next((place for place, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    if len(long) > len(short):
        return short[start:] == long[start + 1 :]
    is_exchanged = short[start : start + 2] == long[start : start + 2][::-1] and short[start + 2 :] == long[start + 2 :]
    return is_exchanged or short[start + 1 :] == long[start + 1 :]
