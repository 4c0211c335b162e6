"""JSON documents of a user, by path and key: what frameworks keep in a key-value store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from aftermind.types.message import Json
from aftermind.types.scope import Scope

# In the name of an item's row. They are neighbours, so that one range holds everything below a path.
LABEL_END, PATH_END = "\x1f", "\x1e"


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


def to_name(path: Sequence[str], key: str) -> str:
    """The name of an item's row."""
    return LABEL_END.join(path) + PATH_END + key


def from_name(name: str) -> tuple[tuple[str, ...], str]:
    """Path and key of a row's name."""
    path, _, key = name.partition(PATH_END)
    return tuple(path.split(LABEL_END)), key
