"""Webhooks and their deliveries in a store of one process; see `webhook_deliveries` for what each function does.

A delivery is a row of the transaction that stores its event, and names it: an erasure of the event covers it too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar
from uuid import UUID

from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import mem
from aftermind.db.record_store_journals.row_codec import Table
from aftermind.types import Json, Scope
from aftermind.types.webhook import Delivery, Webhook, WebhookId

Place = tuple[str, str, int, WebhookId]  # namespace and user of the event, its number, the webhook


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRow:
    """A webhook with its sealed secrets. `due_at` is when its next post may begin."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}
    webhook: Webhook
    secret: bytes
    former_secret: bytes | None = None
    failures: int = 0
    due_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRow:
    """An event that a webhook is to get."""

    created_at: datetime
    due_at: datetime
    attempts: int = 0
    token: UUID | None = None
    is_failed: bool = False
    error: str | None = None


TABLES = {"webhooks": Table(WebhookId, HookRow), "webhook_deliveries": Table(Place, DeliveryRow)}


def add_deliveries(tx: Transaction, owner: Scope, seq: int, kind: str) -> bool:
    """Add the deliveries of a stored event of a kind; whether any webhook wants it."""
    now, wanted = mem(tx).database.now(), False
    for hook in _hooks(tx, owner.namespace):
        if not hook.webhook.events or kind in hook.webhook.events:
            place = owner.namespace, owner.user_column, seq, hook.webhook.id
            mem(tx).put(_deliveries(tx), place, DeliveryRow(created_at=now, due_at=now))
            wanted = True
    return wanted


def next_due(tx: Transaction) -> datetime | None:
    """When the next post may begin, of webhooks that are not disabled. None if nothing waits."""
    hooks = {hook.webhook.id: hook for hook in _hooks(tx) if not hook.webhook.is_disabled}
    times = [
        max(row.due_at, hooks[place[3]].due_at)
        for place, row in _deliveries(tx).items()
        if not row.is_failed and place[3] in hooks
    ]
    return min(times, default=None)


async def add(tx: Transaction, webhook: Webhook, sealed: bytes, *, most: int) -> bool:
    if len(_hooks(tx, webhook.namespace)) >= most:
        return False
    now = mem(tx).database.now()
    _put(tx, HookRow(webhook=replace(webhook, created_at=now), secret=sealed, due_at=now))
    return True


async def list_webhooks(tx: Transaction, namespace: str, webhook_id: WebhookId | None = None) -> list[Webhook]:
    now, found = mem(tx).database.now(), []
    for hook in _hooks(tx, namespace):
        each = hook.webhook
        if webhook_id in (None, each.id):
            mine = [row for place, row in _deliveries(tx).items() if place[3] == each.id]
            until = each.former_secret_until
            shown = replace(
                each,
                former_secret_until=until if until is not None and until > now else None,
                waiting=sum(not row.is_failed for row in mine),
                failed=sum(row.is_failed for row in mine),
            )
            found.append(shown)
    return sorted(found, key=lambda each: (each.created_at, each.id))


async def remove(tx: Transaction, namespace: str, webhook_id: WebhookId) -> bool:
    if _find(tx, namespace, webhook_id) is None:
        return False
    for place in [place for place in _deliveries(tx) if place[3] == webhook_id]:
        mem(tx).drop(_deliveries(tx), place)
    return mem(tx).drop(mem(tx).table("webhooks"), webhook_id)


async def rotate(tx: Transaction, namespace: str, webhook_id: WebhookId, sealed: bytes, *, overlap: timedelta) -> bool:
    hook = _find(tx, namespace, webhook_id)
    if hook is None:
        return False
    until = mem(tx).database.now() + overlap if overlap > timedelta() else None
    former = hook.secret if until is not None else None
    _put(
        tx,
        replace(hook, secret=sealed, former_secret=former, webhook=replace(hook.webhook, former_secret_until=until)),
    )
    return True


async def enable(tx: Transaction, namespace: str, webhook_id: WebhookId) -> bool:
    hook = _find(tx, namespace, webhook_id)
    if hook is None:
        return False
    now = mem(tx).database.now()
    well = replace(hook.webhook, is_disabled=False, reason=None, failing_since=None)
    _put(tx, replace(hook, webhook=well, failures=0, due_at=now))
    for place, row in list(_deliveries(tx).items()):
        if place[3] == webhook_id and row.token is None:
            again = replace(row, is_failed=False, due_at=now, attempts=0, created_at=now)
            mem(tx).put(_deliveries(tx), place, again)
    return True


async def claim(
    tx: Transaction, *, token: UUID, lease: timedelta, limit: int, each: int, busy: Sequence[WebhookId] = ()
) -> list[Delivery]:
    now, found = mem(tx).database.now(), list[Delivery]()
    ready = [
        hook
        for hook in _hooks(tx)
        if not hook.webhook.is_disabled and hook.due_at <= now and hook.webhook.id not in busy
    ]
    for hook in sorted(ready, key=lambda hook: hook.due_at):
        mine = [
            (row.due_at, place)
            for place, row in _deliveries(tx).items()
            if place[3] == hook.webhook.id and not row.is_failed and row.due_at <= now
        ]
        most = 1 if hook.failures else each
        claimed = [await _claim_one(tx, hook, place, token, now + lease) for _, place in sorted(mine)[:most]]
        taken = [delivery for delivery in claimed if delivery is not None][: limit - len(found)]
        if taken:
            _put(tx, replace(hook, due_at=now + lease if hook.failures else now))
        found += taken
        if len(found) >= limit:
            break
    return found


async def hold(tx: Transaction, deliveries: Sequence[Delivery]) -> None:
    """Nothing to lock: transactions of one process follow each other."""


async def delivered(tx: Transaction, deliveries: Sequence[Delivery]) -> None:
    now = mem(tx).database.now()
    for delivery in deliveries:
        mem(tx).drop(_deliveries(tx), _place(delivery))
        hook = _find(tx, delivery.namespace, delivery.webhook_id)
        if hook is not None:
            well = replace(hook.webhook, failing_since=None, reason=None, delivered_at=now)
            _put(tx, replace(hook, webhook=well, failures=0, due_at=min(hook.due_at, now)))


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
    now, hook = mem(tx).database.now(), _find(tx, delivery.namespace, delivery.webhook_id)
    if hook is None:
        return False
    since = hook.webhook.failing_since or now
    is_disabled = hook.webhook.is_disabled or is_gone or since < now - patience
    failing = replace(hook.webhook, is_disabled=is_disabled, reason=error, failing_since=since)
    _put(tx, replace(hook, webhook=failing, failures=hook.failures + 1, due_at=now + pause))
    row = _deliveries(tx).get(_place(delivery))
    if row is not None and row.token == delivery.token:
        given_up = delivery.is_given_up(patience) and not is_disabled
        again = replace(row, token=None, due_at=now + wait, is_failed=given_up, error=error)
        mem(tx).put(_deliveries(tx), _place(delivery), again)
    return is_disabled


async def unwell(tx: Transaction, namespace: str | None) -> tuple[int, int]:
    hooks = [hook.webhook for hook in _hooks(tx, namespace)]
    disabled = sum(each.is_disabled for each in hooks)
    return disabled, sum(not each.is_disabled and each.failing_since is not None for each in hooks)


async def _claim_one(tx: Transaction, hook: HookRow, place: Place, token: UUID, until: datetime) -> Delivery | None:
    """The delivery, claimed; None, and no row any more, if its event was erased or is too old to be kept."""
    namespace, user, seq, webhook_id = place
    events = await mem(tx).owned("events", Scope(namespace=namespace, user_id=user or None))
    if seq not in events:
        mem(tx).drop(_deliveries(tx), place)
        return None
    now, row = mem(tx).database.now(), _deliveries(tx)[place]
    claimed = replace(row, attempts=row.attempts + 1, token=token, due_at=until)
    mem(tx).put(_deliveries(tx), place, claimed)
    event: dict[str, Json] = events[seq].to_json()
    former_until = hook.webhook.former_secret_until
    has_former = hook.former_secret is not None and former_until is not None and former_until > now
    return Delivery(
        webhook_id=webhook_id,
        namespace=namespace,
        user_id=user,
        seq=seq,
        url=hook.webhook.url,
        sealed=(hook.secret, hook.former_secret) if has_former and hook.former_secret else (hook.secret,),
        event_id=events[seq].id,
        event=event,
        attempts=claimed.attempts,
        failures=hook.failures,
        age_seconds=(now - row.created_at).total_seconds(),
        token=token,
    )


def _place(delivery: Delivery) -> Place:
    return delivery.namespace, delivery.user_id, delivery.seq, delivery.webhook_id


def _hooks(tx: Transaction, namespace: str | None = None) -> list[HookRow]:
    rows: list[HookRow] = list(mem(tx).table("webhooks").values())
    return [row for row in rows if namespace in (None, row.webhook.namespace)]


def _find(tx: Transaction, namespace: str, webhook_id: WebhookId) -> HookRow | None:
    row: HookRow | None = mem(tx).table("webhooks").get(webhook_id)
    return row if row is not None and row.webhook.namespace == namespace else None


def _put(tx: Transaction, row: HookRow) -> None:
    mem(tx).put(mem(tx).table("webhooks"), row.webhook.id, row)


def _deliveries(tx: Transaction) -> dict[Place, DeliveryRow]:
    return mem(tx).table("webhook_deliveries")
