"""Groups: memory that several users share. The routes of episodes and recall are for a member, named by `user_id`."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from aftermind import errors
from aftermind.types.scope import MAX_ID_BYTES
from aftermind.web import schemas
from aftermind.web.auth import Reader, Remembering, Writer
from aftermind.web.pagination import Limit
from aftermind.web.routes.episodes import Session
from aftermind.web.routes.memory import IdempotencyKey

router = APIRouter(tags=["groups"])

Group = Annotated[str, Path(min_length=1, max_length=MAX_ID_BYTES)]
MemberId = Annotated[str, Path(min_length=1, max_length=MAX_ID_BYTES)]
ActingMember = Annotated[str, Query(min_length=1, max_length=MAX_ID_BYTES, description="The calling member.")]


@router.get("/groups/{group:id}/members", summary="Members of a group")
async def members(group: Group, memory: Remembering, who: Reader) -> list[schemas.MemberOut]:
    """By id; empty if there is no such group."""
    found = await memory.groups.members(group, namespace=who.namespace)
    return [schemas.MemberOut.model_validate(each) for each in found]


@router.put("/groups/{group:id}/members/{member:id}", summary="Add a member, or change the role")
async def add(
    group: Group, member: MemberId, given: schemas.MemberIn, memory: Remembering, who: Writer
) -> schemas.MemberOut:
    """The group exists from its first member on."""
    added = await memory.groups.add(group, member, role=given.role, namespace=who.namespace)
    return schemas.MemberOut.model_validate(added)


@router.delete("/groups/{group:id}/members/{member:id}", status_code=204, summary="Remove a member")
async def remove(group: Group, member: MemberId, memory: Remembering, who: Writer) -> None:
    """The user cannot read the group from then on; what the user wrote stays. 404 if the user is no member."""
    if not await memory.groups.remove(group, member, namespace=who.namespace):
        raise errors.NotThere("member", member)


@router.delete("/groups/{group:id}", summary="Erase a group")
async def delete(group: Group, memory: Remembering, who: Writer) -> schemas.ForgetOut:
    """Everything that was remembered in it, and all memberships."""
    gone = await memory.groups.delete(group, namespace=who.namespace)
    return schemas.ForgetOut(rows=dict(gone.rows), pending_turns=gone.pending_turns)


@router.post("/groups/{group:id}/turns", status_code=202, summary="Remember a turn in a group")
async def remember(
    group: Group,
    user_id: ActingMember,
    turn: schemas.TurnIn,
    memory: Remembering,
    who: Writer,
    idempotency_key: IdempotencyKey = None,
) -> schemas.GroupReceiptOut:
    """403 where the member is a reader, 404 where the user is none."""
    given = turn.messages if isinstance(turn.messages, list) else [turn.messages]
    receipt = await memory.remember(
        [each if isinstance(each, str) else each.model_dump(exclude_unset=True) for each in given],
        user_id=user_id,
        group=group,
        session_id=turn.session_id,
        agent_id=turn.agent_id,
        namespace=who.namespace,
        idempotency_key=idempotency_key,
        save=turn.save,
        accept=turn.accept,
        recalled=turn.recalled,
    )
    return schemas.GroupReceiptOut(job_id=receipt.job_id, episode_ids=list(receipt.episode_ids))


@router.post("/groups/{group:id}/recall", response_model=schemas.RecallOut, summary="Recall a block from a group")
async def recall(
    request: Request, group: Group, user_id: ActingMember, asked: schemas.RecallIn, memory: Remembering, who: Reader
) -> Response:
    """404 where the user is no member."""
    block = await memory.recall(user_id=user_id, group=group, namespace=who.namespace, **asked.model_dump())
    request.state.recall_id = block.id
    return schemas.block_response(block)


@router.get("/groups/{group:id}/episodes", summary="The newest episodes of a group")
async def episodes(
    group: Group,
    user_id: ActingMember,
    memory: Remembering,
    who: Reader,
    session_id: Session = None,
    limit: Limit = 100,
) -> list[schemas.EpisodeOut]:
    """Oldest first. 404 where the user is no member."""
    found = await memory.history(
        user_id=user_id, group=group, session_id=session_id, namespace=who.namespace, limit=limit
    )
    return [schemas.episode(each) for each in found]
