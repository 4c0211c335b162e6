"""`memory.webhooks`: where a tenant's events are posted to."""

from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import UUID

from uuid6 import uuid7

from aftermind import errors
from aftermind.db.base import Database
from aftermind.events.types import KEPT
from aftermind.faces.parts import Parts
from aftermind.types import Scope
from aftermind.types.webhook import NewWebhook, Webhook, WebhookId

MOST = 50  # of a tenant: each is a row more for each event
DESCRIPTION_CHARACTERS = 500


class Webhooks:
    """A tenant's webhooks. Every call raises `InvalidScope`, `StoreUnavailable`, and `InvalidSettings` in one process.

    Each kept event of any of its users is posted to each that wants its kind: JSON with ids and counts, never what was
    said, signed as the Standard Webhooks specification says. At least once and in no order: `webhook-id` tells doubles
    apart, `data.cursor` the order of a user's events.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def add(
        self, url: str, *, events: Iterable[str] = (), description: str = "", namespace: str | None = None
    ) -> NewWebhook:
        """Make a webhook, of some kinds of events or (none named) of all; with its secret, which is told only here.

        Raises `InvalidWebhook`: for an address that is not of the public internet too, whatever its name says.
        """
        from aftermind.db import webhooks as rows
        from aftermind.events import sealing, signing, targets

        db, owner = self._database(), self._owner(namespace)
        allowed = self._parts.settings.webhook_allow_private
        named = targets.target(url, allow_private=allowed)
        wanted = _kinds(events)
        if len(description) > DESCRIPTION_CHARACTERS or "\0" in description:
            why = f"at most {DESCRIPTION_CHARACTERS} characters, and no NUL."
            raise errors.InvalidWebhook("description", description, why)
        await targets.addresses(named.host, named.port, allow_private=allowed)
        made = Webhook(
            id=WebhookId(uuid7()),
            namespace=owner,
            url=url,
            events=wanted,
            description=description,
            created_at=datetime.now(UTC),
        )
        secret = signing.new_secret()
        sealed = sealing.sealer(self._parts.settings).seal(secret, sealing.bound(owner, made.id))
        async with db.transaction(namespace=owner) as tx:
            if not await rows.add(tx, made, sealed, most=MOST):
                raise errors.InvalidWebhook("webhooks", MOST, "the tenant has as many as it may. Remove one first.")
            (kept,) = await rows.found(tx, owner, made.id)
        return NewWebhook(webhook=kept, secret=secret)

    async def list(self, *, namespace: str | None = None) -> list[Webhook]:
        """Every webhook, oldest first, with how it goes."""
        from aftermind.db import webhooks as rows

        db, owner = self._database(), self._owner(namespace)
        async with db.transaction(namespace=owner, read_only=True) as tx:
            return await rows.found(tx, owner)

    async def get(self, webhook_id: WebhookId | UUID | str, *, namespace: str | None = None) -> Webhook | None:
        """One webhook, or None."""
        from aftermind.db import webhooks as rows

        db, owner, wanted = self._database(), self._owner(namespace), _id(webhook_id)
        async with db.transaction(namespace=owner, read_only=True) as tx:
            return next(iter(await rows.found(tx, owner, wanted)), None)

    async def remove(self, webhook_id: WebhookId | UUID | str, *, namespace: str | None = None) -> bool:
        """Delete one with what waits for it; whether it was there. A post that is on its way may still arrive."""
        from aftermind.db import webhooks as rows

        db, owner, wanted = self._database(), self._owner(namespace), _id(webhook_id)
        async with db.transaction(namespace=owner) as tx:
            return await rows.remove(tx, owner, wanted)

    async def enable(self, webhook_id: WebhookId | UUID | str, *, namespace: str | None = None) -> bool:
        """Try one again at once that fails or was disabled, with all that waited or was given up; whether it was there.

        What is older than `AFTERMIND_EVENT_RETENTION_DAYS` is gone.
        """
        from aftermind.db import webhooks as rows

        db, owner, wanted = self._database(), self._owner(namespace), _id(webhook_id)
        async with db.transaction(namespace=owner) as tx:
            return await rows.enable(tx, owner, wanted)

    def _database(self) -> Database:
        self._parts.kept(self._parts.dead)
        return self._parts.db

    def _owner(self, namespace: str | None) -> str:
        return Scope(namespace=self._parts.namespace if namespace is None else namespace).namespace


def _kinds(events: Iterable[str]) -> tuple[str, ...]:
    wanted = (events,) if isinstance(events, str) else tuple(dict.fromkeys(events))
    for name in wanted:
        if name not in KEPT:
            raise errors.InvalidWebhook("events", name, f"the kinds that are kept are {', '.join(KEPT)}.")
    return wanted


def _id(given: WebhookId | UUID | str) -> WebhookId:
    try:
        return WebhookId(given if isinstance(given, UUID) else UUID(given))
    except ValueError as exc:
        raise errors.InvalidWebhook("id", given, "an id is a UUID, as `list` shows it.") from exc
