"""LoCoMo's conversations (Maharana et al., 2024): the published `locomo10.json`, and its flat form with lists."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from aftermind.types import Message, Role

DATES = ("%I:%M %p on %d %B, %Y", "%I:%M %p on %B %d, %Y")
ADVERSARIAL = "5"  # the category of questions without an answer in the conversation
_SESSION = re.compile(r"session_(\d+)")
_SEPARATORS = re.compile(r"[;,\s]+")  # some questions have "D8:6; D9:17" as one piece of evidence


def is_conversation(data: object) -> bool:
    """Whether JSON has the form of a conversation, with or without questions."""
    return isinstance(data, Mapping) and ("sessions" in data or "conversation" in data)


def flatten(data: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON as it comes
    """The flat form: `id`, `sessions` with `n`, `at` and `turns`, and `questions`. Raises KeyError if parts miss."""
    if "conversation" not in data:
        return data
    spoken = data["conversation"]
    numbers = sorted(int(found[1]) for name in spoken if (found := _SESSION.fullmatch(name)))
    sessions = [
        {
            "n": number,
            "at": spoken[f"session_{number}_date_time"],
            "turns": [_flat_turn(turn) for turn in spoken[f"session_{number}"]],
        }
        for number in numbers
    ]
    return {"id": data["sample_id"], "sessions": sessions, "questions": data.get("qa", [])}


def _flat_turn(turn: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON as it comes
    return {
        "id": turn["dia_id"],
        "speaker": turn["speaker"],
        "text": turn["text"],
        "caption": turn.get("blip_caption"),
    }


def parse_date(text: str) -> datetime:
    """The time of a session, as UTC. Raises ValueError."""
    for form in DATES:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
    raise ValueError(f"{text!r} is no date like '1:56 pm on 8 May, 2023'")


def content_of(turn: Mapping[str, Any]) -> str:  # Any: JSON as it comes
    """The text of a turn with the caption of its image."""
    return f"{turn['text']}{f' [shared image: {caption}]' if (caption := turn.get('caption')) else ''}"


def message_of(turn: Mapping[str, Any], at: datetime) -> Message:  # Any: JSON as it comes
    """A turn as a message of the user: two people talk, each by name, and neither is an assistant."""
    return Message(
        role=Role.USER,
        content=content_of(turn),
        name=turn["speaker"],
        metadata={"turn": turn["id"]},
        occurred_at=at,
    )


def evidence_of(question: Mapping[str, Any]) -> Iterator[str]:  # Any: JSON as it comes
    """The ids of the turns that answer it."""
    for each in question.get("evidence") or ():
        yield from filter(None, _SEPARATORS.split(each))
