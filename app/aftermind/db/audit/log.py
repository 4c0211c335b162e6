"""`Trail`: entries of what operators did, appended in the transaction of what they did.

Append-only: the roles of agents and workers may not change an entry, and the relay alone may delete those that are
older than 30 days. Two that append to one namespace follow each other, by the lock on its head.
"""

import getpass
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, timedelta
from typing import Any, Protocol

import orjson
from sqlalchemy import Row, text

from aftermind import errors
from aftermind.db.audit.chain import START, AuditKeys, Head, entry_mac, head_mac
from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption.keyfiles import LazyKeys
from aftermind.db.postgres_transaction import pg
from aftermind.telemetry.logger import get_logger
from aftermind.types.audit import Action, AuditEntry, authenticated_actor
from aftermind.types.message import Json

log = get_logger(__name__)

_OPEN = text(
    "INSERT INTO aftermind.audit_heads (namespace, seq, mac) VALUES (:namespace, 0, '') ON CONFLICT DO NOTHING"
)
_HEAD_COLUMNS = "seq, mac, pruned_to, pruned_mac, key_id, seal"
_LOCK = text(
    f"""
    SELECT {_HEAD_COLUMNS}, clock_timestamp() AS at FROM aftermind.audit_heads
    WHERE namespace = :namespace FOR UPDATE
    """
)
_ADD = text(
    """
    INSERT INTO aftermind.audit_log (namespace, seq, at, actor, action, user_id, detail, key_id, mac)
    VALUES (:namespace, :seq, :at, :actor, :action, :user, :detail, :key_id, :mac)
    """
)
_SEAL = text(
    """
    UPDATE aftermind.audit_heads SET seq = :seq, mac = :mac, pruned_to = :pruned_to, pruned_mac = :pruned_mac,
        key_id = :key_id, seal = :seal
    WHERE namespace = :namespace
    """
)
_HEAD = text(f"SELECT {_HEAD_COLUMNS} FROM aftermind.audit_heads WHERE namespace = :namespace")
_NAMESPACES = text("SELECT namespace, seq, key_id FROM aftermind.audit_heads ORDER BY 1")
_COLUMNS = "namespace, seq, at, actor, action, user_id, detail, key_id, mac"
_ROWS = text(
    f"""
    SELECT {_COLUMNS} FROM aftermind.audit_log WHERE namespace = :namespace AND seq > :after ORDER BY seq LIMIT :limit
    """
)
_NEWEST = text(
    f"""
    SELECT {_COLUMNS} FROM aftermind.audit_log
    WHERE namespace = :namespace AND (CAST(:user AS text) IS NULL OR user_id = :user)
      AND (CAST(:action AS text) IS NULL OR action = :action)
    ORDER BY seq DESC LIMIT :limit
    """
)
_OLD = text(
    """
    SELECT seq, mac FROM aftermind.audit_log
    WHERE namespace = :namespace AND seq > :after AND seq <= :after + :limit AND at < now() - CAST(:age AS interval)
    ORDER BY seq
    """
)
_DELETE = text("DELETE FROM aftermind.audit_log WHERE namespace = :namespace AND seq <= :upto")


Ends = Mapping[str, Mapping[int, bytes]]  # namespace → number of an entry that was the last once → its code


class Witness(Protocol):
    """A place outside the database that keeps how long each trail is."""

    name: str

    async def record_end(self, namespace: str, seq: int, mac: bytes) -> None:
        """Store the end if it is later than the stored one. Raises nothing: the next entry repeats it."""

    async def read_ends(self) -> Ends:
        """The ends that it keeps, of every namespace. Raises nothing: one that cannot be read keeps none."""

    async def prune(self, heads: Mapping[str, int]) -> None:
        """Remove ends that a later one has replaced, given the last entry of each trail. Raises `Unavailable`."""


class Trail:
    """Writes audit entries. `actor` acts in this process, unless a call names another one."""

    def __init__(self, keys: LazyKeys, witnesses: Sequence[Witness] = (), *, actor: str = "") -> None:
        self._keys, self.witnesses, self._actor = keys, tuple(witnesses), actor
        self._ends: dict[str, tuple[int, bytes]] = {}

    @property
    def keys(self) -> AuditKeys:
        """The keys of this process, to verify with; none if there is no setting and no file."""
        return AuditKeys(self._keys.existing())

    async def append(
        self,
        tx: Transaction,
        namespace: str,
        action: Action,
        *,
        user_id: str | None = None,
        actor: str | None = None,
        detail: Mapping[str, Json] | None = None,
    ) -> AuditEntry:
        """Add an entry, committed with the rest of the transaction. Call it last, and `anchor()` after the commit.

        It is signed by the authenticated identity (`acting_as`), else by the claim of the operating system's user;
        `actor` is a label of the caller's choice and is kept apart from it, in the detail.
        The transaction is in that namespace from here on. Raises `KeyFileLost`, `StoreUnavailable`, `NotAllowed`.
        """
        await tx.enter(namespace)
        run, (key_id, key) = pg(tx), AuditKeys(await self._keys.for_writing(tx)).current
        row = await run.row(_LOCK, namespace=namespace)
        if row is None:
            await run.execute(_OPEN, {"namespace": namespace})
            row = await run.row(_LOCK, namespace=namespace)
        if row is None:
            raise errors.Bug(f"the head of the trail of {namespace!r} was deleted while it was locked.")
        identity = authenticated_actor.get() or self._actor or whoami()
        label = {} if actor is None or actor == identity else {"label": actor}
        detail = {**(detail or {}), **label}
        said = orjson.dumps(detail, option=orjson.OPT_SORT_KEYS).decode()
        entry = AuditEntry(
            namespace=namespace,
            seq=row.seq + 1,
            at=row.at.astimezone(UTC),
            actor=identity,
            action=action,
            user_id=user_id,
            detail=detail,
            key_id=key_id,
        )
        entry = replace(entry, mac=entry_mac(key, entry, said, bytes(row.mac)))
        await run.execute(
            _ADD,
            {
                "namespace": namespace,
                "seq": entry.seq,
                "at": entry.at,
                "actor": entry.actor,
                "action": str(action),
                "user": user_id,
                "detail": said,
                "key_id": key_id,
                "mac": entry.mac,
            },
        )
        await self._sealed(tx, namespace, replace(_head(row), seq=entry.seq, mac=entry.mac))
        tx.after_commit.append(lambda: self._ends.update({namespace: (entry.seq, entry.mac)}))
        return entry

    async def anchor(self) -> None:
        """Report committed entries to the witnesses."""
        while self._ends:
            namespace, (seq, mac) = self._ends.popitem()
            for witness in self.witnesses:
                await witness.record_end(namespace, seq, mac)

    async def prune(self, tx: Transaction, namespace: str, *, older_than: timedelta, limit: int) -> int:
        """Take away the old end of a trail, at most `limit` entries; how many. The head vouches for where it ends."""
        await tx.enter(namespace)
        row = await pg(tx).row(_LOCK, namespace=namespace)
        if row is None:
            return 0
        head = _head(row)
        old = await pg(tx).rows(_OLD, namespace=namespace, after=head.pruned_to, age=older_than, limit=limit)
        seqs = [each.seq for each in old]
        if not old or seqs != list(range(head.pruned_to + 1, head.pruned_to + 1 + len(old))):
            return 0  # nothing is old, or something is missing: `verify` is to find it, and it stays as it is
        if head.key_id not in self.keys.named() or head.seal != head_mac(
            self.keys.named()[head.key_id], namespace, head
        ):
            log.warning("trail not pruned: its head is not ours", extra={"namespace": namespace})
            return 0
        await pg(tx).execute(_DELETE, {"namespace": namespace, "upto": seqs[-1]})
        await self._sealed(tx, namespace, replace(head, pruned_to=seqs[-1], pruned_mac=bytes(old[-1].mac)))
        return len(old)

    # reading

    async def heads(self, tx: Transaction) -> Mapping[str, int]:
        """The last entry of each namespace that has a trail: of all for the relay, else the transaction's own."""
        return {row.namespace: row.seq for row in await pg(tx).rows(_NAMESPACES)}

    async def used_keys(self, tx: Transaction) -> Mapping[str, str]:
        """The id of the key that each trail was last written with, as `heads`."""
        return {row.namespace: row.key_id for row in await pg(tx).rows(_NAMESPACES) if row.seq}

    async def head(self, tx: Transaction, namespace: str) -> Head | None:
        """The head of a trail; None where there is none."""
        row = await pg(tx).row(_HEAD, namespace=namespace)
        return None if row is None else _head(row)

    async def entries(self, tx: Transaction, namespace: str, *, after: int, limit: int) -> list[tuple[AuditEntry, str]]:
        """Entries after one, in order, each with its detail as it is kept."""
        rows = await pg(tx).rows(_ROWS, namespace=namespace, after=after, limit=limit)
        return [(_entry(row), row.detail) for row in rows]

    async def newest(
        self, tx: Transaction, namespace: str, *, user_id: str | None, action: str | None, limit: int
    ) -> list[AuditEntry]:
        """The newest entries that fit, oldest first."""
        rows = await pg(tx).rows(_NEWEST, namespace=namespace, user=user_id, action=action, limit=limit)
        return [_entry(row) for row in reversed(rows)]

    async def _sealed(self, tx: Transaction, namespace: str, head: Head) -> None:
        key_id, key = self.keys.current
        given = {"seq": head.seq, "mac": head.mac, "pruned_to": head.pruned_to, "pruned_mac": head.pruned_mac}
        seal = head_mac(key, namespace, head)
        await pg(tx).execute(_SEAL, {"namespace": namespace, **given, "key_id": key_id, "seal": seal})


def whoami() -> str:
    """The operating system's user and host: a claim that nothing has authenticated, and marked as one."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container without a name for its user
        name = "unknown"
    return f"os:{name}@{socket.gethostname()} (claimed)"


def _head(row: Row[Any]) -> Head:  # Any: a row of `audit_heads`
    return Head(
        seq=row.seq,
        mac=bytes(row.mac) or START,
        pruned_to=row.pruned_to,
        pruned_mac=bytes(row.pruned_mac) or START,
        key_id=row.key_id,
        seal=bytes(row.seal),
    )


def _entry(row: Row[Any]) -> AuditEntry:  # Any: a row of `audit`
    try:
        detail = orjson.loads(row.detail)
    except orjson.JSONDecodeError:  # it was changed; `verify` reports this
        detail = {"unreadable": row.detail}
    return AuditEntry(
        namespace=row.namespace,
        seq=row.seq,
        at=row.at.astimezone(UTC),
        actor=row.actor,
        action=row.action,
        user_id=row.user_id,
        detail=detail if isinstance(detail, dict) else {"unreadable": row.detail},
        key_id=row.key_id,
        mac=bytes(row.mac),
    )
