"""Files of conversations, read into turns: OpenAI chats, LoCoMo, exports of ChatGPT, of Claude, and of a user."""

import codecs
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from aftermind.cli.chat_exports import conversations_of
from aftermind.evaluation import locomo
from aftermind.types.assertion import BY_USER, Assertion
from aftermind.types.message import RECORD, UNDONE, FrameworkRecord
from aftermind.types.validation import Given

_ASSERTIONS = TypeAdapter(list[Assertion])
_EXPORTED = ("role", "content", "name", "metadata", "occurred_at", "expires_at")
_TIMES = ("occurred_at", "created_at", "timestamp")
_JSON_TYPES = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePosition:
    """A position in a file; `line` counts from 1 and is None if the file is not line-based."""

    file: Path
    line: int | None = None
    what: str = ""

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}"
        return f"{self.file}{line}{' ' + self.what if self.what else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTurn:
    """A turn of a file. `key` comes out of its content, so the same turn has the same key at the next run."""

    key: str
    user_id: str | None
    session_id: str | None
    messages: tuple[Given, ...]
    place: FilePosition
    agent_id: str | None = None
    save: tuple[str, ...] | None = None  # of `remember`
    undone: bool = False  # by `undo`, where it was exported
    exported_ids: tuple[str, ...] = ()  # of the messages, where they were exported
    namespace: str | None = None


class ExportedBlock(BaseModel):
    """A block as an export has it."""

    name: str
    content: str
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdits:
    """Edits of a user's memory in an export: assertions that calls made about facts, and blocks."""

    user_id: str | None
    namespace: str | None
    place: FilePosition
    assertions: tuple[Assertion, ...]
    blocks: tuple[ExportedBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """What could not be read, and why."""

    place: FilePosition
    reason: str


Found = FileTurn | FileEdits | BadLine
_BLOCKS = TypeAdapter(list[ExportedBlock])


class UnreadableConversation(Exception):
    """Why a conversation cannot be read. Never leaves this module."""


def read(path: Path, *, user: str | None = None, session: str | None = None) -> Iterator[Found]:
    """Every turn of a file in order, and every invalid line; of an export also edits of facts and blocks.

    The format is detected from the beginning: a JSON list of messages or of conversations, LoCoMo's JSON, or one JSON
    object per line. `user` and `session` are defaults for conversations without one; an export has no other session.
    """
    try:
        data = path.read_bytes()
    except OSError as exc:
        yield BadLine(place=FilePosition(file=path), reason=f"it cannot be read: {exc.strerror or exc}")
        return
    yield from read_bytes(path, data, user=user, session=session)


def read_bytes(path: Path, data: bytes, *, user: str | None = None, session: str | None = None) -> Iterator[Found]:
    """As `read`, of content that is not in a file; `path` names its place."""
    data = data.removeprefix(codecs.BOM_UTF8)
    seen: Counter[str] = Counter()
    whole = _json_value(data)
    listed = None if whole is None else _chats(whole)
    if listed is not None:
        turns = _json_list(path, listed, user, session)
        if isinstance(whole, dict) and _is_export(whole):
            turns = chain(turns, _edits(whole, FilePosition(file=path), user))
    else:
        turns = _of_format(path, data, user, session)
    for found in turns:
        if isinstance(found, FileTurn):
            seen[found.key] += 1
            # A text that occurs twice in one file is stored twice; an exported message has an id, and is one message.
            if seen[found.key] > 1 and not found.exported_ids:
                found = replace(found, key=f"{found.key}#{seen[found.key]}")
        yield found


def _of_format(path: Path, data: bytes, user: str | None, session: str | None) -> Iterator[Found]:
    return _locomo(path, data, user) if _is_locomo(data) else _jsonl(path, data, user, session)


# OpenAI chats: a JSON list or one indented JSON object


def _json_value(data: bytes) -> Any:  # Any: JSON
    """The content of a file that is one JSON value; None if it is not: several lines of JSON, or damaged."""
    if data.lstrip()[:1] not in (b"[", b"{"):
        return None
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        return None


def _chats(found: Any) -> list[Any] | None:  # Any: JSON
    """The conversations of a JSON value; None for other formats."""
    first = found[0] if isinstance(found, list) and found else found
    if not isinstance(first, dict):
        return None
    if isinstance(found, dict) and _is_export(found):
        return _exported(found)
    if isinstance(found, list) and "role" in first:
        return [{"messages": found}]
    if "messages" in first:
        return found if isinstance(found, list) else [found]
    return conversations_of(found)


def _is_export(found: Mapping[str, Any]) -> bool:  # Any: JSON
    return isinstance(found.get("episodes"), list) and "scope" in found


def _exported(export: Mapping[str, Any]) -> list[Any]:  # Any: JSON
    """The conversations of an export of a user: one for each turn. Its messages have the same session, agent, `save`,
    mark and time of the call, so its key does not change with the messages before and after it.

    What the user wrote in groups is left out: it belongs to the groups. So are messages that have expired.
    """
    owner = export["scope"] if isinstance(export["scope"], dict) else {}
    own = [each for each in export["episodes"] if _is_exported(each, owner.get("user_id"))]
    return [
        {
            "id": _exported_name(each[0].get("id")),
            **{name: each[0]["scope"].get(name) for name in ("user_id", "session_id", "agent_id")},
            "namespace": owner.get("namespace"),
            "save": _saved(each[0]),
            "undone": _is_undone(each[0]),
            "messages": [_exported_message(one) for one in each],
            "exported_ids": [one.get("id") for one in each],
        }
        for each in (list(turn) for _, turn in groupby(own, key=_turn_of))
    ]


def _edits(
    export: Mapping[str, Any], place: FilePosition, user: str | None
) -> Iterator[FileEdits | BadLine]:  # Any: JSON
    """Facts that calls added, corrected, retracted or merged for the user of an export, and blocks."""
    owner = export["scope"] if isinstance(export["scope"], dict) else {}
    stated = [
        one for one in export.get("assertions") or () if isinstance(one, dict) and one.get("extractor") == BY_USER
    ]
    if not stated and not export.get("blocks"):
        return
    try:
        claims = [one["claim"] for one in sorted(stated, key=lambda one: (one["claim"]["said_at"], one["place"]))]
        yield FileEdits(
            user_id=_label(owner, "user_id", user),
            namespace=_label(owner, "namespace", None),
            place=place,
            assertions=tuple(_ASSERTIONS.validate_python(claims)),
            blocks=tuple(_BLOCKS.validate_python(export.get("blocks") or [])),
        )
    except (ValueError, KeyError, TypeError, UnreadableConversation) as exc:
        yield BadLine(place=place, reason=f"its edits of facts and blocks cannot be read: {exc}")


def _exported_message(episode: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """The message of an exported episode, which an integration reads back as before."""
    message = {name: episode[name] for name in _EXPORTED if episode.get(name) is not None}
    record = message["metadata"].get(RECORD) if isinstance(message.get("metadata"), dict) else None
    if isinstance(record, str):
        message["metadata"] = {**message["metadata"], RECORD: FrameworkRecord(record)}
    return message


def _is_exported(episode: Any, user: Any) -> bool:  # Any: JSON
    if not isinstance(episode, dict) or not isinstance(episode.get("scope"), dict):
        return False
    if episode["scope"].get("user_id") != user:
        return False
    try:
        return datetime.fromisoformat(episode["expires_at"]) > datetime.now(UTC)
    except (KeyError, TypeError, ValueError):  # it never expires, or is refused when it is remembered
        return True


def _turn_of(episode: Mapping[str, Any]) -> Any:  # Any: JSON
    return episode["scope"], _saved(episode), _is_undone(episode), episode.get("remembered_at")


def _is_undone(episode: Mapping[str, Any]) -> bool:  # Any: JSON
    return episode.get("mark") == UNDONE


def _saved(episode: Mapping[str, Any]) -> Any:  # Any: JSON
    """What it is kept for: of a message that was undone, no facts, traits and summaries are made again."""
    keep = episode.get("keep")
    if isinstance(keep, list) and _is_undone(episode):
        return [kind for kind in keep if kind == "history"]
    return keep


def _json_list(
    path: Path,
    conversations: Sequence[Any],
    user: str | None,
    session: str | None,  # Any: JSON
) -> Iterator[Found]:
    for number, each in enumerate(conversations, start=1):
        place = FilePosition(file=path, what=f"conversation {number}")
        try:
            if not isinstance(each, dict):
                raise UnreadableConversation("a conversation is a JSON object with messages")
            yield from _conversation(each, place, user, session)
        except UnreadableConversation as exc:
            yield BadLine(place=place, reason=str(exc))


# OpenAI chat JSONL


def _jsonl(path: Path, data: bytes, user: str | None, session: str | None) -> Iterator[Found]:
    # Each line is decoded alone: a damaged byte costs its line, and not the file.
    lines = data.split(b"\n")
    if data.strip() and not any(line.lstrip().startswith((b"{", b"[")) for line in lines):  # CSV, a text, an image
        reason = (
            "no line of it is a JSON object. The formats are listed by `aftermind ingest --help`. To recall a text, "
            "store it with `memory.remember` (docs/guides/conversations.md, Documents)"
        )
        yield BadLine(place=FilePosition(file=path), reason=reason)
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = FilePosition(file=path, line=number)
        try:
            found = _object(line)
            for each in _exported(found) if _is_export(found) else [found]:
                yield from _conversation(each, place, user, session)
            if _is_export(found):
                yield from _edits(found, place, user)
        except UnreadableConversation as exc:
            yield BadLine(place=place, reason=str(exc))


def _object(line: bytes) -> Mapping[str, Any]:  # Any: JSON of an untrusted file, checked key by key
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError) as exc:
        raise UnreadableConversation(f"it is not JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise UnreadableConversation(f"a conversation is a JSON object with messages, not {_JSON_TYPES[type(found)]}")
    return found


def _conversation(
    found: Mapping[str, Any],
    place: FilePosition,
    user: str | None,
    session: str | None,  # Any: as above
) -> list[FileTurn]:
    messages = found.get("messages")
    if messages in (None, []):
        why = 'a conversation is {"user_id": …, "messages": […]}; single messages are read as a JSON list'
        raise UnreadableConversation(f"it has no messages: {why}")
    if not isinstance(messages, list):
        raise UnreadableConversation(f"messages must be a list, not {_JSON_TYPES[type(messages)]}")
    if not all(isinstance(message, dict) for message in messages):
        raise UnreadableConversation("every message is a JSON object with role and content")
    user = _label(found, "user_id", user)
    at = _conversation_time(found)
    metadata = found.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise UnreadableConversation("metadata is a JSON object")
    dated = [_dated(message, _later(at, index), metadata) for index, message in enumerate(messages)]
    given = found.get("exported_ids")  # any file may have the name
    is_exported = isinstance(given, list) and [type(each) for each in given] == [str] * len(messages)
    turns = [dated] if is_exported else _exchanges(dated)
    # What was exported without a session had none: with another one, it would be another message.
    session = _label(found, "session_id", None if is_exported else session)
    agent, space, save = _label(found, "agent_id", None), _label(found, "namespace", None), found.get("save")
    if save is not None and not (isinstance(save, list) and all(isinstance(kind, str) for kind in save)):
        raise UnreadableConversation("save is a list of kinds of memory")
    name = _label(found, "id", None) or session or _digest(turns[0])
    if not is_exported:
        session = session or f"ingest-{_digest(turns[0])[:16]}"
    return [
        FileTurn(
            key=_key(user, name, index, turn),
            user_id=user,
            session_id=session,
            messages=tuple(turn),
            place=place,
            agent_id=agent,
            save=None if save is None else tuple(save),
            namespace=space,
            undone=found.get("undone") is True,
            exported_ids=tuple(given or ()) if is_exported else (),
        )
        for index, turn in enumerate(turns)
    ]


def _exchanges(messages: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:  # Any: JSON
    """A turn starts with a message after an answer, like the messages of one `remember()` call."""
    turns: list[list[Mapping[str, Any]]] = []
    for message in messages:
        asks = message.get("role") in ("user", "human")
        answered = bool(turns) and any(each.get("role") not in ("user", "human", "system") for each in turns[-1])
        if not turns or (asks and answered):
            turns.append([])
        turns[-1].append(message)
    return turns


def _dated(message: Mapping[str, Any], at: str | None, metadata: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON
    """The message with its own time, else the conversation's; a time of a file without zone is UTC."""
    own = next((message[name] for name in _TIMES if message.get(name) is not None), at)
    merged = {**metadata, **(message.get("metadata") or {})} if metadata else message.get("metadata")
    rest = {name: value for name, value in message.items() if name not in (*_TIMES, "metadata")}
    return {**rest, **({"metadata": merged} if merged else {}), **({} if own is None else {"occurred_at": _zoned(own)})}


def _later(at: object, index: int) -> Any:  # Any: JSON; the call that takes it checks it
    """A conversation's time for its message of this index: facts are applied in the order of times."""
    if isinstance(at, int | float) and not isinstance(at, bool):
        return at + index / 1_000_000
    moment = _zoned(at)
    if not isinstance(moment, str):
        return moment
    return (datetime.fromisoformat(moment) + timedelta(microseconds=index)).isoformat()


def _zoned(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as exc:
        raise UnreadableConversation(f"{value!r} is no ISO 8601 time") from exc
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


def _conversation_time(found: Mapping[str, Any]) -> Any:  # Any: JSON; the call that takes it checks it
    return next((found[name] for name in _TIMES if found.get(name) is not None), None)


def _label(found: Mapping[str, Any], name: str, otherwise: str | None) -> str | None:  # Any: JSON
    value = found.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, str):
        raise UnreadableConversation(f"{name} must be a string, not {_JSON_TYPES[type(value)]}")
    return value


# LoCoMo


def _is_locomo(data: bytes) -> bool:
    head, beginning = data.lstrip()[:1], data[:2_000]
    named = b'"sessions"' in beginning or b'"conversation"' in beginning
    return head == b"[" or (head == b"{" and named and b'"messages"' not in beginning)


def _locomo(path: Path, data: bytes, user: str | None) -> Iterator[Found]:
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError) as exc:
        yield BadLine(place=FilePosition(file=path, line=getattr(exc, "lineno", None)), reason=f"it is not JSON: {exc}")
        return
    for index, conversation in enumerate(found if isinstance(found, list) else [found]):
        place = FilePosition(file=path, what=f"conversation {index + 1}")
        try:
            flat = locomo.flatten(conversation)
            name, sessions = str(flat["id"]), list(flat["sessions"])
        except _MALFORMED as exc:
            yield _not_locomo(place, "conversation", exc)
            continue
        for number, session in enumerate(sessions, start=1):
            yield from _locomo_session(session, FilePosition(file=path, what=f"{name}, session {number}"), name, user)


_MALFORMED = (UnreadableConversation, KeyError, TypeError, AttributeError, ValueError)


def _not_locomo(place: FilePosition, what: str, exc: Exception) -> BadLine:
    reason = f"{exc.args[0]!r} is missing" if isinstance(exc, KeyError) else str(exc)
    if what == "conversation":
        reason += ". The formats are listed by `aftermind ingest --help`"
    return BadLine(place=place, reason=f"not a LoCoMo {what}: {reason}")


def _locomo_session(
    session: Mapping[str, Any], place: FilePosition, name: str, user: str | None
) -> Iterator[Found]:  # Any: JSON
    try:
        at, label, turns = locomo.parse_date(session["at"]), f"session-{session['n']}", list(session["turns"])
    except _MALFORMED as exc:
        yield _not_locomo(place, "session", exc)
        return
    for number, turn in enumerate(turns, start=1):
        try:
            yield _locomo_turn(turn, at + timedelta(microseconds=number - 1), place.file, name, label, user)
        except _MALFORMED as exc:
            yield _not_locomo(FilePosition(file=place.file, what=f"{place.what}, turn {number}"), "turn", exc)


def _locomo_turn(
    turn: Mapping[str, Any], at: datetime, path: Path, name: str, label: str, user: str | None
) -> FileTurn:  # Any: JSON
    message = locomo.message_of(turn, at)
    key = "|".join((name, label, turn["id"], _digest([{"content": message.content}])[:16]))
    place = FilePosition(file=path, what=f"{name} {turn['id']}")
    return FileTurn(key=key, user_id=user or name, session_id=label, messages=(message,), place=place)


# keys


def single_messages(turn: FileTurn) -> dict[str, FileTurn]:
    """Each message of an exported turn as a turn, by its exported id, with the key that it has where it is alone."""
    return {
        id_: replace(
            turn, key=_key(turn.user_id, _exported_name(id_), 0, [message]), messages=(message,), exported_ids=(id_,)
        )
        for id_, message in zip(turn.exported_ids, turn.messages, strict=True)
        if isinstance(message, Mapping)
    }


def _exported_name(id_: object) -> str:
    return f"export {id_}"


def _key(user: str | None, name: str, index: int, turn: Sequence[Mapping[str, Any]]) -> str:  # Any: JSON
    return f"{_digest([{'user': user, 'name': name}])[:16]}|{index}|{_digest(turn)[:32]}"


def _digest(value: Sequence[Mapping[str, Any]]) -> str:  # Any: JSON
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
