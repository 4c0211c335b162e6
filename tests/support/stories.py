"""The stories of `tests/stories`, read: sessions of turns with their claims, and what is to be believed when."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import yaml

from aftermind import Message

FILE = Path(__file__).parents[1] / "stories" / "stories.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedMessage:
    """One message of a session, and what a good model claims from it."""

    message: Message
    claims: tuple[Mapping[str, Any], ...]  # Any: JSON of the model's answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is true of a subject and predicate at a moment; `at` None is now, after the last session."""

    at: datetime | None
    subject: str
    predicate: str
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Sessions in the order in which they are handed over, and the beliefs that follow."""

    name: str
    sessions: tuple[tuple[ScriptedMessage, ...], ...]
    beliefs: tuple[Belief, ...]

    @property
    def script(self) -> dict[str, list[dict[str, Any]]]:  # Any: JSON of the model's answer
        """Claims by the text that they are drawn from, as the scripted provider takes them."""
        told = [each for session in self.sessions for each in session]
        return {each.message.content: [dict(claim) for claim in each.claims] for each in told}


def stories() -> list[Story]:
    """All of them."""
    return [_story(each) for each in yaml.safe_load(FILE.read_text(encoding="utf-8"))]


def _story(data: Mapping[str, Any]) -> Story:  # Any: YAML, here and below
    return Story(
        name=data["name"],
        sessions=tuple(tuple(_told(turn, session["at"]) for turn in session["turns"]) for session in data["sessions"]),
        beliefs=tuple(belief for each in data["expect"] for belief in _beliefs(each)),
    )


def _told(turn: Mapping[str, Any], on: date) -> ScriptedMessage:
    role = next(role for role in ("user", "assistant", "tool") if role in turn)
    metadata = {"trusted": True} if turn.get("trusted") else {}
    message = Message(role=role, content=turn[role], metadata=metadata, occurred_at=_moment(on))  # type: ignore[arg-type]
    return ScriptedMessage(message=message, claims=tuple(_claim(each) for each in turn.get("claims", ())))


def _claim(given: Any) -> dict[str, Any]:
    whole = given if isinstance(given, dict) else {"claim": given}
    subject, predicate, object_ = (str(part) for part in whole["claim"])
    claim: dict[str, Any] = {"subject": subject, "predicate": predicate, "object": object_}
    claim |= {"operation": whole.get("op", "assert")}
    for ours, theirs in (("from", "valid_from"), ("to", "valid_to")):
        if ours in whole:
            claim[theirs] = str(whole[ours])
    return claim


def _beliefs(data: Mapping[str, Any]) -> Iterator[Belief]:
    at = None if data["at"] == "now" else _moment(data["at"])
    for about, objects in data["facts"].items():
        subject, _, predicate = about.rpartition(" ")
        yield Belief(at=at, subject=subject, predicate=predicate, objects=tuple(map(str, objects)))


def _moment(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=UTC)
