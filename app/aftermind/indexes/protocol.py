"""The `VectorIndex` protocol: vectors of episodes outside the record store."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aftermind.ranking.vectors import unit, whole
from aftermind.stores.protocol import EpisodeFilter, Vector
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, Scope

MARK = "aftermind"  # in the metadata of a collection of this library
COLLECTION = "aftermind"  # unless the URL names another


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One episode. Owner, session and agent are hashes: an index has no text and no name.

    `at` is `occurred_at` in seconds since 1970. `text` is for an index that embeds texts itself; others do not keep it.
    """

    id: EpisodeId
    owner: str
    vector: NDArray[np.float32]
    session: str
    agent: str
    role: str
    at: float
    text: str = field(default="", repr=False)

    @classmethod
    def of(cls, episode: Episode, vector: Vector) -> "IndexEntry":
        """The entry of an episode, by its own vector."""
        return cls(
            id=episode.id,
            owner=owner_key(episode.scope),
            vector=unit(whole(vector)),
            session=label_key(episode.scope.session_id),
            agent=label_key(episode.scope.agent_id),
            role=episode.role.value,
            at=episode.occurred_at.timestamp(),
            text=episode.content,
        )

    @property
    def labels(self) -> dict[str, str | float]:
        """What is stored with the vector, to filter by."""
        return {
            "owner": self.owner,
            "session": self.session,
            "agent": self.agent,
            "role": self.role,
            "at": self.at,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexQuery:
    """The entries of an owner nearest to a vector, or to a text; what is None does not filter."""

    owner: str
    vector: NDArray[np.float32]
    text: str = ""
    session: str | None = None
    agent: str | None = None
    roles: tuple[str, ...] | None = None
    since: float | None = None
    until: float | None = None
    k: int = 30

    @classmethod
    def of(cls, owner: Scope, vector: Vector, wanted: EpisodeFilter, *, text: str = "", k: int = 30) -> "IndexQuery":
        """The query of a recall. An index does not filter by metadata: the record store does."""
        return cls(
            owner=owner_key(owner),
            vector=unit(vector),
            text=text,
            session=None if wanted.session_id is None else label_key(wanted.session_id),
            agent=None if wanted.agent_id is None else label_key(wanted.agent_id),
            roles=None if wanted.roles is None else tuple(sorted(role.value for role in wanted.roles)),
            since=None if wanted.since is None else wanted.since.timestamp(),
            until=None if wanted.until is None else wanted.until.timestamp(),
            k=k if not wanted.metadata else 4 * k,
        )

    @property
    def equal(self) -> dict[str, str]:
        """The labels that must have a value."""
        named = {"owner": self.owner, "session": self.session, "agent": self.agent}
        return {name: value for name, value in named.items() if value is not None}


class VectorIndex(Protocol):
    """An index. Its calls block, and come from threads: of one that `is_local` (files of this process) from one thread.

    Whatever a call raises except `IndexMismatch` and `InvalidSettings` means that the index does not answer.
    """

    name: str  # in messages, without secrets
    is_local: bool

    def open(self, embedder: EmbedderIdentity, *, recreate: bool = False) -> None:
        """Connect; create the collection if it does not exist, or `recreate` this library's own.

        Raises `IndexMismatch` for a collection of another program, dimension, metric or embedder.
        """

    def upsert(self, entries: Sequence[IndexEntry]) -> None:
        """Write entries; an id that exists is replaced."""

    def delete(self, owner: str, ids: Sequence[EpisodeId] | None = None) -> None:
        """Delete entries of an owner, all of them without `ids`. Those that do not exist are no error."""

    def search(self, query: IndexQuery) -> Sequence[EpisodeId]:
        """The ids of the `k` nearest entries, nearest first."""

    def ids(self, owner: str) -> Iterable[EpisodeId]:
        """The ids of an owner's entries."""

    def count(self, owner: str | None = None) -> int:
        """The number of entries, of all owners or of one."""

    def close(self) -> None:
        """Give back connections and locks."""


def owner_key(owner: Scope) -> str:
    """An owner as an index stores it."""
    return _hash(owner.namespace, owner.user_column)


def label_key(label: str | None) -> str:
    """A session or agent as an index stores it; "" for none."""
    return "" if label is None else _hash(label)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]
