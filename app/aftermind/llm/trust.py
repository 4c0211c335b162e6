"""Text that tries to give instructions: kept as an episode, marked, and never a fact."""

import base64
import binascii
import re
import unicodedata

from aftermind.types import Json, Role

INSTRUCTION = "instruction-like"

# Families of OWASP LLM01 (prompt injection): override, role spoofing, exfiltration, orders to memory, hidden text.
_OVERRIDE = re.compile(
    r"\b(ignore|disregard|forget|override|bypass|skip)\b[^.!?\n]{0,40}\b(previous|prior|above|earlier|all|any|your|the|"
    r"these|those|my)\b[^.!?\n]{0,30}\b(instruction|prompt|rule|guideline|direction|command|polic|restriction|message)",
    re.IGNORECASE,
)
_SPOOF = re.compile(
    r"(^|\n)\s*(\[?\s*(system|assistant|developer)\s*\]?\s*:|<\s*/?\s*(system|assistant|instructions?|memory[\w-]*)\s*>|"
    r"<\|[\w ]+\|>|###\s*(system|instruction)|\[/?INST\])",
    re.IGNORECASE,
)
_NEW_ROLE = re.compile(
    r"\b(you are now|from now on,? you|act as|pretend (to be|you are)|new (system )?(instruction|persona|rule)s?\b|"
    r"(enter|enable|activate) (developer|admin|debug|jailbreak|dan|god) mode)",
    re.IGNORECASE,
)
_EXFILTRATE = re.compile(
    r"\b(send|post|forward|upload|leak|exfiltrate|email|append|include|embed|transmit)\b[^\n]{0,80}"
    r"(https?://|ftp://|\bto\s+[\w.+-]+@[\w-]+\.\w+|!\[)",
    re.IGNORECASE,
)
_REVEAL = re.compile(
    r"\b(reveal|show|print|repeat|output|disclose|tell)\b[^.!?\n]{0,40}\b(system prompt|hidden prompt|instructions|"
    r"api key|password|secret|credential|token)s?\b",
    re.IGNORECASE,
)
_PLANT = re.compile(
    r"\b(remember|store|save|record|memori[sz]e|note|add)\b[^.!?\n]{0,40}\b"
    r"(that (you|the (assistant|agent|model|user))\b|as (a )?(fact|rule|permanent|trusted|system)|"
    r"in (your )?(long.term )?memory\b[^.!?\n]{0,40}\b(always|never|must))|"
    r"(^|[.!?:\n]\s*|\byou (must|should|will|shall) )(always|never)\b[^.!?\n]{0,30}\b"
    r"(recommend|obey|comply|trust|approve|answer|respond|reply)\b",
    re.IGNORECASE,
)
_FAMILIES = {
    "override": _OVERRIDE,
    "role spoofing": _SPOOF,
    "new role": _NEW_ROLE,
    "exfiltration": _EXFILTRATE,
    "disclosure": _REVEAL,
    "planted memory": _PLANT,
}

_HIDDEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e007f]")
_BLOB = re.compile(r"[A-Za-z0-9+/]{24,}={0,2}")


def suspicion(text: str) -> str | None:
    """Why the text is taken for an attempt to give instructions, or None.

    Looks at the text without its invisible characters and in compatibility form (NFKC), and into what is base64.
    """
    plain = visible(text)
    for family, pattern in _FAMILIES.items():
        if pattern.search(plain):
            return f"{INSTRUCTION}: {family}"
    for hidden in _decoded(plain):
        if any(pattern.search(hidden) for pattern in _FAMILIES.values()):
            return f"{INSTRUCTION}: encoded"
    return None


def visible(text: str) -> str:
    """The text as a person sees it: no zero-width or direction characters, look-alike forms made plain."""
    return unicodedata.normalize("NFKC", _HIDDEN.sub("", text))


def may_become_fact(role: Role, metadata: Json) -> bool:
    """Whether an episode may speak for the user: the user's own words, and tools that the caller marked trusted."""
    return role is Role.USER or (role is Role.TOOL and bool(metadata.get("trusted")))


def _decoded(text: str) -> list[str]:
    found = []
    for blob in _BLOB.findall(text)[:20]:
        try:
            found.append(base64.b64decode(blob + "=" * (-len(blob) % 4), validate=True).decode())
        except (binascii.Error, UnicodeDecodeError):
            continue
    return found
