"""Webhooks of the key's namespace: made, listed, removed, enabled again, given another secret."""

from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path
from pydantic import Field

from aftermind import errors
from aftermind.types.webhook import NewWebhook
from aftermind.web import schemas
from aftermind.web.auth import Operator, Remembering

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

HookPath = Annotated[UUID, Path(description="As the list shows it.")]


class WebhookIn(schemas.Shape):
    """Where to post to. No `events`: every kind that is kept."""

    url: str = Field(
        max_length=2_048, description="https:// of the public internet.", examples=["https://hooks.example/memory"]
    )
    events: list[str] = Field(default=[], max_length=20, examples=[["MemoryUpdateCompleted"]])
    description: str = Field(default="", max_length=500)


class WebhookOut(schemas.Shape):
    """A webhook with its state. `reason` is the last error. A disabled webhook receives nothing until it is enabled."""

    id: UUID
    url: str
    events: list[str]
    description: str
    is_disabled: bool
    reason: str | None
    failing_since: datetime | None
    former_secret_until: datetime | None
    delivered_at: datetime | None
    created_at: datetime
    waiting: int
    failed: int


class NewWebhookOut(WebhookOut):
    """With the secret that was just made for it, which no other answer shows."""

    secret: str


class RotationIn(schemas.Shape):
    """For how long the former secret signs too; 0 ends it immediately."""

    overlap_hours: float = Field(default=24.0, ge=0, le=720)


@router.post("", status_code=201, summary="Create a webhook")
async def make(new: WebhookIn, memory: Remembering, who: Operator) -> NewWebhookOut:
    """Each stored event of any user is posted as JSON, signed as in the Standard Webhooks specification, at least once
    and in any order. HTTP 422 for an address that is not on the public internet.
    """
    made = await memory.webhooks.create(
        new.url, events=new.events, description=new.description, namespace=who.namespace
    )
    return _to_new_out(made)


@router.get("", summary="All webhooks")
async def list_(memory: Remembering, who: Operator) -> list[WebhookOut]:
    """All of them, the oldest first: a namespace has few."""
    return [WebhookOut.model_validate(each) for each in await memory.webhooks.list(namespace=who.namespace)]


@router.get("/{webhook_id}", summary="One webhook")
async def get(webhook_id: HookPath, memory: Remembering, who: Operator) -> WebhookOut:
    """Without its secret."""
    found = await memory.webhooks.get(webhook_id, namespace=who.namespace)
    if found is None:
        raise errors.NotThere("webhook", str(webhook_id))
    return WebhookOut.model_validate(found)


@router.delete("/{webhook_id}", status_code=204, summary="Delete a webhook")
async def remove(webhook_id: HookPath, memory: Remembering, who: Operator) -> None:
    """With what waits for it. 404 where there is none."""
    if not await memory.webhooks.delete(webhook_id, namespace=who.namespace):
        raise errors.NotThere("webhook", str(webhook_id))


@router.post("/{webhook_id}/enable", summary="Enable a webhook and deliver again")
async def enable(webhook_id: HookPath, memory: Remembering, who: Operator) -> WebhookOut:
    """Deliver again immediately, with all waiting and failed events that are still within the retention of events."""
    if not await memory.webhooks.enable(webhook_id, namespace=who.namespace):
        raise errors.NotThere("webhook", str(webhook_id))
    return await get(webhook_id, memory, who)


@router.post("/{webhook_id}/secret", summary="Replace the secret of a webhook")
async def rotate_secret(
    webhook_id: HookPath, memory: Remembering, who: Operator, rotation: RotationIn | None = None
) -> NewWebhookOut:
    """Posts carry both signatures, separated by a space, during the overlap. A second rotation ends the secret before
    the former one.
    """
    overlap = timedelta(hours=(rotation or RotationIn()).overlap_hours)
    rotated = await memory.webhooks.rotate_secret(webhook_id, overlap=overlap, namespace=who.namespace)
    if rotated is None:
        raise errors.NotThere("webhook", str(webhook_id))
    return _to_new_out(rotated)


def _to_new_out(made: NewWebhook) -> NewWebhookOut:
    return NewWebhookOut(**WebhookOut.model_validate(made.webhook).model_dump(), secret=made.secret)
