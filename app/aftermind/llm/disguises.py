"""Other readings of a text: what it says to whoever decodes what hides it from a filter.

Each is tried only where the text shows its trace, because this is done for every message that is stored.
"""

import base64
import binascii
import html
import re
import unicodedata
from collections.abc import Iterator
from urllib.parse import unquote

HIDDEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e007f]")
_TAGS = re.compile("[\U000e0020-\U000e007e]+")  # ASCII once more, as characters that nothing shows
_SPACED = re.compile(r"(?<!\w)\w(?:([ .*_-])\w)(?:\1\w){2,}(?!\w)")  # "i g n o r e", "i.g.n.o.r.e"
_WITHIN = re.compile(r"(?<=\w)(?:_|/\*.{0,20}?\*/|\*+|`)(?=\w)|[*`]+|(?<!\w)_+|_+(?!\w)|/\*.{0,20}?\*/")
_SHORT_LINES = re.compile(r"\n(?=\S{1,20}(?: \S{1,20}){0,2}(?:\n|$))")  # a sentence with a word or two on each line
_BASE64 = re.compile(r"[A-Za-z0-9+/]{24,}={0,2}")
_SPLIT_BASE64 = re.compile(r"(?<![A-Za-z0-9+/])(?:[A-Za-z0-9+/]{8,64}+[ \n]){2,100}+[A-Za-z0-9+/]{4,64}={0,2}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}[ :]?){12,}")
_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})")
_LEET = str.maketrans({"0": "o", "1": "i", "3": "e", "4": "a", "5": "s", "7": "t", "!": "i", "@": "a", "$": "s"})
_LEET_WORD = re.compile(r"(?<![\w@.])(?=[\w!@$]*[a-zA-Z])(?=[\w!@$]*[0134578!@$])[\w!@$]{3,}(?<!!)(?!\w)")
_LEET_SIGN = re.compile(r"[a-zA-Z][0134578!@$]|[0134578!@$][a-zA-Z]")
_BLOBS = 20  # of one text, decoded at most

# Letters of other alphabets that look like Latin ones; where a word mixes alphabets, it is read as Latin.
_LOOK_ALIKES = str.maketrans(
    "аеорсухікѕјһԁѵԛԝ" + "АВЕКМНОРСТХІЅЈУ" + "οαειυνκρτχ" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ" + "ıɡ",  # noqa: RUF001
    "aeopcyxiksjhdvqw" + "ABEKMHOPCTXISJY" + "oaeiuvkptx" + "ABEZHIKMNOPTYX" + "ig",
)
_MIXED = re.compile(r"(?<!\w)(?=\w*[a-zA-Z])(?=\w*[\u0370-\u052f\u0131\u0261])\w+")


def visible(text: str) -> str:
    """The text as a person sees it: no zero-width or direction characters, look-alike forms made plain (NFKC)."""
    return unicodedata.normalize("NFKC", HIDDEN.sub("", text))


def plain_readings(text: str) -> Iterator[str]:
    """The text as a person sees it, and as it reads without what is put between its letters or in their place."""
    plain = _SPACED.sub(lambda found: found.group().replace(found.group(1), ""), visible(text))
    yield plain
    if not text.isascii():
        if HIDDEN.search(text):
            yield unicodedata.normalize("NFKC", HIDDEN.sub(" ", text))
        if unaccented := _unaccented(plain):
            yield unaccented
    if "\n" in plain and (joined := _SHORT_LINES.sub(" ", plain)) != plain:
        yield joined
    if any(sign in plain for sign in "*_`") and (bare := _WITHIN.sub(_bridged, plain)) != plain:
        yield bare
    if (
        _LEET_SIGN.search(plain)
        and (spelt := _LEET_WORD.sub(lambda word: word.group().translate(_LEET), plain)) != plain
    ):
        yield spelt


def decoded_readings(text: str) -> Iterator[str]:
    """What is encoded in it: base64, hexadecimal digits, percent signs, HTML and backslash escapes, invisible tags."""
    for tags in _TAGS.findall(text):
        yield "".join(chr(ord(each) - 0xE0000) for each in tags)
    if "&" in text and (unescaped := html.unescape(text)) != text:
        yield unescaped
    if "%" in text and (unquoted := unquote(text)) != text:
        yield unquoted
    if "\\" in text:
        yield _ESCAPED.sub(lambda found: chr(int(found.group(1) or found.group(2), 16)), text)
    for blob in _BASE64.findall(text)[:_BLOBS]:
        yield from _base64(blob)
    for blob in _SPLIT_BASE64.findall(text)[:_BLOBS]:
        yield from _base64(re.sub(r"\s", "", blob))
    for blob in _HEX.findall(text)[:_BLOBS]:
        digits = re.sub(r"[ :]", "", blob)
        yield bytes.fromhex(digits[: len(digits) // 2 * 2]).decode(errors="replace")


def _unaccented(text: str) -> str | None:
    """Latin letters alone: no marks on them, and none of another alphabet among them; None where that is the text."""
    if text.isascii():
        return None
    bare = "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    latin = _MIXED.sub(lambda word: word.group().translate(_LOOK_ALIKES), bare)
    return latin if latin != text else None


def _bridged(found: re.Match[str]) -> str:
    return " " if found.group().startswith("/*") else ""


def _base64(blob: str) -> Iterator[str]:
    try:
        yield base64.b64decode(blob + "=" * (-len(blob) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return
