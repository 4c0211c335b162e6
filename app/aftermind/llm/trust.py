"""Text that tries to give instructions: kept as an episode, marked, and never a fact."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from aftermind.llm import phrases
from aftermind.llm.disguises import Allowance, TooMuchText, decoded_readings, latin_reading, plain_readings, visible
from aftermind.types import Episode, EpisodeId, Json, Role

__all__ = [
    "INSTRUCTION",
    "UNCHECKED",
    "label",
    "marked",
    "marks",
    "marks_of",
    "may_become_fact",
    "strings",
    "suspicion",
    "visible",
]

INSTRUCTION = "instruction-like"
UNCHECKED = f"{INSTRUCTION}: not checked in time"
WITHHELD = "(withheld)"
MAX_LABEL_CHARACTERS = 100  # of a name in a prompt: of a speaker, a session, a block, a trait
SEAM_CHARACTERS = 200  # on each side of the border between two messages that are also read as one

# Families of OWASP LLM01 (prompt injection): override, role spoofing, exfiltration, orders to memory, hidden text.
# A turn that is wrongly flagged is never mined, so what people say of themselves ("I ignore the rules") is let through.
_ABOUT_ONESELF = (
    r"(?<!\bi )(?<!\bwe )(?<!they )(?<!\bhe )(?<!she )(?<!had to )(?<!used to )(?<!tend to )(?<!have to )(?<!me to )"
)
_BEGINS = r"(?:^|[.!?:;,\n(\"'>-]\s{0,8}|\b(?:please|now|and|then|must|should|will|shall)\s+)"
_RULES = r"(?:instruction|prompt|rule|guideline|direction|command|polic|restriction)"

_OVERRIDE = re.compile(
    rf"{_ABOUT_ONESELF}\b(?:ignore|disregard|forget|override|bypass|(?:do not|don't|stop) follow(?:ing)?)\b"
    r"[^.!?\n]{0,40}\b"
    rf"(?:(?:previous|prior|above|earlier|all|any|your|the|these|those|my|les|tes|vos)\b[^.!?\n]{{0,30}}\b{_RULES}|"
    r"(?:everything|anything|all|whatever)\b[^.!?\n]{0,20}\b(?:above|before|told|earlier|previous)|"
    r"what you (?:were|have been) told)|"
    r"\b(?:update|change|modify|rewrite|overwrite|reset) your\b[^.!?\n]{0,20}"
    r"\b(?:instruct|rule|polic|prompt|memor|goal)|"
    r"\byour (?:goal|task|purpose|mission|objective) (?:has changed|is now)\b",
    re.IGNORECASE,
)
# Elements of the block that recall renders, and of tool calls.
_OURS = r"facts?|turn|episodes|trait|block|summar(?:y|ies)|profile|tool_(?:call|result)|function_calls|invoke"
_ROLES_ABROAD = (
    "sistema|syst[eè]me|system|systeem|система|sistem|系统|系統|システム|시스템|النظام|نظام|सिस्टम|ระบบ|σύστημα"
)
# "System: Windows 11, 16 GB RAM" describes a computer.
_COMPUTER = r"[^\n]{0,60}\b(?:windows|linux|mac ?os|os x|ubuntu|debian|fedora|android|ios|\d+ ?[gmt]b|[\d.]+ ?ghz)\b"
_SPOOF = re.compile(
    rf"(?:^|\n|:\s)\s{{0,8}}(?:\[?\s{{0,8}}(?:system|assistant|developer|{_ROLES_ABROAD})\s{{0,8}}\]?\s{{0,8}}:(?!{_COMPUTER})|"
    r"##+\s*(?:system|instruction))|"
    r"\[(?:system|assistant|developer)\]|<<\s*/?sys\s*>>|```\s*system\b|\b(?:begin|end) system (?:prompt|message)|"
    r"(?:^|\n)\w+ \((?:admin|system|root|developer)\)\s*:|"
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
    r"\byou (?:may|can) trust me\b|"
    r"\byou (?:may|can) (?:share|disclose|reveal)\b[^.!?\n]{0,40}\b(?:with|to) (?:me|us|him|her|them|anyone|all)\b|"
    r"\bthe (?:policy|rules) allows? me\b|"
    r"\baccounts? of (?:all others|[\w.+-]+@)",
    re.IGNORECASE,
)
# The same orders with anything or nothing between their words.
_COMPACT = re.compile(
    r"(?:ignore|disregard|forget|override|bypass)(?:all|any|of|the|your|these|those|my|every){0,4}"
    r"(?:previous|prior|above|earlier|existing|former|preceding|system|safety|your)"
    r"(?:and|previous|prior|above|earlier|system|safety|given){0,3}(?:instruct|prompt|rule|guideline|direction|command)|"
    r"(?:reveal|show|print|output|repeat)(?:me|the|your|all|full|whole){0,3}systemprompt|"
    r"fromnowonyou(?:are|will|must|shall|answer|respond|reply|act|obey)|youmust(?:always|never)"
)
_COMPACT_TRACES = ("ignore", "disregard", "forget", "override", "bypass", "systemprompt", "fromnowon", "youmust")
_GAPS = re.compile(r"[\W_]+")
# Each family with word stems of which every match of it has one: the pattern is tried around those alone, because this
# is read for every message that is stored.
_FAMILIES: Mapping[str, tuple[re.Pattern[str], tuple[str, ...]]] = {
    "override": (
        _OVERRIDE,
        (
            *("ignor", "disregard", "forget", "override", "bypass", "follow"),
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
            *("conversation", "session", "answer", "reply", "message", "agent", "model", "llm", "bot", "memory"),
            *("assistant", " ai", "\nai", "ai,", "(ai", "ais"),
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
# Stems of which every match of a family has one too, beside those that it begins with.
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "override": (
        *("instruct", "prompt", "rule", "guideline", "direction", "command", "polic", "restriction", "memor", "goal"),
        *("above", "before", "told", "earlier", "previous", "has changed", "is now"),
    )
}
_BEFORE, _AFTER = 120, 160  # characters around a stem: more than any pattern spans


def suspicion(text: str) -> str | None:
    """Why the text is taken for an attempt to give instructions, or None.

    Read as a person sees it, and as it reads once what hides it is taken away or decoded (see `disguises`).
    """
    try:
        return _suspicion(text, Allowance(text))
    except TooMuchText:
        return f"{INSTRUCTION}: too much to be checked"


def marks(episodes: Sequence[Episode]) -> dict[EpisodeId, str]:
    """Why episodes of one turn are taken for attempts to give instructions, by id; the others are left out.

    A speaker's name counts like the text, and so do the border of two messages of one speaker, read as one.
    """
    found: dict[EpisodeId, str] = {}
    for episode in episodes:
        why = suspicion(episode.content)
        if why is None and episode.name and (in_name := suspicion(episode.name)):
            why = f"{in_name} in the name"
        if why is not None:
            found[episode.id] = why
    for first, second in pairwise(episodes):
        if first.role is second.role and first.name == second.name and not {first.id, second.id} & found.keys():
            seam = f"{first.content[-SEAM_CHARACTERS:]} {second.content[:SEAM_CHARACTERS]}"
            if (why := suspicion(seam)) is not None:
                found[first.id] = found[second.id] = f"{why}, over two messages"
    return found


def marks_of(turns: Sequence[Sequence[Episode]]) -> dict[EpisodeId, str]:
    """The marks of several turns."""
    return {id_: why for turn in turns for id_, why in marks(turn).items()}


def marked(episode: Episode, found: Mapping[EpisodeId, str]) -> Episode:
    """The episode with its mark, where it has one and is not marked already."""
    why = None if episode.mark is not None else found.get(episode.id)
    return episode if why is None else replace(episode, mark=why)


@lru_cache(maxsize=4_096)
def label(text: str) -> str:
    """A name as a prompt shows it: one line, not long, and `(withheld)` where it looks like an instruction."""
    line = " ".join(text.split())
    if suspicion(text) is not None:
        return WITHHELD
    return line if len(line) <= MAX_LABEL_CHARACTERS else f"{line[:MAX_LABEL_CHARACTERS]}\N{HORIZONTAL ELLIPSIS}"


def strings(value: Json) -> Iterator[str]:
    """Every text of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield str(key)
            yield from strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from strings(each)


def may_become_fact(role: Role, metadata: Json) -> bool:
    """Whether an episode may speak for the user: the user's own words, and tools that the caller marked trusted."""
    return role is Role.USER or (role is Role.TOOL and bool(metadata.get("trusted")))


def _suspicion(text: str, allowance: Allowance) -> str | None:
    if (family := _read(text, allowance)) is not None:
        return f"{INSTRUCTION}: {family}"
    for decoded in decoded_readings(text):
        if _read(decoded, allowance) is not None:
            return f"{INSTRUCTION}: encoded"
        if any(_read(twice, allowance) is not None for twice in decoded_readings(decoded)):
            return f"{INSTRUCTION}: encoded"
    return None


def _read(text: str, allowance: Allowance) -> str | None:
    for plain in plain_readings(text):
        if found := _family(allowance.spend(plain)) or phrases.family(plain):
            return found
    latin = latin_reading(text)  # phrases are compared without accents anyway, but for those that tell tenses apart
    return None if latin is None else _family(allowance.spend(latin))


def _family(text: str) -> str | None:
    lowered = text.lower()
    for family, (pattern, stems) in _FAMILIES.items():
        needed = _NEEDED.get(family, ("",))
        for start, end in _windows(lowered, stems):
            if any(lowered.find(stem, start, end) >= 0 for stem in needed) and pattern.search(lowered, start, end):
                return family
    compact = _GAPS.sub("", lowered)
    if any(trace in compact for trace in _COMPACT_TRACES) and _COMPACT.search(compact):
        return "override"
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
    while at >= 0:
        yield at
        at = text.find(stem, at + len(stem))
