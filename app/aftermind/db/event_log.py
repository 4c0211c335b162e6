"""The record of events: rows of the effect's own transaction, numbered per owner without gaps.

The owner's counter is locked until the commit, so numbers follow the order of commits: a reader that has seen number n
never finds a smaller one later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import orjson
from sqlalchemy import Row, text

from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.types import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """An event as it is kept: `event` is its JSON, `cursor` its number among the owner's, None before it is kept.

    `is_published` False, of one that was read: its owner's watermark may not be raised yet.
    """

    owner: Scope
    id: str
    event: Mapping[str, Any]  # Any: JSON
    cursor: int | None = None
    is_published: bool = True


# Owners in order, so that two transactions never wait crosswise.
_NUMBERS = text(
    """
    INSERT INTO aftermind.event_counters AS there (namespace, user_id, last)
    SELECT * FROM unnest(CAST(:namespaces AS text[]), CAST(:users AS text[]), CAST(:counts AS bigint[]))
    ON CONFLICT (namespace, user_id) DO UPDATE SET last = there.last + excluded.last
    RETURNING namespace, user_id, last
    """
)
# With the deliveries to webhooks that want them: of the same transaction, so that none can be missed.
_APPEND = text(
    """
    WITH kept AS (
        INSERT INTO aftermind.events (namespace, user_id, seq, id, event)
        SELECT namespace, user_id, seq, id, CAST(event AS jsonb)
        FROM unnest(CAST(:namespaces AS text[]), CAST(:users AS text[]), CAST(:seqs AS bigint[]), CAST(:ids AS text[]),
                    CAST(:events AS text[])) AS given (namespace, user_id, seq, id, event)
        ON CONFLICT DO NOTHING RETURNING namespace, user_id, seq, event
    )
    INSERT INTO aftermind.webhook_deliveries (namespace, user_id, seq, webhook_id)
    SELECT kept.namespace, kept.user_id, kept.seq, hooks.id
    FROM kept JOIN aftermind.webhooks AS hooks ON hooks.namespace = kept.namespace
      AND (hooks.events = '{}' OR kept.event ->> 'event' = ANY(hooks.events))
    """
)
# `events_unpublished`; one relay at a time, and not what its own worker is publishing at this moment. Nor a row whose
# owner is no scope, which no listener can ask for: reading it would fail for all that are read with it.
_UNPUBLISHED = text(
    """
    SELECT namespace, user_id, seq, id, event::text AS event FROM aftermind.events
    WHERE published_at IS NULL AND created_at < now() - CAST(:age AS interval)
      AND octet_length(namespace) BETWEEN 1 AND 512 AND octet_length(user_id) <= 512
    ORDER BY created_at, seq LIMIT :limit
    """
)
_PUBLISHED = text(
    """
    UPDATE aftermind.events AS events SET published_at = now()
    FROM unnest(CAST(:namespaces AS text[]), CAST(:users AS text[]), CAST(:seqs AS bigint[]))
         AS sent (namespace, user_id, seq)
    WHERE events.namespace = sent.namespace AND events.user_id = sent.user_id AND events.seq = sent.seq
    """
)
_AFTER = text(
    """
    SELECT namespace, user_id, seq, id, event::text AS event, published_at IS NOT NULL AS is_published
    FROM aftermind.events WHERE namespace = :namespace AND user_id = :user AND seq > :cursor ORDER BY seq LIMIT :limit
    """
)
_STATE = text("SELECT last, pruned_to FROM aftermind.event_counters WHERE namespace = :namespace AND user_id = :user")
_PRUNE = text(
    """
    WITH old AS (
        SELECT namespace, user_id, seq FROM aftermind.events
        WHERE created_at < now() - CAST(:age AS interval) AND published_at IS NOT NULL LIMIT :limit
    ), gone AS (
        DELETE FROM aftermind.events AS events USING old
        WHERE events.namespace = old.namespace AND events.user_id = old.user_id AND events.seq = old.seq
        RETURNING events.namespace, events.user_id, events.seq
    ), marked AS (
        UPDATE aftermind.event_counters AS counters SET pruned_to = greatest(pruned_to, upto.seq)
        FROM (SELECT namespace, user_id, max(seq) AS seq FROM gone GROUP BY namespace, user_id) AS upto
        WHERE counters.namespace = upto.namespace AND counters.user_id = upto.user_id
    )
    SELECT count(*) AS gone FROM gone
    """
)


async def append(tx: Transaction, rows: Sequence[EventRow]) -> list[EventRow]:
    """Keep events in the order given; the same with their cursors."""
    if not rows:
        return []
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        counts[_owner(row)] = counts.get(_owner(row), 0) + 1
    owners = sorted(counts)
    numbered = await pg(tx).rows(
        _NUMBERS,
        namespaces=[namespace for namespace, _ in owners],
        users=[user for _, user in owners],
        counts=[counts[owner] for owner in owners],
    )
    following = {(row.namespace, row.user_id): row.last - counts[row.namespace, row.user_id] for row in numbered}
    kept = []
    for row in rows:
        following[_owner(row)] += 1
        kept.append(replace(row, cursor=following[_owner(row)]))
    events = [orjson.dumps(row.event).decode() for row in kept]
    await pg(tx).execute(_APPEND, {**_keys(kept), "ids": [row.id for row in kept], "events": events})
    return kept


async def unpublished(tx: Transaction, *, older_than: timedelta, limit: int) -> list[EventRow]:
    """Events that their worker did not publish, oldest first."""
    return [_row(row) for row in await pg(tx).rows(_UNPUBLISHED, age=older_than, limit=limit)]


async def mark_published(tx: Transaction, rows: Sequence[EventRow]) -> None:
    """Mark events as published, so that the relay skips them."""
    if rows:
        await pg(tx).execute(_PUBLISHED, _keys(rows))


async def after(tx: Transaction, owner: Scope, cursor: int, *, limit: int) -> list[EventRow]:
    """The owner's events after a cursor, in order."""
    given = {"namespace": owner.namespace, "user": owner.user_column, "cursor": cursor, "limit": limit}
    rows = await pg(tx).rows(_AFTER, **given)
    return [replace(_row(row), is_published=row.is_published) for row in rows]


async def state(tx: Transaction, owner: Scope) -> tuple[int, int]:
    """The owner's last cursor, and the last one that has been pruned; (0, 0) where nothing ever happened."""
    row = await pg(tx).row(_STATE, namespace=owner.namespace, user=owner.user_column)
    return (0, 0) if row is None else (row.last, row.pruned_to)


async def prune(tx: Transaction, *, older_than: timedelta, limit: int) -> int:
    """Delete published events older than the age; returns their number. A cursor before them gets a gap event."""
    row = await pg(tx).row(_PRUNE, age=older_than, limit=limit)
    return 0 if row is None else int(row.gone)


def _owner(row: EventRow) -> tuple[str, str]:
    return row.owner.namespace, row.owner.user_column


def _keys(rows: Sequence[EventRow]) -> dict[str, list[Any]]:  # Any: a column each
    return {
        "namespaces": [row.owner.namespace for row in rows],
        "users": [row.owner.user_column for row in rows],
        "seqs": [row.cursor for row in rows],
    }


def _row(row: Row[Any]) -> EventRow:  # Any: a row of `events`
    owner = Scope(namespace=row.namespace, user_id=row.user_id or None)
    return EventRow(owner=owner, id=row.id, event=orjson.loads(row.event), cursor=row.seq)
