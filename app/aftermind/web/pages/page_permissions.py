"""Permissions of a page: its viewer, the memories that the viewer may see, and the permitted actions."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, HTTPException, Request

from aftermind import errors
from aftermind.memory import Memory
from aftermind.types import Json
from aftermind.types.api_key import Right
from aftermind.types.audit import Action
from aftermind.web import auth
from aftermind.web.event_fanout import OwnerArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """An authenticated user of the console. Has access to `namespace` only; `actor` is recorded with each action."""

    memory: Memory
    namespace: str
    actor: str
    rights: frozenset[Right]
    has_key: bool

    def may(self, right: str) -> bool:
        """Whether their key allows it."""
        return right in self.rights


async def get_viewer(request: Request) -> Viewer:
    """Whose screens these are: of the key that this browser signed in with. Raises `KeyRefused`, `RightMissing`."""
    refused: errors.AftermindError | None = getattr(request.state, "refused", None)
    if refused is not None:
        raise refused
    who: auth.Caller = request.state.caller
    who.need(Right.READ)
    viewer = Viewer(
        memory=await auth.get_memory(request),
        namespace=who.namespace,
        actor=who.actor,
        rights=who.rights,
        has_key=who.key is not None,
    )
    request.state.viewer = viewer  # the frame of every page shows the viewer's namespace
    return viewer


Seen = Annotated[Viewer, Depends(get_viewer)]


def needing(right: Right) -> Callable[[Request, Viewer], Awaitable[None]]:
    """A dependency that raises `RightMissing` where the viewer's key does not allow it."""

    async def allowed(request: Request, viewer: Seen) -> None:
        auth.Caller(namespace=viewer.namespace, rights=viewer.rights).need(right)

    return allowed


WRITES = [Depends(needing(Right.WRITE))]
OPERATES = [Depends(needing(Right.OPERATE))]
OF_ALL_TENANTS = [Depends(needing(Right.TENANTS))]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerView:
    """One user of the viewer's namespace, whose memory a screen shows; `user_id` None is the anonymous bucket."""

    viewer: Viewer
    user_id: str | None

    @property
    def memory(self) -> Memory:
        """The memory to ask."""
        return self.viewer.memory

    @property
    def scope(self) -> OwnerArguments:
        """Keyword arguments that name the owner in every call of `Memory`."""
        return OwnerArguments(user_id=self.user_id, namespace=self.viewer.namespace)

    @property
    def query(self) -> dict[str, str]:
        """The owner as parameters of a link."""
        return {"anonymous": "true"} if self.user_id is None else {"user": self.user_id}

    @property
    def name(self) -> str:
        """The owner's name for display."""
        return "the anonymous bucket" if self.user_id is None else self.user_id


def whose(viewer: Seen, user: str | None = None, *, anonymous: bool = False) -> OwnerView:
    """The owner that a link names. The anonymous user must be named explicitly: a link without a user is invalid."""
    if not user and not anonymous:
        raise HTTPException(404, "Name a user: ?user=…, or ?anonymous=true for turns without one.")
    return OwnerView(viewer=viewer, user_id=None if anonymous else user)


async def recorded(request: Request, named: Annotated[OwnerView, Depends(whose)]) -> OwnerView:
    """The owner that a link names, after the access was recorded in the audit trail; fails if it cannot be recorded."""
    action = Action.READ if request.method == "GET" else Action.EDIT
    await record(request, named.viewer, action, user_id=named.user_id)
    return named


async def record(request: Request, viewer: Viewer, action: Action, *, user_id: str | None, **detail: Json) -> None:
    """Add to the audit trail that a page reads or edits a user's memory. A repeated read is one entry a minute."""
    who: auth.Caller = request.state.caller
    await auth.record_access(request, who, action, user_id=user_id, **detail)


Owner = Annotated[OwnerView, Depends(recorded)]
