"""Checkpoints: paused runs that wait for a person, each resumed exactly once."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Path, Query

from aftermind import errors
from aftermind.api.checkpoints import Checkpoint
from aftermind.web import schemas
from aftermind.web.auth import Reader, Remembering, Writer
from aftermind.web.pagination import Limit
from aftermind.web.routes.episodes import Session
from aftermind.web.routes.memory import User

router = APIRouter(tags=["checkpoints"])

RunId = Annotated[str, Path(min_length=1, max_length=128)]


@router.get("/users/{user_id:id}/checkpoints", summary="Paused runs, newest first")
async def list_(
    user_id: User,
    memory: Remembering,
    who: Reader,
    session_id: Session = None,
    limit: Limit = 100,
    *,
    resumed: Annotated[bool, Query(description="Runs that were resumed, instead of those that wait.")] = False,
) -> list[schemas.CheckpointOut]:
    """Checkpoints that wait, of a session if given."""
    found = await memory.checkpoints.list(
        user_id=user_id, session_id=session_id, namespace=who.namespace, resumed=resumed, limit=limit
    )
    return [_to_out(each) for each in found]


@router.get("/users/{user_id:id}/checkpoints/{run_id:id}", summary="One checkpoint")
async def get(
    user_id: User, run_id: RunId, memory: Remembering, who: Reader, session_id: Session = None
) -> schemas.CheckpointOut:
    """404 where there is none, or it has expired."""
    found = await memory.checkpoints.get(run_id, user_id=user_id, session_id=session_id, namespace=who.namespace)
    if found is None:
        raise errors.NotThere("checkpoint", run_id)
    return _to_out(found)


@router.put("/users/{user_id:id}/checkpoints/{run_id:id}", summary="Save a paused run")
async def save(
    user_id: User, run_id: RunId, given: schemas.CheckpointIn, memory: Remembering, who: Writer
) -> schemas.CheckpointOut:
    """It takes the place of an earlier checkpoint of the run."""
    seconds = given.expires_in_seconds
    stored = await memory.checkpoints.save(
        run_id,
        given.state,
        user_id=user_id,
        session_id=given.session_id,
        agent_id=given.agent_id,
        namespace=who.namespace,
        expires_in=None if seconds is None else timedelta(seconds=min(seconds, 1e9)),
    )
    return _to_out(stored)


@router.post("/users/{user_id:id}/checkpoints/{run_id:id}/resume", summary="Resume a paused run, once")
async def resume(
    user_id: User, run_id: RunId, memory: Remembering, who: Writer, session_id: Session = None
) -> schemas.CheckpointOut:
    """409 where another caller has resumed it."""
    return _to_out(
        await memory.checkpoints.resume(run_id, user_id=user_id, session_id=session_id, namespace=who.namespace)
    )


@router.delete("/users/{user_id:id}/checkpoints/{run_id:id}", status_code=204, summary="Delete a checkpoint")
async def delete(user_id: User, run_id: RunId, memory: Remembering, who: Writer, session_id: Session = None) -> None:
    """404 where there is none."""
    if not await memory.checkpoints.delete(run_id, user_id=user_id, session_id=session_id, namespace=who.namespace):
        raise errors.NotThere("checkpoint", run_id)


def _to_out(found: Checkpoint) -> schemas.CheckpointOut:
    return schemas.CheckpointOut(
        run_id=found.run_id,
        session_id=found.scope.session_id,
        agent_id=found.scope.agent_id,
        state=dict(found.state),
        created_at=found.created_at,
        updated_at=found.updated_at,
        expires_at=found.expires_at,
        resumed_at=found.resumed_at,
    )
