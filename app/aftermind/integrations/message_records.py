"""Messages of a framework as messages of a session, read back exactly as they were."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

import orjson

from aftermind import errors
from aftermind.memory import Memory
from aftermind.receipt import Receipt
from aftermind.types import Episode, Message
from aftermind.types.message import RECORD, RESERVED, UNDONE, FrameworkRecord
from aftermind.types.validation import Limits, clean_text, to_role, without_inline_data

log = logging.getLogger(__name__)

PAGE = 1_000

Record = Mapping[str, Any]  # Any: a framework's message as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """How messages of one framework are kept: the text is the content, the rest is in the metadata.

    `text_at` is where the text of a record is, `role` its role, and `is_call` whether it only calls tools. A record of
    a role other than its message's, or of another framework, is not read: the message is plain text then.
    """

    framework: str
    role: Callable[[Record], str]
    text_at: Callable[[Record], Sequence[str | int]]
    shorten: Callable[[Any], Any] = without_inline_data  # Any: JSON of any shape
    is_call: Callable[[Record], bool] = lambda record: False

    def to_message(
        self, record: Record, limits: Limits, *, metadata: Record | None = None, is_cut: bool = True
    ) -> dict[str, Any]:
        """A chat message whose content is the record's text, or all of it as JSON if it has none or its rest is large.

        A call of a tool without a text has no content: it is in no recall.
        `metadata` is kept with it. If the content is too large for a message, its text is cut, with a note, and what
        else is too large is passed to `shorten`: long texts become their length and digest. Not with `is_cut` False.
        Raises `InvalidMessage` for a record that cannot be written as JSON.
        """
        message = self._fitted(record, limits, metadata or {}, is_cut=is_cut)
        return {"role": self.role(record), **message}

    def from_episode(self, episode: Episode) -> dict[str, Any] | None:
        """The record of an episode; None if it has none of this framework."""
        stored = episode.metadata.get(RECORD)
        if not isinstance(stored, str):
            return None
        try:
            found = json.loads(stored)
            record: dict[str, Any] = json.loads(episode.content) if found["message"] is None else found["message"]
            if found["of"] != self.framework:
                return None
            if found["text_at"]:
                _put(record, found["text_at"], episode.content)
            return record if to_role(self.role(record)) == episode.role else None
        except (errors.InvalidMessage, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None

    def _fitted(self, record: Record, limits: Limits, metadata: Record, *, is_cut: bool) -> dict[str, Any]:
        place = list(self.text_at(record))
        rest = json.loads(_encode(dict(record)))
        text = _take(rest, place)
        if text is None and self.is_call(record) and not _has_texts(rest, place):
            described = {RECORD: self._record(rest, []), **metadata}
            if _size(_encode(described)) <= limits.metadata_bytes:
                return {"content": "", "metadata": described}
        message = self._written(rest, place, text, limits, metadata)
        if not is_cut or _size(message["content"]) <= limits.message_bytes:
            return message
        log.warning("a message was cut", extra={"bytes": _size(message["content"]), "limit": limits.message_bytes})
        text = text and _cut(clean_text(text), limits.message_bytes)
        for shortened in (rest, self.shorten(rest)):
            message = self._written(shortened, place, text, limits, metadata)
            if _size(message["content"]) <= limits.message_bytes:
                return message
        return {"content": text or _cut(clean_text(message["content"]), limits.message_bytes), "metadata": metadata}

    def _written(
        self, rest: dict[str, Any], place: list[str | int], text: str | None, limits: Limits, metadata: Record
    ) -> dict[str, Any]:
        if text and clean_text(text) == text:
            described = {RECORD: self._record(rest, place), **metadata}
            if _size(_encode(described)) <= limits.metadata_bytes:
                return {"content": text, "metadata": described}
        whole = deepcopy(rest)
        if text:
            _put(whole, place, text)
        return {"content": _encode(whole), "metadata": {RECORD: self._record(None, []), **metadata}}

    def _record(self, message: Record | None, place: list[str | int]) -> FrameworkRecord:
        return FrameworkRecord(_encode({"of": self.framework, "text_at": place, "message": message}))


async def read_session(
    memory: Memory,
    session_id: str | None,
    limit: int | None,
    *,
    before: Episode | int | None = None,
    user_id: str | None,
    namespace: str | None,
) -> list[Episode]:
    """The newest episodes of a session, or of all for None, oldest first, pending ones included; None: all.

    Without those that were undone: an adapter's framework shows them to a model, or as part of the conversation.
    """
    found: list[Episode] = []
    while limit is None or len(found) < limit:
        size = PAGE if limit is None else min(PAGE, limit - len(found))
        page = await memory.history(
            user_id=user_id, session_id=session_id, namespace=namespace, limit=size, before=before
        )
        found = [*without_undone(page), *found]
        if len(page) < size:
            break
        before = page[0]
    return found


async def replace_episodes(
    memory: Memory,
    replaced: Sequence[Episode],
    content: str,
    metadata: Record,
    *,
    occurred_at: datetime | None = None,
    user_id: str | None,
    namespace: str | None,
) -> Receipt:
    """Remember a message in place of episodes of its owner, then forget these with everything derived from them.

    It has the role, name, session and expiry of the last of them, and is kept for the same. A repeated call writes
    once. A record of an integration that was read from them is left out: it is of the content that is replaced.
    """
    last = replaced[-1]
    metadata = {
        name: value
        for name, value in metadata.items()
        if not name.startswith(RESERVED) or isinstance(value, FrameworkRecord)
    }
    message = Message(
        role=last.role,
        content=content,
        name=last.name,
        metadata=metadata,
        occurred_at=occurred_at,
        expires_at=last.expires_at,
    )
    version = sha256(_encode([content, metadata]).encode()).hexdigest()
    receipt = await memory.remember(
        message,
        save=last.keep,
        session_id=last.scope.session_id,
        agent_id=last.scope.agent_id,
        idempotency_key=f"replace:{last.id}:{version}",
        user_id=user_id,
        namespace=namespace,
    )
    await memory.forget(ids=[each.id for each in replaced], user_id=user_id, namespace=namespace)
    return receipt


def without_undone(episodes: Iterable[Episode]) -> list[Episode]:
    """The episodes that were not undone."""
    return [each for each in episodes if each.mark != UNDONE]


def text_place(content: Any, *place: str | int) -> tuple[str | int, ...]:  # Any: JSON of any shape
    """Where the text of a content at this place is: the place itself, or in the only one of its parts that has a text.

    Of several texts none is the content: all are searched in the record as JSON.
    """
    found = _text_parts(content)
    return (*place, *found[0]) if len(found) == 1 else place


def _text_parts(content: Any) -> list[tuple[str | int, ...]]:
    """Where the texts of a list of parts are in it; none of what is no list. Thoughts are left out."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return []
    found: list[tuple[str | int, ...]] = []
    for index, part in enumerate(content):
        if _is_text(part):
            found.append((index,))
        elif isinstance(part, Mapping) and _is_text(part.get("text")) and not part.get("thought"):
            found.append((index, "text"))
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _has_texts(record: Record, place: Sequence[str | int]) -> bool:
    """Whether there are several texts at a place, which `text_place` does not choose from."""
    try:
        return bool(_text_parts(_get(record, place)))
    except (LookupError, TypeError):
        return False


def _take(record: dict[str, Any], place: Sequence[str | int]) -> str | None:
    """Remove the text at a place of the record, and return it; None if there is none."""
    try:
        found = _get(record, place)
    except (LookupError, TypeError):
        return None
    if not _is_text(found):
        return None
    _put(record, place, "")
    return found


def _get(record: Any, place: Sequence[str | int]) -> Any:
    for step in place:
        record = record[step]
    return record


def _put(record: Any, place: Sequence[str | int], text: str) -> None:
    _get(record, place[:-1])[place[-1]] = text


def _encode(value: Any) -> str:
    """As JSON, exactly: with integers of any size, NaN and lone surrogates. What is not JSON is written as a text."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_as_json)
        return text if clean_text(text) == text else json.dumps(value, separators=(",", ":"), default=_as_json)
    except (TypeError, ValueError, RecursionError) as exc:
        why = f"a message of a framework must be JSON: {exc}."
        raise errors.InvalidMessage("record", type(value).__name__, why) from exc


def _as_json(value: object) -> Any:
    """Times, ids and dataclasses as JSON has them; any other object as its text."""
    return orjson.loads(orjson.dumps(value, default=str))


def _cut(text: str, limit: int) -> str:
    """The text with at most `limit` bytes, and what was cut at its end."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    note = f"\n[cut: {len(encoded):,} bytes, sha256 {sha256(encoded).hexdigest()}]"
    return encoded[: max(0, limit - len(note))].decode("utf-8", "ignore") + note


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
