"""Text that tries to give instructions: kept as an episode, marked, and never a fact."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from aftermind.llm.injection import phrases
from aftermind.llm.injection.deobfuscate import (
    Allowance,
    TooMuchText,
    decoded_readings,
    latin_reading,
    plain_readings,
    visible,
)
from aftermind.types import Episode, EpisodeId, Json, Role

__all__ = [
    "INSTRUCTION",
    "UNCHECKED",
    "label",
    "mark_turns",
    "marked",
    "marks",
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

# Families of OWASP LLM01 (prompt injection): override, role spoofing, exfiltration, orders to memory, hidden text. A
# wrongly flagged turn is never used for extraction, so statements of users about themselves ("I ignore the rules") are
# accepted.
_ABOUT_ONESELF = (
    r"(?<!\bi )(?<!\bwe )(?<!they )(?<!\bhe )(?<!she )(?<!had to )(?<!used to )(?<!tend to )(?<!have to )(?<!me to )"
)
_BEGINS = r"(?:^|[.!?:;,\n(\"'>-]\s{0,8}|\b(?:please|now|and|then|must|should|will|shall)\s+)"
_RULES = r"(?:instruction|prompt|rule|guideline|direction|command|polic|restriction)"

_OF_A_GAME = (
    r"s? (?:of|about|for) (?:chess|poker|golf|football|soccer|tennis|monopoly|scrabble|grammar|spelling|physics|"
    r"the (?:game|road|house|airline|school|gym|library|club|pool)|my (?:diet|school|parents|landlord|doctor))\b"
)
_NOT_TO_FORGET = r"(?<!don't )(?<!do not )(?<!never )(?<!won't )(?<!let's )"
_OVERRIDE = re.compile(
    rf"{_ABOUT_ONESELF}\b(?:ignore|disregard|{_NOT_TO_FORGET}forget|override|bypass|"
    r"(?:do not|don't|stop) follow(?:ing)?)\b"
    r"[^.!?\n]{0,40}\b"
    rf"(?:(?:previous|prior|above|earlier|all|any|your|the|these|those|my|les|tes|vos)\b[^.!?\n]{{0,30}}\b{_RULES}(?!{_OF_A_GAME})|"
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
_COMPUTER = (
    r"[^\n]{0,60}\b(?:windows|linux|mac ?os|os x|ubuntu|debian|fedora|arch linux|android|ios|macbook|chromebook|"
    r"play ?station|ps[345]|xbox|nintendo|steam deck|\d+ ?[gmt]b|[\d.]+ ?ghz)\b"
)
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
_LIFE = (
    r" (?:(?:proud|new|happy|official|certified) )?(?:mother|father|mom|mum|dad|parent|aunt|uncle|grand\w+|husband|"
    r"wife|graduate|homeowner|owner of (?:a|an|the) (?:dog|cat|house|car|home)|teenager|adult|citizen|godmother|"
    r"godfather)\b"
)
_NEW_ROLE = re.compile(
    rf"\byou are now (?:a|an|the|in|dan|root|admin|free|un\w+|no longer)\b(?!{_LIFE})|"
    r"\bfrom (?:now on|this (?:point|moment)(?: on| forward)?),? you\b"
    r"(?! (?:and (?:i|me)\b|are my (?:best )?(?:friend|hero|partner)|can (?:call|text|visit) me))|"
    rf"{_BEGINS}(?:act as(?! if\b)|pretend (?:to be|you are)(?! (?:on|at|asleep|sitting|floating|busy|happy)\b)|"
    r"role-?play as)\b|"
    r"\bnew system (?:instruction|persona|rule|prompt|polic)|\bnew instructions?\s*:|"
    r"\b(?:your|here are|these are)(?: \w+)? new (?:instructions|rules|persona)\b|"
    r"\b(?:enter|enable|activate) (?:developer|admin|debug|jailbreak|dan|god) mode",
    re.IGNORECASE,
)
_EXFILTRATE = re.compile(
    r"(?<!i'll )(?<!i will )(?<!we'll )(?<!we will )\b(?:send|post|forward|upload|leak|exfiltrate|email|transmit)\b"
    r"[^\n]{0,80}\bto\s+"
    r"(?:https?://|ftp://|[\w.+-]+@[\w-]+\.\w+)|"
    r"\b(?:append|include|embed|render|add|send)\b[^\n]{0,60}!\[",
    re.IGNORECASE,
)
_REVEAL = re.compile(
    rf"{_ABOUT_ONESELF}\b(?:reveal|show|print|repeat|output|disclose|leak|tell)\b[^.!?\n]{{0,40}}\b"
    r"(?:(?:system|hidden|initial|secret) (?:prompt|instructions)|your (?:\w+ )?instructions|"
    r"(?:the|your|all|any) (?:api[ _-]?keys?|passwords?|secrets|secret keys?|credentials|access tokens?)\b"
    r"(?! (?:for|to|of) (?:(?:the|your|my) )?(?:wi-?fi|house|netflix|router|guest network|gate|garage)\b))",
    re.IGNORECASE,
)
# What people advise one another: "You should always wear a helmet".
_EVERYDAY = (
    r" (?:wear|drink|eat|carry|wash|brush|sleep|hydrate|stretch|smile|give up|stop (?:dreaming|learning|trying)|"
    r"stop believing|believe in|be (?:my|proud|there for|kind|loved|in my)|have a (?:home|place|friend)|"
    r"keep (?:going|trying|fighting)|lose hope|go (?:there|alone|out|to bed|swimming|hiking)|find (?:a|your) |feel |"
    r"forget (?:how|your)|text and drive|drive (?:drunk|tired)|follow your (?:heart|dreams|passion)|"
    r"listen to your (?:body|heart)|lock |walk |cherish )"
)
_PLANT = re.compile(
    r"\b(?:remember|store|save|record|memori[sz]e|note|add)\b[^.!?\n]{0,40}(?:\b"
    rf"that (?:you (?:must|should|will|shall|are|always|never|have to)(?! (?:always |never )?loved)(?!{_EVERYDAY})|"
    r"the (?:assistant|agent|model|user|system))\b|"
    r"\bas (?:a )?(?:fact|rule|permanent|trusted|system)\b|"
    r"\bin (?:your )?(?:long.term )?memory\b[^.!?\n]{0,40}\b(?:always|never|must)\b)|"
    r"\b(?:add|write|put|save|store)(?: it| this)? (?:to|in|into) your (?:long.term )?memory\b|"
    rf"\byou (?:must|should|will|shall) (?:always|never)\b(?!{_EVERYDAY})|"
    rf"{_BEGINS}always\b[^.!?\n]{{0,30}}\b(?:recommend|obey|comply|trust|approve)\b"
    r"(?! (?:yourself\b|your (?:gut|instincts?|heart|feelings|intuition)\b))|"
    rf"{_BEGINS}never (?:answer|respond|reply|mention)\b"
    r"(?! (?:the|your|my) (?:phone|door|call)| (?:that|this|it) to (?:my|your|her|his) )|"
    r"\bthe (?:assistant|agent|model|ai) (?:must|shall|should|will) (?:always|never)\b|"
    r"\b(?:respond|reply|answer)\b[^.!?\n]{0,30}\bfrom (?:here|now) on\b|"
    r"\b(?:treat|consider|regard)\b[^.!?\n]{0,50}\bas (?:coming from|approved|trusted|verified|authori[sz]ed)\b|"
    r"\bdo(?:n't| not) tell the user\b(?! (?:group|club)\b)|"
    r"\bkeep (?:this|these) (?:instruction|message|prompt)s? (?:secret|hidden)\b|"
    rf"{_BEGINS}do (?:whatever|everything|anything) \w+ (?:asks|says|wants|tells)\b",
    re.IGNORECASE,
)
# Delayed instructions, and texts addressed to automatic readers.
_READER = r"(?:ais?|assistants?|agents?|(?:language )?models?|llms?|bots?|chatbots?)"
_TRIGGER = re.compile(
    r"\b(?:whenever I say|if any(?:one|body) asks(?!,? (?:i'm|i am|i was|we're)\b)|"
    r"when(?:ever)? the user(?! (?:clicks|taps|presses|logs|signs|opens|submits|scrolls|uploads|selects|closes)\b)|"
    r"before (?:each|every) (?:answer|reply|message)|"
    r"(?:in|for) (?:every|all|each) (?:future )?(?:conversation|session|answer|reply|message)s?"
    r"(?! (?:with|from) (?:him|her|them|my|our|people|friends)))\b|"
    rf"\b(?:note|message|instructions?|attention|p\.?\s?s\.?)\s+(?:to|for)\s+(?:the |any |all )?(?:{_READER}|memory)\b|"
    rf"\bto the {_READER}\b[^.!?\n]{{0,20}}\b(?:reading|processing)\b|\b{_READER},? when (?:you|it|they) reads? this\b",
    re.IGNORECASE,
)
# Authority over the assistant, which a claim does not give. Other roles of people are accepted.
_CONFIDENTIAL = (
    r"(?:secrets?|passwords?|keys?|credentials?|prompts?|instructions?|confidential|internal|private|customers?|users?|"
    r"accounts?|records?|tokens?)"
)
_PLAN = (
    r" (?:me )?to (?:call|come|help|meet|join|visit|write|cook|bring|go|marry|play|wait|pay|be)\b|"
    r" (?:my|our|the) (?:booking|reservation|appointment|order|flight|tickets?|table|leave|vacation|holiday|delivery)\b"
)
_ON_SCREEN = (
    r" (?:redirected|shown|taken|logged|prompted|asked|notified|able to (?:log|see|click|edit)|"
    r"(?:to )?(?:log|sign|click|tap|enter|select|see|scroll|type|upload)\b)"
)
_STANDING = re.compile(
    rf"\b(?:the|this) user (?:is|has|was|may|can|must|should|proved|owns)\b(?!{_ON_SCREEN})|"
    r"\bI(?:'m| am)\b[^.!?\n]{0,20}\b(?:admin(?:istrator)?|developer|owner|creator|root|superuser)\b[^.!?\n]{0,15}"
    r"\b(?:of|in|on) (?:this|the) (?:system|chat|account|server|assistant|service|bot)\b|"
    r"\bI(?:'m| am) your (?:developer|creator|owner|admin(?:istrator)?|maker)\b|"
    r"\bcompany that (?:made|built|trained) you\b|"
    r"\b(?:admin|root|elevated|superuser)\w* (?:rights?|privileges?|access|permissions?)\b"
    r"[^.!?\n]{0,12}\b(?:this|your) (?!laptop|computer|pc|mac|phone|tablet|router)|"
    rf"\byou (?:have |had )?(?:earlier |already )?(?:promised|agreed|confirmed|approved|verified|granted)\b(?!{_PLAN})|"
    r"\bthe (?:assistant|system) (?:has |had )?(?:promised|granted|approved|verified|confirmed|authori[sz]ed)\b|"
    r"\bmy (?:identity|account|requests?)\b[^.!?\n]{0,25}"
    r"\b(?:verified|pre-?approved|approved|authori[sz]ed|unlimited)\b|"
    r"\bapproved by your\b|\ball my requests are\b|\b(?:given|gives?) you permission\b|"
    r"\b(?:skip|without) (?:the |any |all |my )?(?:verification|confirmation|security checks?|approval)\b|"
    r"\bneeds? no (?:password|proof|verification|confirmation)\b|\bchecks (?:are|have been) (?:disabled|off)\b|"
    r"\bmy (?:clearance|permission level|access level|privilege level) is\b|\bmy role is (?:super|root|admin|system)|"
    r"\byou (?:may|can) trust me\b(?! on (?:this|that)\b)|"
    r"\byou (?:may share|(?:may|can) (?:disclose|reveal))\b[^.!?\n]{0,40}"
    r"\b(?:with|to) (?:me|us|him|her|them|anyone|all)\b|"
    rf"\byou can share\b[^.!?\n]{{0,30}}\b{_CONFIDENTIAL}\b[^.!?\n]{{0,30}}\b(?:with|to) "
    r"(?:me|us|him|her|them|anyone|all)\b|"
    r"\bthe (?:policy|rules) allows? me\b|"
    r"\baccounts? of (?:all others|[\w.+-]+@)",
    re.IGNORECASE,
)
# The same instructions with any or no characters between their words.
_COMPACT = re.compile(
    r"(?:ignore|disregard|forget|override|bypass)(?:all|any|of|the|your|these|those|my|every){0,4}"
    r"(?:previous|prior|above|earlier|existing|former|preceding|system|safety|your)"
    r"(?:and|previous|prior|above|earlier|system|safety|given){0,3}(?:instruct|prompt|rule|guideline|direction|command)|"
    r"(?:reveal|show|print|output|repeat)(?:me|the|your|all|full|whole){0,3}systemprompt|"
    r"fromnowonyou(?:are|will|must|shall|answer|respond|reply|act|obey)(?!my(?:best)?friend)|"
    rf"youmust(?:always|never)(?!{_EVERYDAY.replace(' ', '')})"
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
# Stems that occur in every match of a family, in addition to those at its beginning.
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


def mark_turns(turns: Sequence[Sequence[Episode]]) -> dict[EpisodeId, str]:
    """The marks of several turns."""
    return {id_: why for turn in turns for id_, why in marks(turn).items()}


def marked(episode: Episode, found: Mapping[EpisodeId, str]) -> Episode:
    """The episode with its mark, where it has one and is not marked already."""
    why = None if episode.mark is not None else found.get(episode.id)
    return episode if why is None else replace(episode, mark=why)


@lru_cache(maxsize=4_096)
def label(text: str) -> str:
    """A name as shown in a prompt: one line, limited length, and `(withheld)` if it resembles an instruction."""
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
    latin = latin_reading(text)  # phrases are compared without accents, except those that distinguish tenses
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
    """Windows around each stem; overlapping ones are joined, so that no part of the text is read twice."""
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
