"""The audit trail of the key's namespace: listed and verified."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query

from aftermind.types.audit import Action
from aftermind.types.scope import MAX_ID_BYTES
from aftermind.web import schemas
from aftermind.web.auth import Operator, Remembering
from aftermind.web.pagination import Limit

router = APIRouter(prefix="/audit", tags=["audit"])


class AuditEntryOut(schemas.Shape):
    """One entry. `actor` is the authenticated identity; a label that the caller chose is in `detail`."""

    seq: int
    at: datetime
    actor: str
    action: str
    user_id: str | None
    detail: dict[str, Any]


class AuditFaultOut(schemas.Shape):
    """What is wrong with the trail, and at which entry; null: with the trail as a whole."""

    seq: int | None
    what: str


class AuditReportOut(schemas.Shape):
    """A verification. Without `witnesses` a cut at the trail's end cannot be seen."""

    is_whole: bool
    entries: int
    first: int
    last: int
    witnesses: list[str]
    faults: list[AuditFaultOut]


@router.get("", summary="Audit entries, oldest first")
async def list_(
    memory: Remembering,
    who: Operator,
    user_id: Annotated[str | None, Query(min_length=1, max_length=MAX_ID_BYTES)] = None,
    action: Action | None = None,
    limit: Limit = 100,
) -> list[AuditEntryOut]:
    """The newest `limit` entries that fit: accesses, edits, erasures, replays, discards, keys, policies."""
    found = await memory.audit.list(user_id=user_id, action=action, namespace=who.namespace, limit=limit)
    return [
        AuditEntryOut(
            seq=each.seq,
            at=each.at,
            actor=each.actor,
            action=each.action,
            user_id=each.user_id,
            detail=dict(each.detail),
        )
        for each in found
    ]


@router.get("/verify", summary="Verify the audit trail")
async def verify(memory: Remembering, who: Operator) -> AuditReportOut:
    """Check every entry of the namespace against its authentication code, and the end against the witnesses."""
    (report,) = await memory.audit.verify(namespace=who.namespace)
    return AuditReportOut(
        is_whole=report.is_whole,
        entries=report.entries,
        first=report.first,
        last=report.last,
        witnesses=list(report.witnesses),
        faults=[AuditFaultOut(seq=each.seq, what=each.what) for each in report.faults],
    )
