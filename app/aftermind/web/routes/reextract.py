"""Fact extraction repeated over stored episodes, by other instructions or another model; or a dry run of it."""

from fastapi import APIRouter
from pydantic import AwareDatetime, Field

from aftermind import errors
from aftermind.ledger.replay_protocol import MAX_RATE, RATE, NewPlan
from aftermind.types import Json
from aftermind.types.replay import MAX_REASON, JobFilter, ReplayMode
from aftermind.web import schemas
from aftermind.web.auth import Operator, Remembering
from aftermind.web.routes.replays import PlanOut

router = APIRouter(prefix="/reextract", tags=["reextract"])

MAX_INSTRUCTIONS = 20_000  # characters of additional instructions for the model
SAMPLE = 200  # model calls of a dry run


class ReextractIn(schemas.Shape):
    """Which extractions to repeat, and how. `dry_run` shows what would change, and changes nothing."""

    user_id: schemas.Id | None = Field(None, description="Null: of every user.")
    session_id: schemas.Id | None = Field(None, description="Name the user too.")
    since: AwareDatetime | None = Field(None, description="Extracted since then.")
    extractor: str | None = Field(None, max_length=200, description="Null: the one that is set.")
    instructions: str | None = Field(None, max_length=MAX_INSTRUCTIONS)
    rate: float = Field(RATE, gt=0, le=MAX_RATE, description="Jobs a second.")
    reason: str = Field(min_length=1, max_length=MAX_REASON, description="Why; kept with the plan.")
    dry_run: bool = False
    sample: int = Field(SAMPLE, ge=1, le=1_000, description="Model calls of a dry run at most.")


@router.post("", status_code=201, summary="Repeat fact extraction")
async def create(asked: ReextractIn, memory: Remembering, who: Operator) -> PlanOut:
    """A replay plan, started; with `dry_run` a draft whose sample is being run. 422 if nothing fits.

    Facts that are not found again are superseded, none is deleted. Follow it under `/v1/replays/{plan_id}`: what a dry
    run would change is under `shadows`.
    """
    if asked.session_id is not None and asked.user_id is None:
        raise errors.InvalidFilter("session_id", asked.session_id, "name the user whose session it is.")
    overrides: dict[str, Json] = {"extractor": asked.extractor, "instructions": asked.instructions}
    new = NewPlan(
        name="reextract, dry run" if asked.dry_run else "reextract",
        reason=asked.reason,
        actor=who.actor,
        mode=ReplayMode.REEXTRACT,
        overrides={name: value for name, value in overrides.items() if value},
        rate=asked.rate,
    )
    wanted = JobFilter(namespace=who.namespace, user_id=asked.user_id, session_id=asked.session_id, since=asked.since)
    plan = await memory.replays.create(wanted, new)
    if asked.dry_run:
        await memory.replays.dry_run(plan.id, sample=asked.sample)
        return PlanOut.model_validate(plan)
    return PlanOut.model_validate(await memory.replays.start(plan.id))
