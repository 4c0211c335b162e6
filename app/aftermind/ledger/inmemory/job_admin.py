"""Operators' operations on jobs of one process; see `ledger.postgres.job_admin` for what each does."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from operator import attrgetter
from uuid import UUID, uuid4

from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import mem
from aftermind.ledger.inmemory.dead_letters import discard, fits
from aftermind.ledger.inmemory.job_records import UNFINISHED, WAITING, Record
from aftermind.ledger.inmemory.ledger import jobs_table, list_unfinished, put_record
from aftermind.ledger.job_timeline import MAX_EVENTS, MAX_HOLDS, MAX_TURNS, build_timeline
from aftermind.ledger.protocol import DailyUsage
from aftermind.types import Episode, EpisodeId, Fact, Job, JobId, JobKind, JobState, Scope
from aftermind.types.job import check_transition, failed_state
from aftermind.types.job_admin import (
    EndedHold,
    JobCount,
    JobPause,
    ModelCost,
    StageLatency,
    TenantSummary,
    Timeline,
    TimelineStep,
)
from aftermind.types.replay import JobFilter

__all__ = [
    "costs",
    "count_jobs",
    "discard",
    "ended_holds",
    "latencies",
    "list_jobs",
    "pause",
    "pauses",
    "restore",
    "resume",
    "run_now",
    "tenants",
    "timeline",
    "turns_of",
]

PERCENTILES = (0.5, 0.95, 0.99)


async def list_jobs(tx: Transaction, wanted: JobFilter, *, limit: int) -> list[Job]:
    states = [state.value for state in wanted.states or tuple(JobState)]
    found = [record.job for record in jobs_table(tx).values() if fits(record, wanted, states)]
    return sorted(found, key=attrgetter("updated_at"), reverse=True)[:limit]


async def count_jobs(tx: Transaction, namespace: str | None) -> list[JobCount]:
    now, counts, scheduled = mem(tx).database.now(), Counter[tuple[JobKind, JobState]](), Counter[object]()
    for record in _of_namespace(tx, namespace):
        job = record.job
        if job.state in (*UNFINISHED, JobState.DEAD) or (job.state is JobState.DISCARDED and record.action_id):
            counts[job.kind, job.state] += 1
            scheduled[job.kind, job.state] += job.state in WAITING and record.place is None and job.run_at > now
    return [
        JobCount(kind=kind, state=state, count=count, scheduled=scheduled[kind, state])
        for (kind, state), count in sorted(counts.items())
    ]


async def latencies(tx: Transaction, namespace: str | None, *, over: timedelta) -> list[StageLatency]:
    since, seconds = mem(tx).database.now() - over, dict[JobKind, list[float]]()
    for job in (record.job for record in _of_namespace(tx, namespace)):
        if job.state is JobState.DONE and job.created_at > since:
            seconds.setdefault(job.kind, []).append(max(0.0, (job.updated_at - job.created_at).total_seconds()))
    found = []
    for kind, each in sorted(seconds.items()):
        p50, p95, p99 = (_percentile(sorted(each), share) for share in PERCENTILES)
        found.append(StageLatency(kind=kind, count=len(each), p50=p50, p95=p95, p99=p99))
    return found


async def tenants(tx: Transaction, *, prefix: str, after: str | None, limit: int) -> list[TenantSummary]:
    now, today = mem(tx).database.now(), mem(tx).database.now().date()
    jobs, usage, users = dict[str, list[Job]](), dict[str, list[DailyUsage]](), Counter[str]()
    for record in jobs_table(tx).values():
        jobs.setdefault(record.job.scope.namespace, []).append(record.job)
    for spent in _spending(tx):
        if spent.day == today:
            usage.setdefault(spent.owner.namespace, []).append(spent)
    for namespace, _ in mem(tx).database.owners:
        users[namespace] += 1
    names = sorted(each for each in {*jobs, *usage, *users} if each.startswith(prefix))
    names = [each for each in names if after is None or each > after][:limit]
    return [_tenant(each, users[each], jobs.get(each, ()), usage.get(each, ()), now=now) for each in names]


async def costs(tx: Transaction, namespace: str | None, *, since: date) -> list[ModelCost]:
    sums: dict[tuple[str, date, JobKind, str], list[DailyUsage]] = {}
    for each in _spending(tx):
        if each.day >= since and namespace in (None, each.owner.namespace):
            sums.setdefault((each.owner.namespace, each.day, each.kind, each.spent.model or ""), []).append(each)
    found = [
        ModelCost(
            namespace=space,
            day=day,
            kind=kind,
            model=model,
            calls=sum(each.spent.calls for each in spent),
            tokens_in=sum(each.spent.tokens_in for each in spent),
            tokens_out=sum(each.spent.tokens_out for each in spent),
            cost_usd=sum(each.spent.cost_usd for each in spent),
        )
        for (space, day, kind, model), spent in sums.items()
    ]
    found.sort(key=attrgetter("namespace", "kind", "model"))
    return sorted(found, key=lambda each: (-each.day.toordinal(), -each.cost_usd))


async def run_now(tx: Transaction, wanted: JobFilter) -> Counter[str]:
    now, counts = mem(tx).database.now(), Counter[str]()
    states = [state.value for state in WAITING]
    for record in [each for each in jobs_table(tx).values() if fits(each, wanted, states)]:
        if record.place is None and record.job.run_at > now:
            put_record(tx, replace(record, job=replace(record.job, run_at=now, updated_at=now)))
            counts[record.job.scope.namespace] += 1
    return counts


async def restore(tx: Transaction, wanted: JobFilter, *, actor: str) -> Counter[str]:
    now, counts = mem(tx).database.now(), Counter[str]()
    closed = [each for each in jobs_table(tx).values() if fits(each, wanted, (JobState.DISCARDED.value,))]
    places = {each.job.id: place for place, each in enumerate(sorted(closed, key=lambda each: each.job.run_at))}
    for record in sorted(closed, key=lambda each: each.job.created_at, reverse=True):  # of one effect: the latest
        job = record.job
        former = record.former_state or failed_state(job.kind)
        to = JobState.DEAD if former is JobState.DEAD else JobState.QUEUED
        if to is JobState.QUEUED and list_unfinished(tx, job):
            continue
        check_transition(job.state, to)
        failed_at = max(
            (each.ended_at for each in record.attempts if each.ended_at is not None), default=job.updated_at
        )
        at = failed_at if to is JobState.DEAD else now
        is_kept = job.run_at > now or to is JobState.DEAD
        run_at = job.run_at if is_kept else now + timedelta(microseconds=places[job.id])
        restored = replace(job, state=to, note=None, run_at=run_at, updated_at=at)
        put_record(tx, replace(record, job=restored, action_id=None, former_state=None, place=None))
        if job.kind is not JobKind.SHADOW:
            _put_hold(tx, job.kind, job.scope.namespace, job.note or "", job.updated_at, actor, job_id=job.id)
        counts[job.scope.namespace] += 1
    return counts


async def pause(tx: Transaction, kind: JobKind | None, namespace: str | None, *, reason: str, actor: str) -> None:
    now = mem(tx).database.now()
    await resume(tx, kind, namespace, actor=actor)
    row = JobPause(kind=kind, namespace=namespace, reason=reason, actor=actor, created_at=now)
    mem(tx).put(mem(tx).table("job_pauses"), (namespace or "", kind or ""), row)


async def resume(tx: Transaction, kind: JobKind | None, namespace: str | None, *, actor: str) -> bool:
    rows: dict[tuple[str, str], JobPause] = mem(tx).table("job_pauses")
    pause = rows.get((namespace or "", kind or ""))
    if pause is None:
        return False
    _put_hold(tx, kind, namespace, f"{pause.reason} ({pause.actor})", pause.created_at, actor)
    return mem(tx).drop(rows, (namespace or "", kind or ""))


async def ended_holds(tx: Transaction, namespace: str, jobs: Sequence[JobId], *, since: datetime) -> list[EndedHold]:
    rows: dict[UUID, EndedHold] = mem(tx).table("hold_history")
    pauses = [each for each in rows.values() if each.job_id is None and each.namespace in (None, namespace)]
    pauses = sorted((each for each in pauses if each.ended_at >= since), key=attrgetter("ended_at"))
    return [*(each for each in rows.values() if each.job_id in jobs), *pauses[:MAX_HOLDS]]


async def pauses(tx: Transaction) -> list[JobPause]:
    rows: dict[tuple[str, str], JobPause] = mem(tx).table("job_pauses")
    return [rows[key] for key in sorted(rows)]


async def turns_of(tx: Transaction, namespace: str | None, any_id: UUID) -> list[JobId]:
    jobs = jobs_table(tx)
    record = jobs.get(JobId(any_id))
    if record is not None:
        if namespace not in (None, record.job.scope.namespace):
            return []
        if record.job.kind is JobKind.STORE:
            return [record.job.id]
        follows: dict[JobId, tuple[JobId, ...]] = mem(tx).table("follows")
        return _in_order(tx, (stored for stored, later in follows.items() if record.job.id in later))
    for owner in mem(tx).owners(namespace or "") if namespace is not None else ():
        scope = Scope(namespace=owner[0], user_id=owner[1] or None)
        facts: dict[UUID, Fact] = await mem(tx).owned("facts", scope)
        turns: dict[EpisodeId, JobId] = await mem(tx).owned("turns", scope)
        named = [EpisodeId(any_id)] if any_id in turns else list(facts[any_id].sources) if any_id in facts else []
        if named:
            return _in_order(tx, {turns[each] for each in named if each in turns})
    return []


async def timeline(tx: Transaction, turns: Sequence[JobId]) -> Timeline | None:
    jobs = jobs_table(tx)
    if turns[0] not in jobs:
        return None
    store = jobs[turns[0]].job
    of_turn: dict[EpisodeId, JobId] = await mem(tx).owned("turns", store.scope)
    stored: dict[EpisodeId, Episode] = await mem(tx).owned("episodes", store.scope)
    episodes = [stored[id_] for id_, turn in of_turn.items() if turn in turns]
    episodes.sort(key=attrgetter("position"))
    mine = {each.id for each in episodes if of_turn[each.id] == store.id}
    family = _family(tx, store)
    ids = {str(each.job.id) for each in family}
    facts: dict[UUID, Fact] = await mem(tx).owned("facts", store.scope)
    drawn = sorted((each for each in facts.values() if mine & set(each.sources)), key=attrgetter("recorded_at"))
    events = [each for each in (await mem(tx).owned("events", store.scope)).values() if each.job_id in ids]
    return build_timeline(
        store,
        turns,
        accepted_at=min([each.remembered_at for each in episodes if each.id in mine] + [store.created_at]),
        episode_ids=[each.id for each in episodes],
        jobs=[each.job for each in family],
        attempts=[attempt for each in family for attempt in each.attempts],
        facts=[(each.id, each.recorded_at) for each in drawn],
        events=[
            TimelineStep(name=each.event, at=each.at, job_id=JobId(UUID(each.job_id))) for each in events[:MAX_EVENTS]
        ],
    )


def _family(tx: Transaction, store: Job) -> list[Record]:
    """The jobs of a turn: its store job, those that follow it, and those that replay one of them."""
    jobs, ids = jobs_table(tx), [store.id, *mem(tx).table("follows").get(store.id, ())]
    for item in sorted(mem(tx).table("replay_items").values(), key=attrgetter("updated_at")):
        if item.job_id in ids and item.new_job_id is not None and item.new_job_id not in ids:
            ids.append(item.new_job_id)
    return sorted((jobs[id_] for id_ in ids if id_ in jobs), key=lambda each: (each.job.created_at, each.job.kind))


def _put_hold(
    tx: Transaction,
    kind: JobKind | None,
    namespace: str | None,
    reason: str,
    created_at: datetime,
    actor: str,
    *,
    job_id: JobId | None = None,
) -> None:
    hold = EndedHold(
        kind=kind,
        namespace=namespace,
        job_id=job_id,
        reason=reason,
        created_at=created_at,
        ended_at=mem(tx).database.now(),
        ended_by=actor,
    )
    mem(tx).put(mem(tx).table("hold_history"), uuid4(), hold)


def _in_order(tx: Transaction, ids: Iterable[JobId]) -> list[JobId]:
    jobs = jobs_table(tx)
    found = sorted((jobs[id_].job for id_ in ids if id_ in jobs), key=attrgetter("created_at", "id"))
    return [job.id for job in found[:MAX_TURNS]]


def _of_namespace(tx: Transaction, namespace: str | None) -> list[Record]:
    return [each for each in jobs_table(tx).values() if namespace in (None, each.job.scope.namespace)]


def _spending(tx: Transaction) -> list[DailyUsage]:
    return list(mem(tx).table("spending").values())


def _tenant(
    namespace: str, users: int, jobs: Sequence[Job], usage: Sequence[DailyUsage], *, now: datetime
) -> TenantSummary:
    due = [job.run_at for job in jobs if job.state in WAITING and job.run_at <= now]
    lately = [job.created_at for job in jobs if job.created_at > now - timedelta(days=1)]
    return TenantSummary(
        namespace=namespace,
        users=users,
        unfinished_jobs=sum(job.state in UNFINISHED for job in jobs),
        dead_letters=sum(job.state is JobState.DEAD for job in jobs),
        oldest_due_at=min(due, default=None),
        last_job_at=max(lately, default=None),
        calls=sum(each.spent.calls for each in usage),
        tokens=sum(each.spent.tokens_in + each.spent.tokens_out for each in usage),
        cost_usd=sum(each.spent.cost_usd for each in usage),
        unpriced_models=tuple(
            sorted(
                {
                    str(each.spent.model)
                    for each in usage
                    if not each.spent.cost_usd and each.spent.tokens_in + each.spent.tokens_out
                }
            )
        ),
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest values, as `percentile_cont` of Postgres."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
