"""`memory.webhooks`: the endpoints that receive a tenant's events."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from aftermind import errors
from aftermind.api.memory_services import Parts
from aftermind.events.types import KEPT_KINDS
from aftermind.types import Scope
from aftermind.types.uuid7 import uuid7
from aftermind.types.webhook import NewWebhook, Webhook, WebhookId

MAX_WEBHOOKS = 50  # of a tenant: each is a row more for each event
DESCRIPTION_CHARACTERS = 500
DEFAULT_OVERLAP = timedelta(hours=24)  # a day in which every receiver can be given the new secret
MAX_OVERLAP = timedelta(days=30)


class Webhooks:
    """A tenant's webhooks. Every call raises `InvalidScope` and `StoreUnavailable`.

    Each stored event of any user is posted to each webhook for its kind: JSON with ids and counts, never content,
    signed as in the Standard Webhooks specification. At least once and in any order: `webhook-id` identifies
    duplicates, `data.cursor` is the order of a user's events.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def create(
        self, url: str, *, events: Iterable[str] = (), description: str = "", namespace: str | None = None
    ) -> NewWebhook:
        """Create a webhook for some kinds of events or (none given) for all; returns it with its secret, which is shown
        only here.

        Raises `InvalidWebhook`, also for an address that is not on the public internet, whatever its name.
        """
        rows = self._parts.webhook_rows
        from aftermind.events.webhooks import signature as webhooks_signature
        from aftermind.events.webhooks import signing_secrets as webhooks_signing_secrets
        from aftermind.events.webhooks import ssrf_guard

        db, owner = self._parts.db, self._owner(namespace)
        allowed = self._parts.settings.webhook_allow_private
        named = ssrf_guard.target(url, allow_private=allowed)
        wanted = _kinds(events)
        if len(description) > DESCRIPTION_CHARACTERS or "\0" in description:
            why = f"at most {DESCRIPTION_CHARACTERS} characters, and no NUL."
            raise errors.InvalidWebhook("description", description, why)
        await ssrf_guard.addresses(named.host, named.port, allow_private=allowed)
        made = Webhook(
            id=WebhookId(uuid7()),
            namespace=owner,
            url=url,
            events=wanted,
            description=description,
            created_at=datetime.now(UTC),
        )
        secret = webhooks_signature.new_secret()
        async with db.transaction(namespace=owner) as tx:
            sealed = (await webhooks_signing_secrets.sealer(tx, self._parts.settings)).seal(
                secret, webhooks_signing_secrets.bound(owner, made.id)
            )
            if not await rows.add(tx, made, sealed, most=MAX_WEBHOOKS):
                raise errors.InvalidWebhook(
                    "webhooks", MAX_WEBHOOKS, "the tenant has as many as it may. Remove one first."
                )
            (kept,) = await rows.list_webhooks(tx, owner, made.id)
        return NewWebhook(webhook=kept, secret=secret)

    async def list(self, *, namespace: str | None = None) -> list[Webhook]:
        """All webhooks, oldest first, with their state."""
        rows = self._parts.webhook_rows
        db, owner = self._parts.db, self._owner(namespace)
        async with db.transaction(namespace=owner, read_only=True) as tx:
            return await rows.list_webhooks(tx, owner)

    async def get(self, webhook_id: WebhookId | UUID | str, *, namespace: str | None = None) -> Webhook | None:
        """One webhook, or None."""
        rows = self._parts.webhook_rows
        db, owner, wanted = self._parts.db, self._owner(namespace), _id(webhook_id)
        async with db.transaction(namespace=owner, read_only=True) as tx:
            return next(iter(await rows.list_webhooks(tx, owner, wanted)), None)

    async def delete(self, webhook_id: WebhookId | UUID | str, *, namespace: str | None = None) -> bool:
        """Delete one with its waiting deliveries; returns whether it existed. A running post may still arrive."""
        rows = self._parts.webhook_rows
        db, owner, wanted = self._parts.db, self._owner(namespace), _id(webhook_id)
        async with db.transaction(namespace=owner) as tx:
            return await rows.remove(tx, owner, wanted)

    async def rotate_secret(
        self,
        webhook_id: WebhookId | UUID | str,
        *,
        overlap: timedelta = DEFAULT_OVERLAP,
        namespace: str | None = None,
    ) -> NewWebhook | None:
        """Replace a webhook's secret; the new one, which no other call returns. None if there is no such webhook.

        For `overlap` (at most 30 days) each post carries both signatures, so a receiver accepts it with either secret.
        Zero ends the former secret immediately: use it if that one has leaked. A second rotation ends the secret before
        the former one. Raises `InvalidWebhook`.
        """
        rows = self._parts.webhook_rows
        from aftermind.events.webhooks import signature as webhooks_signature
        from aftermind.events.webhooks import signing_secrets as webhooks_signing_secrets

        db, owner, wanted = self._parts.db, self._owner(namespace), _id(webhook_id)
        if not timedelta() <= overlap <= MAX_OVERLAP:
            raise errors.InvalidWebhook("overlap", str(overlap), f"from 0 to {MAX_OVERLAP.days} days.")
        secret = webhooks_signature.new_secret()
        async with db.transaction(namespace=owner) as tx:
            sealed = (await webhooks_signing_secrets.sealer(tx, self._parts.settings)).seal(
                secret, webhooks_signing_secrets.bound(owner, wanted)
            )
            if not await rows.rotate(tx, owner, wanted, sealed, overlap=overlap):
                return None
            (kept,) = await rows.list_webhooks(tx, owner, wanted)
        return NewWebhook(webhook=kept, secret=secret)

    async def enable(self, webhook_id: WebhookId | UUID | str, *, namespace: str | None = None) -> bool:
        """Enable a failing or disabled webhook and retry immediately, with all waiting and failed deliveries; returns
        whether it existed.

        Events older than `AFTERMIND_EVENT_RETENTION_DAYS` are deleted.
        """
        rows = self._parts.webhook_rows
        db, owner, wanted = self._parts.db, self._owner(namespace), _id(webhook_id)
        async with db.transaction(namespace=owner) as tx:
            was_there = await rows.enable(tx, owner, wanted)
        self._parts.wake_courier()
        return was_there

    def _owner(self, namespace: str | None) -> str:
        return Scope(namespace=self._parts.namespace if namespace is None else namespace).namespace


def _kinds(events: Iterable[str]) -> tuple[str, ...]:
    wanted = (events,) if isinstance(events, str) else tuple(dict.fromkeys(events))
    for name in wanted:
        if name not in KEPT_KINDS:
            raise errors.InvalidWebhook("events", name, f"the kinds that are kept are {', '.join(KEPT_KINDS)}.")
    return wanted


def _id(given: WebhookId | UUID | str) -> WebhookId:
    try:
        return WebhookId(given if isinstance(given, UUID) else UUID(given))
    except ValueError as exc:
        raise errors.InvalidWebhook("id", given, "an id is a UUID, as `list` shows it.") from exc
