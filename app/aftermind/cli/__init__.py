"""The `aftermind` command: one module a family of commands, collected here."""

import sys

import typer

from aftermind import errors
from aftermind.cli import (
    ask,
    audit,
    console,
    dead,
    demo,
    doctor,
    encryption,
    health,
    ingest,
    keys,
    learned,
    migrate,
    personal,
    redis_acl,
    reextract,
    replay,
    retention,
    stack,
    web,
    webhooks,
    worker,
)

app = typer.Typer(
    name="aftermind",
    help="Agent memory whose writes happen after the answer.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for family in (
    stack,
    ingest,
    ask,
    learned,
    personal,
    dead,
    replay,
    retention,
    audit,
    encryption,
    reextract,
    worker,
    web,
    keys,
    webhooks,
    migrate,
    redis_acl,
    doctor,
    health,
    demo,
):
    family.register(app)


def main() -> None:
    """Run the command. An error of ours is one line on stderr and exit code 2, never a traceback."""
    try:
        app()
    except errors.Bug:
        raise
    except errors.AftermindError as exc:
        console.complain(str(exc))
        sys.exit(console.FAILED)
    except BrokenPipeError:  # `aftermind facts | head`
        sys.stderr.close()
        sys.exit(0)
