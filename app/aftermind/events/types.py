"""The `Memory*` events: ids and counts, never content."""

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, ClassVar

from aftermind import errors
from aftermind.types.scope import FIELDS, Scope
from aftermind.types.uuid7 import uuid7

CURSOR_DIGITS = 18  # of the longest cursor, a bigint


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvent:
    """What all events carry. `id` is the same however often an event is sent; `watermark` is set after a commit."""

    event: ClassVar[str] = "MemoryEvent"
    scope: Scope
    at: datetime
    id: str = field(default_factory=lambda: str(uuid7()))
    job_id: str | None = None
    watermark: str | None = None
    cursor: str | None = None  # place in the owner's record, to resume after; None for what is only sent live

    def to_json(self) -> dict[str, Any]:  # Any: JSON as it leaves
        """A flat JSON object with the scope's labels and the event's fields."""
        flat = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("scope", "at")}
        return {"event": self.event, "at": self.at.isoformat(), **self.scope.labels(), **flat}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecallStarted(MemoryEvent):
    """A recall started. `query` stays in the process and is not sent anywhere."""

    event: ClassVar[str] = "MemoryRecallStarted"
    query: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecallCompleted(MemoryEvent):
    """A recall ended. `recall_id` is the `id` of its block, and empty if there is none.

    `degraded` is the reason if a part of the block or of the session's history may be missing.
    """

    event: ClassVar[str] = "MemoryRecallCompleted"
    query: str = ""
    recall_id: str = ""
    tokens_used: int = 0
    chunks_included: int = 0
    chunks_available: int = 0
    duration_ms: float = 0.0
    degraded: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUpdateQueued(MemoryEvent):
    """A turn was handed over."""

    event: ClassVar[str] = "MemoryUpdateQueued"
    message_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUpdateStarted(MemoryEvent):
    """A worker has begun a job. `message_count` is that of the turn which a store job stores."""

    event: ClassVar[str] = "MemoryUpdateStarted"
    kind: str = "store"
    message_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUpdateCompleted(MemoryEvent):
    """The job is done; the next recall sees it, whichever replica serves. With `kind` store: the turn is stored.

    An embed job sends `MemoryEmbedded` instead, an extraction `MemoryFactsExtracted`.
    """

    event: ClassVar[str] = "MemoryUpdateCompleted"
    kind: str = "store"
    message_count: int = 0
    duration_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUpdateFailed(MemoryEvent):
    """An attempt failed (`dead_letter_id` None) or the job is a dead letter by now."""

    event: ClassVar[str] = "MemoryUpdateFailed"
    kind: str = ""
    error: str = ""
    attempts: int = 0
    dead_letter_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEmbedded(MemoryEvent):
    """Episodes have their vectors."""

    event: ClassVar[str] = "MemoryEmbedded"
    episode_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFactsExtracted(MemoryEvent):
    """A session was mined. Both counts 0 is a decision, not a failure."""

    event: ClassVar[str] = "MemoryFactsExtracted"
    added: int = 0
    superseded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGap(MemoryEvent):
    """The cursor asked for is older than what is kept: events are missing between it and the next one."""

    event: ClassVar[str] = "MemoryGap"


KINDS: dict[str, type[MemoryEvent]] = {
    kind.event: kind
    for kind in (
        MemoryRecallStarted,
        MemoryRecallCompleted,
        MemoryUpdateQueued,
        MemoryUpdateStarted,
        MemoryUpdateCompleted,
        MemoryUpdateFailed,
        MemoryEmbedded,
        MemoryFactsExtracted,
        MemoryGap,
    )
}


# Kinds that are stored; the others are live only.
KEPT_KINDS = tuple(
    kind.event
    for kind in (MemoryUpdateStarted, MemoryUpdateCompleted, MemoryUpdateFailed, MemoryEmbedded, MemoryFactsExtracted)
)


def from_json(data: Any) -> MemoryEvent:  # Any: JSON as received, from any writer
    """The event that `to_json` wrote. A later release's fields are dropped.

    Raises `UnknownPayload` for a kind that this release does not have, and for anything that is no event.
    """
    name = data.get("event") if isinstance(data, dict) else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise errors.UnknownPayload("event", name if isinstance(name, str) else type(data).__name__)
    known = {f.name for f in fields(kind)} - {"scope", "at"}
    values = {name: value for name, value in data.items() if name in known}
    try:
        labels = {name: data[name] for name in FIELDS if data.get(name) is not None}
        event = kind(scope=Scope(**labels), at=datetime.fromisoformat(data["at"]), **values)
        if event.cursor is not None:
            int(event.cursor)
    except (KeyError, TypeError, ValueError, errors.InvalidInput) as exc:
        raise errors.UnknownPayload("event", f"{name} ({type(exc).__name__})") from exc
    return event


def is_cursor(text: str) -> bool:
    """Whether a text can be the cursor of an event."""
    return text.isascii() and text.isdecimal() and len(text) <= CURSOR_DIGITS
