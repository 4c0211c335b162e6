"""Webhooks and their deliveries. A delivery is a row of the transaction that stores its event: see `event_log.append`.

Pub/sub is not used here, so nothing is missed. A courier claims due deliveries for some seconds, posts them, and then
deletes the rows; if it crashes in between, they are claimed again.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Row, text

from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.types.webhook import Delivery, Webhook, WebhookId

_ADD = text(
    """
    INSERT INTO aftermind.webhooks (namespace, id, url, events, secret, description)
    SELECT :namespace, CAST(:id AS uuid), :url, CAST(:events AS text[]), :secret, :description
    WHERE (SELECT count(*) FROM aftermind.webhooks WHERE namespace = :namespace) < :most
    RETURNING created_at
    """
)
_LIST = text(
    """
    SELECT hooks.id, hooks.namespace, hooks.url, hooks.events, hooks.description, hooks.is_disabled, hooks.reason,
           hooks.failing_since, hooks.delivered_at, hooks.created_at,
           CASE WHEN hooks.former_secret_until > now() THEN hooks.former_secret_until END AS former_secret_until,
           coalesce(counts.waiting, 0) AS waiting, coalesce(counts.failed, 0) AS failed
    FROM aftermind.webhooks AS hooks LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE NOT is_failed) AS waiting, count(*) FILTER (WHERE is_failed) AS failed
        FROM aftermind.webhook_deliveries AS each
        WHERE each.namespace = hooks.namespace AND each.webhook_id = hooks.id
    ) AS counts ON true
    WHERE hooks.namespace = :namespace AND (CAST(:id AS uuid) IS NULL OR hooks.id = :id)
    ORDER BY hooks.created_at, hooks.id
    """
)
# The row's lock decides between two rotations: the later one keeps the secret of the earlier one as the former.
_ROTATE = text(
    """
    UPDATE aftermind.webhooks
    SET former_secret = CASE WHEN CAST(:overlap AS interval) > interval '0' THEN secret END,
        former_secret_until = CASE WHEN CAST(:overlap AS interval) > interval '0' THEN now() + :overlap END,
        secret = :secret
    WHERE namespace = :namespace AND id = :id RETURNING id
    """
)
_REMOVE = text(
    """
    WITH gone AS (DELETE FROM aftermind.webhooks WHERE namespace = :namespace AND id = :id RETURNING id),
         undelivered AS (DELETE FROM aftermind.webhook_deliveries WHERE namespace = :namespace AND webhook_id = :id)
    SELECT id FROM gone
    """
)
# What was given up is tried again too.
_ENABLE = text(
    """
    WITH mended AS (
        UPDATE aftermind.webhooks
        SET is_disabled = false, reason = NULL, failing_since = NULL, failures = 0, due_at = now()
        WHERE namespace = :namespace AND id = :id RETURNING id
    ), again AS (
        UPDATE aftermind.webhook_deliveries
        SET is_failed = false, due_at = now(), attempts = 0, created_at = now()
        WHERE namespace = :namespace AND webhook_id = :id AND token IS NULL
    )
    SELECT id FROM mended
    """
)
# FOR NO KEY UPDATE: a commit that adds deliveries must not wait. A failing webhook has one running post at a time, and
# its `due_at` delays the next; the others are served in turn by it.
_CLAIM = text(
    """
    WITH ready AS (
        SELECT namespace, id, url, secret, failures,
               CASE WHEN former_secret_until > now() THEN former_secret END AS former_secret
        FROM aftermind.webhooks AS hooks
        WHERE NOT is_disabled AND due_at <= now() AND NOT id = ANY(CAST(:busy AS uuid[])) AND EXISTS (
            SELECT FROM aftermind.webhook_deliveries AS each
            WHERE each.namespace = hooks.namespace AND each.webhook_id = hooks.id
              AND NOT each.is_failed AND each.due_at <= now())
        ORDER BY due_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
    ), due AS (
        SELECT each.namespace, each.user_id, each.seq, each.webhook_id
        FROM ready CROSS JOIN LATERAL (
            SELECT namespace, user_id, seq, webhook_id FROM aftermind.webhook_deliveries AS inner_each
            WHERE inner_each.namespace = ready.namespace AND inner_each.webhook_id = ready.id
              AND NOT inner_each.is_failed AND inner_each.due_at <= now()
            ORDER BY inner_each.due_at, inner_each.seq LIMIT CASE WHEN ready.failures > 0 THEN 1 ELSE :each END
            FOR UPDATE SKIP LOCKED
        ) AS each LIMIT :limit
    ), claimed AS (
        UPDATE aftermind.webhook_deliveries AS mine
        SET attempts = attempts + 1, token = :token, due_at = now() + CAST(:lease AS interval)
        FROM due WHERE mine.namespace = due.namespace AND mine.user_id = due.user_id AND mine.seq = due.seq
          AND mine.webhook_id = due.webhook_id
        RETURNING mine.namespace, mine.webhook_id, mine.user_id, mine.seq, mine.attempts, mine.created_at
    ), turn AS (
        UPDATE aftermind.webhooks AS hooks
        SET due_at = CASE WHEN failures > 0 THEN now() + CAST(:lease AS interval) ELSE now() END
        WHERE (namespace, id) IN (SELECT namespace, webhook_id FROM claimed)
    )
    SELECT claimed.namespace, claimed.webhook_id, claimed.user_id, claimed.seq, claimed.attempts, ready.url,
           ready.secret, ready.former_secret, ready.failures, events.id AS event_id, events.event::text AS event,
           extract(epoch FROM now() - claimed.created_at)::float8 AS age
    FROM claimed
    JOIN ready ON ready.namespace = claimed.namespace AND ready.id = claimed.webhook_id
    JOIN aftermind.events AS events
      ON events.namespace = claimed.namespace AND events.user_id = claimed.user_id AND events.seq = claimed.seq
    """
)
_KEY = "namespace = :namespace AND user_id = :user AND seq = :seq AND webhook_id = :id"
_DELIVERED = text(
    """
    DELETE FROM aftermind.webhook_deliveries AS each
    USING unnest(CAST(:namespaces AS text[]), CAST(:users AS text[]), CAST(:seqs AS bigint[]), CAST(:ids AS uuid[]))
          AS taken (namespace, user_id, seq, webhook_id)
    WHERE each.namespace = taken.namespace AND each.user_id = taken.user_id AND each.seq = taken.seq
      AND each.webhook_id = taken.webhook_id
    """
)
# Written only if something changes: otherwise couriers would wait for each other at the row. In one order, so that two
# couriers that write outcomes of the same webhooks cannot deadlock.
_HOLD = text(
    """
    SELECT FROM aftermind.webhooks
    WHERE (namespace, id) IN (SELECT * FROM unnest(CAST(:namespaces AS text[]), CAST(:ids AS uuid[])))
    ORDER BY namespace, id FOR NO KEY UPDATE
    """
)
_WELL = text(
    """
    UPDATE aftermind.webhooks
    SET failures = 0, failing_since = NULL, reason = NULL, delivered_at = now(), due_at = least(due_at, now())
    WHERE (namespace, id) IN (SELECT * FROM unnest(CAST(:namespaces AS text[]), CAST(:ids AS uuid[])))
      AND (failures > 0 OR failing_since IS NOT NULL OR delivered_at IS NULL OR delivered_at < now() - interval '5 s')
    """
)
# A post from before an endpoint was fixed must not delay later ones: `failures` increases by one for each.
_AGAIN = text(
    f"""
    UPDATE aftermind.webhook_deliveries
    SET token = NULL, due_at = now() + CAST(:wait AS interval), is_failed = :given_up, error = :error
    WHERE {_KEY} AND token = :token
    """
)
_FAILING = text(
    """
    UPDATE aftermind.webhooks
    SET failures = failures + 1, failing_since = coalesce(failing_since, now()), reason = :error,
        due_at = now() + CAST(:pause AS interval),
        is_disabled = is_disabled OR :gone OR coalesce(failing_since, now()) < now() - CAST(:patience AS interval)
    WHERE namespace = :namespace AND id = :id RETURNING is_disabled, failures
    """
)
_UNWELL = text(
    """
    SELECT count(*) FILTER (WHERE is_disabled) AS disabled,
           count(*) FILTER (WHERE NOT is_disabled AND failing_since IS NOT NULL) AS failing
    FROM aftermind.webhooks WHERE CAST(:namespace AS text) IS NULL OR namespace = :namespace
    """
)
_ORPHANS = text(
    """
    DELETE FROM aftermind.webhook_deliveries WHERE (namespace, user_id, seq, webhook_id) IN (
        SELECT namespace, user_id, seq, webhook_id FROM aftermind.webhook_deliveries AS each WHERE NOT EXISTS (
            SELECT FROM aftermind.webhooks AS hooks
            WHERE hooks.namespace = each.namespace AND hooks.id = each.webhook_id) LIMIT :limit)
    """
)


async def add(tx: Transaction, webhook: Webhook, sealed: bytes, *, most: int) -> bool:
    """Keep a webhook; False where its tenant has as many as it may."""
    given = {
        "namespace": webhook.namespace,
        "id": webhook.id,
        "url": webhook.url,
        "events": list(webhook.events),
        "secret": sealed,
        "description": webhook.description,
        "most": most,
    }
    return await pg(tx).row(_ADD, **given) is not None


async def list_webhooks(tx: Transaction, namespace: str, webhook_id: WebhookId | None = None) -> list[Webhook]:
    """A tenant's webhooks, or the one, oldest first."""
    return [_webhook(row) for row in await pg(tx).rows(_LIST, namespace=namespace, id=webhook_id)]


async def remove(tx: Transaction, namespace: str, webhook_id: WebhookId) -> bool:
    """Delete one with its deliveries; whether it was there."""
    return await pg(tx).row(_REMOVE, namespace=namespace, id=webhook_id) is not None


async def rotate(tx: Transaction, namespace: str, webhook_id: WebhookId, sealed: bytes, *, overlap: timedelta) -> bool:
    """Replace the secret; the replaced one signs too for `overlap`. False if there is no such webhook."""
    given = {"namespace": namespace, "id": webhook_id, "secret": sealed, "overlap": overlap}
    return await pg(tx).row(_ROTATE, **given) is not None


async def enable(tx: Transaction, namespace: str, webhook_id: WebhookId) -> bool:
    """Let it be tried again from now on, and what waits or was given up as well; whether it was there."""
    return await pg(tx).row(_ENABLE, namespace=namespace, id=webhook_id) is not None


async def claim(
    tx: Transaction, *, token: UUID, lease: timedelta, limit: int, each: int, busy: Sequence[WebhookId] = ()
) -> list[Delivery]:
    """Take what is due, at most `each` of a webhook, for as long as the lease; of all tenants, as the relay."""
    rows = await pg(tx).rows(_CLAIM, token=token, lease=lease, limit=limit, each=each, busy=list(busy))
    return [_delivery(row, token) for row in rows]


async def hold(tx: Transaction, deliveries: Sequence[Delivery]) -> None:
    """Lock the webhooks of these deliveries until the end, before any of their outcomes is written."""
    await pg(tx).execute(_HOLD, _hooks(deliveries))


async def delivered(tx: Transaction, deliveries: Sequence[Delivery]) -> None:
    """The receiver accepted them: delete the rows and mark their webhooks as healthy."""
    hooks = _hooks(deliveries)
    rows = {"users": [each.user_id for each in deliveries], "seqs": [each.seq for each in deliveries]}
    await pg(tx).execute(_DELIVERED, {**hooks, **rows})
    await pg(tx).execute(_WELL, hooks)


async def refused(
    tx: Transaction,
    delivery: Delivery,
    error: str,
    *,
    wait: timedelta,
    pause: timedelta,
    patience: timedelta,
    is_gone: bool,
) -> bool:
    """The receiver refused it: retry after `wait`, other events of its webhook after `pause`; returns whether it is
    disabled now.

    A webhook that accepted nothing for `patience`, or answers 410, is disabled. An older delivery is given up if the
    webhook accepts others.
    """
    given_up = delivery.is_given_up(patience)
    again = {**_key(delivery), "token": delivery.token, "wait": wait, "given_up": given_up, "error": error}
    hook = {"namespace": delivery.namespace, "id": delivery.webhook_id, "error": error, "gone": is_gone}
    row = await pg(tx).row(_FAILING, **hook, pause=pause, patience=patience)
    if row is not None and row.is_disabled:
        again["given_up"] = False  # it waits until the webhook is enabled again
    await pg(tx).execute(_AGAIN, again)
    return row is not None and bool(row.is_disabled)


async def unwell(tx: Transaction, namespace: str | None) -> tuple[int, int]:
    """How many webhooks of a tenant, or of all that the role can read, are disabled, and how many fail."""
    row = await pg(tx).row(_UNWELL, namespace=namespace)
    return (0, 0) if row is None else (int(row.disabled), int(row.failing))


async def prune(tx: Transaction, *, limit: int) -> int:
    """Delete deliveries that a commit added while their webhook was being removed; how many."""
    return await pg(tx).count(_ORPHANS, limit=limit)


def _key(delivery: Delivery) -> dict[str, Any]:  # Any: text, a number, an id
    return {
        "namespace": delivery.namespace,
        "user": delivery.user_id,
        "seq": delivery.seq,
        "id": delivery.webhook_id,
    }


def _webhook(row: Row[Any]) -> Webhook:  # Any: a row of `webhooks` with its counts
    return Webhook(
        id=WebhookId(row.id),
        namespace=row.namespace,
        url=row.url,
        events=tuple(row.events),
        description=row.description,
        is_disabled=row.is_disabled,
        reason=row.reason,
        failing_since=row.failing_since,
        former_secret_until=row.former_secret_until,
        delivered_at=row.delivered_at,
        created_at=row.created_at,
        waiting=row.waiting,
        failed=row.failed,
    )


def _delivery(row: Row[Any], token: UUID) -> Delivery:  # Any: a row of `_CLAIM`
    return Delivery(
        webhook_id=WebhookId(row.webhook_id),
        namespace=row.namespace,
        user_id=row.user_id,
        seq=row.seq,
        url=row.url,
        sealed=tuple(bytes(each) for each in (row.secret, row.former_secret) if each is not None),
        event_id=row.event_id,
        event=orjson.loads(row.event),
        attempts=row.attempts,
        failures=row.failures,
        age_seconds=row.age,
        token=token,
    )


def _hooks(deliveries: Sequence[Delivery]) -> dict[str, list[Any]]:  # Any: texts and ids
    return {"namespaces": [each.namespace for each in deliveries], "ids": [each.webhook_id for each in deliveries]}
