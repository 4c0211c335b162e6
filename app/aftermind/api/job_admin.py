"""`memory.job_admin`: jobs of all users for operators. Listed, counted, run now, discarded, restored, paused."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from uuid import UUID, uuid4

from aftermind import errors
from aftermind.api import conversation_history, process_registry
from aftermind.api.health import spent_budgets
from aftermind.api.memory_services import Parts
from aftermind.db import metric_history
from aftermind.db.database_protocol import Transaction
from aftermind.ledger.job_timeline import job_ids_of, timeline_of_job, with_holds
from aftermind.llm import prices
from aftermind.llm.factory import find_provider_pause
from aftermind.llm.rate_limit_and_circuit_breaker import ProviderState
from aftermind.types import Episode, Job, JobId, JobKind, JobState, Message
from aftermind.types.audit import Action as Audited
from aftermind.types.job import MODEL_KINDS
from aftermind.types.job_admin import (
    JobAction,
    JobActionId,
    JobActionResult,
    JobCount,
    JobPause,
    MetricSample,
    ModelCost,
    PendingTurn,
    ProcessInfo,
    StageLatency,
    TenantSummary,
    Timeline,
    TimelineStep,
)
from aftermind.types.message import Json
from aftermind.types.replay import JobFilter
from aftermind.types.whole_number import check_whole_number
from aftermind.wire.turn_encoding import decode_turn

MAX_LISTED = 10_000
MAX_COSTS = timedelta(days=366)
MAX_MESSAGES = 50  # of a job that are read; a burst may have more
MAX_REASON = 500  # characters of a note
WAITING_STATES = ("pending", JobState.QUEUED, JobState.RETRYING)
DISCARDABLE = (JobState.QUEUED, JobState.RUNNING, JobState.RETRYING, JobState.DEAD)


class JobAdmin:
    """Jobs in any state, of one namespace or of all (which needs `AFTERMIND_RELAY_URL`).

    Every call raises `StoreUnavailable`.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def list(self, wanted: JobFilter, *, limit: int = 100) -> Sequence[Job]:
        """Jobs that fit, the latest change first; of every state if the filter names none.

        Turns that wait in Redis have no row yet: see `pending_turns`. Raises `InvalidFilter`.
        """
        check_whole_number(limit, most=MAX_LISTED, error=errors.InvalidFilter)
        async with self._reading(wanted.namespace) as tx:
            return await self._parts.job_operations.list_jobs(tx, wanted, limit=limit)

    async def pending_turns(self, *, namespace: str | None = None, limit: int = 100) -> Sequence[PendingTurn]:
        """Accepted turns that wait in Redis for their store job, the oldest first. Raises `RedisUnavailable`.

        Reads the `MAX_LISTED` oldest of all namespaces.
        """
        if self._parts.pending is None:
            return []
        found = await self._parts.pending.list_oldest(MAX_LISTED if namespace else limit)
        return [each for each in found if namespace in (None, each.owner.namespace)][:limit]

    async def counts(self, *, namespace: str | None = None) -> Sequence[JobCount]:
        """Unfinished, dead and discarded jobs by kind and state. Completed jobs are not counted."""
        async with self._reading(namespace) as tx:
            return await self._parts.job_operations.count_jobs(tx, namespace)

    async def latencies(
        self, *, namespace: str | None = None, over: timedelta = timedelta(hours=1)
    ) -> Sequence[StageLatency]:
        """Percentiles by stage, of jobs that were created and completed within `over`."""
        async with self._reading(namespace) as tx:
            return await self._parts.job_operations.latencies(tx, namespace, over=over)

    async def tenants(self, *, prefix: str = "", after: str | None = None, limit: int = 100) -> Sequence[TenantSummary]:
        """Namespaces that have users, jobs or costs, by name, from the one after `after` on.

        Needs `AFTERMIND_RELAY_URL`; without it, only the own namespace is found. Raises `InvalidFilter`.
        """
        check_whole_number(limit, most=MAX_LISTED, error=errors.InvalidFilter)
        async with self._reading(None) as tx:
            found = await self._parts.job_operations.tenants(tx, prefix=prefix, after=after, limit=limit)
        given = self._parts.settings.model_prices
        return [
            replace(
                each, unpriced_models=tuple(one for one in each.unpriced_models if prices.is_unknown(one, 0, 1, given))
            )
            for each in found
        ]

    async def costs(self, *, namespace: str | None = None, over: timedelta = timedelta(days=30)) -> Sequence[ModelCost]:
        """What models have cost, by day (UTC), namespace, kind of job and model; the newest day first.

        Of the days that `over` reaches, today included. Raises `InvalidFilter`.
        """
        if not timedelta(0) <= over <= MAX_COSTS:
            raise errors.InvalidFilter("over", over, f"it is at most {MAX_COSTS.days} days.")
        async with self._reading(namespace) as tx:
            found = await self._parts.job_operations.costs(tx, namespace, since=(datetime.now(UTC) - over).date())
        given = self._parts.settings.model_prices
        return [
            replace(
                each,
                is_cost_unknown=prices.is_unknown(each.model, each.cost_usd, each.tokens_in + each.tokens_out, given),
            )
            for each in found
        ]

    async def processes(self) -> Sequence[ProcessInfo]:
        """Workers, reconcilers and services with heartbeat, version, queues, memory and settings in force.

        Raises `RedisUnavailable`; empty without Redis.
        """
        if self._parts.redis is None:
            return []
        link = self._parts.redis
        return await process_registry.list_processes(link, link.keys(self._parts.settings.redis_prefix))

    async def metric_history(self, *, over: timedelta = timedelta(hours=1)) -> Sequence[MetricSample]:
        """Metrics of the whole deployment, sampled by the reconciler: by minute up to a day, by hour up to 30 days.

        Empty without `AFTERMIND_RELAY_URL` or before the first sample. Raises `InvalidFilter`.
        """
        if not timedelta(0) < over <= metric_history.KEPT[metric_history.HOUR]:
            raise errors.InvalidFilter("over", over, "it is at most 30 days.")
        step = metric_history.MINUTE if over <= metric_history.KEPT[metric_history.MINUTE] else metric_history.HOUR
        if self._parts.redis is None:  # it is the reconciler's; one process has its own metrics
            return []
        now = datetime.now(UTC)
        async with self._reading(None) as tx:
            return await metric_history.read(tx, step, since=now - over, until=now + timedelta(minutes=5))

    async def timeline(
        self, any_id: JobId | UUID | str, *, namespace: str | None = None, for_tenant: bool = False
    ) -> Timeline | None:
        """What happened to a turn, by the id of one of its jobs, episodes or facts. None if the id is unknown.

        A step that waits for the end of a pause has the pause as its detail. Pauses that have ended are steps, and so
        are discards that were restored; both are kept for `job_retention_days`. With `for_tenant`, ended pauses of all
        namespaces are without their reason and operators. The id of an episode or a fact needs the namespace. Of a job
        of several turns: the first one's; of a job that follows no turn: its own. Raises `InvalidFilter`.
        """
        try:
            asked = any_id if isinstance(any_id, UUID) else UUID(str(any_id))
        except ValueError as exc:
            raise errors.InvalidFilter("id", any_id, "it is not the whole id of a job, an episode or a fact.") from exc
        async with self._reading(namespace) as tx:
            turns = await self._parts.job_operations.turns_of(tx, namespace, asked)
            found = await self._parts.job_operations.timeline(tx, turns) if turns else None
        found = found or await self._pending_timeline(JobId(asked), namespace)
        found = found or await self._job_timeline(JobId(asked), namespace)
        return found and await self._with_pauses(await self._with_holds(found, for_tenant=for_tenant))

    async def messages(self, job: Job) -> Sequence[Message | Episode]:
        """The messages that a job works on: of its payload, else those stored by its turns; at most 50.

        Empty if the payload cannot be read, and if they were forgotten.
        """
        if job.raw is not None and job.kind is JobKind.STORE:
            try:
                return decode_turn(job.raw).messages[:MAX_MESSAGES]
            except (errors.AftermindError, TypeError, ValueError):  # its bytes are in the dead letter
                return []
        owner = job.scope.owner
        timeline = await self.timeline(job.id, namespace=owner.namespace)
        if timeline is None or not timeline.episode_ids:
            return []
        found = await conversation_history.get(self._parts, owner, timeline.episode_ids[:MAX_MESSAGES])
        return [each for each in found if each is not None]

    async def apply(self, action: JobAction | str, wanted: JobFilter, *, note: str = "", actor: str) -> JobActionResult:
        """Run jobs now, discard or restore them; see `JobAction`. Discarding needs a note. Raises `InvalidFilter`.

        Discarding leaves out accepted turns that are not stored yet. `undo` restores what it discarded.
        """
        try:
            chosen = JobAction(action)
        except ValueError as exc:
            raise errors.InvalidFilter("action", action, f"one of {', '.join(JobAction)}.") from exc
        if not actor.strip() or len(note) > MAX_REASON or (chosen is JobAction.DISCARD and not note.strip()):
            why = f"a reason of at most {MAX_REASON} characters and an actor are required; both are stored."
            raise errors.InvalidFilter("note", note[:80], why)
        action_id = JobActionId(uuid4()) if chosen is JobAction.DISCARD else None
        async with self._writing(wanted.namespace) as tx:
            if action_id is not None:
                said = f"{note.strip()} ({actor.strip()})"
                counts = await self._parts.job_operations.discard(tx, wanted, DISCARDABLE, action=action_id, note=said)
            elif chosen is JobAction.RESTORE:
                counts = await self._parts.job_operations.restore(tx, wanted, actor=actor.strip())
            else:
                counts = await self._parts.job_operations.run_now(tx, wanted)
            await self._record(tx, chosen, counts, note=note.strip(), actor=actor.strip())
        await self._anchor()
        self._parts.wake()
        return JobActionResult(action=chosen, changed=counts.total(), id=action_id)

    async def undo(self, action_id: JobActionId | UUID, *, namespace: str | None = None, actor: str) -> JobActionResult:
        """Restore the jobs that an action has discarded, except those that were replayed or restored since."""
        return await self.apply(
            JobAction.RESTORE, JobFilter(namespace=namespace, action_id=JobActionId(action_id)), actor=actor
        )

    async def pause(
        self, *, kind: JobKind | str | None = None, namespace: str | None = None, reason: str, actor: str
    ) -> None:
        """Let workers claim no jobs of a kind (None: every kind) in a namespace (None: every one).

        Workers notice within a second; running jobs are completed. Jobs wait, and use no attempts. Pausing `store`
        lets accepted turns wait too: recalls include them. Raises `InvalidFilter`.
        """
        if not reason.strip() or not actor.strip() or len(reason) > MAX_REASON:
            why = f"a reason of at most {MAX_REASON} characters and an actor are required; both are stored."
            raise errors.InvalidFilter("reason", reason[:80], why)
        async with self._writing(namespace) as tx:
            await self._parts.job_operations.pause(
                tx, _kind(kind), namespace, reason=reason.strip(), actor=actor.strip()
            )
            await self._record_pause(tx, "pause", kind, namespace, actor, reason=reason.strip())
        await self._anchor()

    async def resume(
        self, *, kind: JobKind | str | None = None, namespace: str | None = None, actor: str, is_key: bool = False
    ) -> bool:
        """End a pause; False if there was none.

        With `is_key` the actor is an API key, which ends only pauses that keys have made. Raises `PauseOfOperator`.
        """
        async with self._writing(namespace) as tx:
            pauses = await self._parts.job_operations.pauses(tx) if is_key else []
            same = next((each for each in pauses if (each.kind, each.namespace) == (_kind(kind), namespace)), None)
            if same is not None and not same.is_of_key:
                raise errors.PauseOfOperator(same.summary())
            found = await self._parts.job_operations.resume(tx, _kind(kind), namespace, actor=actor.strip())
            if found:
                await self._record_pause(tx, "resume", kind, namespace, actor)
        await self._anchor()
        self._parts.wake()
        return found

    async def pauses(self, *, namespace: str | None = None) -> Sequence[JobPause]:
        """Pauses of a namespace and those of every namespace; None: all of them."""
        async with self._parts.operations.transaction(namespace=self._seen(namespace), read_only=True) as tx:
            found = await self._parts.job_operations.pauses(tx)
        return [each for each in found if namespace is None or each.namespace in (None, namespace)]

    async def hold_reasons(self, jobs: Sequence[Job], *, namespace: str | None = None) -> Mapping[JobId, str]:
        """Why workers do not claim jobs of these, or hand them back, by id: a pause of an operator or a provider, or a
        budget that is used up.

        A job whose next attempt is after the end of the pause, or of the budget's day, has none: it waits for its time.
        Of several databases, that of the namespace is asked.
        """
        waiting = [job for job in jobs if job.state in WAITING_STATES]
        if not waiting:
            return {}
        pauses, states = await self.pauses(namespace=namespace), await self._parts.provider_states()
        now, reasons = datetime.now(UTC), {}
        for job in waiting:
            reason = _describe_pause(pauses, job.kind, job.scope.namespace)
            pause = find_provider_pause(job.kind, self._parts.settings, states)
            if reason is None and pause is not None and job.run_at <= now + timedelta(seconds=pause.wait_seconds):
                reason = _describe_provider_pause(pause)
            if reason is not None:
                reasons[job.id] = reason
        tomorrow = datetime.combine(now + timedelta(days=1), time.min, UTC)
        left = [job for job in waiting if job.id not in reasons and job.run_at < tomorrow]
        for space in {job.scope.namespace for job in left if job.kind in MODEL_KINDS}:
            for spent in await spent_budgets(self._parts, space):
                held = [job for job in left if job.scope.namespace == space and spent.holds(job.kind)]
                reasons |= {job.id: f"{spent} until 00:00 UTC" for job in held}
        return reasons

    async def _with_holds(self, found: Timeline, *, for_tenant: bool) -> Timeline:
        space = found.owner.namespace
        async with self._reading(space) as tx:
            holds = await self._parts.job_operations.ended_holds(tx, space, job_ids_of(found), since=found.accepted_at)
        return with_holds(found, holds, for_tenant=for_tenant)

    async def _with_pauses(self, found: Timeline) -> Timeline:
        if not any(step.state in WAITING_STATES for step in found.steps):
            return found
        space = found.owner.namespace
        pauses, states = await self.pauses(namespace=space), await self._parts.provider_states()
        steps = list(found.steps)
        for place, step in enumerate(steps):
            if step.state not in WAITING_STATES:
                continue
            detail = _describe_pause(pauses, step.name, space)
            if detail is None:  # its next attempt may be later than the end of the pause
                pause = find_provider_pause(step.name, self._parts.settings, states)
                parts = (step.detail, pause and _describe_provider_pause(pause))
                detail = "; ".join(part for part in parts if part) or None
            steps[place] = replace(step, detail=detail)
        return replace(found, steps=tuple(steps))

    async def _job_timeline(self, job_id: JobId, namespace: str | None) -> Timeline | None:
        async with self._reading(namespace) as tx:
            jobs = await self._parts.job_operations.list_jobs(
                tx, JobFilter(ids=(job_id,), namespace=namespace), limit=1
            )
        return timeline_of_job(jobs[0], await self._parts.ledger.attempts(job_id)) if jobs else None

    async def _pending_timeline(self, job_id: JobId, namespace: str | None) -> Timeline | None:
        turn = None if self._parts.pending is None else await self._parts.pending.find(job_id)
        if turn is None or namespace not in (None, turn.owner.namespace):
            return None
        state = "running" if turn.worker else "pending"
        detail = f"{turn.attempts} attempts" + (f", the last one by {turn.worker}" if turn.worker else "")
        steps = (
            TimelineStep(name="accepted", at=turn.accepted_at, job_id=job_id),
            TimelineStep(name="store", at=turn.accepted_at, job_id=job_id, state=state, detail=detail),
        )
        return Timeline(
            job_id=job_id,
            owner=turn.owner,
            accepted_at=turn.accepted_at,
            turns=(job_id,),
            episode_ids=(),
            fact_ids=(),
            steps=steps,
        )

    def _reading(self, namespace: str | None) -> AbstractAsyncContextManager[Transaction]:
        return self._parts.operations.transaction(namespace=self._seen(namespace), read_only=True)

    def _writing(self, namespace: str | None) -> AbstractAsyncContextManager[Transaction]:
        return self._parts.operations.transaction(namespace=self._seen(namespace))

    def _seen(self, namespace: str | None) -> str | None:
        return self._parts.operations_namespace if namespace is None else namespace

    async def _record(self, tx: Transaction, action: JobAction, counts: Counter[str], *, note: str, actor: str) -> None:
        if self._parts.trail is None:
            return
        audited = Audited.DISCARD if action is JobAction.DISCARD else Audited.REPLAY
        for namespace, count in sorted(counts.items()):  # sorted: two concurrent actions never wait crosswise
            detail: dict[str, Json] = {"jobs": count, "action": action.value, **({"note": note} if note else {})}
            await self._parts.trail.append(tx, namespace, audited, actor=actor, detail=detail)

    async def _record_pause(
        self,
        tx: Transaction,
        what: str,
        kind: JobKind | str | None,
        namespace: str | None,
        actor: str,
        *,
        reason: str = "",
    ) -> None:
        if self._parts.trail is not None:
            detail: dict[str, Json] = {"action": what, "kind": kind or "all", "everywhere": namespace is None}
            detail |= {"reason": reason} if reason else {}
            space = namespace or self._parts.namespace
            await self._parts.trail.append(tx, space, Audited.POLICY, actor=actor.strip(), detail=detail)

    async def _anchor(self) -> None:
        if self._parts.trail is not None:
            await self._parts.trail.anchor()


def _kind(given: JobKind | str | None) -> JobKind | None:
    if given is None:
        return None
    try:
        return JobKind(given)
    except ValueError as exc:
        raise errors.InvalidFilter("kind", given, f"one of {', '.join(JobKind)}.") from exc


def _describe_provider_pause(state: ProviderState) -> str:
    return f"{state.provider} is {state.pause}"


def _describe_pause(pauses: Sequence[JobPause], kind: str, namespace: str) -> str | None:
    found = next((each for each in pauses if each.covers(kind, namespace)), None)
    return None if found is None else found.summary()
