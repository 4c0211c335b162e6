"""Dead letters: groups with the same error, a list with filters, and discarding with a note."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from aftermind import errors
from aftermind.types import JobId, JobKind, JobState
from aftermind.types.job_admin import JobAction
from aftermind.types.replay import JobFilter
from aftermind.web.pages import rendering
from aftermind.web.pages.page_permissions import OPERATES, Seen

LISTED = 100
AGES = (("", "any time"), ("1", "last hour"), ("24", "last day"), ("168", "last week"))

router = APIRouter(route_class=rendering.PageRoute, dependencies=OPERATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a page of dead letters is narrowed to, as its form and its links name it; empty does not narrow."""

    state: str = ""
    kind: str = ""
    reason: str = ""
    fingerprint: str = ""
    error: str = ""
    user: str = ""
    session: str = ""
    hours: str = ""
    id: str = ""

    @property
    def query(self) -> dict[str, str]:
        """What is set, for a link."""
        return {name: getattr(self, name) for name in self.__slots__ if getattr(self, name)}

    def to_filter(self, namespace: str) -> JobFilter:
        """The filter, always of the viewer's own namespace. Raises `InvalidFilter`."""
        if self.kind and self.kind not in set(JobKind):
            raise errors.InvalidFilter("kind", self.kind, f"one of {', '.join(JobKind)}.")
        if self.state and self.state not in set(JobState):
            raise errors.InvalidFilter("state", self.state, f"one of {', '.join(JobState)}.")
        return JobFilter(
            ids=(_job(self.id),) if self.id else (),
            states=(JobState(self.state),) if self.state else (),
            kinds=(JobKind(self.kind),) if self.kind else (),
            reasons=(self.reason,) if self.reason else (),
            fingerprint=self.fingerprint or None,
            error=self.error or None,
            namespace=namespace,
            user_id=self.user or None,
            session_id=self.session or None,
            since=_since(self.hours),
        )


def asked(
    state: str = "",
    kind: str = "",
    reason: str = "",
    fingerprint: str = "",
    error: str = "",
    user: str = "",
    session: str = "",
    hours: str = "",
    id: str = "",
) -> Filters:
    """What a link or a form's address names."""
    return Filters(
        state=state,
        kind=kind,
        reason=reason,
        fingerprint=fingerprint,
        error=error.strip(),
        user=user.strip(),
        session=session.strip(),
        hours=hours,
        id=id.strip(),
    )


Asked = Annotated[Filters, Depends(asked)]


@router.get("/dead", response_class=HTMLResponse)
async def letters(request: Request, viewer: Seen, filters: Asked) -> HTMLResponse:
    """Groups, and the letters that fit the filters."""
    dead, wanted = viewer.memory.dead_letters, filters.to_filter(viewer.namespace)
    groups = await dead.groups(wanted, limit=LISTED)
    everything = await dead.groups(JobFilter(namespace=viewer.namespace), limit=1_000)
    return rendering.page(
        request,
        "dead_letters.html",
        here="dead",
        filters=filters,
        groups=groups,
        count=sum(group.count for group in groups),
        listed=await dead.list(wanted, limit=LISTED),
        total=sum(group.count for group in everything),
        kinds=sorted({group.kind for group in everything}),
        reasons=sorted({group.reason_code for group in everything if group.reason_code}),
        ages=AGES,
        plans=await viewer.memory.replays.list(namespace=viewer.namespace, limit=20),
        discarded=request.query_params.get("discarded"),
        action=request.query_params.get("action"),
    )


@router.post("/dead/discard", response_model=None)
async def discard(
    viewer: Seen, filters: Asked, note: Annotated[str, Form()], until: Annotated[str, Form()] = ""
) -> RedirectResponse:
    """Close those that fit and were dead when the page was drawn, with a note."""
    wanted = filters.to_filter(viewer.namespace)
    wanted = replace(wanted, states=(JobState.DEAD,), until=rendering.parse_time("until", until))
    done = await viewer.memory.job_admin.apply(JobAction.DISCARD, wanted, note=note, actor=viewer.actor)
    return RedirectResponse(
        rendering.link("/dead", discarded=done.changed or "0", action=done.id if done.changed else None),
        status_code=303,
    )


def _job(told: str) -> JobId:
    try:
        return JobId(UUID(told))
    except ValueError as exc:
        raise errors.InvalidFilter("id", told, "it must be the id of a job.") from exc


def _since(hours: str) -> datetime | None:
    if not hours:
        return None
    if not (hours.isascii() and hours.isdecimal() and len(hours) < 7):
        raise errors.InvalidFilter("hours", hours, "it must be a whole number of hours with at most six digits.")
    return datetime.now(UTC) - timedelta(hours=int(hours))
