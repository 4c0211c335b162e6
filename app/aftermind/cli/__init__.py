"""The `aftermind` command: one module a family of commands. Only the family that is asked for is loaded."""

import gc
import inspect
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Annotated

import typer

from aftermind import __version__, errors
from aftermind.cli import terminal

# The commands of each module, in the order of `aftermind --help`. To load all of them takes a second.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "stack": ("up", "down", "restart", "status", "logs", "stack"),
    "ingest": ("ingest", "remember"),
    "recall": ("recall", "facts", "profile", "graph", "merge-entities", "events"),
    "evaluate": ("eval",),
    "extraction_outcomes": ("extraction",),
    "undo": ("undo",),
    "costs": ("costs",),
    "tenants": ("tenants",),
    "forget_and_export": ("users", "export", "forget", "verify-erasure"),
    "dead_letters": ("dead-letters", "dead"),
    "jobs": ("jobs",),
    "metrics": ("metrics",),
    "replay": ("replay",),
    "retention": ("retention",),
    "audit": ("audit",),
    "encryption": ("encrypt", "rotate-keys"),
    "reextract": ("reextract",),
    "reembed": ("reembed",),
    "reindex": ("reindex",),
    "copy_store": ("copy",),
    "worker": ("worker", "reconciler", "flower"),
    "web": ("web",),
    "mcp": ("mcp",),
    "api_keys": ("api-keys",),
    "webhooks": ("webhooks",),
    "migrate": ("migrate",),
    "redis_acl": ("redis-acl",),
    "secrets": ("secrets",),
    "doctor": ("doctor",),
    "health": ("health",),
    "demo": ("demo",),
}


# New objects between two collections. With Python's 700, a start searches its modules for garbage again and again: a
# tenth of the CPU time of a command.
GC_THRESHOLD = 10_000


def make_app_for(families: Iterable[str] = FAMILIES) -> typer.Typer:
    """The command with these families of it."""
    app = typer.Typer(
        name="aftermind",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)  # one command alone is still asked for by its name
    for family in families:
        import_module(f"aftermind.cli.{family}").register(app)
    _unwrap_help(app)
    return app


def main() -> None:
    """Run the command. An error of ours is one line on stderr and exit code 2, never a traceback."""
    gc.set_threshold(GC_THRESHOLD)
    try:
        make_app_for(_needed(sys.argv[1:]))()
    except errors.Bug:
        raise
    except errors.AftermindError as exc:
        terminal.complain(str(exc))
        sys.exit(terminal.FAILED)
    except BrokenPipeError:  # `aftermind facts | head`
        sys.stderr.close()
        sys.exit(0)


def _unwrap_help(app: typer.Typer) -> None:
    """Let help texts wrap at the terminal's width: Typer keeps the line breaks of all paragraphs but the first."""
    for command in app.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _unwrap_help(group.typer_instance)


def _print_version(wanted: bool) -> None:
    if wanted:
        terminal.out.print(__version__)
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Agent memory whose writes happen after the answer."""


def _needed(argv: list[str]) -> Iterable[str]:
    """The family that has the command of a command line; all of them for help and for what is no command."""
    found = [family for family, commands in FAMILIES.items() if argv and argv[0] in commands]
    return found or ([] if argv == ["--version"] else FAMILIES)
