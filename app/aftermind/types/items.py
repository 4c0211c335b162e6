"""JSON documents of a user, by path and key: what frameworks keep in a key-value store."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from aftermind.types.message import Json
from aftermind.types.scope import Scope

# In the name of an item's row. They are neighbours, so that one range holds everything below a path.
LABEL_END, PATH_END = "\x1f", "\x1e"
# Rows that are not items of the user: their path begins with an empty label, which no item can have.
SESSIONS, CHECKPOINTS, MEMBERS, GROUPS = "sessions", "checkpoints", "members", "groups"
FEEDBACK = "feedback"
_LONGEST_LABEL = 512  # bytes, so that a row's key fits an index entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A JSON document of a user. `score` is the similarity to the vector of a search, if one was given."""

    scope: Scope
    path: tuple[str, ...]
    key: str
    value: Mapping[str, Json]
    created_at: datetime
    updated_at: datetime
    expires_at: datetime | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemWrite:
    """One write of an item: the whole new value, or None to delete it.

    `vectors` are what a search compares, all of one dimension; the most similar one counts. `ttl` is how long the item
    lives after its last write or renewing read; None: until it is deleted.
    """

    path: Sequence[str]
    key: str
    value: Mapping[str, Json] | None
    vectors: Sequence[Sequence[float]] = ()
    ttl: timedelta | None = None


def internal_path(kind: str, of_session: Scope | None = None) -> tuple[str, ...]:
    """The path of internal rows of a kind; of a scope's session if given."""
    if of_session is None:
        return "", kind
    session = of_session.session_id
    if session is None:
        return "", kind, "-"
    label = "".join(f"%{ord(each):02x}" if each in f"%{LABEL_END}{PATH_END}" else each for each in session)
    if len(label.encode()) >= _LONGEST_LABEL:
        return "", kind, f"#{hashlib.sha256(session.encode()).hexdigest()}"
    return "", kind, f"={label}"


def below(path: Sequence[str]) -> tuple[str, str]:
    """The range of names that holds a path and everything below it: from the first name, up to but not the second."""
    start = LABEL_END.join(path)
    return start + PATH_END, start + chr(ord(LABEL_END) + 1)


def to_name(path: Sequence[str], key: str) -> str:
    """The name of an item's row."""
    return LABEL_END.join(path) + PATH_END + key


def feedback_name(id_: UUID) -> str:
    """The name of the row that counts the feedback about an episode or fact."""
    return to_name(internal_path(FEEDBACK), str(id_))


def from_name(name: str) -> tuple[tuple[str, ...], str]:
    """Path and key of a row's name."""
    path, _, key = name.partition(PATH_END)
    return tuple(path.split(LABEL_END)), key
