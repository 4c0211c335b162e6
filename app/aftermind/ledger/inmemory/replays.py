"""Replay plans of one process: at the rate of the plan, run by the in-process queue."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import md5
from operator import attrgetter
from statistics import fmean
from typing import Any
from uuid import UUID

import orjson

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import MemoryDatabase, mem
from aftermind.db.record_store_journals.row_codec import Table
from aftermind.ledger.inmemory.dead_letters import fits
from aftermind.ledger.inmemory.job_records import UNFINISHED, Record, make_job
from aftermind.ledger.inmemory.ledger import jobs_table, list_unfinished, put_record
from aftermind.ledger.reembed_jobs import TARGET
from aftermind.ledger.replay_overrides import Original, OverrideRules, check_edit, edited_turn, has_options
from aftermind.ledger.replay_protocol import (
    BREAKER_FROM,
    BREAKER_WINDOW,
    BURST_SECONDS,
    DISCARDED_SINCE,
    MAX_FINISHED_PLANS,
    SHADOWS,
    NewPlan,
    check_plan,
    matching_states,
)
from aftermind.types import Job, JobId, JobKind, JobState, Json, Scope
from aftermind.types.job import MODEL_KINDS, check_transition
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

CAN_COME_BACK = (JobState.DEAD, JobState.DISCARDED, JobState.DONE)
Place = tuple[PlanId, int]  # an item's key: from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlan:
    """A plan without counts; how many items it has, when the next one is due, when it was started last.

    `discards` has the actions that had discarded items before it was created.
    """

    plan: ReplayPlan
    size: int
    due_at: datetime
    resumed_at: datetime
    discards: Mapping[JobId, UUID | None] = field(default_factory=dict)


TABLES = {"replay_plans": Table(PlanId, KeptPlan), "replay_items": Table(Place, ReplayItem)}


class InMemoryReplays:
    """See `Replays`. `on_start` is called when there are jobs of a plan to run; the queue then calls `step`."""

    def __init__(self, database: MemoryDatabase, *, rules: OverrideRules | None = None) -> None:
        self._database, self._rules = database, rules or OverrideRules()
        self.on_start: Callable[[], None] = lambda: None

    async def create(self, wanted: JobFilter, new: NewPlan) -> ReplayPlan:
        check_plan(new, self._rules)
        async with self._database.transaction() as tx:
            now = self._database.now()
            jobs = await _choose(tx, wanted, new.mode, now)
            if not jobs:
                raise errors.InvalidFilter("filter", wanted.to_json(), "no dead letter fits it: there is no plan.")
            if new.mode is ReplayMode.EDITED:
                _edit(tx, jobs, new.overrides or {}, self._rules)
            _prune(tx)
            plan = _new_plan(wanted, new, now)
            discards = {job.id: jobs_table(tx)[job.id].action_id for job in jobs if job.state is JobState.DISCARDED}
            kept = KeptPlan(plan=plan, size=len(jobs), due_at=now, resumed_at=now, discards=discards)
            mem(tx).put(mem(tx).table("replay_plans"), plan.id, kept)
            for place, job in enumerate(jobs, start=1):
                _put_item(tx, _new_item(plan.id, job, place, now))
            return _shown(tx, kept)

    async def estimate(self, plan_id: PlanId) -> Estimate:
        async with self._database.transaction(read_only=True) as tx:
            kept = _required(tx, plan_id)
            items = [each for each in _items(tx, kept) if each.state is ItemState.WAITING]
            records = jobs_table(tx)
            found = [records.get(each.job_id) for each in items]
            refused = sum(each is None or _is_refused(kept, each) for each in found)
            return _estimate(list(records.values()), found, kept.plan.rate, refused=refused)

    async def dry_run(self, plan_id: PlanId, *, sample: int = SHADOWS) -> list[JobId]:
        async with self._database.transaction() as tx:
            kept, now = _required(tx, plan_id), self._database.now()
            records = [jobs_table(tx).get(each.job_id) for each in _items(tx, kept) if each.state is ItemState.WAITING]
            found = [each for each in records if each is not None and not _is_discarded_since(kept, each)]
            jobs = [each.job for each in found if each.job.kind is JobKind.EXTRACT]
            jobs.sort(key=lambda job: md5(str(job.id).encode(), usedforsecurity=False).digest())
            new = [_shadow(kept.plan, job, now) for job in jobs[:sample]]
            new = [job for job in new if not list_unfinished(tx, job)]
            if not new and not _has_extractions(tx, kept):
                raise errors.NoSample(plan_id, has_extractions=False)
            for job in new:
                put_record(tx, Record(job=job))
        self.on_start()
        return [job.id for job in new]

    async def dry_run_results(self, plan_id: PlanId) -> list[DryRunResult]:
        async with self._database.transaction(read_only=True) as tx:
            kept = _required(tx, plan_id)
            items = {each.job_id for each in _items(tx, kept)}
            shadows = [each.job for each in jobs_table(tx).values() if each.job.kind is JobKind.SHADOW]
            found = [job for job in shadows if _is_shadow_of(job, plan_id, items)]
            if not found:
                raise errors.NoSample(plan_id, has_extractions=_has_extractions(tx, kept))
        return [_dry_run_result(job) for job in sorted(found, key=attrgetter("created_at", "id"))]

    async def record_access(self, plan_id: PlanId, *, actor: str | None = None) -> None:
        """Nothing to record: there is no audit log."""

    async def start(self, plan_id: PlanId, *, rate: float | None = None) -> ReplayPlan:
        if rate is not None and rate <= 0:
            raise errors.InvalidFilter("rate", rate, "it is more than 0, in jobs a second.")
        allowed = (PlanState.DRAFT, PlanState.PAUSED, PlanState.RUNNING)
        plan = await self._move(plan_id, PlanState.RUNNING, allowed, note="", rate=rate)
        self.on_start()
        return plan

    async def pause(self, plan_id: PlanId, *, note: str) -> ReplayPlan:
        return await self._move(plan_id, PlanState.PAUSED, (PlanState.RUNNING, PlanState.PAUSED), note=note)

    async def abort(self, plan_id: PlanId, *, note: str) -> ReplayPlan:
        allowed = (PlanState.DRAFT, PlanState.RUNNING, PlanState.PAUSED, PlanState.ABORTED)
        return await self._move(plan_id, PlanState.ABORTED, allowed, note=note)

    async def get(self, plan_id: PlanId, *, namespace: str | None = None) -> ReplayPlan | None:
        async with self._database.transaction(read_only=True) as tx:
            kept: KeptPlan | None = mem(tx).table("replay_plans").get(plan_id)
            if kept is None or namespace not in (None, kept.plan.filter.get("namespace")):
                return None
            return _shown(tx, kept)

    async def list(self, *, namespace: str | None = None, limit: int = 50) -> list[ReplayPlan]:
        async with self._database.transaction(read_only=True) as tx:
            plans: list[KeptPlan] = list(mem(tx).table("replay_plans").values())
            found = [each for each in plans if namespace in (None, each.plan.filter.get("namespace"))]
            found.sort(key=lambda each: each.plan.frozen_at, reverse=True)
            return [_shown(tx, each) for each in found[:limit]]

    async def list_items(
        self, plan_id: PlanId, *, states: Sequence[ItemState] = (), limit: int = 100
    ) -> Sequence[ReplayItem]:
        async with self._database.transaction(read_only=True) as tx:
            kept: KeptPlan | None = mem(tx).table("replay_plans").get(plan_id)
            items = [] if kept is None else _items(tx, kept)
            chosen = [each for each in items if not states or each.state in states][:limit]
            return [_with_jobs(tx, each) for each in chosen]

    async def step(self) -> bool:
        """Note how successors ended, and put in what the running plans allow now; whether one still runs.

        In one transaction: an item moves with its successor.
        """
        async with self._database.transaction() as tx:
            plans: list[KeptPlan] = list(mem(tx).table("replay_plans").values())
            now = self._database.now()
            running = [_step(tx, each, now) for each in plans if each.plan.state is not PlanState.DONE]
            return any(running)

    async def _move(
        self, plan_id: PlanId, to: PlanState, allowed: Sequence[PlanState], *, note: str, rate: float | None = None
    ) -> ReplayPlan:
        async with self._database.transaction() as tx:
            kept, now = _required(tx, plan_id), self._database.now()
            if kept.plan.state not in allowed:
                raise errors.ReplayConflict(plan_id, kept.plan.state, to)
            plan = replace(kept.plan, state=to, note=note or None, rate=rate or kept.plan.rate)
            if to is PlanState.RUNNING:
                kept = replace(kept, due_at=now, resumed_at=now)
                plan = replace(plan, started_at=plan.started_at or now)
            plan = replace(plan, finished_at=now if to is PlanState.ABORTED else None)
            return _shown(tx, _put_plan(tx, kept, plan))


async def _choose(tx: Transaction, wanted: JobFilter, mode: ReplayMode, now: datetime) -> list[Job]:
    """The jobs that fit now, in the order in which they came in; an extraction to repeat may have succeeded."""
    states = tuple(matching_states(wanted))
    if mode is not ReplayMode.REEXTRACT:
        chosen = [record.job for record in jobs_table(tx).values() if fits(record, wanted, states)]
        return sorted(chosen, key=attrgetter("created_at", "id"))
    last = None if wanted.namespace is None else await _last_extractions(tx, wanted, now)
    fitting = [each for each in jobs_table(tx).values() if fits(each, wanted, (*states, JobState.DONE.value))]
    chosen = [each.job for each in fitting if each.job.kind is JobKind.EXTRACT]
    if last is not None:  # one that has the last word about nothing any more has no part in it
        chosen = [job for job in chosen if job.state is not JobState.DONE or job.id in last]
    return sorted(chosen, key=attrgetter("created_at", "id"))


async def _last_extractions(tx: Transaction, wanted: JobFilter, now: datetime) -> set[JobId]:
    """The jobs that have the last word about an episode. Those that were pruned come back: they can be repeated."""
    run, found = mem(tx), set[JobId]()
    for namespace, user in run.owners(wanted.namespace or ""):
        if wanted.user_id not in (None, user):
            continue
        owner = Scope(namespace=namespace, user_id=user or None)
        outcomes, episodes = await run.owned("extractions", owner), await run.owned("episodes", owner)
        for episode_id, outcome in outcomes.items():
            if outcome.job_id is None or episode_id not in episodes:
                continue
            found.add(outcome.job_id)
            if outcome.job_id not in jobs_table(tx) and not wanted.ids:
                scope = replace(episodes[episode_id].scope, agent_id=None)
                job = make_job(outcome.job_id, JobKind.EXTRACT, scope, JobState.DONE, str(outcome.job_id), now)
                put_record(tx, Record(job=job))
    return found


def _edit(tx: Transaction, jobs: Sequence[Job], given: Mapping[str, Json], rules: OverrideRules) -> None:
    """Validate the edit for each of its jobs; edited messages are stored next to the turn's original."""
    originals = [Original(id=job.id, kind=job.kind, scope=job.scope, payload=job.payload, raw=job.raw) for job in jobs]
    check_edit(given, originals)
    if "messages" in given:
        raw = edited_turn(given["messages"], originals[0], rules.limits)
        put_record(tx, replace(jobs_table(tx)[jobs[0].id], edited=raw))


def _new_plan(wanted: JobFilter, new: NewPlan, now: datetime) -> ReplayPlan:
    return ReplayPlan(
        id=PlanId(uuid7().hex),
        name=new.name.strip(),
        reason=new.reason.strip(),
        actor=new.actor.strip(),
        mode=new.mode,
        filter=wanted.to_json(),
        overrides={name: value for name, value in (new.overrides or {}).items() if name != "messages"},
        rate=new.rate,
        concurrency=new.concurrency,
        max_failure_share=new.max_failure_share,
        state=PlanState.DRAFT,
        note=None,
        frozen_at=now,
        started_at=None,
        finished_at=None,
    )


def _new_item(plan_id: PlanId, job: Job, place: int, now: datetime) -> ReplayItem:
    return ReplayItem(
        plan_id=plan_id,
        job_id=job.id,
        kind=job.kind,
        place=place,
        state=ItemState.WAITING,
        new_job_id=None,
        new_state=None,
        note=None,
        updated_at=now,
    )


def _step(tx: Transaction, kept: KeptPlan, now: datetime) -> bool:
    for item in _items(tx, kept):
        if item.state is ItemState.REPLAYED:
            _note_end(tx, item, now)
    items = _items(tx, kept)
    replayed = sum(item.state is ItemState.REPLAYED for item in items)
    waiting = [item for item in items if item.state is ItemState.WAITING]
    if kept.plan.state is not PlanState.RUNNING:
        return replayed > 0
    if (note := _why_paused(kept, items)) is not None:
        _put_plan(tx, kept, replace(kept.plan, state=PlanState.PAUSED, note=note))
        return replayed > 0
    if not waiting and not replayed:
        _put_plan(tx, kept, replace(kept.plan, state=PlanState.DONE, finished_at=now))
        return False
    due_at = max(kept.due_at, now - timedelta(seconds=BURST_SECONDS))
    due = 0 if due_at > now else int((now - due_at).total_seconds() * kept.plan.rate) + 1
    count = min(due, kept.plan.concurrency - replayed)
    put_in = sum(_replay(tx, kept, item, now) for item in waiting[: max(count, 0)])
    if put_in:
        later = due_at + timedelta(seconds=put_in / kept.plan.rate)
        mem(tx).put(mem(tx).table("replay_plans"), kept.plan.id, replace(kept, due_at=later))
    return True


def _note_end(tx: Transaction, item: ReplayItem, now: datetime) -> None:
    record = None if item.new_job_id is None else jobs_table(tx).get(item.new_job_id)
    state = JobState.DONE if record is None else record.job.state  # a deleted one was done
    if state in UNFINISHED:
        return
    ends = {JobState.DONE: (ItemState.DONE, None), JobState.FORGOTTEN: (ItemState.SKIPPED, "forgotten")}
    reason = None if record is None else record.job.reason_code
    ended, note = ends.get(state, (ItemState.FAILED, reason))
    _put_item(tx, replace(item, state=ended, note=note, updated_at=now))


def _why_paused(kept: KeptPlan, items: Sequence[ReplayItem]) -> str | None:
    """Why no more may be put in: too many failed again, so the cause persists."""
    ended = [each for each in items if each.state in (ItemState.DONE, ItemState.FAILED)]
    ended = [each for each in ended if each.updated_at >= kept.resumed_at]
    last = sorted(ended, key=lambda each: each.updated_at)[-BREAKER_WINDOW:]
    failed = [each for each in last if each.state is ItemState.FAILED]
    if len(last) < BREAKER_FROM or len(failed) <= len(last) * kept.plan.max_failure_share:
        return None
    return f"paused by itself: {len(failed)} of the last {len(last)} failed again, the last by {failed[-1].note}"


def _replay(tx: Transaction, kept: KeptPlan, item: ReplayItem, now: datetime) -> bool:
    """Put in the successor of an item, or merge it into a waiting job of the same effect; whether it moved."""
    plan, record = kept.plan, jobs_table(tx).get(item.job_id)
    if record is None or (obstacle := _obstacle(kept, record)) is not None:
        note = "the job was deleted" if record is None else obstacle
        state = ItemState.DISCARDED if note == DISCARDED_SINCE else ItemState.SKIPPED
        _put_item(tx, replace(item, state=state, note=note, updated_at=now))
        return False
    # A separate job next to the live ones if it does something else.
    old, live = record.job, list_unfinished(tx, record.job) if plan.mode is ReplayMode.RETRY else []
    if any(each.job.state is JobState.RUNNING for each in live):
        return False  # it may have read its input already: what it does not cover waits until it has ended
    new_id = live[-1].job.id if live else JobId(uuid7())
    if not live:
        put_record(tx, Record(job=_successor(plan, record, new_id, now), weight=record.weight))
    if old.state is not JobState.DONE:
        check_transition(old.state, JobState.REPLAYED)
        put_record(tx, replace(record, job=replace(old, state=JobState.REPLAYED, updated_at=now)))
    follows = mem(tx).table("follows")  # a receipt that waits for the old job waits for its successor
    for followed, by in list(follows.items()):
        if old.id in by and new_id not in by:
            mem(tx).put(follows, followed, (*by, new_id))
    merged = "merged into a newer job" if live else None
    _put_item(tx, replace(item, state=ItemState.REPLAYED, new_job_id=new_id, note=merged, updated_at=now))
    return True


def _obstacle(kept: KeptPlan, record: Record) -> str | None:
    """Why the job cannot come back; None where it may."""
    plan, job = kept.plan, record.job
    if _is_discarded_since(kept, record):
        return DISCARDED_SINCE
    if plan.mode is ReplayMode.EDITED and job.kind is JobKind.STORE and record.edited is None:
        return "it is no longer edited: something of it was forgotten since"
    if job.state in (JobState.DEAD, JobState.DISCARDED):
        return None
    return None if job.state is JobState.DONE and plan.mode is ReplayMode.REEXTRACT else f"it is {job.state}"


def _is_discarded_since(kept: KeptPlan, record: Record) -> bool:
    return record.job.state is JobState.DISCARDED and record.action_id != kept.discards.get(record.job.id)


def _is_refused(kept: KeptPlan, record: Record) -> bool:
    return record.job.state not in CAN_COME_BACK or _is_discarded_since(kept, record)


def _successor(plan: ReplayPlan, record: Record, new_id: JobId, now: datetime) -> Job:
    old = record.job
    extracts_again = plan.mode is ReplayMode.REEXTRACT or has_options(plan.overrides)  # a model override too
    patch: dict[str, Json] = {**plan.overrides, **({"reextract": True} if extracts_again else {})}
    suffix = "" if plan.mode is ReplayMode.RETRY else f"#{plan.id}"
    is_edited = plan.mode is ReplayMode.EDITED and record.edited is not None
    return replace(
        _queued(new_id, old.kind, old, f"{old.effect_key}{suffix}", now),
        payload={**old.payload, **patch},
        raw=record.edited if is_edited else old.raw,
    )


def _shadow(plan: ReplayPlan, of: Job, now: datetime) -> Job:
    """A job that does an item of a plan without writing. Its effect key names the plan."""
    payload: dict[str, Json] = {"of": str(of.id), "kind": of.kind.value, **plan.overrides}
    return replace(_queued(JobId(uuid7()), JobKind.SHADOW, of, f"shadow:{plan.id}:{of.id}", now), payload=payload)


def _has_extractions(tx: Transaction, kept: KeptPlan) -> bool:
    records = (jobs_table(tx).get(each.job_id) for each in _items(tx, kept))
    return any(each is not None and each.job.kind is JobKind.EXTRACT for each in records)


def _is_shadow_of(shadow: Job, plan_id: PlanId, items: Set[JobId]) -> bool:
    if shadow.state is JobState.FORGOTTEN:  # an erasure has replaced its effect key
        return shadow.origin_job_id in items
    return shadow.effect_key.startswith(f"shadow:{plan_id}:")


def _dry_run_result(job: Job) -> DryRunResult:
    found: dict[str, Any] = orjson.loads(job.note) if job.state is JobState.DONE and job.note else {}  # Any: JSON
    return DryRunResult(
        job_id=job.origin_job_id or job.id,
        state=job.state,
        added=tuple(found.get("added", ())),
        superseded=tuple(found.get("superseded", ())),
        error=job.error,
    )


def _queued(new_id: JobId, kind: JobKind, origin: Job, effect_key: str, now: datetime) -> Job:
    made = make_job(new_id, kind, origin.scope, JobState.QUEUED, effect_key, now)
    return replace(made, origin_job_id=origin.id)


def _estimate(known: Sequence[Record], found: Sequence[Record | None], rate: float, *, refused: int) -> Estimate:
    jobs = [each.job for each in found if each is not None]
    kinds = {kind: sum(job.kind is kind for job in jobs) for kind in JobKind}
    live = {(each.job.scope.namespace, each.job.kind, each.job.effect_key) for each in known if _is_live(each.job)}
    spent = {kind: cost for kind in kinds if (cost := _mean_cost(known, kind))}
    estimated = [spent[job.kind] for job in jobs if job.kind in spent and TARGET not in job.payload]
    calls = sum(count for kind, count in kinds.items() if kind in MODEL_KINDS)
    return Estimate(
        items=len(found),
        by_kind={kind: count for kind, count in kinds.items() if count},
        namespaces=len({job.scope.namespace for job in jobs}),
        oldest=min((job.updated_at for job in jobs), default=None),
        newest=max((job.updated_at for job in jobs), default=None),
        seconds=len(found) / rate,
        model_calls=calls,
        tokens=round(sum(tokens for tokens, _ in estimated)),
        cost_usd=sum(cost for _, cost in estimated) or None,
        unestimated_calls=calls - len(estimated),
        conflicts=sum((job.scope.namespace, job.kind, job.effect_key) in live for job in jobs),
        newer_facts=sum(any(_is_later(each.job, job) for each in known) for job in jobs if job.kind is JobKind.EXTRACT),
        refused=refused,
    )


def _is_live(job: Job) -> bool:
    return job.state in UNFINISHED


def _is_later(other: Job, job: Job) -> bool:
    """Whether it is an extraction of the same session that was done later."""
    is_done = other.kind is JobKind.EXTRACT and other.state is JobState.DONE and other.updated_at > job.updated_at
    return is_done and (other.scope.owner, other.scope.session_id) == (job.scope.owner, job.scope.session_id)


def _mean_cost(known: Sequence[Record], kind: JobKind) -> tuple[float, float] | None:
    """Tokens and dollars of an attempt of the kind that cost something; None without one. Steps have other sizes."""
    jobs = [each for each in known if each.job.kind is kind and TARGET not in each.job.payload]
    tried = [each for record in jobs for each in record.attempts if each.tokens_in]
    if not tried:
        return None
    return fmean(each.tokens_in + each.tokens_out for each in tried), fmean(each.cost_usd for each in tried)


def _put_plan(tx: Transaction, kept: KeptPlan, plan: ReplayPlan) -> KeptPlan:
    changed = replace(kept, plan=plan)
    mem(tx).put(mem(tx).table("replay_plans"), plan.id, changed)
    return changed


def _prune(tx: Transaction) -> None:
    run, plans = mem(tx), mem(tx).table("replay_plans")
    ended = [each for each in plans.values() if each.plan.state in (PlanState.DONE, PlanState.ABORTED)]
    ended.sort(key=lambda each: each.plan.finished_at or each.plan.frozen_at)
    for each in ended[:-MAX_FINISHED_PLANS]:
        for place in range(1, each.size + 1):
            run.drop(run.table("replay_items"), (each.plan.id, place))
        run.drop(plans, each.plan.id)


def _put_item(tx: Transaction, item: ReplayItem) -> None:
    mem(tx).put(mem(tx).table("replay_items"), (item.plan_id, item.place), item)


def _items(tx: Transaction, kept: KeptPlan) -> list[ReplayItem]:
    rows: dict[Place, ReplayItem] = mem(tx).table("replay_items")
    return [rows[kept.plan.id, place] for place in range(1, kept.size + 1)]


def _shown(tx: Transaction, kept: KeptPlan) -> ReplayPlan:
    items, jobs = _items(tx, kept), jobs_table(tx)
    counts = Counter(each.state for each in items)
    found = [jobs.get(each.new_job_id) for each in items if each.state is ItemState.REPLAYED and each.new_job_id]
    successors = Counter(JobState.DONE if each is None else each.job.state for each in found)  # a deleted one was done
    return replace(kept.plan, counts=dict(counts), successors=dict(successors))


def _with_jobs(tx: Transaction, item: ReplayItem) -> ReplayItem:
    jobs = jobs_table(tx)
    successor = None if item.new_job_id is None else jobs.get(item.new_job_id)
    kind = item.kind if item.job_id in jobs else None
    return replace(item, kind=kind, new_state=None if successor is None else successor.job.state)


def _required(tx: Transaction, plan_id: PlanId) -> KeptPlan:
    kept: KeptPlan | None = mem(tx).table("replay_plans").get(plan_id)
    if kept is None:
        raise errors.InvalidFilter("plan", plan_id, "no plan has this id; `aftermind replay list` shows all.")
    return kept
