"""The `RetentionStore` protocol: stored retention policies, and the episodes that they delete."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from aftermind.db.database_protocol import Transaction
from aftermind.types import EpisodeId, Fact, Scope
from aftermind.types.retention import RetentionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Episodes of an owner that a policy keeps no longer, oldest first, and when they were remembered."""

    owner: Scope
    ids: tuple[EpisodeId, ...]
    oldest: datetime
    newest: datetime


class RetentionStore(Protocol):
    """Every method takes the caller's transaction. All raise `StoreUnavailable`."""

    async def policies(self, tx: Transaction, namespace: str | None = None) -> list[RetentionPolicy]:
        """That of a namespace, or (None, in a transaction that sees them) those of all, by namespace."""

    async def list_due(self, tx: Transaction, *, every: timedelta) -> list[RetentionPolicy]:
        """Policies of all namespaces that neither ran nor were set within `every`, by the clock of the database.

        The first run is `every` after a policy was set: until then an operator can count what it would delete.
        """

    async def put(self, tx: Transaction, policy: RetentionPolicy) -> None:
        """Set a namespace's policy. One that is the same already keeps the times at which it was set and last ran."""

    async def drop(self, tx: Transaction, namespace: str) -> bool:
        """Keep everything from now on; whether there was a policy."""

    async def ran(self, tx: Transaction, namespace: str) -> None:
        """Note that the policy was carried out to its end."""

    async def due_episodes(
        self, tx: Transaction, policy: RetentionPolicy, *, after: str | None, users: int, limit: int
    ) -> tuple[list[Due], str | None]:
        """Of the next `users` users after `after`, up to `limit` episodes each that must be deleted.

        With them the last user that was checked, None if there was none left.
        """

    async def still_due(
        self, tx: Transaction, policy: RetentionPolicy, owner: Scope, ids: Sequence[EpisodeId]
    ) -> list[EpisodeId]:
        """Lock the owner against effects; returns those of the ids that must still be deleted."""

    async def list_expired(self, tx: Transaction, namespace: str, *, limit: int) -> dict[Scope, list[EpisodeId]]:
        """Up to `limit` messages of a namespace that have expired, by owner."""

    async def list_orphaned_facts(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Fact]:
        """Facts that lose their last source with these episodes."""
