"""The owner and the labels of a memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NewType
from uuid import UUID

from aftermind import errors

JobId = NewType("JobId", UUID)
EpisodeId = NewType("EpisodeId", UUID)
FactId = NewType("FactId", UUID)
RecallId = NewType("RecallId", UUID)
LeaseToken = NewType("LeaseToken", UUID)

MAX_ID_BYTES = 512  # fits an index entry of Postgres (2,704 bytes) three times over, and any URL or e-mail address
DEFAULT_NAMESPACE = "default"
GROUP_PREFIX = "group:"  # of the owners that are groups; no user id begins with it
FIELDS = ("namespace", "user_id", "session_id", "agent_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The owner of a memory, and two labels within it.

    The boundary is (`namespace`, `user_id`): rows of one owner are never seen by another. `session_id` and `agent_id`
    are labels: recall spans them unless it is filtered. `user_id=None` is the anonymous bucket of its namespace.
    Ids are at most 512 UTF-8 bytes, without NUL and not empty; anything else raises `InvalidScope`.
    """

    namespace: str = DEFAULT_NAMESPACE
    user_id: str | None = None
    session_id: str | None = None
    agent_id: str | None = None

    def __post_init__(self) -> None:
        if self.namespace is None:
            raise errors.InvalidScope("namespace", None, f"a namespace is text; the default is {DEFAULT_NAMESPACE!r}.")
        for field in FIELDS:
            value = getattr(self, field)
            # Fast path for typical ids; the check below would accept them too.
            if value is not None and not (
                type(value) is str and value.isascii() and 0 < len(value) <= MAX_ID_BYTES and "\x00" not in value
            ):
                _check(field, value)

    @property
    def owner(self) -> "Scope":
        """The owner without labels: the key of pending, watermark, events and tombstones."""
        if self.session_id is None and self.agent_id is None:
            return self
        return _owner(self.namespace, self.user_id)

    @property
    def user_column(self) -> str:
        """The user as the stores keep it: the anonymous bucket is the empty text, which no user id can be."""
        return self.user_id or ""

    def labels(self) -> Mapping[str, str]:
        """What is set, by name, for logs and events."""
        named = {"namespace": self.namespace, "user_id": self.user_id}
        named |= {"session_id": self.session_id, "agent_id": self.agent_id}
        return {name: value for name, value in named.items() if value is not None}


@lru_cache(maxsize=1_024)  # asked for many times a turn
def _owner(namespace: str, user_id: str | None) -> Scope:
    return Scope(namespace=namespace, user_id=user_id)


def owner_from_columns(namespace: str, user: str) -> Scope:
    """The scope of a stored row: the empty user is the anonymous bucket."""
    return Scope(namespace=namespace, user_id=user or None)


def _check(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise errors.InvalidScope(field, value, f"an id is text, not {type(value).__name__}.")
    if not value:
        raise errors.InvalidScope(field, value, "an id cannot be empty; leave it out for the anonymous bucket.")
    if "\x00" in value:
        raise errors.InvalidScope(field, value, "an id cannot hold a NUL character.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as exc:
        raise errors.InvalidScope(field, value, "an id must be valid Unicode; this one has a lone surrogate.") from exc
    if size > MAX_ID_BYTES:
        why = f"an id has at most {MAX_ID_BYTES} UTF-8 bytes, this one has {size}. Pass the hash of a long id instead."
        raise errors.InvalidScope(field, value, why)
