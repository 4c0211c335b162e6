"""Entries of the audit trail, and the faults that verification finds."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from aftermind.types.message import Json


class Action(StrEnum):
    """The audited action: memory read, exported, edited or erased; jobs replayed or discarded; keys changed; a
    retention policy changed; or the tenant moved to another database.
    """

    READ = "read"
    EXPORT = "export"
    EDIT = "edit"
    ERASE = "erase"
    REPLAY = "replay"
    DISCARD = "discard"
    KEYS = "keys"
    POLICY = "policy"
    MOVE = "move"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry of a namespace's trail. `actor` acted, on the memory of `user_id` (None: no particular user).

    `detail` has ids and counts, never content. `mac` authenticates the entry and all before it.
    """

    namespace: str
    seq: int
    at: datetime
    actor: str
    action: str
    user_id: str | None = None
    detail: Mapping[str, Json] = field(default_factory=dict)
    key_id: str = field(default="", repr=False)
    mac: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFault:
    """What is wrong with a trail, and at which entry (None: the trail as a whole)."""

    namespace: str
    seq: int | None
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Result of verifying the trail of a namespace. `witnesses` are the places outside the database that have its end.

    Without a witness, a deletion of the newest entries together with the head cannot be detected.
    """

    namespace: str
    entries: int
    first: int
    last: int
    witnesses: tuple[str, ...]
    faults: tuple[AuditFault, ...]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


# The identity of the `acting_as` block that runs; None where nothing was authenticated.
authenticated_actor: ContextVar[str | None] = ContextVar("aftermind_actor", default=None)


@contextmanager
def acting_as(actor: str) -> Iterator[None]:
    """Sign every entry that is added inside the block with an authenticated identity."""
    token = authenticated_actor.set(actor)
    try:
        yield
    finally:
        authenticated_actor.reset(token)
