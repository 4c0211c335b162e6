"""Replay plans of the key's namespace: made, tried, started, paused, aborted."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from aftermind import errors
from aftermind.ledger.replay_overrides import refuse_instructions
from aftermind.ledger.replay_protocol import CONCURRENCY, MAX_FAILURE_SHARE, MAX_RATE, RATE, SHADOWS, NewPlan
from aftermind.memory import Memory
from aftermind.types.replay import MAX_REASON, ItemState, PlanId, PlanState, ReplayMode, ReplayPlan
from aftermind.web import schemas
from aftermind.web.auth import Caller, Operator, Remembering
from aftermind.web.pagination import Limit
from aftermind.web.routes.dead_letters import FilterIn

router = APIRouter(prefix="/replays", tags=["replays"])

PlanPath = Annotated[str, Path(min_length=1, max_length=200)]


class PlanIn(schemas.Shape):
    """Dead letters to replay, the rate, the actor and the reason.

    `overrides`: `model` or `extractor` of extractions, if the operator allows them. With mode `edited` also `messages`
    of one store job, or fewer `episodes` of one embed job. Messages are validated like new ones.
    """

    filter: FilterIn
    name: str = Field(min_length=1, max_length=200)
    reason: str = Field(min_length=1, max_length=MAX_REASON)
    actor: str | None = Field(None, min_length=1, max_length=200, description="Default: the key.")
    mode: ReplayMode = ReplayMode.RETRY
    overrides: dict[str, Any] | None = None
    rate: float = Field(RATE, gt=0, le=MAX_RATE, description="Jobs a second.")
    concurrency: int = Field(CONCURRENCY, ge=1, le=100_000)
    max_failure_share: float = Field(MAX_FAILURE_SHARE, gt=0, le=1)


class NoteIn(schemas.Shape):
    """Why."""

    note: str = Field(min_length=1, max_length=500)


class PlanOut(schemas.Shape):
    """A plan with the counts of its items. It pauses if too many fail again; `note` then has the reason.

    `successors` has the states of the jobs of items that are `replayed`.
    """

    id: str
    name: str
    reason: str
    actor: str
    mode: ReplayMode
    filter: dict[str, Any]
    overrides: dict[str, Any]
    rate: float
    concurrency: int
    max_failure_share: float
    state: PlanState
    note: str | None
    frozen_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    counts: dict[ItemState, int]
    successors: dict[str, int]


class ItemOut(schemas.Shape):
    """One job of a plan, and the job that was put in for it."""

    job_id: UUID
    kind: str | None
    place: int
    state: ItemState
    new_job_id: UUID | None
    new_state: str | None
    note: str | None
    updated_at: datetime


class ShadowOut(schemas.Shape):
    """What one item would change, found by running it without writing."""

    job_id: UUID
    state: str
    added: list[str]
    superseded: list[str]
    error: str | None


class ShadowsOut(BaseModel):
    """How many items run without writing."""

    running: int


class EstimateOut(schemas.Shape):
    """What a plan would do, before it does anything."""

    items: int
    by_kind: dict[str, int]
    oldest: datetime | None
    newest: datetime | None
    seconds: float
    model_calls: int
    tokens: int
    cost_usd: float | None
    unestimated_calls: int
    conflicts: int
    newer_facts: int
    refused: int


@router.post("", status_code=201, summary="Create a replay plan")
async def make(new: PlanIn, memory: Remembering, who: Operator) -> PlanOut:
    """A draft: nothing is put in before it is started. 422 where nothing fits."""
    refuse_instructions(new.overrides or {})
    plan = await memory.replays.create(
        new.filter.to_job_filter(who),
        NewPlan(
            name=new.name,
            reason=new.reason,
            actor=new.actor or who.actor,
            mode=new.mode,
            overrides=new.overrides,
            rate=new.rate,
            concurrency=new.concurrency,
            max_failure_share=new.max_failure_share,
        ),
    )
    return PlanOut.model_validate(plan)


@router.get("", summary="Replay plans, the latest first")
async def list_(memory: Remembering, who: Operator, limit: Limit = 50) -> list[PlanOut]:
    """Those of the namespace; a plan over several is seen by the command line alone."""
    found = await memory.replays.list(namespace=who.namespace, limit=limit)
    return [PlanOut.model_validate(plan) for plan in found]


@router.get("/{plan_id:id}", summary="One replay plan")
async def get(plan_id: PlanPath, memory: Remembering, who: Operator) -> PlanOut:
    """With the number of its items in each state."""
    return PlanOut.model_validate(await _own(memory, plan_id, who))


@router.get("/{plan_id:id}/estimate", summary="Estimate a replay plan")
async def estimate(plan_id: PlanPath, memory: Remembering, who: Operator) -> EstimateOut:
    """Counts, times, cost and conflicts. Changes nothing."""
    plan = await _own(memory, plan_id, who)
    return EstimateOut.model_validate(await memory.replays.estimate(plan.id))


@router.post("/{plan_id:id}/dry-run", status_code=202, summary="Run a sample of a plan without writing")
async def shadow(
    plan_id: PlanPath, memory: Remembering, who: Operator, sample: Annotated[int, Query(ge=1, le=1_000)] = SHADOWS
) -> ShadowsOut:
    """A dry run of extractions by workers, which costs their model calls.

    409 if the plan has no extraction: jobs of other kinds cannot run without writing.
    """
    plan = await _own(memory, plan_id, who)
    return ShadowsOut(running=len(await memory.replays.dry_run(plan.id, sample=sample)))


@router.get("/{plan_id:id}/dry-run", summary="Changes that the sample would make")
async def shadows(plan_id: PlanPath, memory: Remembering, who: Operator) -> list[ShadowOut]:
    """Facts that the sample would add and supersede so far. It contains users' content. 409 if no sample was run."""
    plan = await _own(memory, plan_id, who)
    await memory.replays.record_access(plan.id)
    return [ShadowOut.model_validate(each) for each in await memory.replays.dry_run_results(plan.id)]


@router.get("/{plan_id:id}/items", summary="Items of a plan, in their order")
async def items(
    plan_id: PlanPath,
    memory: Remembering,
    who: Operator,
    state: Annotated[list[ItemState] | None, Query()] = None,
    limit: Limit = 100,
) -> list[ItemOut]:
    """Of these states, where any are named."""
    plan = await _own(memory, plan_id, who)
    found = await memory.replays.list_items(plan.id, states=state or (), limit=limit)
    return [ItemOut.model_validate(each) for each in found]


@router.post("/{plan_id:id}/start", summary="Start or resume a replay plan")
async def start(
    plan_id: PlanPath,
    memory: Remembering,
    who: Operator,
    rate: Annotated[float | None, Query(gt=0, le=MAX_RATE, description="Jobs a second from now on.")] = None,
) -> PlanOut:
    """A draft or a paused one. 409 where it is final."""
    plan = await _own(memory, plan_id, who)
    return PlanOut.model_validate(await memory.replays.start(plan.id, rate=rate))


@router.post("/{plan_id:id}/pause", summary="Pause a replay plan")
async def pause(plan_id: PlanPath, why: NoteIn, memory: Remembering, who: Operator) -> PlanOut:
    """Jobs that were already replayed continue."""
    plan = await _own(memory, plan_id, who)
    return PlanOut.model_validate(await memory.replays.pause(plan.id, note=why.note))


@router.post("/{plan_id:id}/abort", summary="Abort a replay plan")
async def abort(plan_id: PlanPath, why: NoteIn, memory: Remembering, who: Operator) -> PlanOut:
    """What waited stays a dead letter."""
    plan = await _own(memory, plan_id, who)
    return PlanOut.model_validate(await memory.replays.abort(plan.id, note=why.note))


async def _own(memory: Memory, plan_id: str, who: Caller) -> ReplayPlan:
    plan = await memory.replays.get(PlanId(plan_id), namespace=who.namespace)
    if plan is None:
        raise errors.NotThere("replay plan", plan_id)
    return plan
