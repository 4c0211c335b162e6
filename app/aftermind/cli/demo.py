"""`aftermind demo` (`make run`): the whole pipeline on this machine, with a conversation played through it."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.markup import escape
from rich.rule import Rule

from aftermind.cli import importers, ingest, migrate, recall, stack_processes, terminal
from aftermind.cli.stack import has_keys, table
from aftermind.cli.stack_processes import ProcessPlan
from aftermind.cli.terminal import err, out
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.stack import Stack

QUESTIONS = (
    ("alice", "Which mode do I prefer in apps?"),
    ("alice", "Where do I live now?"),
    ("alice", "What am I allergic to?"),
    ("alice", "When is my sister's birthday?"),
    ("ben", "What is my cat called?"),
)
MAX_LISTED = 3  # matches of a question
WATCH_SECONDS = 1.0  # between checks of the stack

Once = Annotated[bool, typer.Option("--once", help="Exit with code 0 when the demo is complete.")]


class _StackEnded(Exception):
    """By `aftermind down` in another terminal, or because its supervisor was killed."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(*, once: Once = False) -> None:
    """Start the stack, ingest a conversation, show recalls and facts; run until Ctrl-C."""
    settings = Settings()
    began = time.monotonic()
    stack = Stack(settings.state_dir)
    with _until_stopped(), _up(stack) as is_ours:
        plan = _start(settings, stack)
        out.print(table(stack.status()))
        terminal.run(_show(settings, plan))
        stack_processes.print_addresses(settings, has_keys=has_keys())
        out.print(f"\nReady after {time.monotonic() - began:.1f} s.", end=" ")
        if once:
            out.print("Stopping." if is_ours else "The stack keeps running.")
            return
        out.print("It runs until Ctrl-C.")
        with contextlib.suppress(KeyboardInterrupt):
            while stack.running() is not None:
                time.sleep(WATCH_SECONDS)
            raise _StackEnded
        err.print("\nStopping …")


@contextlib.contextmanager
def _up(stack: Stack) -> Iterator[bool]:
    """The running stack, and whether this command started it and must stop it."""
    if stack.running() is not None:
        yield False
        return
    with err.status("Starting Postgres, its replica and Redis …"):
        stack.up()
    has_ended = False
    try:
        yield True
    except _StackEnded:
        has_ended = True  # another command may be starting it again
        raise
    finally:
        if not has_ended:
            stack.down()


@contextlib.contextmanager
def _until_stopped() -> Iterator[None]:
    """SIGTERM and a closed terminal end it like Ctrl-C, in good order; so does a stack that another command stopped."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except _StackEnded:
        err.print("\nAnother command stopped the stack.")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _start(settings: Settings, stack: Stack) -> ProcessPlan:
    endpoints = stack.running()
    if endpoints is None:
        raise RuntimeError("the stack that was just brought up does not run")
    plan = stack_processes.plan(settings, endpoints, stack.status())
    with err.status("Migrating the schema …"):
        terminal.run(migrate.apply(settings, endpoints.postgres_url))
    with err.status("Starting workers, reconciler, web service and Flower …"):
        stack.supervise(plan.commands())
    return plan


async def _show(settings: Settings, plan: ProcessPlan) -> None:
    found = list(importers.read(ingest.SAMPLE))
    at = plan.addresses
    async with Memory(at.store, broker=at.broker, redis=at.redis, replicas=at.replicas, settings=settings) as memory:
        out.print(Rule("live events", align="left", style="dim"))
        following = [recall.follow(memory, user) for user in ("alice", "ben")]
        await asyncio.sleep(0)
        try:
            done = await ingest.play(memory, found)
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
        ingest.report(done)
        await _questions(memory)
        await _facts(memory)


async def _questions(memory: Memory) -> None:
    for user, question in QUESTIONS:
        out.print(Rule(f"{user}: {escape(question)}", align="left", style="dim"))
        block = await memory.recall(question, user_id=user, token_budget=200)
        shown = recall.matches(block, most=MAX_LISTED)
        out.print(shown)
        out.print(f"[dim]{escape(recall.summary(block))}[/]")


async def _facts(memory: Memory) -> None:
    for user in ("alice", "ben"):
        known = await memory.facts.query(user_id=user)
        learnt_by = ", ".join(sorted({fact.extractor for fact in known}))
        out.print(Rule(f"facts about {user}, extracted by {escape(learnt_by or 'none')}", align="left", style="dim"))
        out.print(recall.believed(known) if known else "None.")
