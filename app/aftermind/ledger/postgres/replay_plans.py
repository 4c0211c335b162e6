"""Replay plans in Postgres: frozen when they are made, estimated, started, paused, aborted."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, Select, and_, func, insert, literal, literal_column, or_, select, text, update
from sqlalchemy.dialects.postgresql import JSONB

from aftermind import errors
from aftermind.db.audit.log import Trail
from aftermind.db.database_protocol import Database, Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.db.tables import EXTRACTIONS, JOBS, REPLAY_ITEMS, REPLAY_PLANS
from aftermind.ledger.postgres import replay_estimate as foresight
from aftermind.ledger.postgres.dead_letters import conditions
from aftermind.ledger.postgres.rows import to_job
from aftermind.ledger.replay_overrides import Original, OverrideRules, check_edit, edited_turn
from aftermind.ledger.replay_protocol import MAX_FINISHED_PLANS, SHADOWS, NewPlan, check_plan, matching_states
from aftermind.types import JobId, JobKind, JobState, Json
from aftermind.types.audit import Action
from aftermind.types.replay import (
    DryRunResult,
    Estimate,
    ItemState,
    JobFilter,
    PlanId,
    PlanState,
    ReplayItem,
    ReplayMode,
    ReplayPlan,
)
from aftermind.types.uuid7 import uuid7

_COUNTS = """
    (SELECT coalesce(jsonb_object_agg(counted.state, counted.items), '{}') FROM (
        SELECT i.state, count(*) AS items FROM aftermind.replay_items i
        WHERE i.plan_id = aftermind.replay_plans.id GROUP BY 1) AS counted)
"""
# Index `replay_items_replayed`. A deleted successor was done.
_SUCCESSORS = """
    (SELECT coalesce(jsonb_object_agg(counted.state, counted.jobs), '{}') FROM (
        SELECT coalesce(j.state, 'done') AS state, count(*) AS jobs
        FROM aftermind.replay_items i LEFT JOIN aftermind.jobs j ON j.id = i.new_job_id
        WHERE i.plan_id = aftermind.replay_plans.id AND i.state = 'replayed' GROUP BY 1) AS counted)
"""

# Moves a plan from one of some states into another; locks its row, so it waits for a step that runs.
_MOVE = text(
    """
    UPDATE aftermind.replay_plans
    SET state = :to, note = coalesce(CAST(:note AS text), note), rate = coalesce(CAST(:rate AS double precision), rate),
        started_at = CASE WHEN :to = 'running' THEN coalesce(started_at, clock_timestamp()) ELSE started_at END,
        resumed_at = CASE WHEN :to = 'running' THEN clock_timestamp() ELSE resumed_at END,
        due_at = CASE WHEN :to = 'running' THEN clock_timestamp() ELSE due_at END,
        finished_at = CASE WHEN :to = 'aborted' THEN clock_timestamp() END
    WHERE id = :plan AND state = ANY(CAST(:from AS text[]))
    """
)
# An extraction that was pruned as done long ago still has the last word about its episodes: its row comes back.
_RESTORE = text(
    """
    INSERT INTO aftermind.jobs (id, namespace, user_id, session_id, kind, state, effect_key, created_at)
    SELECT mined.job_id, mined.namespace, mined.user_id, episodes.session_id, 'extract', 'done',
           CAST(mined.job_id AS text), min(mined.at)
    FROM aftermind.extractions AS mined
    JOIN aftermind.episodes AS episodes ON episodes.namespace = mined.namespace
         AND episodes.user_id = mined.user_id AND episodes.id = mined.episode_id
    WHERE mined.namespace = :namespace AND mined.job_id IS NOT NULL
      AND NOT EXISTS (SELECT FROM aftermind.jobs AS known WHERE known.id = mined.job_id)
      AND (CAST(:user AS text) IS NULL OR mined.user_id = :user)
      AND (CAST(:session AS text) IS NULL OR episodes.session_id = :session)
      AND (CAST(:since AS timestamptz) IS NULL OR mined.at >= :since)
      AND (CAST(:until AS timestamptz) IS NULL OR mined.at < :until)
    GROUP BY mined.job_id, mined.namespace, mined.user_id, episodes.session_id
    ON CONFLICT (id) DO NOTHING
    """
)
# With their items. A plan that is counted at this moment (`replay_step` locks it) stays until the next time.
_PRUNE = text(
    """
    DELETE FROM aftermind.replay_plans WHERE id IN (
        SELECT id FROM aftermind.replay_plans AS plans
        WHERE id IN (SELECT id FROM aftermind.replay_plans WHERE state IN ('done', 'aborted')
                     ORDER BY coalesce(finished_at, frozen_at) DESC, id DESC OFFSET :kept)
          AND NOT EXISTS (SELECT FROM aftermind.replay_items AS items
                          WHERE items.plan_id = plans.id AND items.state = 'replayed')
        FOR UPDATE SKIP LOCKED)
    """
)
# Sorted: two that move plans never wait for each other's trails crosswise. By the primary key of the plan's items.
_TENANTS = text(
    """
    SELECT jobs.namespace, count(*) AS jobs FROM aftermind.replay_items AS items
    JOIN aftermind.jobs AS jobs ON jobs.id = items.job_id
    WHERE items.plan_id = :plan GROUP BY 1 ORDER BY 1
    """
)


class Replays:
    """The replay plans of one ledger."""

    def __init__(self, database: Database, *, trail: Trail | None = None, rules: OverrideRules | None = None) -> None:
        self._database, self._trail, self._rules = database, trail, rules or OverrideRules()

    async def create(self, wanted: JobFilter, new: NewPlan) -> ReplayPlan:
        """Freeze what fits now into the items of a draft. Nothing is put in before `start`.

        `new.overrides` are options of extractions (`model`, `extractor`, `instructions`); with mode `edited` also the
        `messages` of one store job, which are checked as `remember` checks them, or fewer `episodes` of one embed job.
        Raises `InvalidFilter` where nothing fits, or a value of `new` cannot be meant or is not allowed, and
        `InvalidMessage`.
        """
        check_plan(new, self._rules)
        plan_id = PlanId(uuid7().hex)
        async with self._database.transaction(namespace=wanted.namespace) as tx:
            await pg(tx).execute(insert(REPLAY_PLANS).values(_columns(plan_id, wanted, new)))
            if new.mode is ReplayMode.REEXTRACT and wanted.namespace is not None and not wanted.ids:
                await _restore(tx, wanted)
            frozen = await pg(tx).execute(_freeze(plan_id, wanted, new.mode))
            if not frozen.rowcount:
                raise errors.InvalidFilter("filter", wanted.to_json(), "no dead letter fits it: there is no plan.")
            if new.mode is ReplayMode.EDITED:
                await _edit(tx, plan_id, new.overrides or {}, self._rules)
            await pg(tx).execute(_PRUNE, {"kept": MAX_FINISHED_PLANS})
            return await self._required(tx, plan_id)

    async def estimate(self, plan_id: PlanId) -> Estimate:
        """The dry run: counts, times, cost, conflicts. Changes nothing."""
        async with self._database.transaction(read_only=True) as tx:
            plan = await self._required(tx, plan_id)
        namespace = plan.filter.get("namespace")  # facts are seen in a tenant that is named, and in no other
        named = namespace if isinstance(namespace, str) else None
        async with self._database.transaction(namespace=named, read_only=True) as tx:
            return await foresight.estimate(tx, plan)

    async def dry_run(self, plan_id: PlanId, *, sample: int = SHADOWS) -> list[JobId]:
        """Put in jobs that run a sample of the extractions without writing; see `dry_run_results`.

        Raises `NoSample` if no item of the plan is an extraction.
        """
        async with self._database.transaction() as tx:
            plan = await self._required(tx, plan_id)
            asked = await foresight.shadow(tx, plan_id, sample=sample)
            if asked:
                await self._noted(tx, plan, "shadow")
            elif not await foresight.has_extractions(tx, plan_id):
                raise errors.NoSample(plan_id, has_extractions=False)
        await self._anchor()
        return asked

    async def dry_run_results(self, plan_id: PlanId) -> list[DryRunResult]:
        """The results of a plan's dry run so far. Call `record_access` before showing them.

        Raises `NoSample` if none was run.
        """
        async with self._database.transaction(read_only=True) as tx:
            found = await foresight.shadows(tx, plan_id)
            if not found:
                await self._required(tx, plan_id)
                raise errors.NoSample(plan_id, has_extractions=await foresight.has_extractions(tx, plan_id))
        return found

    async def record_access(self, plan_id: PlanId, *, actor: str | None = None) -> None:
        """Record in the audit trail that the results of the shadow runs are read, one entry per user.

        `actor` is the reader (None: the user of this process).
        """
        if self._trail is None:
            return
        async with self._database.transaction() as tx:
            for namespace, user_id in await foresight.shadowed_users(tx, plan_id):
                said: dict[str, Json] = {"by": "shadows", "plan": plan_id}
                await self._trail.append(tx, namespace, Action.READ, user_id=user_id, actor=actor, detail=said)
        await self._anchor()

    async def start(self, plan_id: PlanId, *, rate: float | None = None) -> ReplayPlan:
        """Let a draft or a paused plan run. Raises `ReplayConflict` where it is final."""
        if rate is not None and rate <= 0:
            raise errors.InvalidFilter("rate", rate, "it is more than 0, in jobs a second.")
        allowed = (PlanState.DRAFT, PlanState.PAUSED, PlanState.RUNNING)
        return await self._move(plan_id, PlanState.RUNNING, allowed, note="", rate=rate)

    async def pause(self, plan_id: PlanId, *, note: str) -> ReplayPlan:
        """Enqueue no more jobs until it is started again. Enqueued jobs continue."""
        return await self._move(plan_id, PlanState.PAUSED, (PlanState.RUNNING, PlanState.PAUSED), note=note)

    async def abort(self, plan_id: PlanId, *, note: str) -> ReplayPlan:
        """Put nothing more in, for good. What waited stays a dead letter."""
        allowed = (PlanState.DRAFT, PlanState.RUNNING, PlanState.PAUSED, PlanState.ABORTED)
        return await self._move(plan_id, PlanState.ABORTED, allowed, note=note)

    async def get(self, plan_id: PlanId, *, namespace: str | None = None) -> ReplayPlan | None:
        """A plan with the counts of its items, or None; of this tenant alone, where one is named."""
        async with self._database.transaction(read_only=True) as tx:
            found = await self._found(tx, plan_id)
        return found if found is None or namespace in (None, found.filter.get("namespace")) else None

    async def list(self, *, namespace: str | None = None, limit: int = 50) -> list[ReplayPlan]:
        """Plans, the latest first; only those of this tenant, if given: a plan over several tenants belongs to none."""
        wanted = _plans().order_by(REPLAY_PLANS.c.frozen_at.desc()).limit(limit)
        if namespace is not None:
            wanted = wanted.where(REPLAY_PLANS.c.filter["namespace"].astext == namespace)
        async with self._database.transaction(read_only=True) as tx:
            return [_plan(row) for row in (await pg(tx).execute(wanted)).all()]

    async def list_items(
        self, plan_id: PlanId, *, states: Sequence[ItemState] = (), limit: int = 100
    ) -> Sequence[ReplayItem]:
        """Items of a plan in their order."""
        async with self._database.transaction(read_only=True) as tx:
            return [_item(row) for row in (await pg(tx).execute(_items(plan_id, states, limit))).all()]

    async def _move(
        self, plan_id: PlanId, to: PlanState, allowed: Sequence[PlanState], *, note: str, rate: float | None = None
    ) -> ReplayPlan:
        async with self._database.transaction() as tx:
            named = {"plan": plan_id, "to": to.value, "from": [state.value for state in allowed]}
            moved = await pg(tx).execute(_MOVE, {**named, "note": note, "rate": rate})
            plan = await self._required(tx, plan_id)
            if not moved.rowcount:
                raise errors.ReplayConflict(plan_id, plan.state, to)
            await self._noted(tx, plan, to.value)
        await self._anchor()
        return plan

    async def _anchor(self) -> None:
        if self._trail is not None:
            await self._trail.anchor()

    async def _noted(self, tx: Transaction, plan: ReplayPlan, to: str) -> None:
        """An entry in the trail of each tenant whose jobs the plan holds."""
        if self._trail is None:
            return
        for row in await pg(tx).rows(_TENANTS, plan=plan.id):
            said: dict[str, Json] = {"plan": plan.id, "name": plan.name, "reason": plan.reason, "by": plan.actor}
            said |= {"jobs": row.jobs, "is": to}
            await self._trail.append(tx, row.namespace, Action.REPLAY, detail=said)

    async def _required(self, tx: Transaction, plan_id: PlanId) -> ReplayPlan:
        plan = await self._found(tx, plan_id)
        if plan is None:
            raise errors.InvalidFilter("plan", plan_id, "no plan has this id; `aftermind replay list` shows all.")
        return plan

    async def _found(self, tx: Transaction, plan_id: PlanId) -> ReplayPlan | None:
        row = (await pg(tx).execute(_plans().where(REPLAY_PLANS.c.id == plan_id))).first()
        return None if row is None else _plan(row)


async def _edit(tx: Transaction, plan_id: PlanId, given: Mapping[str, Json], rules: OverrideRules) -> None:
    """Validate the edit for each of its jobs; edited messages are stored next to the turn's original."""
    joined = JOBS.join(REPLAY_ITEMS, REPLAY_ITEMS.c.job_id == JOBS.c.id)
    wanted = select(*JOBS.c).select_from(joined).where(REPLAY_ITEMS.c.plan_id == plan_id)
    jobs = [to_job(row) for row in (await pg(tx).execute(wanted)).all()]
    originals = [Original(id=job.id, kind=job.kind, scope=job.scope, payload=job.payload, raw=job.raw) for job in jobs]
    check_edit(given, originals)
    if "messages" in given:
        raw = edited_turn(given["messages"], originals[0], rules.limits)
        await pg(tx).execute(update(JOBS).where(JOBS.c.id == originals[0].id).values(edited=raw))


async def _restore(tx: Transaction, wanted: JobFilter) -> None:
    named = {"namespace": wanted.namespace, "user": wanted.user_id, "session": wanted.session_id}
    await pg(tx).execute(_RESTORE, {**named, "since": wanted.since, "until": wanted.until})


def _columns(plan_id: PlanId, wanted: JobFilter, new: NewPlan) -> dict[str, Any]:  # Any: mixed columns
    return {
        "id": plan_id,
        "name": new.name.strip(),
        "reason": new.reason.strip(),
        "actor": new.actor.strip(),
        "mode": new.mode.value,
        "filter": wanted.to_json(),
        "overrides": {name: value for name, value in (new.overrides or {}).items() if name != "messages"},
        "rate": new.rate,
        "concurrency": new.concurrency,
        "max_failure_share": new.max_failure_share,
        "state": PlanState.DRAFT.value,
    }


def _freeze(plan_id: PlanId, wanted: JobFilter, mode: ReplayMode) -> Any:  # Any: an INSERT … SELECT
    """The ids that fit now, in the order in which the jobs came in; an extraction to repeat may have succeeded."""
    fits = conditions(wanted, matching_states(wanted))
    if mode is ReplayMode.REEXTRACT:
        mined = select(EXTRACTIONS.c.episode_id).where(
            EXTRACTIONS.c.namespace == JOBS.c.namespace,
            EXTRACTIONS.c.user_id == JOBS.c.user_id,
            EXTRACTIONS.c.job_id == JOBS.c.id,
        )
        fits = and_(
            conditions(wanted, (*matching_states(wanted), JobState.DONE.value)), JOBS.c.kind == JobKind.EXTRACT.value
        )
        if wanted.namespace is not None:  # one that has the last word about nothing any more has no part in it
            fits = and_(fits, or_(JOBS.c.state != JobState.DONE.value, mined.exists()))
    place = func.row_number().over(order_by=(JOBS.c.created_at, JOBS.c.id))
    chosen = select(literal(plan_id), JOBS.c.id, place, literal(ItemState.WAITING.value), JOBS.c.action_id).where(fits)
    return insert(REPLAY_ITEMS).from_select(["plan_id", "job_id", "position", "state", "action_id"], chosen)


def _plans() -> Select[Any]:
    counted = {"counts": _COUNTS, "successors": _SUCCESSORS}
    return select(REPLAY_PLANS, *(literal_column(sql, JSONB).label(name) for name, sql in counted.items()))


def _items(plan_id: PlanId, states: Sequence[ItemState], limit: int) -> Select[Any]:
    successor = JOBS.alias("successor")
    joined = REPLAY_ITEMS.outerjoin(JOBS, JOBS.c.id == REPLAY_ITEMS.c.job_id).outerjoin(
        successor, successor.c.id == REPLAY_ITEMS.c.new_job_id
    )
    found = select(REPLAY_ITEMS, JOBS.c.kind, successor.c.state.label("new_state")).select_from(joined)
    found = found.where(REPLAY_ITEMS.c.plan_id == plan_id).order_by(REPLAY_ITEMS.c.position).limit(limit)
    return found.where(REPLAY_ITEMS.c.state.in_([state.value for state in states])) if states else found


def _plan(row: Row[Any]) -> ReplayPlan:
    return ReplayPlan(
        id=PlanId(row.id),
        name=row.name,
        reason=row.reason,
        actor=row.actor,
        mode=ReplayMode(row.mode),
        filter=row.filter,
        overrides=row.overrides,
        rate=row.rate,
        concurrency=row.concurrency,
        max_failure_share=row.max_failure_share,
        state=PlanState(row.state),
        note=row.note or None,
        frozen_at=row.frozen_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        counts={ItemState(state): count for state, count in row.counts.items()},
        successors={JobState(state): count for state, count in row.successors.items()},
    )


def _item(row: Row[Any]) -> ReplayItem:
    return ReplayItem(
        plan_id=PlanId(row.plan_id),
        job_id=JobId(row.job_id),
        kind=None if row.kind is None else JobKind(row.kind),
        place=row.position,
        state=ItemState(row.state),
        new_job_id=None if row.new_job_id is None else JobId(row.new_job_id),
        new_state=None if row.new_state is None else JobState(row.new_state),
        note=row.note,
        updated_at=row.updated_at,
    )
