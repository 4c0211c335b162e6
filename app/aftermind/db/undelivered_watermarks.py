"""Committed effects that Redis has not been informed of yet: a row each, deleted once it has.

A row is written in the effect's own transaction, so that a process that ends between the commit and Redis leaves it
behind. An event that is not published yet counts as such a row, since it is published after its watermark was raised;
so does a turn that the ledger has accepted, as long as it is not stored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text

from aftermind.db.database_protocol import Transaction, Watermark
from aftermind.db.engine import WATERMARK, parse_watermark
from aftermind.db.postgres_transaction import pg
from aftermind.db.row_level_security import ENTERING
from aftermind.types import Scope

RAISE_WATERMARK = "watermark"  # the kind of row whose delivery raises its owner's watermark


@dataclass(frozen=True, slots=True, kw_only=True)
class Undelivered:
    """One row: what has to reach Redis (`kind`), and for which owner."""

    id: int
    owner: Scope
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """Owners of a namespace with an undelivered watermark, and a place in the log that covers all their effects."""

    owners: Sequence[Scope]
    watermark: Watermark


_ADD = text(
    """
    INSERT INTO aftermind.undelivered_watermarks (namespace, user_id, kind)
    SELECT namespace, user_id, :kind
    FROM unnest(CAST(:namespaces AS text[]), CAST(:users AS text[])) AS owner (namespace, user_id)
    RETURNING id
    """
)
_DELETE = text("DELETE FROM aftermind.undelivered_watermarks WHERE id = ANY(CAST(:ids AS bigint[]))")
# A seldom filled table: read whole.
_OLDER = text(
    """
    SELECT id, namespace, user_id, kind FROM aftermind.undelivered_watermarks
    WHERE kind = :kind AND created_at < now() - CAST(:age AS interval) ORDER BY id LIMIT :limit
    """
)
# By `undelivered_watermarks_owner`, `events_undelivered` and `jobs_unstored`, in one round trip. The WAL position is
# read after the snapshot was taken, so it covers every effect of the rows. It fails on a node in recovery, which has no
# WAL position.
_OWED = ENTERING.format(
    asked=f"""
    SELECT place.system, place.timeline, place.lsn,
           ARRAY(SELECT user_id FROM (
               SELECT user_id FROM aftermind.undelivered_watermarks WHERE namespace = $2 AND kind = '{RAISE_WATERMARK}'
               UNION SELECT user_id FROM aftermind.events WHERE namespace = $2 AND published_at IS NULL
               UNION SELECT user_id FROM aftermind.jobs WHERE namespace = $2 AND raw IS NOT NULL AND kind = 'store'
                     AND state IN ('queued', 'running', 'retrying')
           ) AS owed LIMIT $3) AS users
    FROM ({WATERMARK}) AS place
    """
).replace(":tenant", "$1")


async def add(tx: Transaction, owners: Sequence[Scope], *, kind: str = RAISE_WATERMARK) -> list[int]:
    """Write a row for each owner, in the effect's transaction; their ids."""
    rows = await pg(tx).rows(
        _ADD,
        kind=kind,
        namespaces=[owner.namespace for owner in owners],
        users=[owner.user_column for owner in owners],
    )
    return [row.id for row in rows]


async def delete(tx: Transaction, ids: Sequence[int]) -> None:
    """Delete rows that were delivered."""
    if ids:
        await pg(tx).execute(_DELETE, {"ids": list(ids)})


async def list_older(
    tx: Transaction, *, older_than: timedelta, limit: int, kind: str = RAISE_WATERMARK
) -> list[Undelivered]:
    """Rows whose own process did not deliver them, oldest first."""
    rows = await pg(tx).rows(_OLDER, kind=kind, age=older_than, limit=limit)
    return [
        Undelivered(id=row.id, owner=Scope(namespace=row.namespace, user_id=row.user_id or None), kind=row.kind)
        for row in rows
    ]


async def list_owed(tx: Transaction, namespace: str, *, limit: int) -> Owed | None:
    """Owners of the namespace with an undelivered watermark; None if they are more than `limit`.

    Raises `StoreUnavailable` on a replica.
    """
    row = await pg(tx).alone(_OWED, namespace, namespace, limit + 1)
    if row is None or len(row["users"]) > limit:
        return None
    owners = [Scope(namespace=namespace, user_id=user or None) for user in row["users"]]
    return Owed(owners=owners, watermark=parse_watermark(row))
