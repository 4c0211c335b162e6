"""Retention in one process: policies as rows, and which episodes they keep no longer."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import mem
from aftermind.stores.retention_protocol import Due
from aftermind.types import Episode, EpisodeId, Fact, Scope
from aftermind.types.retention import RetentionPolicy
from aftermind.types.scope import owner_from_columns

TABLE = "retention_policies"


class InMemoryRetention:
    """See `RetentionStore`. The age of an episode is that of its turn: agent and store have one clock."""

    async def policies(self, tx: Transaction, namespace: str | None = None) -> list[RetentionPolicy]:
        rows: dict[str, RetentionPolicy] = mem(tx).table(TABLE)
        return [rows[name] for name in sorted(rows) if namespace in (None, name)]

    async def list_due(self, tx: Transaction, *, every: timedelta) -> list[RetentionPolicy]:
        due = mem(tx).database.now() - every
        policies = await self.policies(tx)
        return [each for each in policies if (last := each.ran_at or each.set_at) is None or last <= due]

    async def put(self, tx: Transaction, policy: RetentionPolicy) -> None:
        rows: dict[str, RetentionPolicy] = mem(tx).table(TABLE)
        former = rows.get(policy.namespace)
        if former is None or replace(former, set_at=None, ran_at=None) != replace(policy, set_at=None, ran_at=None):
            mem(tx).put(rows, policy.namespace, replace(policy, set_at=mem(tx).database.now(), ran_at=None))

    async def drop(self, tx: Transaction, namespace: str) -> bool:
        return mem(tx).drop(mem(tx).table(TABLE), namespace)

    async def ran(self, tx: Transaction, namespace: str) -> None:
        rows = mem(tx).table(TABLE)
        if namespace in rows:
            mem(tx).put(rows, namespace, replace(rows[namespace], ran_at=mem(tx).database.now()))

    async def due_episodes(
        self, tx: Transaction, policy: RetentionPolicy, *, after: str | None, users: int, limit: int
    ) -> tuple[list[Due], str | None]:
        names = sorted(user for _, user in mem(tx).owners(policy.namespace) if after is None or user > after)[:users]
        found = []
        for name in names:
            owner = owner_from_columns(policy.namespace, name)
            due = (await self._due(tx, policy, owner))[:limit]
            if due:
                times = [each.remembered_at for each in due]
                ids = tuple(each.id for each in due)
                found.append(Due(owner=owner, ids=ids, oldest=min(times), newest=max(times)))
        return found, names[-1] if names else None

    async def still_due(
        self, tx: Transaction, policy: RetentionPolicy, owner: Scope, ids: Sequence[EpisodeId]
    ) -> list[EpisodeId]:
        rows = await mem(tx).owned("episodes", owner)
        important = await self._important(tx, policy, owner)
        return [id_ for id_ in ids if id_ in rows and id_ not in important]

    async def list_expired(self, tx: Transaction, namespace: str, *, limit: int) -> dict[Scope, list[EpisodeId]]:
        found: dict[Scope, list[EpisodeId]] = {}
        now = mem(tx).database.now()
        for _, user in sorted(mem(tx).owners(namespace)):
            owner = owner_from_columns(namespace, user)
            rows = await mem(tx).owned("expiring", owner)
            expired = [id_ for id_, expires_at in rows.items() if expires_at <= now][:limit]
            limit -= len(expired)
            if expired:
                found[owner] = expired
        return found

    async def list_orphaned_facts(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Fact]:
        gone = frozenset(ids)
        facts = (await mem(tx).owned("facts", owner)).values()
        return [fact for fact in facts if fact.sources and gone.issuperset(fact.sources)]

    async def _due(self, tx: Transaction, policy: RetentionPolicy, owner: Scope) -> list[Episode]:
        """Those that are too old, or more than the newest `max_episodes`; the oldest first."""
        rows = sorted(
            (await mem(tx).owned("episodes", owner)).values(), key=lambda each: (each.remembered_at, each.position)
        )
        first_kept = 0 if policy.max_episodes is None else max(0, len(rows) - policy.max_episodes)
        oldest = None if policy.max_age is None else mem(tx).database.now() - policy.max_age
        important = await self._important(tx, policy, owner)
        old = [
            each
            for number, each in enumerate(rows)
            if number < first_kept or (oldest is not None and each.remembered_at < oldest)
        ]
        return [each for each in old if each.id not in important]

    async def _important(self, tx: Transaction, policy: RetentionPolicy, owner: Scope) -> set[EpisodeId]:
        """What the policy exempts: marked episodes, and sources of current facts."""
        if not policy.keep_important:
            return set()
        facts = (await mem(tx).owned("facts", owner)).values()
        sources = {source for fact in facts if fact.superseded_at is None for source in fact.sources}
        episodes = (await mem(tx).owned("episodes", owner)).items()
        return sources | {id_ for id_, each in episodes if each.metadata.get("important") is True}
