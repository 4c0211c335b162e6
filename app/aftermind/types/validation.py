"""Validation and normalisation of callers' input."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from aftermind import errors
from aftermind.types.message import RECORD, RESERVED, FrameworkRecord, Json, Message, Role
from aftermind.types.timestamps import why_unusable

Given = str | Message | Mapping[str, Any]  # Any: whatever a caller's chat message holds; each key is checked below

REFERENCE_DEPTH = 16  # of a part; what is deeper is refused with the metadata
INLINE_CHARACTERS = 2_048  # longer than any URL that servers accept: such a text is the thing itself

_IN_PLACE_OF_TEXT = {"tool_calls", "attachments"}
_KNOWN = {"role", "content", "name", "metadata", "occurred_at", "created_at", "timestamp", "expires_at"}
_MISSPELT = {
    **dict.fromkeys(("occured_at", "ocurred_at", "occurred_time", "occurredAt", "occuredAt"), "occurred_at"),
    **dict.fromkeys(("createdAt", "create_at"), "created_at"),
    **dict.fromkeys(("expiresAt", "expire_at", "expired_at"), "expires_at"),
}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}  # field of the text
_MEDIA_PARTS = {"image_url", "input_image", "input_audio", "file", "input_file", "image", "document"}
# What describes a media part; every other text in it is the image or file itself, however short.
_DESCRIPTION = {"type", "media_type", "mime_type", "filename", "format", "detail", "file_id", "id", "title"}
_REFERENCE = re.compile(r"(?:https?|gs|s3)://", re.IGNORECASE)
_ROLES = {"developer": Role.SYSTEM, "function": Role.TOOL, "human": Role.USER, "ai": Role.ASSISTANT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a turn: bytes of a message, of its metadata and of all of it, number of messages, depth, future."""

    message_bytes: int = 262_144
    messages: int = 1_000
    turn_bytes: int = 1_048_576
    metadata_bytes: int = 16_384
    metadata_depth: int = 8
    future: timedelta = timedelta(days=1)


def normalise(given: Given | Iterable[Given], limits: Limits, *, now: datetime) -> tuple[Message, ...]:
    """Validate and normalise the messages of a turn. A plain text is one message of the user.

    NUL characters are removed and lone surrogates replaced by U+FFFD (Postgres stores neither). Images, audio and files
    are stored as references; inline data is replaced by its length and SHA-256. Everything else that cannot be stored
    unchanged raises `InvalidMessage`.
    """
    items = _items(given)
    if len(items) > limits.messages:
        why = f"a turn has at most {limits.messages} messages. Split it into several turns."
        raise errors.InvalidMessage("messages", len(items), why)
    messages = tuple(_message(item, limits, now, index) for index, item in enumerate(items))
    size = sum(map(_message_size, messages))
    if size > limits.turn_bytes:
        why = (
            f"a turn has at most {limits.turn_bytes:,} bytes of text and metadata. Split it into several turns, "
            "or raise AFTERMIND_TURN_MAX_BYTES."
        )
        raise errors.InvalidMessage("messages", f"{size:,} bytes", why)
    return messages


def split(given: Given | Iterable[Given], limits: Limits, *, now: datetime) -> list[tuple[Message, ...]]:
    """The messages as `normalise` has them, in their order, in as few turns as the limits allow: mostly one."""
    turns: list[list[Message]] = []
    room = 0
    for index, item in enumerate(_items(given)):
        message = _message(item, limits, now, index)
        size = _message_size(message)
        if not turns or size > room or len(turns[-1]) >= limits.messages:
            turns.append([])
            room = limits.turn_bytes
        turns[-1].append(message)
        room -= size
    return [tuple(turn) for turn in turns]


def _items(given: object) -> Sequence[Any]:  # Any: checked one by one
    if isinstance(given, str | Message | Mapping):
        return [given]
    if isinstance(given, Iterable) and not isinstance(given, bytes | bytearray | memoryview):
        items = list(given)
        if items:
            return items
        raise errors.InvalidMessage("messages", items, "there is no message in it.")
    why = f"messages are a text, a message or several of them, not {type(given).__name__}."
    raise errors.InvalidMessage("messages", given, why)


def _message(given: Given, limits: Limits, now: datetime, index: int) -> Message:
    if type(given) is Message and _is_plain(given, limits):
        return given
    message = given if isinstance(given, Message) else _parsed(given, index)
    content = _text(message.content, "content", index)
    if not isinstance(message.metadata, Mapping):
        raise errors.InvalidMessage("metadata", message.metadata, "metadata is a JSON object.", index=index)
    has_more = any(message.metadata.get(name) for name in _IN_PLACE_OF_TEXT)
    if not content.strip() and not has_more and not isinstance(message.metadata.get(RECORD), FrameworkRecord):
        raise errors.InvalidMessage("content", message.content, "a message needs text.", index=index)
    size = _size(content, limits.message_bytes)
    if size > limits.message_bytes:
        raise errors.MessageTooLarge(size, limits.message_bytes, index=index)
    return Message(
        role=to_role(message.role, index),
        content=content,
        name=_name(message.name, index),
        metadata=message_metadata(message.metadata, limits, index),
        occurred_at=_moment("occurred_at", message.occurred_at, index, latest=now + limits.future),
        expires_at=_moment("expires_at", message.expires_at, index, after=now),
    )


def _is_plain(message: Message, limits: Limits) -> bool:
    """Whether there is nothing to check further: most messages are a role and a text. Saves two thirds of the time."""
    content = message.content
    return (
        type(content) is str
        and content.isascii()
        and len(content) <= limits.message_bytes
        and "\x00" not in content
        and not content.isspace()
        and bool(content)
        and type(message.role) is Role
        and message.name is None
        and message.occurred_at is None
        and message.expires_at is None
        and message.metadata == {}
    )


def _parsed(given: object, index: int) -> Message:
    if isinstance(given, str):
        return Message.user(given)
    if not isinstance(given, Mapping):
        why = "a message is a text, a Message, or a dict with role and content."
        raise errors.InvalidMessage("message", given, why, index=index)
    content, attachments = _content(given.get("content") or given.get("refusal") or given.get("content"), index)
    metadata = {} if given.get("metadata") is None else given["metadata"]
    if not isinstance(metadata, Mapping):
        raise errors.InvalidMessage("metadata", metadata, "metadata is a JSON object.", index=index)
    if "content" not in given and not _IN_PLACE_OF_TEXT & {*given, *metadata}:
        there = ", ".join(map(repr, given)) or "nothing"
        why = f"the message has {there} and no 'content'. Its text belongs there."
        raise errors.InvalidMessage("content", None, why, index=index)
    extra = {key: value for key, value in given.items() if key not in _KNOWN}
    for key in extra:
        if (meant := _MISSPELT.get(key)) is not None:
            why = f"a message has no such field: its time is {meant!r}."
            raise errors.InvalidMessage(str(key), given[key], why, index=index)
    merged = {**metadata, **extra, **({"attachments": attachments} if attachments else {})}
    moment = given.get("occurred_at", given.get("created_at", given.get("timestamp")))
    return Message(
        role=given.get("role", ""),
        content=content,
        name=given.get("name"),
        metadata=merged,
        occurred_at=moment,
        expires_at=given.get("expires_at"),
    )


def _content(content: object, index: int) -> tuple[str, list[Json]]:
    """Text and references of OpenAI's content: a text, None next to tool calls, or a list of parts."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return content, []
    if not isinstance(content, list | tuple):
        why = f"content is text or a list of parts, not {type(content).__name__}."
        raise errors.InvalidMessage("content", content, why, index=index)
    texts: list[str] = []
    kinds: list[str] = []
    attachments: list[Json] = []
    for part in content:
        kind = str(part.get("type")) if isinstance(part, Mapping) else None
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and isinstance(text := part.get(_TEXT_PARTS.get(kind or "")), str):
            texts.append(text)
        elif kind in _MEDIA_PARTS and isinstance(part, Mapping):
            attachments.append(_described(part))
            kinds.append(kind.removeprefix("input_").removesuffix("_url"))
        else:
            why = f"the type of a part is one of {', '.join(sorted({*_TEXT_PARTS, *_MEDIA_PARTS}))}. Leave others out."
            raise errors.InvalidMessage("content", part, why, index=index)
    text = "\n".join(texts)
    if attachments and not text.strip():  # a model and a block are shown that there was something
        return f"[{', '.join(kinds)}]", attachments
    return text, attachments


def without_inline_data(part: Any, depth: int = REFERENCE_DEPTH) -> Any:  # Any: JSON of any shape
    """The part with its length and SHA-256 in place of each long text: an image of a megabyte is not memory, that it
    was there is.
    """
    if isinstance(part, Mapping) and depth:
        return {key: without_inline_data(value, depth - 1) for key, value in part.items()}
    if isinstance(part, list) and depth:
        return [without_inline_data(each, depth - 1) for each in part]
    if isinstance(part, str) and len(part) > INLINE_CHARACTERS:
        return _digest(part)
    return part


def _described(part: Any, key: str = "", depth: int = REFERENCE_DEPTH) -> Any:  # Any: JSON of any shape
    """A media part with its addresses and description, and a digest in place of everything else."""
    if isinstance(part, Mapping) and depth:
        return {each: _described(value, str(each), depth - 1) for each, value in part.items()}
    if isinstance(part, list) and depth and not all(isinstance(each, int | float) for each in part):
        return [_described(each, key, depth - 1) for each in part]
    if part is None or isinstance(part, bool | int | float):
        return part
    text = part if isinstance(part, str) else str(part)
    is_kept = key in _DESCRIPTION or _REFERENCE.match(text) is not None
    return text if is_kept and len(text) <= INLINE_CHARACTERS else _digest(text)


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
    head, comma, _ = text.partition(",")
    kind = head[:100] if comma and head.startswith("data:") else ""
    return f"{kind}[{len(text)} characters, sha256 {digest}]"


def to_role(role: object, index: int = 0) -> Role:
    """The role by its name, also by those of other libraries. Raises `InvalidMessage`."""
    if isinstance(role, Role):
        return role
    if isinstance(role, str):
        folded = role.lower()
        if folded in _ROLES:
            return _ROLES[folded]
        if folded in set(Role):
            return Role(folded)
    raise errors.InvalidMessage("role", role, f"a role is one of {', '.join(Role)}.", index=index)


def _name(name: object, index: int) -> str | None:
    if name is None:
        return None
    text = _text(name, "name", index).strip()
    if len(text.encode()) > 512:
        raise errors.InvalidMessage("name", name, "a name has at most 512 UTF-8 bytes.", index=index)
    return text or None


def _text(value: object, field: str, index: int) -> str:
    if not isinstance(value, str):
        raise errors.InvalidMessage(field, value, f"it is text, not {type(value).__name__}.", index=index)
    return clean_text(value)


def _message_size(message: Message) -> int:
    """Bytes that count for the turn."""
    content = message.content
    size = len(content) if content.isascii() else len(content.encode())
    return size + (len(orjson.dumps(message.metadata)) if message.metadata else 0)


def _size(text: str, limit: int) -> int:
    """In UTF-8; a short text is not encoded to find out that it is short."""
    return len(text) if len(text) * 4 <= limit else len(text.encode())


def clean_text(text: str) -> str:
    """The text as it is stored: without NUL characters, and with U+FFFD for lone surrogates."""
    if text.isascii() and "\x00" not in text:
        return text
    if "\x00" in text:
        text = text.replace("\x00", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def json_object(given: object, limits: Limits) -> dict[str, Json]:
    """A JSON object within the bounds of metadata: depth, size, 63-bit integers. Raises `InvalidMessage`."""
    return _metadata(given, limits, 0)


def message_metadata(given: Mapping[str, Json], limits: Limits, index: int = 0) -> dict[str, Json]:
    """Metadata of a message. Raises `InvalidMessage`, also for reserved names: integrations alone set their values."""
    metadata = _metadata(given, limits, index)
    for name in metadata:
        if name.startswith(RESERVED) and not (name == RECORD and isinstance(given.get(name), FrameworkRecord)):
            why = f"names that begin with {RESERVED!r} are reserved. Use another name."
            raise errors.InvalidMessage("metadata", name, why, index=index)
    if RECORD in metadata:
        metadata[RECORD] = FrameworkRecord(metadata[RECORD])  # with its type: a split turn is checked again
    return metadata


def _metadata(metadata: object, limits: Limits, index: int) -> dict[str, Json]:
    if not isinstance(metadata, Mapping):
        raise errors.InvalidMessage("metadata", metadata, "metadata is a JSON object.", index=index)
    if not metadata:
        return {}
    cleaned = _cleaned(metadata, limits.metadata_depth, limits.metadata_depth, index)
    try:
        encoded = orjson.dumps(cleaned)
    except (TypeError, ValueError) as exc:
        raise errors.InvalidMessage("metadata", metadata, f"it cannot be written as JSON: {exc}.", index=index) from exc
    if len(encoded) > limits.metadata_bytes:
        why = f"metadata has at most {limits.metadata_bytes:,} bytes as JSON, this has {len(encoded):,}."
        raise errors.InvalidMessage("metadata", f"{len(encoded)} bytes", why, index=index)
    return dict(cleaned)


def _cleaned(value: Any, depth: int, limit: int, index: int) -> Any:  # Any: JSON of any shape, checked as it is walked
    if depth < 0:
        raise errors.InvalidMessage("metadata", "…", f"metadata nests at most {limit} deep.", index=index)
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise errors.InvalidMessage("metadata", value, "the keys of a JSON object are text.", index=index)
        return {clean_text(key): _cleaned(item, depth - 1, limit, index) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item, depth - 1, limit, index) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return _number(value, index)
    raise errors.InvalidMessage("metadata", value, f"{type(value).__name__} is not JSON.", index=index)


def _number(value: bool | int | float | None, index: int) -> bool | int | float | None:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        raise errors.InvalidMessage("metadata", value, "JSON has no NaN and no infinity.", index=index)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        raise errors.InvalidMessage("metadata", value, "whole numbers of metadata have at most 63 bits.", index=index)
    return value


def _moment(
    field: str, value: object, index: int, *, latest: datetime | None = None, after: datetime | None = None
) -> datetime | None:
    if value is None:
        return None
    moment = _as_datetime(field, value, index)
    if moment.tzinfo is None or moment.utcoffset() is None:
        why = "a time needs its zone; use datetime(2026, 1, 31, tzinfo=UTC), or ISO text that ends in Z or an offset."
        raise errors.InvalidMessage(field, value, why, index=index)
    unusable = why_unusable(moment)
    if unusable is not None:
        raise errors.InvalidMessage(field, value, unusable, index=index)
    if latest is not None and moment > latest:
        raise errors.InvalidMessage(field, value, "it is too far in the future.", index=index)
    if after is not None and moment <= after:
        raise errors.InvalidMessage(field, value, "it has passed: the message would never be read.", index=index)
    return moment.astimezone(UTC)


def _as_datetime(field: str, value: object, index: int) -> datetime:
    try:
        if isinstance(value, datetime):
            return value
        if isinstance(value, str):
            return datetime.fromisoformat(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError) as exc:
        raise errors.InvalidMessage(field, value, f"it cannot be read as a time: {exc}.", index=index) from exc
    why = f"a time is a datetime, an ISO 8601 text or seconds since 1970, not {type(value).__name__}."
    raise errors.InvalidMessage(field, value, why, index=index)
