"""Learned procedures: facts of a trigger and the action that the user wants then."""

import re
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from aftermind.types import Fact
from aftermind.types.feedback import FeedbackCount

PROCEDURE = "procedure"  # the predicate: the trigger is the subject, the action the object
LEARNED_CONFIDENCE = 0.5  # of one that was stated once; Definable's `Procedure` has the same default
LEAST_CONFIDENCE = 0.3  # below it a block does not show the procedure; Definable's `min_confidence`

_WHEN = r"(?:when|whenever|every time|each time|if)"
_TRIGGER = r"(?P<trigger>(?:I|we|you)\s[^,.!?;:\n]{3,120})"
_ACTION = r"(?P<action>[^.!?\n]{3,200})"
# An action needs one of these: "When I moved to Oslo, I was alone" is no procedure.
_ASKED = r"(?:please\s+|(?:you should|I want you to|I'd like you to|make sure (?:to|you)|be sure to|remember to)\s+)"
_STRICT = r"(?=(?:always|never|don['\u2019]t|do not)\s)"
_FORMS = (
    re.compile(rf"^(?:please,?\s+)?{_WHEN}\s+{_TRIGGER},\s*(?:then\s+)?(?:{_ASKED}|{_STRICT}){_ACTION}", re.IGNORECASE),
    re.compile(
        rf"^(?:{_ASKED}|{_STRICT})(?P<action>[^.!?;:\n]{{3,200}}?)\s+{_WHEN}\s+(?P<trigger>(?:I|we|you)\s[^.!?\n]{{3,120}})",
        re.IGNORECASE,
    ),
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
MAX_CHARACTERS = 2_000  # of a message: rules about how to answer are short


def find_procedures(text: str) -> list[tuple[str, str]]:
    """Trigger and action of each English sentence that asks for an action in general, as "when I ask …, please …"."""
    found = []
    for sentence in _SENTENCE.split(text[:MAX_CHARACTERS]):
        match = next(filter(None, (form.match(sentence.strip()) for form in _FORMS)), None)
        if match is not None:
            found.append((f"when {match['trigger'].strip()}", match["action"].strip()))
    return found


def with_feedback(fact: Fact, counts: Mapping[UUID, FeedbackCount]) -> Fact:
    """A procedure with the confidence that feedback raises and lowers; any other fact as it is."""
    count = counts.get(fact.id)
    if fact.predicate != PROCEDURE or count is None:
        return fact
    return replace(fact, confidence=count.adjusted(fact.confidence, weight=1 + fact.strength))
