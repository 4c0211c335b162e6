"""Text that tries to give instructions: kept as an episode, marked, and never a fact."""

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from aftermind.types import Json, Role

INSTRUCTION = "instruction-like"

# Families of OWASP LLM01 (prompt injection): override, role spoofing, exfiltration, orders to memory, hidden text.
# A turn that is wrongly flagged is never mined, so what people say of themselves ("I ignore the rules") is let through.
_ABOUT_ONESELF = (
    r"(?<!\bi )(?<!\bwe )(?<!they )(?<!\bhe )(?<!she )(?<!had to )(?<!used to )(?<!tend to )(?<!have to )(?<!me to )"
)
_BEGINS = r"(?:^|[.!?:;,\n(\"'>-]\s*|\b(?:please|now|and|then|must|should|will|shall)\s+)"
_RULES = r"(?:instruction|prompt|rule|guideline|direction|command|polic|restriction)"

_OVERRIDE = re.compile(
    rf"{_ABOUT_ONESELF}\b(?:ignore|disregard|forget|override|bypass|(?:do not|don't|stop) follow(?:ing)?)\b"
    r"[^.!?\n]{0,40}\b"
    rf"(?:(?:previous|prior|above|earlier|all|any|your|the|these|those|my|les|tes|vos)\b[^.!?\n]{{0,30}}\b{_RULES}|"
    r"(?:everything|anything|all|whatever)\b[^.!?\n]{0,20}\b(?:above|before|told|earlier|previous))|"
    r"\b(?:ignorier\w*|vergiss|missachte\w*)\b[^.!?\n]{0,40}\b(?:anweisung|regel|vorgabe)|"
    r"\b(?:ignor[ae]\w*|olvida\w*|oublie\w*|dimentica)\b[^.!?\n]{0,40}\b(?:instruc|istruz|reglas|règles|consignes)",
    re.IGNORECASE,
)
_SPOOF = re.compile(
    r"(?:^|\n)\s*(?:\[?\s*(?:system|assistant|developer)\s*\]?\s*:|###\s*(?:system|instruction))|"
    r"<\s*/?\s*(?:system|assistant|instructions?|memory[\w-]*)\s*>|<\|[\w ]+\|>|\[/?INST\]|"
    r"\bsystem (?:override|message|prompt|instructions?)\s*:",
    re.IGNORECASE,
)
_NEW_ROLE = re.compile(
    r"\byou are now (?:a|an|the|in|dan|root|admin|free|un\w+|no longer)\b|"
    r"\bfrom (?:now on|this (?:point|moment)(?: on| forward)?),? you\b|"
    rf"{_BEGINS}(?:act as|pretend (?:to be|you are)|role-?play as)\b|"
    r"\bnew system (?:instruction|persona|rule|prompt|polic)|\bnew instructions?\s*:|"
    r"\b(?:your|here are|these are)(?: \w+)? new (?:instructions|rules|persona)\b|"
    r"\b(?:enter|enable|activate) (?:developer|admin|debug|jailbreak|dan|god) mode",
    re.IGNORECASE,
)
_EXFILTRATE = re.compile(
    r"\b(?:send|post|forward|upload|leak|exfiltrate|email|transmit)\b[^\n]{0,80}\bto\s+"
    r"(?:https?://|ftp://|[\w.+-]+@[\w-]+\.\w+)|"
    r"\b(?:append|include|embed|render|add|send)\b[^\n]{0,60}!\[",
    re.IGNORECASE,
)
_REVEAL = re.compile(
    rf"{_ABOUT_ONESELF}\b(?:reveal|show|print|repeat|output|disclose|leak|tell)\b[^.!?\n]{{0,40}}\b"
    r"(?:(?:system|hidden|initial) prompt|your (?:\w+ )?instructions|"
    r"(?:the|your|all|any) (?:api[ _-]?keys?|passwords?|secrets|secret keys?|credentials|access tokens?)\b)",
    re.IGNORECASE,
)
_PLANT = re.compile(
    r"\b(?:remember|store|save|record|memori[sz]e|note|add)\b[^.!?\n]{0,40}(?:\b"
    r"that (?:you (?:must|should|will|shall|are|always|never|have to)|the (?:assistant|agent|model|user|system))\b|"
    r"\bas (?:a )?(?:fact|rule|permanent|trusted|system)\b|"
    r"\bin (?:your )?(?:long.term )?memory\b[^.!?\n]{0,40}\b(?:always|never|must)\b)|"
    r"\b(?:add|write|put|save|store)(?: it| this)? (?:to|in|into) your (?:long.term )?memory\b|"
    r"\byou (?:must|should|will|shall) (?:always|never)\b|"
    rf"{_BEGINS}always\b[^.!?\n]{{0,30}}\b(?:recommend|obey|comply|trust|approve)\b|"
    rf"{_BEGINS}never (?:answer|respond|reply|mention)\b",
    re.IGNORECASE,
)
# Each family with word stems of which every match of it has one: the pattern is tried around those alone, because this
# is read for every message that is stored (16 us for a chat turn, against 110 for the patterns themselves).
_FAMILIES: Mapping[str, tuple[re.Pattern[str], tuple[str, ...]]] = {
    "override": (
        _OVERRIDE,
        (
            *("ignor", "disregard", "forget", "override", "bypass", "follow"),
            *("vergiss", "missachte", "olvida", "oublie", "dimentica"),
        ),
    ),
    "role spoofing": (_SPOOF, ("system", "assistant", "developer", "instruct", "memory", "inst]", "<|")),
    "new role": (_NEW_ROLE, ("you are", "from now", "from this", "act as", "play as", "pretend", "new", " mode")),
    "exfiltration": (_EXFILTRATE, ("http", "ftp:", "@", "![")),
    "disclosure": (
        _REVEAL,
        ("prompt", "instruction", "key", "password", "secret", "credential", "access token"),
    ),
    "planted memory": (
        _PLANT,
        (
            *("that you", "that the", "as fact", "as a", "as rule", "as perm", "as trust", "as sys", "memory"),
            *("you must", "you should", "you will", "you shall", "always", "never"),
        ),
    ),
}
_BEFORE, _AFTER = 120, 160  # characters around a stem: more than any pattern spans
_LOOKS = 50  # at stems of one family: a text of 256 KB of nothing else takes 25 ms

_HIDDEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e007f]")
_SPACED = re.compile(r"(?<!\w)\w(?: \w){3,}(?!\w)")  # "i g n o r e"
_BLOB = re.compile(r"[A-Za-z0-9+/]{24,}={0,2}")


def suspicion(text: str) -> str | None:
    """Why the text is taken for an attempt to give instructions, or None.

    Looks at the text without its invisible characters and in compatibility form (NFKC), and into what is base64.
    """
    plain = _SPACED.sub(lambda found: found.group().replace(" ", ""), visible(text))
    if (family := _family(plain)) is not None:
        return f"{INSTRUCTION}: {family}"
    if any(_family(hidden) is not None for hidden in _decoded(plain)):
        return f"{INSTRUCTION}: encoded"
    return None


def visible(text: str) -> str:
    """The text as a person sees it: no zero-width or direction characters, look-alike forms made plain."""
    return unicodedata.normalize("NFKC", _HIDDEN.sub("", text))


def may_become_fact(role: Role, metadata: Json) -> bool:
    """Whether an episode may speak for the user: the user's own words, and tools that the caller marked trusted."""
    return role is Role.USER or (role is Role.TOOL and bool(metadata.get("trusted")))


def _family(text: str) -> str | None:
    lowered = text.lower()
    for family, (pattern, stems) in _FAMILIES.items():
        if any(pattern.search(lowered, *window) for window in _windows(lowered, stems)):
            return family
    return None


def _windows(text: str, stems: Sequence[str]) -> Iterator[tuple[int, int]]:
    for stem in stems:
        at = text.find(stem)
        for _ in range(_LOOKS):
            if at < 0:
                break
            yield max(0, at - _BEFORE), at + _AFTER
            at = text.find(stem, at + len(stem))


def _decoded(text: str) -> list[str]:
    found = []
    for blob in _BLOB.findall(text)[:20]:
        try:
            found.append(base64.b64decode(blob + "=" * (-len(blob) % 4), validate=True).decode())
        except (binascii.Error, UnicodeDecodeError):
            continue
    return found
