"""First-person statements by rule, in the same schema as a model's answer. It knows these forms and no others."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from aftermind.llm import text_process
from aftermind.llm.base import Extraction, ExtractionRequest, TurnText, Usage
from aftermind.llm.offline import dates
from aftermind.llm.trust import suspicion
from aftermind.types.claim import Claim, Operation

MAX_SENTENCE_CHARACTERS = 400  # what people say of themselves is shorter; patterns are not linear in a sentence
MAX_CLAIMS = 100  # of a turn, as of a model's answer

_WORD = r"[\w'.&+-]+"
_NAME = r"[A-Z][\w'.-]*(?:\s+(?:of|de|la|the|upon|am|der)?\s?[A-Z0-9][\w'.-]*){0,3}"  # Oslo, New York, Acme Corp
_NOT_TALK = r"(?!(?:to be|how|what|when|where|your|this|that)\b)"  # "I like how you explain it" is about the talk
_NAMES = rf"{_NAME}(?:(?:, (?:and )?| and ){_NAME})*"  # French, German and Dutch
_THING = rf"{_WORD}(?:\s+{_WORD}){{0,5}}?"
_STOP = (
    r"(?=\s*(?:[.,;!?]|$|\s(?:and|but|because|since|so|as|for|at|with|when|while|which|who|that|now|too|these days|"
    r"anymore|any more|again|a lot|very much|last|this|next|yesterday|today|from|until|till|in (?:19|20)\d\d)\b))"
)
_I = r"\bI(?:\s+(?:now|currently|also|really|still|just|recently|actually|mostly|usually))?\s+"
_IM = r"\b(?:I'?m|I am)(?:\s+(?:now|currently|also|really|still|just|actually))?\s+"
_IVE = r"\b(?:I'?ve|I have)(?:\s+(?:now|also|just|recently|always))?\s+"
_HAVE = r"\bI(?:'ve| have)?(?:\s+(?:just|recently))?\s+"
_KIN = {"wife": "spouse", "husband": "spouse", "son": "has_child", "daughter": "has_child", "partner": "has_partner"}
_KIN |= {"girlfriend": "has_partner", "boyfriend": "has_partner", "brother": "has_sibling", "sister": "has_sibling"}
_PETS = r"dog|cat|puppy|kitten|parrot|rabbit|hamster|horse|turtle|snake|goldfish|bird"


@dataclass(frozen=True, slots=True)
class Rule:
    """A form of words. Group `o` is the object; `p` names the predicate unless the form has a group for it."""

    pattern: re.Pattern[str]
    predicate: str
    ends: bool = False  # the words tell that it is over
    retracts: bool = False  # … or that it never was


def _rule(pattern: str, predicate: str, *, ends: bool = False, retracts: bool = False) -> Rule:
    return Rule(re.compile(pattern), predicate, ends, retracts)


# Endings and denials stand above the plain forms; the first rule that fits a place in a sentence takes it.
RULES: tuple[Rule, ...] = (
    _rule(rf"\bI\s+(?:no longer|don't)\s+live in (?P<o>{_NAME})", "lives_in", ends=True),
    _rule(rf"\bI\s+(?:moved away from|left) (?P<o>{_NAME}){_STOP}", "lives_in", ends=True),
    _rule(rf"\bI\s+(?:no longer|don't)\s+work (?:at|for) (?P<o>{_NAME})", "works_at", ends=True),
    _rule(rf"\bI\s+(?:quit|left) my job at (?P<o>{_NAME})", "works_at", ends=True),
    _rule(rf"\bI\s+never (?:lived|have lived) in (?P<o>{_NAME})", "lives_in", retracts=True),
    _rule(rf"\bI\s+(?:have )?never worked (?:at|for) (?P<o>{_NAME})", "works_at", retracts=True),
    _rule(rf"\bI\s+(?:don't|do not|no longer) (?:like|love|enjoy) (?P<o>{_THING}){_STOP}", "dislikes"),
    _rule(rf"\bI\s+can't stand (?P<o>{_THING}){_STOP}", "dislikes"),
    _rule(rf"{_IM}not allergic to (?P<o>{_THING}){_STOP}", "allergic_to", retracts=True),
    _rule(rf"\bI\s+lived in (?P<o>{_NAME})(?=[^.!?]* (?:from|until|till) )", "lives_in", ends=True),
    _rule(rf"\b(?:[Uu]ntil|[Tt]ill) [^.!?]{{1,20}} I lived in (?P<o>{_NAME})", "lives_in", ends=True),
    _rule(rf"\b(?:I|we)\s+used to live in (?P<o>{_NAME})", "lives_in", ends=True),
    _rule(rf"\b(?:I|we)\s+used to work (?:at|for) (?P<o>{_NAME})", "works_at", ends=True),
    _rule(rf"{_I}(?:live|reside) in (?P<o>{_NAME})", "lives_in"),
    _rule(rf"{_IM}(?:living|based) in (?P<o>{_NAME})", "lives_in"),
    _rule(rf"{_IVE}(?:been living|lived) in (?P<o>{_NAME})", "lives_in"),
    _rule(rf"{_HAVE}(?:moved|relocated)(?: back)? to (?P<o>{_NAME})", "lives_in"),
    _rule(rf"{_I}work (?:at|for) (?P<o>{_NAME})", "works_at"),
    _rule(rf"{_IM}working (?:at|for) (?P<o>{_NAME})", "works_at"),
    _rule(rf"{_HAVE}(?:started|joined)(?: (?:working )?(?:at|for))? (?P<o>{_NAME}){_STOP}", "works_at"),
    _rule(rf"{_I}work as an? (?P<o>{_THING}){_STOP}", "has_job"),
    _rule(rf"{_IM}an? (?P<o>(?:{_WORD} )?(?:engineer|teacher|nurse|doctor|lawyer|designer|developer|programmer|pilot|"
          r"chef|cook|writer|artist|musician|student|scientist|researcher|manager|accountant|architect|photographer|"
          r"journalist|dentist|plumber|electrician|farmer|counselor|therapist|analyst|consultant))\b", "has_job"),
    _rule(rf"\b[Mm]y name is (?P<o>{_NAME})", "name"),
    _rule(rf"\b(?:[Cc]all me|I'?m called) (?P<o>{_NAME})", "name"),
    _rule(rf"{_IM}(?P<o>\d{{1,3}})(?: years old| y\.?o\.?)", "age"),
    _rule(r"\bI (?:just )?turned (?P<o>\d{1,3})\b", "age"),
    _rule(rf"\b[Mm]y birthday is (?:on )?(?:the )?(?P<o>{_THING}){_STOP}", "birthday"),
    _rule(rf"\bI was born (?:on|in) (?P<o>{_THING}){_STOP}", "birthday"),
    _rule(rf"{_IM}allergic to (?P<o>{_THING}){_STOP}", "allergic_to"),
    _rule(rf"{_I}prefer (?P<o>{_THING}){_STOP}", "prefers"),
    _rule(rf"{_I}(?:hate|dislike|detest) (?P<o>{_THING}){_STOP}", "dislikes"),
    _rule(rf"{_I}(?:like|love|enjoy|adore) (?P<o>{_NOT_TALK}{_THING}){_STOP}", "likes"),
    _rule(rf"{_IM}(?:fond of|into|a (?:big |huge )?fan of) (?P<o>{_THING}){_STOP}", "likes"),
    _rule(rf"\b[Mm]y favou?rite (?P<p>\w+(?: \w+)?) (?:is|are) (?P<o>{_THING}){_STOP}", "favorite"),
    _rule(rf"\b[Mm]y (?P<kin>{'|'.join(_KIN)})(?:'s name is| is (?:called|named)|,) (?P<o>{_NAME})", "kin"),
    _rule(rf"\b[Mm]y (?:{_PETS})(?:'s name is| is (?:called|named)|,) (?P<o>{_NAME})", "has_pet"),
    _rule(rf"{_I}have an? (?:{_WORD} )?(?:{_PETS}) (?:called|named) (?P<o>{_NAME})", "has_pet"),
    _rule(rf"{_I}have (?P<o>(?:an?|one|two|three|four|five|\d) (?:{_WORD} )?(?:{_PETS})s?)\b", "has_pet"),
    _rule(rf"{_I}(?:got|have gotten) married to (?P<o>{_NAME})", "spouse"),
    _rule(rf"{_IM}(?:married) to (?P<o>{_NAME})", "spouse"),
    _rule(rf"{_IM}(?P<o>married|engaged|divorced|single|widowed)\b", "relationship_status"),
    _rule(rf"{_I}own (?P<o>an? {_THING}){_STOP}", "owns"),
    _rule(rf"\bI bought (?P<o>an? (?:new )?{_THING}){_STOP}", "owns"),
    _rule(rf"{_IM}(?:an? )?(?P<o>vegetarian|vegan|pescatarian)\b", "diet"),
    _rule(rf"{_I}speak (?P<o>{_NAMES})", "speaks"),
    _rule(rf"{_I}study (?P<o>{_THING}){_STOP}", "studies"),
    _rule(rf"{_IM}studying (?P<o>{_THING}){_STOP}", "studies"),
    _rule(rf"\bI (?:went to|visited|travell?ed to|was in) (?P<o>{_NAMES})", "visited"),
    _rule(rf"{_IM}planning to (?P<o>{_THING}){_STOP}", "plans"),
    _rule(rf"{_I}(?:plan|want|intend|hope) to (?P<o>{_THING}){_STOP}", "plans"),
    _rule(rf"{_I}play (?:the )?(?P<o>{_THING}){_STOP}", "plays"),
)  # fmt: skip

_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_QUOTED = re.compile(r"[\"“«][^\"”»\n]{0,300}[\"”»]|(?<!\w)'[^'\n]{3,300}'(?!\w)")
_UNREAL = re.compile(
    r"\b(if|wish|would|could|might|imagine|suppose|pretend|what if|unless|maybe|perhaps|dream(?:ed|t)? (?:that|of)|"
    r"asked|used to think)\b",
    re.IGNORECASE,
)
_REPORTED = re.compile(
    r"\b(?:he|she|they|[A-Z]\w+) (?:said|says|told me|claims?|thinks?)\b(?! (?:that )?he)", re.IGNORECASE
)


class RuleExtractor:
    """Claims by regular expressions over single sentences: few, sure, English, and called what they are."""

    name = "rules"
    version = "2"
    reads_turns_apart = True

    async def extract(self, request: ExtractionRequest) -> Extraction:
        """Claims of the trusted turns; nothing is asked of anybody, so it never fails."""
        turns = [turn for turn in request.turns if turn.trusted]
        claims = tuple([claim for turn in turns for claim in await claims_of_turn(turn)])
        reason = None if claims else "no first-person statement of a known form (rules, not a model)"
        return Extraction(claims=claims, reason_empty=reason, usage=Usage(model=f"{self.name}:{self.version}"))


async def claims_of_turn(turn: TurnText) -> Sequence[Claim]:
    """The statements of one turn; none of a turn that takes longer than the deadline of the process for texts."""
    if len(turn.content) <= text_process.INLINE_CHARACTERS:
        return claims_in(turn)
    try:
        return await text_process.run(claims_in, turn)
    except text_process.TextTimeout:
        return ()


def claims_in(turn: TurnText) -> tuple[Claim, ...]:
    """The statements of one turn, sentence by sentence; the first `MAX_CLAIMS`."""
    if suspicion(turn.content) or (turn.name and suspicion(turn.name)):
        return ()
    return tuple(islice(_claims_in(turn), MAX_CLAIMS))


def _claims_in(turn: TurnText) -> Iterator[Claim]:
    # Quotations first: one may hold a whole sentence, and its end is not the end of the sentence around it.
    for match in _SENTENCE.finditer(_QUOTED.sub(" … ", turn.content.replace("\u2019", "'"))):
        sentence = match.group()
        if (
            len(sentence) > MAX_SENTENCE_CHARACTERS
            or sentence.rstrip().endswith("?")
            or _UNREAL.search(sentence)
            or _REPORTED.search(sentence)
        ):
            continue
        yield from _claims_of(sentence, turn)


def _claims_of(sentence: str, turn: TurnText) -> Iterator[Claim]:
    taken: list[tuple[int, int]] = []
    for rule in RULES:
        for match in rule.pattern.finditer(sentence):
            if any(match.start() < end and start < match.end() for start, end in taken):
                continue
            taken.append(match.span())
            for found in _objects(rule, match.group("o")):
                if (claim := _claim(rule, match, found.strip(" .,'"), sentence, turn)) is not None:
                    yield claim


def _objects(rule: Rule, found: str) -> list[str]:
    return re.split(r",? and |, ", found) if rule.predicate in ("speaks", "visited") else [found]


def _claim(rule: Rule, match: re.Match[str], found: str, sentence: str, turn: TurnText) -> Claim | None:
    if not found or found.lower() in ("it", "that", "this", "you", "them", "him", "her", "so", "to"):
        return None
    start, end = _validity(rule, sentence[match.start() :], turn.occurred_at)
    return Claim(
        subject=turn.name or "user",
        predicate=_predicate(rule, match),
        object=found,
        said_at=turn.occurred_at,
        operation=Operation.RETRACT if rule.retracts else Operation.ASSERT,
        valid_from=start,
        valid_to=end,
        confidence=0.7,  # a form of words is no understanding
        sources=(turn.id,),
        quote=match.group().strip(),
    )


def _predicate(rule: Rule, match: re.Match[str]) -> str:
    if rule.predicate == "favorite":
        return f"favorite_{match.group('p').replace(' ', '_').lower()}"
    return _KIN[match.group("kin")] if rule.predicate == "kin" else rule.predicate


def _validity(rule: Rule, words: str, said_at: datetime) -> tuple[datetime | None, datetime | None]:
    """From and to, as far as the words tell; never a start in the future of an ending."""
    if rule.predicate in ("plans", "birthday", "age"):
        return None, None
    if span := re.search(r"\bfrom\b(.*?)\b(?:to|until|till)\b(.*)", words):
        began, ended = dates.find(span[1], said_at), dates.find(span[2], said_at)
        if began and ended and began.start < ended.end <= said_at:
            return began.start, ended.end
    period = dates.find(words, said_at)
    if rule.ends and re.search(r"\b(until|till)\b", words, re.IGNORECASE) and period and period.start <= said_at:
        return None, min(period.end, said_at)
    if rule.ends:
        return None, (period.start if period and period.start <= said_at else said_at)
    if re.search(r"\b(until|till)\b", words) and period and period.start <= said_at:
        return None, min(period.end, said_at)
    if period is None or period.start > said_at:
        return None, None
    return period.start, None
