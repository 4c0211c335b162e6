"""Webhooks of a tenant and their state."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NewType
from uuid import UUID

WebhookId = NewType("WebhookId", UUID)
MIN_ATTEMPTS = 5  # posts of an event before it is given up, however old it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A tenant's endpoint. `events` are names of kinds, empty for all. `reason` is the last error, or why it is
    disabled; `failing_since` is set from the first failure to the next success. `waiting` counts deliveries to come,
    `failed` those that were given up. Until `former_secret_until` posts also have a signature with the former secret.
    """

    id: WebhookId
    namespace: str
    url: str
    events: tuple[str, ...] = ()
    description: str = ""
    is_disabled: bool = False
    reason: str | None = None
    failing_since: datetime | None = None
    former_secret_until: datetime | None = None
    delivered_at: datetime | None = None
    created_at: datetime
    waiting: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWebhook:
    """A webhook with the secret that was just made for it, which no other call returns."""

    webhook: Webhook
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event for one webhook, claimed under `token`. `sealed` opens to the secrets that sign, the newest first."""

    webhook_id: WebhookId
    namespace: str
    user_id: str  # as in the record: "" for the anonymous bucket
    seq: int
    url: str = field(repr=False)
    sealed: tuple[bytes, ...] = field(repr=False)
    event_id: str
    event: Mapping[str, Any]  # Any: JSON
    attempts: int
    failures: int  # of its webhook in a row, whatever was posted
    age_seconds: float
    token: UUID

    def is_given_up(self, patience: timedelta) -> bool:
        """Whether the receiver has refused it for too long; one that was late at its first post is posted again."""
        return self.attempts >= MIN_ATTEMPTS and self.age_seconds > patience.total_seconds()
