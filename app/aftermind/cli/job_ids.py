"""Ids of jobs at the terminal: whole ones, or their ends, as lists show them."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated
from uuid import UUID

import typer

from aftermind import errors
from aftermind.cli import terminal
from aftermind.memory import Memory
from aftermind.types import JobId, JobState
from aftermind.types.job_admin import PendingTurn
from aftermind.types.replay import JobFilter

MAX_SEARCHED = 1_000  # of each of these groups, and of turns in Redis
_GROUPS: tuple[tuple[JobState, ...], ...] = (
    (JobState.DEAD, JobState.DISCARDED, JobState.REPLAYED),  # however many jobs wait
    (JobState.QUEUED, JobState.RUNNING, JobState.RETRYING),
    (),
)


async def find_job_id(memory: Memory, given: str, *, namespace: str | None = None) -> JobId | None:
    """The id that is given, or that of the one job whose id ends with it; None if there is none, or several.

    Of the ends of ids only those of recent jobs are found; `namespace` None: in every one.
    """
    with suppress(ValueError):
        return JobId(UUID(given))
    ids: list[JobId] = []
    for states in _GROUPS:
        listed = await memory.job_admin.list(JobFilter(namespace=namespace, states=states), limit=MAX_SEARCHED)
        ids += [job.id for job in listed]
    pending: Sequence[PendingTurn] = ()
    with suppress(errors.RedisUnavailable):
        pending = await memory.job_admin.pending_turns(namespace=namespace, limit=MAX_SEARCHED)
    return terminal.match_short_id([*ids, *(turn.job_id for turn in pending)], given)


def parse_job_id(given: str) -> UUID:
    """The id of an option. Raises `InvalidFilter` if no job has it as the end of its id."""
    with suppress(ValueError):
        return UUID(given)
    found = None
    if len(given) >= terminal.MIN_ID_CHARACTERS:
        found = terminal.with_memory(lambda memory: find_job_id(memory, given))
    if found is None:
        why = f"no recent job's id ends with it, or several do; it needs {terminal.MIN_ID_CHARACTERS} characters. "
        raise errors.InvalidFilter("id", given, f"{why}`aftermind jobs list --wide` has whole ids.")
    return found


Ids = Annotated[
    list[UUID] | None,
    typer.Option("--id", parser=parse_job_id, metavar="ID", help="This job: its id, or the end of that. Repeatable."),
]
