"""`memory.retention`: retention policies of namespaces, and their execution."""

import math
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from aftermind import errors
from aftermind.api.forget_and_export import erase
from aftermind.api.retention.archives import Archive, as_lines, file_name, open_archive, settled
from aftermind.db.database_protocol import Database, Transaction
from aftermind.ledger.protocol import Ledger
from aftermind.stores.protocol import Store
from aftermind.stores.retention_protocol import Due, RetentionStore
from aftermind.telemetry.logger import get_logger
from aftermind.types import EpisodeId, Json, Scope
from aftermind.types.audit import Action
from aftermind.types.retention import RetentionPolicy, RetentionResult
from aftermind.types.tombstone import Tombstone
from aftermind.types.uuid7 import uuid7

if TYPE_CHECKING:  # it loads SQLAlchemy, which a store of one process does without
    from aftermind.db.audit.log import Trail

log = get_logger(__name__)

BATCH_EPISODES = 500  # of one user and one transaction: 10 ms, so that no store of theirs waits longer
USERS_PER_BATCH = 100


class CommitOwnerWork(Protocol):
    """Commits work for an owner, so that a recall that follows sees it."""

    def __call__(self, owner: Scope, work: Callable[[Transaction], Awaitable[Any]]) -> Awaitable[Any]:
        """The result of `work`."""


@dataclass(slots=True)
class _Deleted:
    users: set[str] = field(default_factory=set)
    episodes: int = 0
    archived: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    oldest: datetime | None = None
    newest: datetime | None = None

    def count(self, due: Due, ids: int) -> None:
        if not ids:
            return
        self.users.add(due.owner.user_column)
        self.episodes += ids
        self.oldest = due.oldest if self.oldest is None else min(self.oldest, due.oldest)
        self.newest = due.newest if self.newest is None else max(self.newest, due.newest)

    def to_result(self, namespace: str, *, dry_run: bool, is_done: bool, after: str | None = None) -> RetentionResult:
        return RetentionResult(
            namespace=namespace,
            users=len(self.users),
            episodes=self.episodes,
            rows=dict(self.rows),
            archived=self.archived,
            oldest=self.oldest,
            newest=self.newest,
            dry_run=dry_run,
            is_done=is_done,
            stopped_after=after,
        )


class DuePolicies:
    """Runs the policies that are due, each for a limited time; the next call continues where one was stopped."""

    def __init__(
        self, db: Database, keeping: RetentionStore, retention: Callable[[str], "Retention"], *, every: timedelta
    ) -> None:
        self._db, self._keeping, self._retention, self._every = db, keeping, retention, every
        self._stopped: dict[str, str | None] = {}  # after which user, by namespace

    async def list(self) -> list[RetentionPolicy]:
        """Policies that neither ran nor were set within `every`, in a random order.

        Random, so that a long one does not always delay the same others.
        """
        async with self._db.transaction(read_only=True) as tx:
            found = await self._keeping.list_due(tx, every=self._every)
        random.shuffle(found)
        return found

    async def apply(self, policy: RetentionPolicy, *, seconds: float) -> bool:
        """Run a policy; whether some of it is left. An archive that refuses is logged."""
        if seconds <= 0:
            return True
        name = policy.namespace
        try:
            done = await self._retention(name).run(seconds=seconds, after=self._stopped.pop(name, None))
        except (errors.ArchiveUnavailable, errors.InvalidSettings) as exc:  # of this namespace alone
            log.warning("archive refuses", extra={"namespace": name, "error": str(exc)})
            return False
        log.info("retention policy applied", extra={"namespace": name, "episodes": done.episodes, "users": done.users})
        if not done.is_done:
            self._stopped[name] = done.stopped_after
        return not done.is_done


class Retention:
    """Policies of namespaces. Every call raises `InvalidScope`, `InvalidSettings` and `StoreUnavailable`.

    The reconciler runs them once a day (`AFTERMIND_RETENTION_EVERY_SECONDS`), first a day after they were set or
    changed; a store of one process runs them itself, when it is opened and after turns. `run` runs one immediately.
    Deletion is like `forget`: also facts without another source, and summaries and traits that used the episodes;
    running jobs for them write nothing.
    """

    def __init__(
        self,
        *,
        db: Database,
        store: Store,
        ledger: Ledger,
        keeping: RetentionStore,
        effect: CommitOwnerWork,
        namespace: str,
        trail: "Trail | None" = None,
        is_indexed: bool = False,
    ) -> None:
        self._db, self._store, self._ledger, self._keeping = db, store, ledger, keeping
        self._effect, self._namespace, self._trail, self._is_indexed = effect, namespace, trail, is_indexed

    async def get(self, *, namespace: str | None = None) -> RetentionPolicy | None:
        """The policy of a namespace; None where it keeps everything."""
        async with self._db.transaction(namespace=self._name(namespace), read_only=True) as tx:
            found = await self._keeping.policies(tx, self._name(namespace))
        return found[0] if found else None

    async def set(
        self,
        *,
        max_age: timedelta | None = None,
        max_episodes: int | None = None,
        keep_important: bool = False,
        archive: str | None = None,
        namespace: str | None = None,
    ) -> RetentionPolicy:
        """Give a namespace a policy, in place of the whole one it had. See `RetentionPolicy` for what each part means.

        Nothing is deleted before a day (`AFTERMIND_RETENTION_EVERY_SECONDS`) has passed, except by `run`: until then
        `run(dry_run=True)` counts what the policy would delete.
        """
        policy = RetentionPolicy(
            namespace=self._name(namespace),
            max_age=max_age,
            max_episodes=max_episodes,
            keep_important=keep_important,
            archive=None if archive is None else settled(archive),
        )
        if archive is not None:
            open_archive(archive)  # refuse now what no run could write to
        async with self._db.transaction(namespace=policy.namespace) as tx:
            await self._keeping.put(tx, policy)
            (stored,) = await self._keeping.policies(tx, policy.namespace)
            await self._noted(tx, policy.namespace, _audit_detail(policy))
        await self._anchor()
        return stored

    async def clear(self, *, namespace: str | None = None) -> bool:
        """Keep everything of a namespace from now on; whether it had a policy."""
        name = self._name(namespace)
        async with self._db.transaction(namespace=name) as tx:
            was_there = await self._keeping.drop(tx, name)
            if was_there:
                await self._noted(tx, name, {"was": "cleared"})
        await self._anchor()
        return was_there

    async def run(
        self,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
        seconds: float | None = None,
        after: str | None = None,
    ) -> RetentionResult:
        """Run the policy of a namespace, or with `dry_run` count what it would delete. Also raises
        `ArchiveUnavailable`.

        In batches of 500 episodes of a user, each a separate transaction. `seconds` limits the run, and `after` is
        where it continues: otherwise very active users would delay the others. Episodes that the archive does not
        accept are not deleted. If an archive was written and the delete failed, the next run archives the same rows
        again: each line has its id.
        """
        policy = await self.get(namespace=namespace)
        gone = _Deleted()
        if policy is None:
            return gone.to_result(self._name(namespace), dry_run=dry_run, is_done=True)
        ends_at = math.inf if seconds is None else time.monotonic() + seconds
        archive = None if policy.archive is None else open_archive(policy.archive)
        limit = 1_000_000 if dry_run else BATCH_EPISODES
        while True:
            async with self._db.transaction(namespace=policy.namespace, read_only=True) as tx:
                found, last = await self._keeping.due_episodes(
                    tx, policy, after=after, users=USERS_PER_BATCH, limit=limit
                )
            is_more, reached = False, after
            for due in found:
                went = len(due.ids) if dry_run else await self._archive_and_delete(policy, archive, due, gone)
                gone.count(due, went)
                is_more = is_more or (not dry_run and went > 0 and len(due.ids) == limit)
                reached = reached if is_more else due.owner.user_column
                if time.monotonic() > ends_at:
                    return gone.to_result(policy.namespace, dry_run=dry_run, is_done=False, after=reached)
            if last is None:
                break
            after = after if is_more else last  # the same users once more, while one of them has more than a batch
            if time.monotonic() > ends_at:
                return gone.to_result(policy.namespace, dry_run=dry_run, is_done=False, after=after)
        if not dry_run:
            async with self._db.transaction(namespace=policy.namespace) as tx:
                await self._keeping.ran(tx, policy.namespace)
        return gone.to_result(policy.namespace, dry_run=dry_run, is_done=True)

    async def delete_expired(self, *, namespace: str | None = None) -> int:
        """Delete messages whose `expires_at` has passed, up to 500; how many there were. The janitor calls it.

        Reads have left them out since then. They are deleted like those of a policy, and not archived.
        """
        name = self._name(namespace)
        async with self._db.transaction(namespace=name, read_only=True) as tx:
            found = await self._keeping.list_expired(tx, name, limit=BATCH_EPISODES)
        for owner, ids in found.items():
            stone = Tombstone(owner=owner, ids=frozenset(ids), by_policy=True)
            await self._effect(owner, self._erasing(stone, by="expiry"))
        await self._anchor()
        return sum(map(len, found.values()))

    def _erasing(self, stone: Tombstone, *, by: str) -> Callable[[Transaction], Awaitable[dict[str, int]]]:
        async def work(tx: Transaction) -> dict[str, int]:
            counts = (await erase(self._store, self._ledger, tx, stone, is_indexed=self._is_indexed)).rows
            if self._trail is not None:
                said: dict[str, Json] = {"by": by, "ids": len(stone.ids)}
                name = stone.owner.namespace
                await self._trail.append(tx, name, Action.ERASE, user_id=stone.owner.user_id, detail=said)
            return counts

        return work

    async def _archive_and_delete(
        self, policy: RetentionPolicy, archive: Archive | None, due: Due, gone: _Deleted
    ) -> int:
        """One batch: archived, then deleted; returns the number of episodes."""
        facts: frozenset[object] = frozenset()
        if archive is not None:
            async with self._db.transaction(namespace=policy.namespace, read_only=True) as tx:
                episodes = await self._store.episodes(tx, due.owner, due.ids)
                going = await self._keeping.list_orphaned_facts(tx, due.owner, due.ids)
            day, batch = datetime.now(UTC).strftime("%Y-%m-%d"), str(uuid7())
            await archive.write(file_name(policy.namespace, day, batch), as_lines(episodes, going))
            due = replace(due, ids=tuple(each.id for each in episodes))
            facts = frozenset(each.id for each in going)

        async def delete(tx: Transaction) -> tuple[list[EpisodeId], dict[str, int]]:
            ids = await self._keeping.still_due(tx, policy, due.owner, due.ids)
            if archive is not None:
                # A fact extracted from them in between is in no archive yet: the next run handles it.
                going = await self._keeping.list_orphaned_facts(tx, due.owner, ids)
                ids = ids if facts.issuperset(each.id for each in going) else []
            if not ids:  # a tombstone without ids would be everything of the owner
                return [], {}
            stone = Tombstone(owner=due.owner, ids=frozenset(ids), by_policy=True)
            return ids, await self._erasing(stone, by="retention")(tx)

        ids, rows = await self._effect(due.owner, delete)
        await self._anchor()
        gone.rows.update({name: count for name, count in rows.items() if name != "episodes"})
        gone.archived += 0 if archive is None else len(due.ids) + len(facts)
        return len(ids)

    async def _noted(self, tx: Transaction, namespace: str, said: dict[str, Json]) -> None:
        if self._trail is not None:
            await self._trail.append(tx, namespace, Action.POLICY, detail=said)

    async def _anchor(self) -> None:
        if self._trail is not None:
            await self._trail.anchor()

    def _name(self, namespace: str | None) -> str:
        return Scope(namespace=self._namespace if namespace is None else namespace).namespace


def _audit_detail(policy: RetentionPolicy) -> dict[str, Json]:
    """A policy, for the audit trail."""
    return {
        "was": "set",
        "max_age_seconds": None if policy.max_age is None else policy.max_age.total_seconds(),
        "max_episodes": policy.max_episodes,
        "keep_important": policy.keep_important,
        "archive": policy.archive,
    }
