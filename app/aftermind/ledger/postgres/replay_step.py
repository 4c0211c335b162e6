"""One step of a replay plan: note how successors ended, judge, put in the next, all in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import Row, text

from aftermind.db.database_protocol import Database, Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.ledger.replay_overrides import has_options
from aftermind.ledger.replay_protocol import BREAKER_FROM, BREAKER_WINDOW, BURST_SECONDS, DISCARDED_SINCE, Step
from aftermind.types import JobKind, JobState
from aftermind.types.replay import ItemState, PlanId, PlanState, ReplayMode
from aftermind.types.uuid7 import uuid7

POLL_SECONDS = 0.25  # interval between checks of successors while nothing may be enqueued

SHORTEST_SECONDS = 0.05  # between two steps: at 50 jobs a second, each puts in two or three

# Locks the plan: replayers of one plan take turns, and `abort` waits for the step that runs.
_LOCK = text(
    """
    SELECT id, state, mode, overrides, rate, concurrency, max_failure_share, resumed_at,
           greatest(coalesce(due_at, clock_timestamp()), clock_timestamp() - make_interval(secs => :burst)) AS due,
           clock_timestamp() AS moment
    FROM aftermind.replay_plans WHERE id = :plan FOR UPDATE
    """
)
# Index `replay_items_replayed`: unfinished items, at most `concurrency` rows. A deleted successor was done.
_NOTE_ENDS = text(
    """
    UPDATE aftermind.replay_items i
    SET updated_at = clock_timestamp(),
        state = CASE coalesce(ended.state, 'done') WHEN 'done' THEN 'done' WHEN 'forgotten' THEN 'skipped'
                ELSE 'failed' END,
        note = CASE ended.state WHEN 'done' THEN NULL WHEN 'forgotten' THEN 'forgotten before the replay'
               ELSE ended.reason_code END
    FROM (
        SELECT r.job_id, j.state, j.reason_code FROM aftermind.replay_items r
        LEFT JOIN aftermind.jobs j ON j.id = r.new_job_id
        WHERE r.plan_id = :plan AND r.state = 'replayed'
          AND (j.id IS NULL OR j.state NOT IN ('queued', 'running', 'retrying'))
    ) AS ended
    WHERE i.plan_id = :plan AND i.job_id = ended.job_id
    """
)
# Index `replay_items_ended`, newest first: only items that finished since the plan was last started.
_LAST = text(
    """
    SELECT count(*) AS ended, count(*) FILTER (WHERE last.state = 'failed') AS failed,
           mode() WITHIN GROUP (ORDER BY last.note) FILTER (WHERE last.state = 'failed') AS reason
    FROM (
        SELECT state, note FROM aftermind.replay_items
        WHERE plan_id = :plan AND state IN ('done', 'failed') AND updated_at >= :since
        ORDER BY updated_at DESC LIMIT :window
    ) AS last
    """
)
_UNFINISHED = text(
    """
    SELECT count(*) FILTER (WHERE state = 'waiting') AS waiting, count(*) FILTER (WHERE state = 'replayed') AS replayed
    FROM aftermind.replay_items WHERE plan_id = :plan AND state IN ('waiting', 'replayed')
    """
)
# Locks the jobs in the order of the plan, the order in which they came in: two plans cannot wait for each other.
# A running job of the same effect may have read its input already, so what it does not cover waits until it has ended.
_CHOOSE = text(
    """
    SELECT j.id, j.state, j.kind, j.edited IS NOT NULL AS is_edited,
           j.state = 'discarded' AND j.action_id IS DISTINCT FROM i.action_id AS is_discarded_since, (
        SELECT live.id FROM aftermind.jobs live
        WHERE CAST(:joins AS boolean)
          AND live.namespace = j.namespace AND live.kind = j.kind AND live.effect_key = j.effect_key
          AND live.state IN ('queued', 'retrying') ORDER BY live.slot DESC LIMIT 1
    ) AS live
    FROM aftermind.replay_items i JOIN aftermind.jobs j ON j.id = i.job_id
    WHERE i.plan_id = :plan AND i.state = 'waiting' AND NOT (CAST(:joins AS boolean) AND EXISTS (
        SELECT FROM aftermind.jobs live
        WHERE live.namespace = j.namespace AND live.kind = j.kind AND live.effect_key = j.effect_key
          AND live.state = 'running'))
    ORDER BY i.position LIMIT :count
    FOR UPDATE OF i, j
    """
)
_GONE = text(
    """
    UPDATE aftermind.replay_items i SET state = 'skipped', note = 'the job was deleted', updated_at = clock_timestamp()
    WHERE i.plan_id = :plan AND i.state = 'waiting'
      AND NOT EXISTS (SELECT FROM aftermind.jobs j WHERE j.id = i.job_id)
    """
)
_SKIP = text(
    """
    UPDATE aftermind.replay_items SET state = :state, note = :note, updated_at = clock_timestamp()
    WHERE plan_id = :plan AND job_id = :job
    """
)
_PAIRS = "unnest(CAST(:old AS uuid[]), CAST(:new AS uuid[])) AS pair (was, becomes)"
# The index `jobs_effect` decides if the same effect is enqueued concurrently: the next step merges into that job.
_INSERT = text(
    f"""
    INSERT INTO aftermind.jobs (id, namespace, user_id, session_id, agent_id, kind, state, payload, raw, effect_key,
                                weight, origin_job_id, replay_plan_id)
    SELECT pair.becomes, j.namespace, j.user_id, j.session_id, j.agent_id, j.kind, 'queued',
           j.payload || CAST(:patch AS jsonb),
           CASE WHEN CAST(:edits AS boolean) THEN coalesce(j.edited, j.raw) ELSE j.raw END,
           j.effect_key || CAST(:suffix AS text), j.weight, j.id, :plan
    FROM {_PAIRS} JOIN aftermind.jobs j ON j.id = pair.was
    ON CONFLICT (namespace, kind, effect_key, slot) WHERE state IN ('queued', 'running', 'retrying') DO NOTHING
    RETURNING origin_job_id
    """
)
_MOVE_ITEMS = text(
    f"""
    UPDATE aftermind.replay_items i
    SET state = 'replayed', new_job_id = pair.becomes, note = CAST(:note AS text), updated_at = clock_timestamp()
    FROM {_PAIRS} WHERE i.plan_id = :plan AND i.job_id = pair.was
    """
)
_MOVE_JOBS = text(
    """
    UPDATE aftermind.jobs SET state = 'replayed', updated_at = now()
    WHERE id = ANY(CAST(:old AS uuid[])) AND state IN ('dead', 'discarded')
    """
)
# A receipt that waits for the old job waits for its successor.
_FOLLOW = text(
    f"""
    INSERT INTO aftermind.job_followups (namespace, followed_job_id, kind, job_id)
    SELECT f.namespace, f.followed_job_id, f.kind, pair.becomes
    FROM {_PAIRS} JOIN aftermind.job_followups f ON f.job_id = pair.was
    ON CONFLICT DO NOTHING
    """
)
_ADVANCE = text(
    """
    UPDATE aftermind.replay_plans
    SET due_at = CAST(:due AS timestamptz) + make_interval(secs => CAST(:count AS double precision) / rate)
    WHERE id = :plan
    """
)
_CLOSE = text(
    """
    UPDATE aftermind.replay_plans SET state = :state, note = coalesce(CAST(:note AS text), note),
           finished_at = CASE WHEN :state = 'done' THEN clock_timestamp() END
    WHERE id = :plan
    """
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Items of a plan that are not final."""

    waiting: int
    replayed: int


_OPEN = text(
    """
    SELECT id FROM aftermind.replay_plans p
    WHERE state = 'running' OR (state IN ('paused', 'aborted') AND EXISTS (
        SELECT FROM aftermind.replay_items i WHERE i.plan_id = p.id AND i.state = 'replayed'))
    ORDER BY frozen_at
    """
)


class ReplayEngine:
    """Runs replay plans, for the replayer. Plans are made and started by `Replays`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_running(self) -> list[PlanId]:
        """Plans for which a step is due, or will be."""
        async with self._database.transaction(read_only=True) as tx:
            return [PlanId(row.id) for row in await pg(tx).rows(_OPEN)]

    async def step(self, plan_id: PlanId, *, limit: int = 100) -> Step:
        """Note how successors ended, then put in as many as rate and concurrency allow, in one transaction.

        The item moves and its successor is inserted in the same commit, so a replayer that dies in the middle has done
        both or nothing, and two replayers of one plan take turns. Pauses the plan if too many fail again.
        """
        async with self._database.transaction() as tx:
            return await step(tx, plan_id, limit=limit)


async def step(tx: Transaction, plan_id: PlanId, *, limit: int) -> Step:
    """See `ReplayEngine.step`."""
    run = pg(tx)
    plan = await run.row(_LOCK, plan=plan_id, burst=BURST_SECONDS)
    if plan is None:
        return Step(replayed=0, skipped=0, kinds=(), wait_seconds=None)
    await run.execute(_NOTE_ENDS, {"plan": plan_id})
    left = await _left(tx, plan_id)
    if plan.state != PlanState.RUNNING:
        return Step(replayed=0, skipped=0, kinds=(), wait_seconds=POLL_SECONDS if left.replayed else None)
    if await _breaks(tx, plan):
        return Step(replayed=0, skipped=0, kinds=(), wait_seconds=POLL_SECONDS)
    if not left.waiting and not left.replayed:
        await run.execute(_CLOSE, {"plan": plan_id, "state": PlanState.DONE.value, "note": None})
        return Step(replayed=0, skipped=0, kinds=(), wait_seconds=None)
    return await _put_in(tx, plan, left, limit)


async def _left(tx: Transaction, plan_id: PlanId) -> Left:
    row = await pg(tx).row(_UNFINISHED, plan=plan_id)
    return Left(waiting=row.waiting, replayed=row.replayed) if row is not None else Left(waiting=0, replayed=0)


async def _breaks(tx: Transaction, plan: Row[Any]) -> bool:
    """Whether too many failed again: the cause persists, and more of the same would only cost."""
    last = await pg(tx).row(_LAST, plan=plan.id, since=plan.resumed_at, window=BREAKER_WINDOW)
    if last is None or last.ended < BREAKER_FROM or last.failed <= last.ended * plan.max_failure_share:
        return False
    note = f"paused by itself: {last.failed} of the last {last.ended} failed again, most by {last.reason or 'unknown'}"
    await pg(tx).execute(_CLOSE, {"plan": plan.id, "state": PlanState.PAUSED.value, "note": note})
    return True


async def _put_in(tx: Transaction, plan: Row[Any], left: Left, limit: int) -> Step:
    early = (plan.due - plan.moment).total_seconds()
    due = 0 if early > 0 else int(-early * plan.rate) + 1
    count = min(due, limit, plan.concurrency - left.replayed, left.waiting)
    if count <= 0:
        wait = max(early, 0.0) if due == 0 else POLL_SECONDS
        return Step(replayed=0, skipped=0, kinds=(), wait_seconds=min(wait, POLL_SECONDS))
    joins = plan.mode == ReplayMode.RETRY
    rows = await pg(tx).rows(_CHOOSE, plan=plan.id, count=count, joins=joins)
    if not rows:
        await pg(tx).execute(_GONE, {"plan": plan.id})
        return Step(replayed=0, skipped=0, kinds=(), wait_seconds=POLL_SECONDS)
    replayed = await _replay(tx, plan, [row for row in rows if _obstacle(plan, row) is None])
    skipped = [row for row in rows if _obstacle(plan, row) is not None]
    for row in skipped:
        state = ItemState.DISCARDED if row.is_discarded_since else ItemState.SKIPPED
        said = {"state": state.value, "note": _obstacle(plan, row)}
        await pg(tx).execute(_SKIP, {"plan": plan.id, "job": row.id, **said})
    await pg(tx).execute(_ADVANCE, {"plan": plan.id, "due": plan.due, "count": replayed})
    kinds = tuple(dict.fromkeys(JobKind(row.kind) for row in rows))
    return Step(replayed=replayed, skipped=len(skipped), kinds=kinds, wait_seconds=max(1 / plan.rate, SHORTEST_SECONDS))


def _obstacle(plan: Row[Any], row: Row[Any]) -> str | None:
    """Why the job cannot come back; None where it may."""
    if row.is_discarded_since:
        return DISCARDED_SINCE
    if plan.mode == ReplayMode.EDITED and row.kind == JobKind.STORE and not row.is_edited:
        return "it is no longer edited: something of it was forgotten since"
    if row.state in (JobState.DEAD, JobState.DISCARDED):
        return None
    return None if row.state == JobState.DONE and plan.mode == ReplayMode.REEXTRACT else f"it is {row.state}"


async def _replay(tx: Transaction, plan: Row[Any], rows: Sequence[Row[Any]]) -> int:
    """Successors for these, or the unfinished jobs that do the same work already; how many."""
    joined = {row.id: row.live for row in rows if row.live is not None}
    fresh = {row.id: uuid7() for row in rows if row.live is None}
    put_in = await _insert(tx, plan, fresh)
    await _move(tx, plan, {old: new for old, new in fresh.items() if old in put_in}, note=None)
    await _move(tx, plan, joined, note="merged into a newer job")
    return len(put_in) + len(joined)


async def _insert(tx: Transaction, plan: Row[Any], fresh: Mapping[UUID, UUID]) -> set[UUID]:
    """Those of which a successor is in now; the others lost a race for their effect, and stay waiting."""
    if not fresh:
        return set()
    # A separate job next to the live ones if it does something else.
    suffix = "" if plan.mode == ReplayMode.RETRY else f"#{plan.id}"
    named = {"plan": plan.id, "patch": _patch(plan), "suffix": suffix, "edits": plan.mode == ReplayMode.EDITED}
    rows = await pg(tx).rows(_INSERT, old=list(fresh), new=list(fresh.values()), **named)
    return {row.origin_job_id for row in rows}


async def _move(tx: Transaction, plan: Row[Any], pairs: Mapping[UUID, UUID], *, note: str | None) -> None:
    if not pairs:
        return
    named = {"old": list(pairs), "new": list(pairs.values())}
    await pg(tx).execute(_MOVE_ITEMS, {"plan": plan.id, "note": note, **named})
    await pg(tx).execute(_MOVE_JOBS, {"old": list(pairs)})
    await pg(tx).execute(_FOLLOW, named)


def _patch(plan: Row[Any]) -> str:
    """What is laid over the payload of an item, as JSON."""
    extracts_again = plan.mode == ReplayMode.REEXTRACT or has_options(plan.overrides)  # a model override too
    mode = {"reextract": True} if extracts_again else {}
    return orjson.dumps({**plan.overrides, **mode}).decode()
