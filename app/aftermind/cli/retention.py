"""`aftermind retention`: how long a namespace keeps its episodes."""

from datetime import timedelta
from typing import Annotated

import typer
from rich.markup import escape

from aftermind import errors
from aftermind.cli import console
from aftermind.cli.console import Namespace, out
from aftermind.cli.dead import UNITS
from aftermind.types.retention import Retained, RetentionPolicy

retention = typer.Typer(
    name="retention", help="How long a namespace keeps its episodes, and where they go.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(retention)


@retention.command()
def show(*, namespace: Namespace = None) -> None:
    """Show a namespace's policy."""
    found = console.with_memory(lambda memory: memory.retention.get(namespace=namespace))
    out.print(_told(found) if found else "Everything is kept.")


@retention.command(name="set")
def put(
    *,
    namespace: Namespace = None,
    max_age: Annotated[str | None, typer.Option(help="Let go of what was remembered so long ago: 90d, 12h.")] = None,
    max_episodes: Annotated[int | None, typer.Option(help="Keep the newest so many episodes of each user.")] = None,
    keep_important: Annotated[
        bool, typer.Option("--keep-important", help="Except what is marked important, or is a source of a fact.")
    ] = False,
    archive: Annotated[
        str | None, typer.Option(help="Write it there first: a folder, or s3://bucket/prefix (extra s3).")
    ] = None,
) -> None:
    """Give a namespace a policy, in place of the one it had. `run --dry-run` shows what would go."""
    policy = console.with_memory(
        lambda memory: memory.retention.set(
            namespace=namespace,
            max_age=_age(max_age),
            max_episodes=max_episodes,
            keep_important=keep_important,
            archive=archive,
        )
    )
    out.print(_told(policy))


@retention.command()
def clear(*, namespace: Namespace = None) -> None:
    """Keep everything of a namespace from now on."""
    had = console.with_memory(lambda memory: memory.retention.clear(namespace=namespace))
    out.print("Everything is kept from now on." if had else "Everything was kept already.")


@retention.command()
def run(
    *,
    namespace: Namespace = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would go, and delete nothing.")] = False,
) -> None:
    """Carry out a namespace's policy now. The reconciler does it once a day by itself."""
    done = console.with_memory(lambda memory: memory.retention.run(namespace=namespace, dry_run=dry_run))
    out.print(_done(done))


def _age(told: str | None) -> timedelta | None:
    if told is None:
        return None
    number, unit = told[:-1], told[-1:]
    if unit not in UNITS or not number.isdecimal():
        raise errors.InvalidFilter("max-age", told, "say 90d, 12h or 30m.")
    return timedelta(**{UNITS[unit]: int(number)})


def _told(policy: RetentionPolicy) -> str:
    bounds = []
    if policy.max_age is not None:
        bounds.append(f"younger than {_span(policy.max_age)}")
    if policy.max_episodes is not None:
        bounds.append(f"the newest {policy.max_episodes:,} of each user")
    lines = [f"namespace  {policy.namespace}", f"keeps      {', and '.join(bounds)}"]
    if policy.keep_important:
        lines.append("except     what is marked important, and what a fact believed now was learned from")
    lines.append(f"archive    {policy.archive or 'none: what goes is gone'}")
    lines.append(f"last run   {console.when(policy.ran_at) if policy.ran_at else 'not yet'}")
    return escape("\n".join(lines))


def _done(done: Retained) -> str:
    if not done.episodes or done.oldest is None or done.newest is None:
        return "Nothing has to go."
    span = f"remembered {console.when(done.oldest)} to {console.when(done.newest)}"
    whose = f"{done.episodes:,} episodes of {done.users:,} {'user' if done.users == 1 else 'users'}, {span}"
    if done.dry_run:
        return f"Would go: {whose}, with the facts that have no other source."
    more = [f"{count:,} {name}" for name, count in done.rows.items() if count]
    if done.archived:
        more.append(f"{done.archived:,} lines archived")
    return f"Gone: {whose}." + (f" With them {', '.join(more)}." if more else "")


def _span(age: timedelta) -> str:
    days, rest = divmod(age.total_seconds(), 86_400)
    return f"{days:g} days" if not rest else f"{age.total_seconds() / 3600:g} hours"
