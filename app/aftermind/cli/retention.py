"""`aftermind retention`: how long a namespace keeps its episodes."""

from datetime import timedelta
from typing import Annotated

import typer
from rich.markup import escape

from aftermind import errors
from aftermind.cli import terminal
from aftermind.cli.dead_letters import UNITS
from aftermind.cli.terminal import Namespace, out
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.types.retention import RetentionPolicy, RetentionResult

SPANS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))

retention = typer.Typer(
    name="retention",
    help="Retention policies: how long a namespace keeps its episodes, and their archive.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(retention)


@retention.command()
@terminal.with_json
def show(*, namespace: Namespace = None) -> RetentionPolicy | None:
    """Show a namespace's policy."""
    found = terminal.with_memory(lambda memory: memory.retention.get(namespace=namespace))
    terminal.show(_policy_line(found) if found else "No policy: all episodes are kept.")
    return found


@retention.command(name="set")
@terminal.with_json
def put(
    *,
    namespace: Namespace = None,
    max_age: Annotated[
        str | None,
        typer.Option(help="Delete episodes that were stored longer ago: 90d, 12h. Their own dates do not count."),
    ] = None,
    max_episodes: Annotated[
        int | None, typer.Option(help="Keep this number of the newest episodes of each user.")
    ] = None,
    keep_important: Annotated[
        bool,
        typer.Option(
            "--keep-important", help="Keep episodes that are marked important or are a source of a current fact."
        ),
    ] = False,
    archive: Annotated[
        str | None, typer.Option(help="Archive episodes before deletion: a folder, or s3://bucket/prefix (extra s3).")
    ] = None,
) -> RetentionPolicy:
    """Set the policy of a namespace, in place of the whole one it had.

    It first runs a day later. `run --dry-run` counts until then what it would delete; `run` runs it immediately.
    """
    age = _age(max_age)

    async def work(memory: Memory) -> tuple[RetentionPolicy | None, RetentionPolicy]:
        former = await memory.retention.get(namespace=namespace)
        policy = await memory.retention.set(
            namespace=namespace,
            max_age=age,
            max_episodes=max_episodes,
            keep_important=keep_important,
            archive=archive,
        )
        return former, policy

    former, policy = terminal.with_memory(work)
    lines = [_policy_line(policy)]
    if former is not None and former != policy:
        lines.append(f"The former policy was replaced. It kept {_bounds(former)}.")
    if policy.ran_at is None:
        where = "" if namespace is None else f" with `--namespace {namespace}`"
        lines.append(f"Next: `aftermind retention run --dry-run`{where} counts what it deletes at its first run.")
    terminal.show("\n".join(lines))
    return policy


@retention.command()
@terminal.with_json
def clear(*, namespace: Namespace = None) -> dict[str, bool]:
    """Remove the policy of a namespace, so that all episodes are kept."""
    had = terminal.with_memory(lambda memory: memory.retention.clear(namespace=namespace))
    out.print("Policy removed: all episodes are kept." if had else "There was no policy.")
    return {"removed": had}


@retention.command()
@terminal.with_json
def run(
    *,
    namespace: Namespace = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
) -> RetentionResult:
    """Run the policy of a namespace now. The reconciler runs it once a day, first a day after it was set."""

    async def work(memory: Memory) -> tuple[RetentionPolicy | None, RetentionResult]:
        policy = await memory.retention.get(namespace=namespace)
        return policy, await memory.retention.run(namespace=namespace, dry_run=dry_run)

    policy, done = terminal.with_memory(work)
    if policy is None:
        out.print(escape(f"{done.namespace} has no policy, so nothing is deleted. `aftermind retention set` sets one."))
    else:
        terminal.show(_done(done))
    return done


def _age(told: str | None) -> timedelta | None:
    if told is None:
        return None
    number, unit = told[:-1], told[-1:]
    if unit not in UNITS or not number.isdecimal():
        raise errors.InvalidFilter("max-age", told, "use 90d, 12h or 30m.")
    return timedelta(**{UNITS[unit]: int(number)})


def _policy_line(policy: RetentionPolicy) -> str:
    lines = [f"namespace  {policy.namespace}", f"keeps      {_bounds(policy)}"]
    lines.append(f"archive    {policy.archive or 'none'}")
    if policy.ran_at is None and policy.set_at is not None:
        first = policy.set_at + timedelta(seconds=Settings().retention_every_seconds)
        lines.append(f"last run   not yet; the first is {terminal.when(first)}")
    else:
        lines.append(f"last run   {terminal.when(policy.ran_at) if policy.ran_at else 'not yet'}")
    return escape("\n".join(lines))


def _bounds(policy: RetentionPolicy) -> str:
    bounds = []
    if policy.max_age is not None:
        bounds.append(f"younger than {_span(policy.max_age)}")
    if policy.max_episodes is not None:
        bounds.append(f"the newest {policy.max_episodes:,} of each user")
    if policy.keep_important:
        bounds.append("what is marked important or is a source of a current fact")
    return ", and ".join(bounds)


def _done(done: RetentionResult) -> str:
    if not done.episodes or done.oldest is None or done.newest is None:
        return "Nothing to delete."
    span = f"remembered {terminal.when(done.oldest)} to {terminal.when(done.newest)}"
    whose = f"{terminal.count_of(done.episodes, 'episode')} of {terminal.count_of(done.users, 'user')}, {span}"
    if done.dry_run:
        return f"Would be deleted: {whose}, with the facts that have no other source."
    more = [f"{count:,} {name}" for name, count in done.rows.items() if count]
    if done.archived:
        more.append(f"{done.archived:,} lines archived")
    return f"Deleted: {whose}." + (f" With them {', '.join(more)}." if more else "")


def _span(age: timedelta) -> str:
    """In the largest unit that it is a whole number of."""
    seconds = round(age.total_seconds())
    unit, length = next((unit, length) for unit, length in SPANS if seconds % length == 0)
    return terminal.count_of(seconds // length, unit)
