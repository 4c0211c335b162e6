"""`aftermind up`, `down`, `restart`, `status`, `logs` and `stack`: the embedded stack."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors
from aftermind.api import address_resolution
from aftermind.api.address_resolution import Addresses
from aftermind.cli import migrate, stack_processes, terminal
from aftermind.cli.terminal import out
from aftermind.settings import Settings
from aftermind.stack import ComponentState, ComponentStatus, Stack
from aftermind.url_redaction import redact

if TYPE_CHECKING:  # SQLAlchemy: `aftermind status` of a stopped stack does without
    from aftermind.api.health import Health
    from aftermind.memory import Memory
    from aftermind.types.job_admin import JobPause

GOOD = {ComponentState.RUNNING, ComponentState.EXITED, ComponentState.HELD}
ANY_STACK = Addresses(store="postgresql://stack", redis="redis://stack")  # settings are checked before it runs
Workers = Annotated[bool, typer.Option(help="Also run workers, the reconciler, the web service and Flower.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(up)
    app.command()(down)
    app.command()(restart)
    app.command()(status)
    app.command()(logs)
    family = typer.Typer(help="The embedded stack as a whole.", no_args_is_help=True)
    family.command()(hold)
    family.command()(release)
    family.command()(destroy)
    app.add_typer(family, name="stack")


@terminal.with_json
def up(*, workers: Workers = True) -> list[ComponentStatus]:
    """Start the embedded stack in the background: Postgres with a replica, Redis, workers and the web service.

    It stays up until `aftermind down`. Run again, it starts what is missing. If settings have changed since, it
    restarts, so that every process has the same ones.
    """
    settings = Settings()
    url = "" if settings.database_url is None else settings.database_url.get_secret_value()
    if url and not url.startswith("postgres"):
        why = (
            "this store needs no stack. Unset the variable to start the stack with Postgres. `aftermind web` serves "
            "this store, and a process that opens it does its jobs."
        )
        raise errors.InvalidSettings("AFTERMIND_DATABASE_URL", redact(url), why)
    _check_settings(settings)
    stack = Stack(settings.state_dir)
    if stack.running() is not None and stack_processes.settings_differ(settings):
        with terminal.err.status("Settings have changed: stopping …"):
            stack.down()
        out.print("Settings have changed since the stack was started: restarted with the new ones.")
    with terminal.err.status("Starting Postgres, its replica and Redis …"):
        endpoints = stack.running() or stack.up(detach=True)
    held = [each.name for each in stack.status() if each.state is ComponentState.HELD]
    if "postgres" in held:
        raise errors.InvalidInput(
            "postgres is held. Run `aftermind stack release postgres`, then `aftermind up` again."
        )
    _warn_about_held(stack.status())
    plan = stack_processes.plan(settings, endpoints, stack.status())
    if plan.addresses.redis != endpoints.redis_url:
        terminal.run(_warn_about_turns_left(settings, endpoints.redis_url))
    with terminal.err.status("Migrating the schema …"):
        terminal.run(migrate.apply(settings, endpoints.postgres_url))
    if workers:
        with terminal.err.status("Starting workers, web service and Flower …"):
            stack_processes.remember_settings(settings)  # first: those of processes that do not get ready, too
            stack.supervise(plan.commands())
    terminal.show(table(stack.status()))
    terminal.run(_follow_embedder(settings, workers=workers))
    if workers:
        stack_processes.print_addresses(settings, has_keys=has_keys())
    following = "Next: [bold]aftermind ingest --sample[/]" if workers else "[bold]aftermind up[/] starts workers too."
    out.print(f"\nIt runs until [bold]aftermind down[/]. {following}")
    return stack.status()


def _check_settings(settings: Settings) -> None:
    """Refuse addresses and models that no worker could use, before anything is stopped. Raises `InvalidSettings`."""
    from aftermind.llm import factory

    address_resolution.resolve_stack(settings, ANY_STACK)
    for make in (factory.embedder, factory.extractor, factory.summariser, factory.profiler):
        make(settings)


async def _warn_about_turns_left(settings: Settings, stack_redis: str) -> None:
    """Warn of turns that are pending in the stack's Redis, which the settings replace by another one."""
    from aftermind.wire.pending import Pending  # redis-py: `aftermind status` does without
    from aftermind.wire.redis.client import RedisLink
    from aftermind.wire.redis_keys import Keys

    link = RedisLink(stack_redis, timeout=5.0)
    try:
        turns = (await Pending(link, Keys(settings.redis_prefix)).backlog()).turns
    except errors.RedisUnavailable:  # it is held
        return
    finally:
        await link.close()
    if turns:
        terminal.warn(
            f"Pending in the stack's Redis: {terminal.count_of(turns, 'turn')}. No worker stores them while the "
            "settings name another Redis. To store them, unset AFTERMIND_REDIS_URL, run `aftermind up`, and wait until "
            "`aftermind doctor` reports no pending turns. Then set it again."
        )


async def _follow_embedder(settings: Settings, *, workers: bool) -> None:
    """If stored vectors are of another embedder, as after a key was set: explain it, and re-embed in the background."""
    from aftermind.api.reembed_postgres import open_reembeddings  # SQLAlchemy: `aftermind status` does without
    from aftermind.cli import doctor_checks
    from aftermind.llm import factory
    from aftermind.llm.protocols import embedder_identity

    found = address_resolution.resolve(settings)
    work = open_reembeddings(found, settings)
    target, reembedding = factory.embedder(settings), (await work.status()).reembedding
    stored = reembedding.stored
    plan = None
    if target is not None and stored.standby is not None and embedder_identity(target) == stored.active:
        kept = f"vectors of {stored.standby} are kept for a rollback. `aftermind reembed drop` removes them."
        begun = f"a re-embedding with {stored.standby} was begun and is not over. `aftermind reembed drop` abandons it."
        terminal.warn(kept if reembedding.is_cut_over else begun)
    if workers and target is not None and stored.standby is None:
        with suppress(errors.ReembeddingConflict):  # it is the active embedder
            plan = await work.plan()
    if plan is not None and plan.episodes:
        cost = terminal.dollars(plan.cost_usd)
        await work.start()
        out.print(f"\nStored vectors are of {plan.active}; the settings name {plan.target}.")
        messages = terminal.count_of(plan.episodes, "message")
        out.print(f"Workers re-embed {messages} (about {plan.tokens:,} tokens, {cost}).")
        out.print("Recall uses the former vectors. When `aftermind reembed status` shows all,")
        out.print("run [bold]aftermind reembed cutover[/]. To keep the former embedder, set AFTERMIND_EMBEDDER.")
        return
    for finding in await doctor_checks.vectors(address_resolution.resolve(settings), settings):
        if finding.verdict is doctor_checks.Verdict.BAD:
            terminal.warn(finding.seen)
            terminal.warn(finding.remedy)


@terminal.with_json
def down() -> list[ComponentStatus]:
    """Stop the embedded stack gracefully. Its data is kept."""
    settings = Settings()
    stack = Stack(settings.state_dir)
    if not stack.status():
        out.print(f"No embedded stack has run in {escape(str(settings.state_dir))}: nothing to stop.")
        return []
    with terminal.err.status("Stopping …"):
        stack.down()
    out.print(f"Stopped. The data is kept in {escape(str(settings.state_dir))}.")
    return stack.status()


@terminal.with_json
def restart(
    component: Annotated[str | None, typer.Argument(help="One component. Default: all.", show_default=False)] = None,
) -> list[ComponentStatus]:
    """Restart the embedded stack, or one component, with the settings in force now; other components keep theirs."""
    settings = Settings()
    _check_settings(settings)
    stack = Stack(settings.state_dir)
    if component is None:
        with terminal.err.status("Stopping …"):
            stack.down()
        return up()
    with terminal.err.status(f"Restarting {component} …"):
        stack.hold(component)
        stack.release(component)
    out.print(f"Restarted {escape(component)}.")
    _warn_about_other_settings(settings, stack)
    return stack.status()


def logs(
    component: Annotated[str | None, typer.Argument(help="One component. Default: all.", show_default=False)] = None,
    *,
    lines: Annotated[int, typer.Option("--lines", "-l", min=1, help="Lines of each component.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
) -> None:
    """Show the newest log lines of the embedded stack's components."""
    stack = Stack(Settings().state_dir)
    paths = sorted(stack.logs.glob("*.log"))
    chosen = [path for path in paths if component in (None, path.stem)]
    if not chosen:
        names = ", ".join(path.stem for path in paths) or "none; `aftermind up` starts the stack"
        raise errors.InvalidFilter("component", component, f"no such log. Logs: {names}.")
    argv = ["tail", "-n", str(lines), *(["-F"] if follow else []), *map(str, chosen)]
    sys.stdout.flush()
    os.execvp(argv[0], argv)


@terminal.with_json
def status() -> object:
    """Show every component of the embedded stack, or of the store that the settings name.

    Exit code 1 if a component does not run and is not held, if the database or Redis is down, or if jobs are overdue,
    as in `aftermind health`. A component that `aftermind stack hold` stopped does not count; overdue jobs do.
    """
    settings = Settings()
    if settings.database_url is not None:
        return _status_of_store(settings)
    components = Stack(settings.state_dir).status()
    if not components:
        out.print("No embedded stack has run here yet. `aftermind up` starts one.")
        raise terminal.ExitWithResult(1, components)
    terminal.show(table(components))
    if any(each.restarts for each in components):
        out.print("[dim]`aftermind logs supervisor` shows when and how each process ended.[/]")
    is_database_up = any(each.name == "postgres" and each.state is ComponentState.RUNNING for each in components)
    if any(each.name == "flower" and each.state in GOOD for each in components):
        stack_processes.print_addresses(settings, has_keys=has_keys() if is_database_up else None)
    _warn_about_held(components)
    _warn_about_other_settings(settings, Stack(settings.state_dir))
    is_faulty = is_database_up and _warn_about_health()
    if all(each.state is ComponentState.STOPPED for each in components):
        out.print("The stack is stopped. [bold]aftermind up[/] starts it; its data is kept.")
    if is_faulty or any(each.state not in GOOD for each in components):
        raise terminal.ExitWithResult(1, components)
    return components


def _status_of_store(settings: Settings) -> object:
    from aftermind.api.health import JOBS  # with SQLAlchemy, which a status of the embedded stack does without

    found = address_resolution.resolve(settings)
    seen = terminal.with_memory(lambda memory: memory.health())
    shown = terminal.make_table("component", "state", "detail", flexible="detail")
    for part in seen.parts:
        shown.add_row(part.name, part.state, escape(part.detail))
    terminal.show(shown)
    waiting = sum(row.runnable + row.running + row.waiting for row in seen.work)
    dead = sum(row.dead for row in seen.work)
    if any(part.state == "down" for part in seen.parts if part.name in ("store", JOBS)):
        out.print("\nHow many jobs are to do is unknown: see above.")
    else:
        out.print(f"\n{terminal.count_of(waiting, 'job')} to do, {terminal.count_of(dead, 'dead letter')}.")
    if found.is_shared:
        places = "Celery workers:" if found.broker else "the processes that open this store, and in"
        out.print(f"Jobs run in {places} [bold]aftermind worker[/].")
    _warn_about_overdue(seen)
    if not seen.is_ready or seen.overdue:
        raise terminal.ExitWithResult(1, seen)
    return seen


def has_keys() -> bool | None:
    """Whether an API key was made, which ends the local token; None if the database does not answer."""
    with suppress(errors.Unavailable, errors.Conflict):
        return terminal.with_memory(lambda memory: memory.api_keys.any())
    return None


def _warn_about_health() -> bool:
    """Warn of what process states do not show: a frozen server, a paused provider, a missing schema, overdue jobs, dead
    letters. Returns whether a part is down that every answer needs, or jobs are overdue.
    """
    from aftermind.api.health import pauses_by_queue, resume_command

    async def look(memory: "Memory") -> "tuple[Health, Sequence[JobPause]]":
        seen = await memory.health()
        with suppress(errors.AftermindError):
            return seen, await memory.job_admin.pauses()
        return seen, ()

    health, pauses = terminal.with_memory(look)
    for part in health.parts:
        if part.state != "ok" and not (part.name == "pauses" and pauses):
            terminal.warn(f"{part.name}: {part.detail}")
    for name, each in pauses_by_queue(pauses):
        where = f"of namespace {each.namespace}" if each.namespace else "of every namespace"
        terminal.warn(f"{name} jobs {where} are {each.summary()}. `{resume_command(name, each)}` ends it.")
    _warn_about_overdue(health)
    for row in health.work:
        if row.dead:
            terminal.warn(
                f"{row.kind}: {terminal.count_of(row.dead, 'dead letter')}. See `aftermind dead-letters stats`."
            )
    return not health.is_ready or bool(health.overdue)


def _warn_about_held(components: Sequence[ComponentStatus]) -> None:
    for each in components:
        if each.state is ComponentState.HELD:
            terminal.warn(f"{each.name} is held. `aftermind stack release {each.name}` starts it.")


def _warn_about_other_settings(settings: Settings, stack: Stack) -> None:
    if stack.running() is not None and stack_processes.settings_differ(settings):
        terminal.warn(
            "The stack was started with other settings than those of this command. `aftermind up` restarts it with "
            "these."
        )


def _warn_about_overdue(health: "Health") -> None:
    for row in health.overdue:
        jobs = terminal.count_of(row.runnable, "pending job")
        terminal.warn(f"{row.kind}: {jobs}, the oldest for {row.age_seconds:.0f} s")


@terminal.with_json
def hold(
    component: Annotated[str, typer.Argument(help="The component, as in `status`.", show_default=False)],
) -> list[ComponentStatus]:
    """Stop one component, for example to test an alert. It stays stopped until `release`, or until `down` and `up`."""
    stack = Stack(Settings().state_dir)
    with terminal.err.status(f"Stopping {component} …"):
        stack.hold(component)
    name = escape(component)
    out.print(f"Stopped {name} until `aftermind stack release {name}`, or until `aftermind down` and `aftermind up`.")
    return stack.status()


@terminal.with_json
def release(
    component: Annotated[str, typer.Argument(help="A component that was held.", show_default=False)],
) -> list[ComponentStatus]:
    """Start a held component again."""
    stack = Stack(Settings().state_dir)
    with terminal.err.status(f"Starting {component} …"):
        stack.release(component)
    out.print(f"Started {escape(component)}.")
    return stack.status()


@terminal.with_json
def destroy(
    *, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False
) -> dict[str, str]:
    """Stop the embedded stack and delete its data permanently."""
    state_dir = Settings().state_dir
    if not yes:
        typer.confirm(f"Delete all data in {state_dir}?", abort=True, err=True)
    with terminal.err.status("Removing …"):
        Stack(state_dir).destroy()
    out.print(f"Removed the stack and its data from {escape(str(state_dir))}.")
    return {"removed": str(state_dir)}


def table(components: list[ComponentStatus]) -> Table:
    """Components as a table for people."""
    titles = ("component", "state", "pid", "port", "restarts", "since")
    details = ("detail",) if any(each.detail for each in components) else ()
    shown = terminal.make_table(*titles, *details, flexible="detail")
    for each in components:
        colour = "green" if each.state in GOOD else "red" if each.state is ComponentState.STOPPED else "yellow"
        numbers = (str(value) if value is not None else "-" for value in (each.pid, each.port, each.restarts))
        state = f"[{colour}]{each.state}[/]"
        shown.add_row(
            each.name, state, *numbers, terminal.when(each.since), *(terminal.one_line(each.detail) for _ in details)
        )
    return shown
