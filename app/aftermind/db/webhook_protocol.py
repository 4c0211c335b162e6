"""The `WebhookRows` protocol: webhooks and their deliveries. Each kind of database has a module."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from aftermind.db.database_protocol import Transaction
from aftermind.types.webhook import Delivery, Webhook, WebhookId


class WebhookRows(Protocol):
    """See `db.webhook_deliveries`."""

    async def add(self, tx: Transaction, webhook: Webhook, sealed: bytes, *, most: int) -> bool: ...
    async def list_webhooks(
        self, tx: Transaction, namespace: str, webhook_id: WebhookId | None = None
    ) -> list[Webhook]: ...
    async def remove(self, tx: Transaction, namespace: str, webhook_id: WebhookId) -> bool: ...
    async def rotate(
        self, tx: Transaction, namespace: str, webhook_id: WebhookId, sealed: bytes, *, overlap: timedelta
    ) -> bool: ...
    async def enable(self, tx: Transaction, namespace: str, webhook_id: WebhookId) -> bool: ...
    async def claim(
        self,
        tx: Transaction,
        *,
        token: UUID,
        lease: timedelta,
        limit: int,
        each: int,
        busy: Sequence[WebhookId] = (),
    ) -> list[Delivery]: ...
    async def hold(self, tx: Transaction, deliveries: Sequence[Delivery]) -> None: ...
    async def delivered(self, tx: Transaction, deliveries: Sequence[Delivery]) -> None: ...
    async def refused(
        self,
        tx: Transaction,
        delivery: Delivery,
        error: str,
        *,
        wait: timedelta,
        pause: timedelta,
        patience: timedelta,
        is_gone: bool,
    ) -> bool: ...
    async def unwell(self, tx: Transaction, namespace: str | None) -> tuple[int, int]: ...
