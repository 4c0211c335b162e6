"""Letters without their accents, for scripts in which people leave accents out."""

import re
import unicodedata

# Combining accents of Latin, Greek and Cyrillic letters, Hebrew points and Arabic vowel marks. Vowel signs of Indic and
# Thai scripts are combining characters too, but they are letters of the word.
_MARKS = re.compile("[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c7\u064b-\u0652\u0670]")
_LETTERS = str.maketrans(
    {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "\u0131": "i", "ħ": "h", "ß": "ss"}
)


def fold_accents(text: str) -> str:
    """The text without accents and with plain letters for ø, ł, æ and their like; lower case is expected."""
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", _MARKS.sub("", apart)).translate(_LETTERS)
