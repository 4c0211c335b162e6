"""Background work of a user."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from aftermind import errors
from aftermind.types import JobKind, JobState
from aftermind.web import pagination, schemas
from aftermind.web.auth import Reader, Remembering
from aftermind.web.pagination import Cursor, Limit, Page
from aftermind.web.routes.memory import User

router = APIRouter(tags=["jobs"])


@router.get("/users/{user_id:id}/jobs", summary="Jobs of a user, the latest first")
async def list_(
    user_id: User,
    memory: Remembering,
    who: Reader,
    state: Annotated[list[JobState] | None, Query()] = None,
    kind: Annotated[list[JobKind] | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[schemas.JobOut]:
    """Of these states and kinds, where any are named. Turns that wait in Redis are not among them: see `progress`."""
    found = await memory.jobs.list(
        user_id=user_id,
        namespace=who.namespace,
        states=state or (),
        kinds=kind or (),
        limit=pagination.rows_to_read(cursor, limit),
    )
    return pagination.page(found, cursor=cursor, limit=limit, key=lambda each: each.id, shown=schemas.job)


@router.get("/users/{user_id:id}/jobs/{job_id}", summary="One job")
async def get(user_id: User, job_id: UUID, memory: Remembering, who: Reader) -> schemas.JobOut:
    """404 where the user has none of that id, or it waits in Redis still."""
    found = await memory.jobs.get(str(job_id), user_id=user_id, namespace=who.namespace)
    if found is None:
        raise errors.NotThere("job", str(job_id))
    return schemas.job(found)
