"""Alternative readings of a text, after disguises are removed or codes decoded.

Each is tried only if the text shows a trace of it, because this is done for every message. Every step is linear in the
text, and `Allowance` limits them together: a text with too many readings is not read completely.
"""

import base64
import binascii
import html
import quopri
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from urllib.parse import unquote

MAX_EXPANSION = 4  # of a text by NFKC and by decoding; U+FDFA alone gives 18 characters for one
READINGS = 24  # times the length of a text that may be read; ordinary texts are read two or three times
SPARE_CHARACTERS = 20_000
CHUNK_CHARACTERS = 4_096
AROUND_CHARACTERS = 200  # on each side of a stem that is reversed or shifted: longer than an instruction

HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_TAGS = re.compile("[\U000e0020-\U000e007e]+")  # ASCII once more, as characters that nothing shows
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{8,}")  # bytes as variation selectors
_ZERO_WIDTH = re.compile("[\u200b-\u200f\u2060-\u2064\ufeff]+")
_SPACED = re.compile(r"(?<!\w)\w(?:([ .*_\-\n|,/])\w)(?:\1\w){2,}(?!\w)")  # "i g n o r e", "i.g.n.o.r.e"
_WITHIN = re.compile(r"(?<=\w)(?:_|/\*.{0,20}?\*/|\*+|`)(?=\w)|[*`]+|(?<!\w)_+|_+(?!\w)|/\*.{0,20}?\*/")
_SHORT_LINES = re.compile(r"\n(?=\S{1,20}(?: \S{1,20}){0,2}(?:\n|$))")  # a sentence with a word or two on each line
_MARKUP = re.compile(r"<[^<>]{0,200}>|\]\([^()\n]{0,200}\)|[\[\]]")
_SIGNS = re.compile(r"(?:[^\w\s.!?,;:'\"()/<>@#$%&=+\\-]|_)+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_STRETCHED = re.compile(r"([^\W\d_])\1\1+")
_LEET = str.maketrans("013457289!@$+|", "oieastzbgiastl")
_LEET_L = str.maketrans("013457289!@$+|", "oleastzbgiastl")
_LEET_WORD = re.compile(r"(?<![\w@.!$+|])(?=[\w!@$+|]*[a-zA-Z])(?=[\w!@$+|]*[0-9!@$+|])[\w!@$+|]{3,}(?<!!)(?!\w)")
_LEET_SIGN = re.compile(r"[a-zA-Z][0-9!@$+|]|[0-9!@$+|][a-zA-Z]")

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_SPLIT_BASE64 = re.compile(r"(?<![A-Za-z0-9+/])(?:[A-Za-z0-9+/]{8,64}+[ \n]){2,100}+[A-Za-z0-9+/]{4,64}={0,2}")
_BASE32 = re.compile(r"(?<![A-Za-z2-7])(?:[A-Z2-7]{16,}|[a-z2-7]{16,})={0,6}")
_ASCII85 = re.compile(r"<~[!-uz\s]{8,}~>")
_HEX = re.compile(r"(?<![0-9a-fA-F])(?:(?:0x|\\x)?[0-9a-fA-F]{2}[ :,-]?){8,}")
_BINARY = re.compile(r"(?<![01])(?:[01]{7,8}[ ,]?){6,}")
_DECIMAL = re.compile(r"(?<![\d.])(?:\d{2,3}[ ,;]{1,2}){7,}\d{2,3}")
_LETTER_NUMBERS = re.compile(r"(?<![\d-])\d{1,2}(?:-\d{1,2})+(?![\d-])")
_ESCAPED = re.compile(
    r"\\x([0-9a-fA-F]{2})|[\\%]u\{?([0-9a-fA-F]{4})\}?|\\U([0-9a-fA-F]{8})|U\+([0-9a-fA-F]{4,6}) ?|\\([0-3][0-7]{2})"
)
_MORSE = re.compile(r"[.\u00b7\u2022_/ |\u2212\u2013\u2014-]{12,}")
_QUOTED = re.compile(r"=[0-9A-F]{2}")

# Letters of other alphabets that resemble Latin ones. Small capitals, letters in circles and flags are added by name.
_HOMOGLYPHS: dict[int, int] = str.maketrans(
    "аеорсухікѕјһԁѵԛԝьгпт" + "АВЕКМНОРСТХІЅЈУԌ" + "οαειυνκρτχϲη" + "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ" + "ıɡɑ" + "օսոհցզքԍ",  # noqa: RUF001
    "aeopcyxiksjhdvqwbrnt" + "ABEKMHOPCTXISJYG" + "oaeiuvkptxcn" + "ABEZHIKMNOPTYX" + "iga" + "ounhgqpg",
)
_UPSIDE_DOWN = str.maketrans("ɐqɔpǝɟƃɓɥᴉıɾʞןɯuodbɹsʇnʌʍxʎz", "abcdefgghiijklmnopqrstuvwxyz")  # noqa: RUF001
_BRAILLE = dict(zip("⠁⠃⠉⠙⠑⠋⠛⠓⠊⠚⠅⠇⠍⠝⠕⠏⠟⠗⠎⠞⠥⠧⠺⠭⠽⠵⠀", string.ascii_lowercase + " ", strict=True))
_MORSE_CODES = (
    ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --.."
)
_MORSE_LETTERS = dict(zip(_MORSE_CODES.split(" "), string.ascii_lowercase, strict=True))
# Stems that occur in some attack of every family. If one occurs reversed or shifted in the alphabet, the text is
# decoded accordingly.
_TRACES = (
    "ignor",
    "disregard",
    "instruct",
    "previous",
    "system",
    "always",
    "reveal",
    "forget",
    "assist",
    "overrid",
    "from now",
)
_REVERSED = tuple(trace[::-1] for trace in _TRACES)


class TooMuchText(Exception):
    """A text whose readings together are longer than ordinary texts give cause for."""


class Allowance:
    """How many characters may still be read of one text, all its readings together."""

    def __init__(self, text: str) -> None:
        self._left = READINGS * len(text) + SPARE_CHARACTERS

    def spend(self, text: str) -> str:
        """The text, counted. Raises `TooMuchText`."""
        self._left -= len(text)
        if self._left < 0:
            raise TooMuchText
        return text


def visible(text: str, replaced: str = "") -> str:
    """The text as a person sees it: no invisible characters, compatibility forms made plain (NFKC).

    Raises `TooMuchText` where that makes it more than `MAX_EXPANSION` times as long.
    """
    if text.isascii():
        return text
    bare = HIDDEN.sub(replaced, text)
    left = MAX_EXPANSION * len(bare) + 1_000
    parts: list[str] = []
    for start in range(0, len(bare), CHUNK_CHARACTERS):
        parts.append(unicodedata.normalize("NFKC", bare[start : start + CHUNK_CHARACTERS]))
        left -= len(parts[-1])
        if left < 0:
            raise TooMuchText
    return "".join(parts)


def plain_readings(text: str) -> Iterator[str]:
    """The text as a person sees it, and as it reads without what is put between its letters or in their place."""
    plain = _SPACED.sub(lambda found: found.group().replace(found.group(1), ""), visible(text))
    yield plain
    yield from _unmasked(text, plain)
    yield from _rejoined(plain)
    yield from _respelt(plain)
    yield from _turned(plain.lower())


def latin_reading(text: str) -> str | None:
    """The text in Latin letters without marks; letters of other alphabets are mapped by their shape; None if it is
    ASCII.
    """
    if text.isascii():
        return None
    apart = unicodedata.normalize("NFKD", visible(text))
    return "".join([each for each in apart if not unicodedata.combining(each)]).translate(_homoglyph_table())


def decoded_readings(text: str) -> Iterator[str]:
    """What is encoded in it: by characters that nothing shows, by bases, by codes of letters, by escapes."""
    if not text.isascii():
        yield from _from_invisible(text)
        text = visible(text)
    yield from _unescaped(text)
    for blob in _BASE64.findall(text):
        yield from _base64(blob)
    for blob in _SPLIT_BASE64.findall(text):
        yield from _base64(re.sub(r"\s", "", blob))
    for blob in _BASE32.findall(text):
        yield from _bytes(base64.b32decode, blob.upper() + "=" * (-len(blob) % 8))
    for blob in _HEX.findall(text):
        digits = re.sub(r"0x|\\x|[ :,-]", "", blob)
        yield from _bytes(bytes.fromhex, digits[: len(digits) // 2 * 2])
    for blob in _ASCII85.findall(text):
        yield from _bytes(partial(base64.a85decode, adobe=True), blob)
    yield from _from_codes(text)


def _unmasked(text: str, plain: str) -> Iterator[str]:
    if text.isascii():
        return
    if HIDDEN.search(text):
        yield visible(text, " ")
    if any(sign in plain for sign in "ɐǝɥʇɹʎ"):
        yield plain.translate(_UPSIDE_DOWN)[::-1]


def _rejoined(plain: str) -> Iterator[str]:
    if "\n" in plain:
        for joined in (_SHORT_LINES.sub(" ", plain), re.sub(r"-[ \t]{0,3}\n[ \t]{0,3}", "", plain)):
            if joined != plain:
                yield joined
    for pattern, signs, replaced in ((_WITHIN, "*_`", _bridge), (_MARKUP, "<[", ""), (_SIGNS, "", " ")):
        if (not signs or any(sign in plain for sign in signs)) and (bare := pattern.sub(replaced, plain)) != plain:
            yield bare


def _respelt(plain: str) -> Iterator[str]:
    if _LEET_SIGN.search(plain):
        for letters in (_LEET, _LEET_L):
            spelt = _LEET_WORD.sub(partial(_translated, letters=letters), plain)
            if spelt != plain:
                yield spelt
    if (split := _CAMEL.sub(" ", plain)) != plain:
        yield split
    if (squeezed := _STRETCHED.sub(r"\1", plain)) != plain:
        yield squeezed


def _turned(lowered: str) -> Iterator[str]:
    """Read backwards, and with its letters moved on in the alphabet (rot13, Caesar, Atbash)."""
    for part in _around(lowered, _REVERSED):
        backwards = part[::-1]
        yield backwards
        yield " ".join(reversed(backwards.split()))
    for traces, letters in _shifts():
        for part in _around(lowered, traces):
            yield part.translate(letters)


def _around(text: str, stems: Iterable[str]) -> Iterator[str]:
    """The parts of a text around stems; those that overlap as one, so that no part is read twice."""
    places: list[int] = []
    for stem in stems:
        at = text.find(stem)
        while at >= 0:
            places.append(at)
            at = text.find(stem, at + len(stem))
    start, end = 0, -1
    for at in sorted(places):
        if at - AROUND_CHARACTERS > end:
            if end >= 0:
                yield text[start:end]
            start = max(0, at - AROUND_CHARACTERS)
        end = at + AROUND_CHARACTERS
    if end >= 0:
        yield text[start:end]


def _from_invisible(text: str) -> Iterator[str]:
    for tags in _TAGS.findall(text):
        yield "".join(chr(ord(each) - 0xE0000) for each in tags)
    for selectors in _SELECTORS.findall(text):
        codes = (ord(each) for each in selectors)
        yield bytes(code - 0xFE00 if code < 0xFE10 else code - 0xE0100 + 16 for code in codes).decode(errors="replace")
    marks = "".join(_ZERO_WIDTH.findall(text))
    if len(marks) >= 48 and len(kinds := sorted(set(marks))) == 2:
        for zero, one in (kinds, kinds[::-1]):
            yield _decode_bits(marks.translate({ord(zero): "0", ord(one): "1"}), 8)
    if any(sign in text for sign in "⠁⠊⠑⠕⠞"):
        yield "".join(_BRAILLE.get(each, each) for each in text)


def _unescaped(text: str) -> Iterator[str]:
    if "&" in text and (unescaped := html.unescape(text)) != text:
        yield unescaped
    if "%" in text and (unquoted := unquote(text)) != text:
        yield unquoted
        yield unquoted.replace("+", " ")
    if "\\" in text or "U+" in text or "%u" in text:
        yield _ESCAPED.sub(_character, text)
    if "=" in text and _QUOTED.search(text):
        yield from _bytes(_quoted, text)


def _from_codes(text: str) -> Iterator[str]:
    for blob in _BINARY.findall(text):
        bits = re.sub(r"[ ,]", "", blob)
        yield from (_decode_bits(bits, size) for size in (8, 7))
    for blob in _DECIMAL.findall(text):
        for base in (10, 8):
            codes = [_number(each, base) for each in re.split(r"[ ,;]+", blob)]
            if all(32 <= code < 127 for code in codes):
                yield "".join(map(chr, codes))
    if _LETTER_NUMBERS.search(text):
        yield _LETTER_NUMBERS.sub(_letters, text)
    for blob in _MORSE.findall(text):
        yield _from_morse(blob)


def _from_morse(blob: str) -> str:
    signs = re.sub("[\u00b7\u2022]", ".", re.sub("[_\u2212\u2013\u2014]", "-", blob))
    words = re.split(r" ?[/|] ?| {3,}", signs)
    return " ".join("".join(_MORSE_LETTERS.get(letter, "") for letter in word.split()) for word in words)


def _quoted(text: str) -> bytes:
    return quopri.decodestring(text.encode())


def _translated(word: re.Match[str], letters: dict[int, int]) -> str:
    return word.group().translate(letters)


def _letters(found: re.Match[str]) -> str:
    numbers = [int(each) for each in found.group().split("-")]
    return "".join(chr(96 + each) for each in numbers) if all(0 < each <= 26 for each in numbers) else found.group()


def _number(digits: str, base: int) -> int:
    try:
        return int(digits, base)
    except ValueError:
        return -1


def _decode_bits(bits: str, size: int) -> str:
    codes = [int(bits[start : start + size], 2) for start in range(0, len(bits) - size + 1, size)]
    return bytes(codes).decode(errors="replace")


def _character(found: re.Match[str]) -> str:
    two, four, eight, point, octal = found.groups()
    code = int(octal, 8) if octal else int(two or four or eight or point, 16)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"


def _bridge(found: re.Match[str]) -> str:
    return " " if found.group().startswith("/*") else ""


def _base64(blob: str) -> Iterator[str]:
    plain = blob.rstrip("=").replace("-", "+").replace("_", "/")
    for start in range(4 if len(plain) <= 4_096 else 1):  # a word may directly precede it
        part = plain[start:]
        part = part[: len(part) - (len(part) % 4 == 1)]
        yield from _bytes(base64.b64decode, part + "=" * (-len(part) % 4))


def _bytes(decode: Callable[[str], bytes], text: str) -> Iterator[str]:
    """Decoded bytes as text, in UTF-8 or else UTF-16; nothing if they are neither."""
    try:
        data = decode(text)
    except (binascii.Error, ValueError):
        return
    for encoding in ("utf-8", "utf-16-le"):
        try:
            decoded = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if decoded.count("\x00") * 4 <= len(decoded):
            yield decoded
            return


@cache
def _homoglyph_table() -> dict[int, int]:
    """Also small capitals, and letters in squares, circles and flags, which NFKC leaves as they are."""
    found = dict(_HOMOGLYPHS)
    for first, last in ((0x1D00, 0x1D25), (0x0262, 0x02A0), (0x1F130, 0x1F18A), (0x1F1E6, 0x1F200), (0xA730, 0xA732)):
        for code in range(first, last):
            name = unicodedata.name(chr(code), "")
            if ("SMALL CAPITAL" in name or "LATIN CAPITAL" in name or "REGIONAL" in name) and name[-2:-1] == " ":
                found[code] = ord(name[-1].lower())
    return found


@cache
def _shifts() -> tuple[tuple[tuple[str, ...], dict[int, int]], ...]:
    letters = string.ascii_lowercase
    turned = [letters[shift:] + letters[:shift] for shift in range(1, 26)] + [letters[::-1]]
    return tuple(
        (tuple(trace.translate(str.maketrans(letters, other)) for trace in _TRACES), str.maketrans(other, letters))
        for other in turned
    )
