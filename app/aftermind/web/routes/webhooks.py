"""Webhooks of the key's namespace: made, listed, removed, enabled again."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path
from pydantic import Field

from aftermind import errors
from aftermind.types.webhook import Webhook
from aftermind.web import shapes
from aftermind.web.auth import Operator, Remembering

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

HookPath = Annotated[UUID, Path(description="As the list shows it.")]


class WebhookIn(shapes.Shape):
    """Where to post to. No `events`: every kind that is kept."""

    url: str = Field(
        max_length=2_048, description="https:// of the public internet.", examples=["https://hooks.example/memory"]
    )
    events: list[str] = Field(default=[], max_length=20, examples=[["MemoryUpdateCompleted"]])
    description: str = Field(default="", max_length=500)


class WebhookOut(shapes.Shape):
    """A webhook and how it goes. `reason`: what went wrong last. A disabled one gets nothing until it is enabled."""

    id: UUID
    url: str
    events: list[str]
    description: str
    is_disabled: bool
    reason: str | None
    failing_since: datetime | None
    delivered_at: datetime | None
    created_at: datetime
    waiting: int
    failed: int


class NewWebhookOut(WebhookOut):
    """With its secret: shown here and never again."""

    secret: str


@router.post("", status_code=201, summary="Make a webhook")
async def make(new: WebhookIn, memory: Remembering, who: Operator) -> NewWebhookOut:
    """Each kept event of any user is posted there as JSON, signed as the Standard Webhooks specification says, at least
    once and in no order. 422 for an address that is not of the public internet.
    """
    made = await memory.webhooks.add(new.url, events=new.events, description=new.description, namespace=who.namespace)
    return NewWebhookOut(**_shown(made.webhook).model_dump(), secret=made.secret)


@router.get("", summary="Every webhook")
async def list_(memory: Remembering, who: Operator) -> list[WebhookOut]:
    """All of them, the oldest first: a namespace has few."""
    return [_shown(each) for each in await memory.webhooks.list(namespace=who.namespace)]


@router.get("/{webhook_id}", summary="One webhook")
async def get(webhook_id: HookPath, memory: Remembering, who: Operator) -> WebhookOut:
    """Without its secret."""
    found = await memory.webhooks.get(webhook_id, namespace=who.namespace)
    if found is None:
        raise errors.NotThere("webhook", str(webhook_id))
    return _shown(found)


@router.delete("/{webhook_id}", status_code=204, summary="Remove a webhook")
async def remove(webhook_id: HookPath, memory: Remembering, who: Operator) -> None:
    """With what waits for it. 404 where there is none."""
    if not await memory.webhooks.remove(webhook_id, namespace=who.namespace):
        raise errors.NotThere("webhook", str(webhook_id))


@router.post("/{webhook_id}/enable", summary="Try a webhook again")
async def enable(webhook_id: HookPath, memory: Remembering, who: Operator) -> WebhookOut:
    """At once, with all that waited or was given up and is not yet older than events are kept."""
    if not await memory.webhooks.enable(webhook_id, namespace=who.namespace):
        raise errors.NotThere("webhook", str(webhook_id))
    return await get(webhook_id, memory, who)


def _shown(webhook: Webhook) -> WebhookOut:
    return WebhookOut.model_validate(webhook)
