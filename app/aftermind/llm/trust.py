"""Text that tries to give instructions: kept as an episode, marked, and never a fact."""

import re
from collections.abc import Iterator, Mapping, Sequence

from aftermind.llm.disguises import decoded_readings, plain_readings, visible
from aftermind.types import Json, Role

__all__ = ["INSTRUCTION", "may_become_fact", "suspicion", "visible"]

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
    r"(?:everything|anything|all|whatever)\b[^.!?\n]{0,20}\b(?:above|before|told|earlier|previous)|"
    r"what you (?:were|have been) told)|"
    r"\b(?:update|change|modify|rewrite|overwrite|reset) your\b[^.!?\n]{0,20}"
    r"\b(?:instruct|rule|polic|prompt|memor|goal)|"
    r"\byour (?:goal|task|purpose|mission|objective) (?:has changed|is now)\b|"
    r"\b(?:ignorier\w*|vergiss|missachte\w*)\b[^.!?\n]{0,40}\b(?:anweisung|regel|vorgabe)|"
    r"\b(?:ignor[ae]\w*|olvida\w*|oublie\w*|dimentica)\b[^.!?\n]{0,40}\b(?:instruc|istruz|reglas|règles|consignes)",
    re.IGNORECASE,
)
# Elements of the block that recall renders, and of tool calls.
_OURS = r"facts?|turn|episodes|trait|block|summar(?:y|ies)|profile|tool_(?:call|result)|function_calls|invoke"
_SPOOF = re.compile(
    r"(?:^|\n|:\s)\s*(?:\[?\s*(?:system|assistant|developer)\s*\]?\s*:|##+\s*(?:system|instruction))|"
    r"\[(?:system|assistant|developer)\]|<<\s*/?sys\s*>>|```\s*system\b|\b(?:begin|end) system (?:prompt|message)|"
    r"(?:^|\n)\s*\w+ \((?:admin|system|root|developer)\)\s*:|"
    r"\"role\"\s*:\s*\"(?:system|assistant|developer|tool)\"|\"predicate\"\s*:|"
    rf"<\s*/?\s*(?:system|assistant|instructions?|memory[\w-]*|{_OURS})(?:\s[^>\n]{{0,80}})?/?>|"
    r"<\|[\w ]+\|>|\[/?INST\]|"
    r"\bsystem (?:override|message|prompt|instructions?|directive|command|notice)\s*:",
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
    r"(?:(?:system|hidden|initial|secret) (?:prompt|instructions)|your (?:\w+ )?instructions|"
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
    rf"{_BEGINS}never (?:answer|respond|reply|mention)\b|"
    r"\bthe (?:assistant|agent|model|ai) (?:must|shall|should|will) (?:always|never)\b|"
    r"\b(?:respond|reply|answer)\b[^.!?\n]{0,30}\bfrom (?:here|now) on\b|"
    r"\b(?:treat|consider|regard)\b[^.!?\n]{0,50}\bas (?:coming from|approved|trusted|verified|authori[sz]ed)\b|"
    r"\bdo(?:n't| not) tell the user\b|\bkeep (?:this|these) (?:instruction|message|prompt)s? (?:secret|hidden)\b|"
    rf"{_BEGINS}do (?:whatever|everything|anything) \w+ (?:asks|says|wants|tells)\b",
    re.IGNORECASE,
)
# Orders that wait for an occasion, and texts that speak to whoever reads them by machine.
_READER = r"(?:ais?|assistants?|agents?|(?:language )?models?|llms?|bots?|chatbots?)"
_TRIGGER = re.compile(
    r"\b(?:whenever I say|if any(?:one|body) asks|when(?:ever)? the user|"
    r"before (?:each|every) (?:answer|reply|message)|"
    r"(?:in|for) (?:every|all|each) (?:future )?(?:conversation|session|answer|reply|message)s?)\b|"
    rf"\b(?:note|message|instructions?|attention|p\.?\s?s\.?)\s+(?:to|for)\s+(?:the |any |all )?(?:{_READER}|memory)\b|"
    rf"\bto the {_READER}\b[^.!?\n]{{0,20}}\b(?:reading|processing)\b|\b{_READER},? when (?:you|it|they) reads? this\b",
    re.IGNORECASE,
)
# Standing towards the assistant, which nobody gets by saying so. What people are elsewhere is let through.
_STANDING = re.compile(
    r"\b(?:the|this) user (?:is|has|was|may|can|must|should|proved|owns)\b|"
    r"\bI(?:'m| am)\b[^.!?\n]{0,20}\b(?:admin(?:istrator)?|developer|owner|creator|root|superuser)\b[^.!?\n]{0,15}"
    r"\b(?:of|in|on) (?:this|the) (?:system|chat|account|server|assistant|service|bot)\b|"
    r"\bI(?:'m| am) your (?:developer|creator|owner|admin(?:istrator)?|maker)\b|"
    r"\bcompany that (?:made|built|trained) you\b|"
    r"\b(?:admin|root|elevated|superuser)\w* (?:rights?|privileges?|access|permissions?)\b"
    r"[^.!?\n]{0,12}\b(?:this|your) |"
    r"\byou (?:have |had )?(?:earlier |already )?(?:promised|agreed|confirmed|approved|verified|granted)\b|"
    r"\bthe (?:assistant|system) (?:has |had )?(?:promised|granted|approved|verified|confirmed|authori[sz]ed)\b|"
    r"\bmy (?:identity|account|requests?)\b[^.!?\n]{0,25}"
    r"\b(?:verified|pre-?approved|approved|authori[sz]ed|unlimited)\b|"
    r"\bapproved by your\b|\ball my requests are\b|\b(?:given|gives?) you permission\b|"
    r"\b(?:skip|without) (?:the |any |all |my )?(?:verification|confirmation|security checks?|approval)\b|"
    r"\bneeds? no (?:password|proof|verification|confirmation)\b|\bchecks (?:are|have been) (?:disabled|off)\b|"
    r"\bmy (?:clearance|permission level|access level|privilege level) is\b|\bmy role is (?:super|root|admin|system)|"
    r"\byou (?:may|can) (?:trust me|share|disclose|reveal)\b|\bthe (?:policy|rules) allows? me\b|"
    r"\baccounts? of (?:all others|[\w.+-]+@)",
    re.IGNORECASE,
)
# Each family with word stems of which every match of it has one: the pattern is tried around those alone, because this
# is read for every message that is stored (0.1 to 0.3 ms for a chat turn on a busy core).
_FAMILIES: Mapping[str, tuple[re.Pattern[str], tuple[str, ...]]] = {
    "override": (
        _OVERRIDE,
        (
            *("ignor", "disregard", "forget", "override", "bypass", "follow"),
            *("vergiss", "missachte", "olvida", "oublie", "dimentica"),
            *("date your", "change your", "modify your", "write your", "reset your", "has changed", "is now"),
        ),
    ),
    "role spoofing": (
        _SPOOF,
        ("system", "assistant", "developer", "instruct", "memory", "inst]", "<", "(admin", "(root", '":', '" :', "#"),
    ),
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
            *("you must", "you should", "you will", "you shall", "always", "never", "here on", "now on", "treat"),
            *("consider", "regard", "the user", "secret", "hidden", "do whatever", "do everything", "do anything"),
        ),
    ),
    "order that waits": (
        _TRIGGER,
        (
            *("whenever i say", "if any", "when the user", "whenever the user", "before each", "before every"),
            *("conversation", "session", "answer", "reply", "message", " ai", "agent", "model", "llm", "bot", "memory"),
            "assistant",
        ),
    ),
    "claimed standing": (
        _STANDING,
        (
            *(
                "user ",
                "admin",
                "developer",
                "owner",
                "creator",
                "root",
                "superuser",
                "elevated",
                "maker",
                "company that",
            ),
            *("promised", "agreed", "confirmed", "approved", "verified", "granted", "authori", "unlimited", "approval"),
            *("my requests", "permission", "verification", "confirmation", "security check", "password", "proof"),
            *("checks ", "clearance", "level is", "role is", "trust me", "disclose", "reveal", "share", "allow"),
            *("account of", "accounts of"),
        ),
    ),
}
_BEFORE, _AFTER = 120, 160  # characters around a stem: more than any pattern spans
_LOOKS = 50  # at stems of one family: a text of 256 KB of nothing else takes 25 ms


def suspicion(text: str) -> str | None:
    """Why the text is taken for an attempt to give instructions, or None.

    Read as a person sees it, and as it reads once what hides it is taken away or decoded (see `disguises`).
    """
    for plain in plain_readings(text):
        if (family := _family(plain)) is not None:
            return f"{INSTRUCTION}: {family}"
    if any(_family(reading) is not None for coded in decoded_readings(text) for reading in plain_readings(coded)):
        return f"{INSTRUCTION}: encoded"
    return None


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
    """Where to look: around each stem, those that overlap as one, so that no part of the text is read twice."""
    start, end = 0, -1
    for at in sorted(at for stem in stems for at in _places(text, stem)):
        if at - _BEFORE > end:
            if end >= 0:
                yield start, end
            start = max(0, at - _BEFORE)
        end = at + _AFTER
    if end >= 0:
        yield start, end


def _places(text: str, stem: str) -> Iterator[int]:
    at = text.find(stem)
    for _ in range(_LOOKS):
        if at < 0:
            break
        yield at
        at = text.find(stem, at + len(stem))
