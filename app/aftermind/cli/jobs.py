"""`aftermind jobs`: list jobs in any state, show a turn's timeline, run now, cancel, restore, pause and resume."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.markup import escape

from aftermind import errors
from aftermind.api import address_resolution
from aftermind.api.health import pauses_by_queue
from aftermind.cli import dead_letters, job_ids, terminal
from aftermind.cli.terminal import out
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.types import Job, JobId, JobKind, JobState, Scope
from aftermind.types.job_admin import (
    JobAction,
    JobActionResult,
    JobPause,
    PendingTurn,
    ProcessInfo,
    StageLatency,
    Timeline,
)
from aftermind.types.replay import JobFilter
from aftermind.wire import queues

FOLLOWUPS = (JobKind.SUMMARISE, JobKind.PROFILE)  # of facts
UNFINISHED = (JobState.QUEUED, JobState.RUNNING, JobState.RETRYING)
MAX_PENDING_SEARCHED = 1_000  # turns in Redis, the oldest first
PENDING = "pending"  # of a turn in Redis, which has no row yet
LISTED_STATES = (PENDING, *JobState)
FULL_ID_CHARACTERS = 32  # a UUID without hyphens

States = Annotated[list[JobState] | None, typer.Option("--state", "-s", help="In this state. May be repeated.")]


def _state(given: str) -> str:
    if given not in LISTED_STATES:
        raise typer.BadParameter(f"{given!r} is not one of {', '.join(LISTED_STATES)}.")
    return given


ListedStates = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        "-s",
        parser=_state,
        metavar=f"[{'|'.join(LISTED_STATES)}]",
        help="In this state; pending: accepted, but not stored yet. May be repeated.",
    ),
]
Kind = Annotated[JobKind | None, typer.Option("--kind", "-k", help="Jobs of this kind. Default: of every kind.")]
Queue = Annotated[str | None, typer.Option(help=f"The kinds of this queue: {', '.join(queues.QUEUES)}.")]
Where = Annotated[str | None, typer.Option("--namespace", "-n", help="In this namespace. Default: in every one.")]
Since = Annotated[str | None, typer.Option(help="Changed after: 30m, 24h, 7d, or a time like 2026-01-31T12:00.")]
AnyId = Annotated[
    str,
    typer.Argument(help="Id of a job, an episode or a fact; of a job also its end, as in `list`.", show_default=False),
]

jobs = typer.Typer(name="jobs", help="Background jobs in every state.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(jobs)


@jobs.command("list")
@terminal.with_json
def list_(
    *,
    state: ListedStates = None,
    ids: job_ids.Ids = None,
    kind: dead_letters.Kinds = None,
    error: dead_letters.ErrorText = None,
    namespace: dead_letters.OfNamespace = None,
    user: dead_letters.OfUser = None,
    since: Since = None,
    limit: dead_letters.Limit = 50,
    wide: terminal.Wide = False,
) -> Sequence[Job] | Sequence[PendingTurn]:
    """List jobs, the latest change first.

    Accepted turns that are not stored yet wait in Redis and have no row: the table lists them first, as pending.
    `--json` has the rows only; with `--state pending` and no other state, the turns, and an error if Redis is away.
    """
    states = [JobState(each) for each in state or () if each != PENDING]
    only_pending = bool(state) and not states
    wanted = _filter(states, ids, kind, error, namespace, user, since)
    with_turns = not state or PENDING in state or JobState.QUEUED in states

    async def work(
        memory: Memory,
    ) -> tuple[Sequence[Job], Sequence[PendingTurn], Sequence[JobPause], Mapping[JobId, str]]:
        found = [] if only_pending else await memory.job_admin.list(wanted, limit=limit)
        turns = await _pending_turns(memory, wanted, limit, only_pending=only_pending) if with_turns else []
        stored = {job.id for job in found}
        paused = await memory.job_admin.pauses(namespace=wanted.namespace)
        reasons = await hold_reasons(memory, found)
        return found, [turn for turn in turns if turn.job_id not in stored], paused, reasons

    found, pending, paused, reasons = terminal.with_memory(work)
    listed = found[: limit - len(pending)]
    namespaces = {*(job.scope.namespace for job in listed), *(turn.owner.namespace for turn in pending)}
    spaces = dead_letters.names_namespaces(wanted.namespace, namespaces)
    titles = ("job", "state", "kind", "updated", "next attempt", *(["namespace"] if spaces else []), "user", "detail")
    shown = terminal.make_table(*titles, flexible="detail")
    for turn in pending:
        texts = ["running" if turn.worker else "pending", JobKind.STORE, terminal.when(turn.accepted_at), ""]
        cells = _cells(turn.job_id, texts, turn.owner, with_namespace=spaces, wide=wide)
        shown.add_row(*cells, terminal.one_line(_reason(turn, paused)))
    for job in listed:
        texts = [job.state, job.kind, terminal.when(job.updated_at), _next_attempt(job)]
        cells = _cells(job.id, texts, job.scope, with_namespace=spaces, wide=wide)
        shown.add_row(*cells, terminal.one_line(reasons.get(job.id) or job.detail))
    terminal.show(shown, wide=wide)
    terminal.note_limit([*pending, *found], limit)
    return pending if only_pending else found


async def hold_reasons(memory: Memory, found: Sequence[Job]) -> Mapping[JobId, str]:
    """Pauses and spent budgets that these jobs of several namespaces wait for."""
    reasons: dict[JobId, str] = {}
    for space in {job.scope.namespace for job in found}:
        jobs = [job for job in found if job.scope.namespace == space]
        reasons |= await memory.job_admin.hold_reasons(jobs, namespace=space)
    return reasons


async def _pending_turns(memory: Memory, wanted: JobFilter, limit: int, *, only_pending: bool) -> Sequence[PendingTurn]:
    """Turns without a row that the filter of jobs means too. Raises `RedisUnavailable` if nothing else is asked for."""
    if wanted.error is not None or wanted.since is not None:
        return []
    if wanted.kinds and JobKind.STORE not in wanted.kinds:
        return []
    try:
        found = await memory.job_admin.pending_turns(namespace=wanted.namespace, limit=MAX_PENDING_SEARCHED)
    except errors.RedisUnavailable as exc:
        if only_pending:  # a script that waits for an empty list must not take an outage for one
            raise
        terminal.warn(f"turns that are not stored yet are not listed. {exc}")
        return []
    fitting = [
        turn
        for turn in found
        if wanted.user_id in (None, turn.owner.user_column) and (not wanted.ids or turn.job_id in wanted.ids)
    ]
    if len(found) >= MAX_PENDING_SEARCHED and len(fitting) < limit:
        terminal.warn(f"of the turns in Redis, only the oldest {MAX_PENDING_SEARCHED:,} were searched.")
    return fitting[:limit]


def _reason(turn: PendingTurn, paused: Sequence[JobPause]) -> str:
    if turn.worker:
        return f"running at {turn.worker}"
    pause = next((each for each in paused if each.covers(JobKind.STORE, turn.owner.namespace)), None)
    return pause.summary() if pause is not None else "waits in Redis for a store worker"


@jobs.command()
@terminal.with_json
def timeline(any_id: AnyId, *, namespace: terminal.Namespace = None, wide: terminal.Wide = False) -> Timeline:
    """Show what happened to a turn: accepted, stored, embedded, extracted, facts, events, pauses and waits.

    `seconds` are from the begin of a step to its end. Those of a job are its life until it was done, replayed or a dead
    letter, waits included; those of an attempt are its work; those of a pause or a wait are the time in which the job
    could not run. Acceptance, facts and events are moments, and have none; nor has a step that is not over.

    An embedder whose vectors are made while storing, such as `hash`, has no separate step.
    """

    async def work(memory: Memory) -> Timeline:
        where = namespace or memory.namespace
        whole = str(await job_ids.find_job_id(memory, any_id, namespace=where) or any_id)
        if terminal.MIN_ID_CHARACTERS <= len(whole) < FULL_ID_CHARACTERS:
            why = f"no job of namespace {where!r} has an id with this end; --namespace names another one. "
            why += "Ids of episodes and facts are needed whole."
            raise errors.InvalidFilter("id", any_id, why)
        found = await memory.job_admin.timeline(whole, namespace=where)
        if found is None:
            why = f"no job, episode or fact of namespace {where!r} has it. --namespace names another one."
            raise errors.InvalidFilter("id", whole, why)
        return found

    found = terminal.with_memory(work)
    shown = terminal.make_table("after", "step", "state", "seconds", "job", "detail", flexible="detail")
    for step in found.steps:
        lasted = "" if step.ended_at is None else f"{(step.ended_at - step.at).total_seconds():.3f}"
        after = f"{(step.at - found.accepted_at).total_seconds():+.3f} s"
        job = terminal.short_id(step.job_id) if step.job_id else ""
        shown.add_row(after, step.name, step.state or "", lasted, job, terminal.one_line(step.detail or ""))
    terminal.show(shown, wide=wide)
    return found


@jobs.command()
@terminal.with_json
def latency(*, namespace: Where = None) -> Sequence[StageLatency]:
    """Show percentiles by stage, of jobs completed in the last hour."""
    found = terminal.with_memory(lambda memory: memory.job_admin.latencies(namespace=namespace))
    shown = terminal.make_table("stage", "completed", "p50 s", "p95 s", "p99 s", flexible="stage")
    for each in found:
        shown.add_row(each.kind, str(each.count), f"{each.p50:.3f}", f"{each.p95:.3f}", f"{each.p99:.3f}")
    terminal.show(shown)
    return found


@jobs.command()
@terminal.with_json
def processes(*, wide: terminal.Wide = False) -> Sequence[ProcessInfo]:
    """Show workers, reconcilers and services: heartbeat, version, queues and memory; with --wide settings in force."""
    found = terminal.with_memory(lambda memory: memory.job_admin.processes())
    shown = terminal.make_table("process", "version", "heartbeat", "MiB", "queues", flexible="process")
    for each in found:
        queues_of = ", ".join(name.removeprefix("memory.") for name in each.queues) or "-"
        heartbeat = terminal.when(each.heartbeat_at)
        heartbeat = f"[red]none since {heartbeat}[/]" if each.is_silent else heartbeat
        texts = (each.version, heartbeat, f"{each.peak_memory_bytes / 2**20:,.0f}")
        shown.add_row(terminal.one_line(each.name), *texts, queues_of)
    terminal.show(shown, wide=wide)
    for each in found if wide else ():
        out.print(f"\n{escape(each.name)}\n  {escape(', '.join(each.settings))}", soft_wrap=False)
    return found


@jobs.command("run-now")
@terminal.with_json
def run_now(
    *,
    ids: job_ids.Ids = None,
    kind: dead_letters.Kinds = None,
    error: dead_letters.ErrorText = None,
    namespace: dead_letters.OfNamespace = None,
    user: dead_letters.OfUser = None,
) -> JobActionResult:
    """Make scheduled jobs and retries due now.

    Without --id, --kind and --error, also the summaries and profiles that follow, where this command runs the jobs
    itself: in a store without workers. Where workers run them, repeat the command when the facts are extracted.
    """
    wanted = _filter(None, ids, kind, error, namespace, user, None)
    is_of_all = not (ids or kind or error)
    runs_here = is_of_all and runs_jobs_here(Settings())

    async def work(memory: Memory) -> JobActionResult:
        actor = dead_letters.actor()
        done = await memory.job_admin.apply(JobAction.RUN_NOW, wanted, actor=actor)
        if not runs_here:
            return done
        await memory.close()  # it ends when all due jobs are done
        followed = await memory.job_admin.apply(JobAction.RUN_NOW, replace(wanted, kinds=FOLLOWUPS), actor=actor)
        return replace(done, changed=done.changed + followed.changed)

    done = terminal.with_memory(work)
    out.print(f"{terminal.count_of(done.changed, 'job')} changed.")
    if is_of_all and not runs_here:
        out.print("Summaries and profiles follow the facts some minutes later. Run it again for them, after the facts.")
    return done


def runs_jobs_here(settings: Settings) -> bool:
    """Whether a command that opens the store runs its jobs itself."""
    store = address_resolution.resolve(settings)
    return store.is_in_process and store.broker is None and settings.run_jobs


@jobs.command()
@terminal.with_json
def cancel(
    *,
    note: Annotated[str, typer.Option(help="The reason; it is stored with the jobs.", show_default=False)],
    state: States = None,
    ids: job_ids.Ids = None,
    kind: dead_letters.Kinds = None,
    error: dead_letters.ErrorText = None,
    namespace: dead_letters.OfNamespace = None,
    user: dead_letters.OfUser = None,
) -> JobActionResult:
    """Cancel unfinished jobs, running ones too. They can be restored. Turns that are not stored yet are left out."""
    wanted = _filter(state or list(UNFINISHED), ids, kind, error, namespace, user, None)
    if wanted == JobFilter(states=wanted.states) and not state:
        raise errors.InvalidFilter("filter", None, "set at least one filter, so that not all jobs are cancelled.")
    return _apply(JobAction.DISCARD, wanted, note)


@jobs.command()
@terminal.with_json
def restore(
    *,
    action: Annotated[str | None, typer.Option(help="All jobs of the action with this id.")] = None,
    ids: job_ids.Ids = None,
    kind: dead_letters.Kinds = None,
    namespace: dead_letters.OfNamespace = None,
    user: dead_letters.OfUser = None,
) -> JobActionResult:
    """Restore discarded jobs: dead letters are dead letters again, cancelled jobs are queued."""
    if action is None:
        return _apply(JobAction.RESTORE, _filter(None, ids, kind, None, namespace, user, None))
    try:
        action_id = UUID(action)
    except ValueError as exc:
        raise errors.InvalidFilter("action", action, "it is the id that `cancel` printed.") from exc
    done = terminal.with_memory(
        lambda memory: memory.job_admin.undo(action_id, namespace=namespace, actor=dead_letters.actor())
    )
    out.print(f"Restored {done.changed}.")
    return done


@jobs.command()
@terminal.with_json
def pause(
    *,
    reason: Annotated[
        str,
        typer.Option(
            help="The reason; it is visible while the pause lasts, also to its tenants, and in timelines.",
            show_default=False,
        ),
    ],
    kind: Kind = None,
    queue: Queue = None,
    namespace: Where = None,
) -> list[JobPause]:
    """Let workers claim no jobs of a kind, of a queue or of a namespace. Jobs wait, and use no attempts."""
    for each in _kinds(kind, queue):
        terminal.with_memory(_pausing(each, namespace, reason))
    out.print(f"Paused: {queue or kind or 'all kinds'} in {escape(namespace) if namespace else 'every namespace'}.")
    return _pauses()


@jobs.command()
@terminal.with_json
def resume(*, kind: Kind = None, queue: Queue = None, namespace: Where = None) -> list[JobPause]:
    """End a pause. Of a queue: those of its kinds that are paused. Without both: every pause of the namespace, or
    every one that is for all namespaces.
    """
    kinds = _kinds(kind, queue)
    if kind is None and queue is None:
        kinds = [each.kind for each in _pauses() if each.namespace == namespace]
    resumed = [each for each in kinds if terminal.with_memory(_resuming(each, namespace))]
    if not resumed:
        given = {"namespace": namespace, "queue": queue, "kind": kind}
        named = ", ".join(f"{name} {value}" for name, value in given.items() if value) or "all namespaces"
        raise errors.InvalidInput(f"No pause exists for {named}. `aftermind jobs pauses` lists them.")
    for each in resumed:
        out.print(f"Resumed: {each or 'all kinds'} in {escape(namespace) if namespace else 'every namespace'}.")
    return _pauses()


@jobs.command()
@terminal.with_json
def pauses(*, wide: terminal.Wide = False) -> list[JobPause]:
    """List pauses: of a kind, of a queue or of all jobs. `--json` has one for each kind of a queue."""
    found = _pauses()
    shown = terminal.make_table("jobs", "namespace", "since", "by", "reason", flexible="reason")
    for name, each in pauses_by_queue(found):
        where = (
            name,
            escape(each.namespace or "all"),
            terminal.when(each.created_at),
            escape(each.actor),
        )
        shown.add_row(*where, terminal.one_line(each.reason))
    terminal.show(shown, wide=wide)
    return found


def _pauses() -> list[JobPause]:
    return list(terminal.with_memory(lambda memory: memory.job_admin.pauses()))


def _pausing(
    kind: JobKind | None, namespace: str | None, reason: str
) -> Callable[[Memory], Coroutine[Any, Any, None]]:  # Any: a coroutine's send and yield types
    return lambda memory: memory.job_admin.pause(
        kind=kind, namespace=namespace, reason=reason, actor=dead_letters.actor()
    )


def _resuming(
    kind: JobKind | None, namespace: str | None
) -> Callable[[Memory], Coroutine[Any, Any, bool]]:  # Any: a coroutine's send and yield types
    return lambda memory: memory.job_admin.resume(kind=kind, namespace=namespace, actor=dead_letters.actor())


def _kinds(kind: JobKind | None, queue: str | None) -> list[JobKind | None]:
    if queue is None:
        return [kind]
    found: list[JobKind | None] = [each for each, name in queues.QUEUE_OF.items() if name == queue]
    if not found:
        raise errors.InvalidFilter("queue", queue, f"one of {', '.join(queues.QUEUES)}.")
    return found


def _apply(action: JobAction, wanted: JobFilter, note: str = "") -> JobActionResult:
    async def work(memory: Memory) -> JobActionResult:
        return await memory.job_admin.apply(action, wanted, note=note, actor=dead_letters.actor())

    done = terminal.with_memory(work)
    out.print(f"{terminal.count_of(done.changed, 'job')} changed.")
    dead_letters.show_undo(done)
    return done


def _filter(
    states: list[JobState] | None,
    ids: list[UUID] | None,
    kinds: list[JobKind] | None,
    error: str | None,
    namespace: str | None,
    user: str | None,
    since: str | None,
) -> JobFilter:
    wanted = dead_letters.make_filter(
        ids=ids,
        kinds=kinds,
        reasons=None,
        fingerprint=None,
        error=error,
        namespace=namespace,
        user=user,
        since=since,
        until=None,
    )
    return replace(wanted, states=tuple(states or ()))


def _next_attempt(job: Job) -> str:
    if job.state not in (JobState.QUEUED, JobState.RETRYING):
        return ""
    return job.run_at.strftime("%H:%M:%S") if job.run_at > datetime.now(UTC) else "due"


def _cells(job_id: JobId, texts: Sequence[str], owner: Scope, *, with_namespace: bool, wide: bool) -> tuple[str, ...]:
    user = owner.user_id or "-"
    return (
        str(job_id) if wide else terminal.short_id(job_id),
        *texts,
        *([escape(owner.namespace)] if with_namespace else []),
        escape(user if wide else dead_letters.shorten(user)),
    )
