"""Gold sets: questions with the messages that answer them, read from LoCoMo, LongMemEval or a file of one's own."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aftermind import errors
from aftermind.evaluation import locomo
from aftermind.types import Message, Role

ABSTENTION = "_abs"  # LongMemEval's ending of ids of questions that have no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldQuestion:
    """A question. `evidence` are ids of episodes, texts of messages, or keys of the conversation's messages."""

    text: str
    evidence: tuple[str, ...]
    category: str = ""
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldSession:
    """Messages of one session, and the keys by which evidence names them."""

    session_id: str
    messages: Sequence[Message]
    keys: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldConversation:
    """Questions to one user's memory. With `sessions` it is to be loaded first, else it is stored already."""

    user_id: str | None
    questions: Sequence[GoldQuestion]
    sessions: Sequence[GoldSession] = field(default=())


def read(path: Path, *, user: str | None = None) -> list[GoldConversation]:
    """The conversations of a file, whose format is detected. `user` is the default for questions without `user_id`.

    Questions whose evidence is empty are left out. Raises `InvalidGoldSet`, also where a question lacks `evidence`.
    """
    data = _parse(path)
    try:
        if all(map(locomo.is_conversation, data)):
            found = [_locomo(each) for each in data]
        elif all("haystack_sessions" in each for each in data):
            found = [_longmemeval(each) for each in data]
        else:
            found = _own(data, user)
    except (KeyError, TypeError, AttributeError, ValueError, errors.InvalidMessage) as exc:
        why = f"{exc.args[0]!r} is missing" if isinstance(exc, KeyError) else str(exc)
        raise errors.InvalidGoldSet("file", str(path), why) from exc
    asked = [each for each in found if each.questions]
    if not asked:
        why = "no question has `evidence`: ids of the messages that answer it, or text that occurs in them."
        raise errors.InvalidGoldSet("file", str(path), why)
    return asked


def _parse(path: Path) -> list[Any]:  # Any: JSON as it comes
    try:
        text = path.read_text("utf-8-sig")
        try:
            data = json.loads(text)
        except ValueError:
            data = [_line(path, *each) for each in enumerate(text.splitlines(), start=1) if each[1].strip()]
    except OSError as exc:
        why = (
            f"it cannot be read: {exc}. Name a file of LoCoMo or LongMemEval, or of your own questions, or "
            "draw questions from stored facts with --from-facts."
        )
        raise errors.InvalidGoldSet("file", str(path), why) from exc
    except (ValueError, RecursionError) as exc:
        raise errors.InvalidGoldSet("file", str(path), f"it cannot be read as JSON or JSON lines: {exc}") from exc
    found = data if isinstance(data, list) else [data]
    if not found or not all(isinstance(each, dict) for each in found):
        raise errors.InvalidGoldSet("file", str(path), "it must contain JSON objects.")
    return found


def _line(path: Path, number: int, text: str) -> Any:  # Any: JSON as it comes
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        why = f"line {number} cannot be read as JSON: {exc.msg} at character {exc.colno}"
        raise errors.InvalidGoldSet("file", str(path), why) from exc


def _locomo(data: Mapping[str, Any]) -> GoldConversation:  # Any: JSON as it comes
    flat = locomo.flatten(data)
    sessions = []
    for session in flat["sessions"]:
        at, turns = locomo.parse_date(session["at"]), session["turns"]
        messages = [locomo.message_of(turn, at) for turn in turns]
        keys = [str(turn["id"]) for turn in turns]
        sessions.append(GoldSession(session_id=f"session-{session['n']}", messages=messages, keys=keys))
    questions = [
        GoldQuestion(text=each["question"], evidence=tuple(locomo.evidence_of(each)), category=str(each["category"]))
        for each in flat["questions"]
        if str(each["category"]) != locomo.ADVERSARIAL
    ]
    return GoldConversation(user_id=str(flat["id"]), sessions=sessions, questions=_answered(questions))


def _longmemeval(data: Mapping[str, Any]) -> GoldConversation:  # Any: JSON as it comes
    """One question with its own history; evidence is marked by `has_answer`."""
    sessions, evidence = [], []
    rows = zip(data["haystack_session_ids"], data["haystack_dates"], data["haystack_sessions"], strict=True)
    for place, (label, date, turns) in enumerate(rows):
        at, messages, keys = _longmemeval_date(date), [], []
        for number, turn in enumerate(turns):
            if not turn["content"].strip():
                continue
            key = f"{place}:{number}"
            messages.append(Message(role=Role(turn["role"]), content=turn["content"], occurred_at=at))
            keys.append(key)
            evidence += [key] if turn.get("has_answer") else []
        if messages:
            sessions.append(GoldSession(session_id=str(label), messages=messages, keys=keys))
    question = GoldQuestion(
        text=data["question"],
        evidence=() if data["question_id"].endswith(ABSTENTION) else tuple(evidence),
        category=data.get("question_type", ""),
    )
    return GoldConversation(user_id=data["question_id"], sessions=sessions, questions=_answered([question]))


def _longmemeval_date(text: str) -> datetime:
    return datetime.strptime(re.sub(r"\s*\(\w+\)", "", text), "%Y/%m/%d %H:%M").replace(tzinfo=UTC)


def _own(data: Iterable[Mapping[str, Any]], user: str | None) -> list[GoldConversation]:  # Any: JSON as it comes
    """Questions to memories that are stored, by user."""
    by_user: dict[str | None, list[GoldQuestion]] = {}
    for each in data:
        given = each["evidence"] or ()
        question = GoldQuestion(
            text=_text(each, "question"),
            evidence=(given,) if isinstance(given, str) else tuple(map(str, given)),
            category=str(each.get("category", "")),
            session_id=each.get("session_id"),
        )
        by_user.setdefault(each.get("user_id", user), []).append(question)
    return [GoldConversation(user_id=name, questions=_answered(asked)) for name, asked in by_user.items()]


def _text(data: Mapping[str, Any], name: str) -> str:  # Any: JSON as it comes
    value = data[name]
    if not isinstance(value, str) or not value.strip():
        raise TypeError(f"{name} must be text, not {value!r}")
    return value


def _answered(questions: Iterable[GoldQuestion]) -> list[GoldQuestion]:
    return [each for each in questions if each.evidence]
