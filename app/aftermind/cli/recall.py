"""What memory answers: `aftermind recall`, `facts`, `profile`, `graph`, `merge-entities`, `events`."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from aftermind import errors
from aftermind.api import address_resolution
from aftermind.api.facts import Provenance
from aftermind.api.health import Progress, pauses_by_queue, resume_command
from aftermind.cli import jobs, terminal
from aftermind.cli.dead_letters import moment
from aftermind.cli.terminal import Namespace, User, out
from aftermind.events.types import MemoryEvent
from aftermind.facts.graph import FactGraph
from aftermind.memory import Memory
from aftermind.recall import RecallMode, RecallOptions
from aftermind.recall.render import trait_text
from aftermind.settings import Settings
from aftermind.types import (
    Block,
    Episode,
    Fact,
    FactId,
    JobKind,
    Match,
    Profile,
    RecallBlock,
    RecallExplanation,
    Summary,
)
from aftermind.types.audit import Action
from aftermind.types.fact import period
from aftermind.types.job_admin import JobPause
from aftermind.types.recall_results import superseded_note

TIME = "24h, 7d, 2026-01, 2026-01-31 or 2026-01-31T12:00 (UTC)"
KnownAt = Annotated[
    str | None, typer.Option(metavar="TIME", help=f"The memory as it was then, without messages stored later: {TIME}.")
]
AsOf = Annotated[str | None, typer.Option(metavar="TIME", help=f"Facts that were valid then: {TIME}.")]
DATE_CHARACTERS = len("2026-01-31")
EMBEDDING_BUDGET_SECONDS = 10.0  # seconds: the SDK of a model provider alone takes a process a second to load
COLOURS = {"Completed": "green", "Extracted": "green", "Embedded": "green", "Failed": "red", "Gap": "yellow"}
_BASIC = {"event", "at", "id", "namespace", "user_id", "session_id", "agent_id", "job_id", "watermark", "cursor"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(recall)
    app.command()(facts)
    app.command()(profile)
    app.command()(graph)
    app.command()(merge_entities)
    app.command()(events)


@terminal.with_json
def recall(
    question: Annotated[str, typer.Argument(help="The query.", show_default=False)],
    *,
    user: User = None,
    session: Annotated[
        str | None, typer.Option("--session", "-s", help="The current session: its messages rank higher.")
    ] = None,
    namespace: Namespace = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Token budget of the block. Default: AFTERMIND_RECALL_TOKEN_BUDGET.")
    ] = None,
    mode: Annotated[RecallMode, typer.Option(help="How matches are ranked.")] = RecallMode.HYBRID,
    xml: Annotated[bool, typer.Option("--xml", help="Print only the block, as an agent gets it.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also show what the block left out, with scores and reasons.")
    ] = False,
    recall_id: Annotated[
        str | None, typer.Option("--recall-id", help="Explain an earlier recall: repeat it as of its time.")
    ] = None,
    in_session: Annotated[str | None, typer.Option(help="Only messages of this session.")] = None,
    role: Annotated[list[str] | None, typer.Option(help="Only messages with this role; may be repeated.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(help="KEY=JSON: only messages whose metadata has this; may be repeated.")
    ] = None,
    min_score: Annotated[float, typer.Option(help="Only messages and facts with this score, from 0 to 1.")] = 0.0,
    since: Annotated[
        str | None, typer.Option(help="Only messages from this time on: 30d, or 2026-01-31T12:00 (UTC).")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only messages before this time, in the same format.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of messages and of facts that may match.")] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Only these kinds of memory in the block: history, facts, summary, profile, blocks; may be repeated.",
        ),
    ] = None,
    known_at: KnownAt = None,
    wide: terminal.Wide = False,
) -> RecallBlock | RecallExplanation:
    """Recall matches for a query, best first."""

    async def work(memory: Memory) -> RecallBlock | RecallExplanation:
        await terminal.record_read(memory, Action.READ, user=user, namespace=namespace, by="recall")
        options: RecallOptions = {
            "token_budget": budget,
            "mode": mode,
            "in_session": in_session,
            "roles": role or None,
            "metadata": terminal.parse_pairs("metadata", metadata or ()) or None,
            "min_score": min_score,
            "load": [kind for each in load or () for kind in each.split(",")] or None,
            "since": moment("since", since),
            "until": moment("until", until),
            "known_at": moment("known_at", known_at),
        }
        if limit is not None:
            options["limit"] = limit
        owner = {"user_id": user, "session_id": session, "namespace": namespace}
        if recall_id is None and not explain:
            return await memory.recall(question, **owner, **options)
        return await memory.explain(question, recall_id=recall_id, **owner, **options)

    found = terminal.with_memory(work, patience=EMBEDDING_BUDGET_SECONDS)
    block = found.block if isinstance(found, RecallExplanation) else found
    if xml:
        out.print(block.text, markup=False)
        return found
    terminal.show(matches(block) if block.matches else _reason_for_none(block), wide=wide)
    out.print(f"[dim]{escape(summary(block))}, recall {block.id}[/]")
    if isinstance(found, RecallExplanation):
        out.print("\nNot in the block:" if found.excluded else "\nEvery candidate is in the block.")
        terminal.print_table(excluded(found), wide=wide)
    if block.degraded:
        terminal.warn(f"degraded: {block.degraded}")
    return found


@terminal.with_json
def facts(
    *,
    user: User = None,
    namespace: Namespace = None,
    subject: str | None = None,
    predicate: str | None = None,
    as_of: AsOf = None,
    known_at: KnownAt = None,
    history: Annotated[bool, typer.Option("--history", help="Include superseded facts.")] = False,
    why: Annotated[bool, typer.Option("--why", help="Show the source messages of each fact.")] = False,
    wide: terminal.Wide = False,
) -> list[Fact] | list[Provenance]:
    """Show the facts about a user, with valid times and sources."""
    if history and (as_of or known_at):
        raise errors.InvalidInput("--history shows facts of every time. Leave the time out.")

    async def work(memory: Memory) -> tuple[list[Fact], list[Provenance], Progress | None, list[JobPause]]:
        pauses: list[JobPause] = []
        await terminal.record_read(memory, Action.READ, user=user, namespace=namespace, by="facts")
        found = await query_facts(memory)
        reasons = [await memory.facts.why(fact, user_id=user, namespace=namespace) for fact in found] if why else []
        progress = None if found else await memory.progress(user_id=user, namespace=namespace)
        if progress is not None:
            space = namespace or memory.namespace
            pauses = [each for each in await memory.job_admin.pauses(namespace=space) if _concerns_facts(each, space)]
        return found, [each for each in reasons if each is not None], progress, pauses

    async def query_facts(memory: Memory) -> list[Fact]:
        if history:
            return await memory.facts.history(subject, predicate, user_id=user, namespace=namespace)
        return await memory.facts.query(
            user_id=user,
            namespace=namespace,
            subject=subject,
            predicate=predicate,
            as_of=moment("as_of", as_of),
            known_at=moment("known_at", known_at),
        )

    found, reasons, progress, pauses = terminal.with_memory(work)
    sources = {each.fact.id: each for each in reasons} if why else None
    if progress is None:
        terminal.show(believed(found, sources, with_beliefs=history, show_minutes=wide or not history), wide=wide)
    else:
        is_filtered = bool(subject or predicate or as_of or known_at)
        terminal.show(_reason_for_no_facts(progress, pauses, is_filtered=is_filtered))
    return reasons if why else found


def _concerns_facts(pause: JobPause, namespace: str) -> bool:
    return pause.covers(JobKind.STORE, namespace) or pause.covers(JobKind.EXTRACT, namespace)


def _reason_for_no_facts(progress: Progress, pauses: Sequence[JobPause], *, is_filtered: bool) -> str:
    left = progress.pending_turns + progress.jobs
    if left and pauses:
        name, pause = pauses_by_queue(pauses)[0]
        todo = f"they are {pause.summary()}; `{resume_command(name, pause)}` ends it"
        return escape(f"No facts yet. Unfinished turns and jobs of this user: {left:,}; {todo}.")
    if left:
        store = address_resolution.resolve(Settings())
        todo = "`aftermind status` shows whether workers run"
        if store.is_in_process:
            todo = f"{'`aftermind worker`' if store.is_shared else 'a process that opens this store'} does this work"
        return f"No facts yet. Unfinished turns and jobs of this user: {left:,}; {todo}."
    if not progress.episodes:
        return "No facts: this user has no messages. `aftermind users` lists the users."
    if is_filtered and progress.facts:
        every = terminal.count_of(progress.facts, "fact")
        return f"No facts match. The user has {every}, with those that have ended."
    return "No facts were found in the messages. `aftermind extraction` shows the reason for each of them."


@terminal.with_json
def profile(*, user: User = None, namespace: Namespace = None, wide: terminal.Wide = False) -> Profile | None:
    """Show the profile of a user: traits, with the time of the latest message behind each."""

    async def work(memory: Memory) -> tuple[Profile | None, Progress]:
        await terminal.record_read(memory, Action.READ, user=user, namespace=namespace, by="profile")
        found = await memory.profile(user_id=user, namespace=namespace)
        return found, await memory.progress(user_id=user, namespace=namespace)

    found, progress = terminal.with_memory(work)
    if found is not None and found.traits:
        terminal.show(_traits(found), wide=wide)
    elif progress.later or progress.jobs or progress.pending_turns:
        when = "some minutes after the user's last message; `aftermind jobs run-now` makes it now"
        if (progress.jobs or progress.pending_turns) and not jobs.runs_jobs_here(Settings()):
            when += ", run a second time after the facts"
        terminal.show(f"No profile yet. It is made {when}.")
    else:
        terminal.show("No profile: no message of this user gives a trait that is still true.")
    return found


def _traits(found: Profile) -> Table:
    shown = terminal.make_table("trait", "value", "as of", flexible="value")
    for name, trait in sorted(found.traits.items()):
        at = trait.last_message_at or trait.updated_at
        shown.add_row(escape(name), terminal.one_line(trait_text(trait.value)), terminal.when(at) if at else "")
    return shown


@terminal.with_json
def graph(
    entity: Annotated[str, typer.Argument(help="A person or thing that facts name.", show_default=False)],
    *,
    user: User = None,
    namespace: Namespace = None,
    hops: Annotated[int, typer.Option(help="Distance from the entity, 1 to 5.")] = 2,
    as_of: AsOf = None,
    wide: terminal.Wide = False,
) -> FactGraph:
    """Show the facts that connect an entity with others, the nearest first."""

    async def work(memory: Memory) -> FactGraph:
        await terminal.record_read(memory, Action.READ, user=user, namespace=namespace, by="graph")
        return await memory.facts.graph(
            entity, user_id=user, namespace=namespace, hops=hops, as_of=moment("as_of", as_of)
        )

    found = terminal.with_memory(work)
    none = f"No facts name {escape(entity)}."
    terminal.show(believed(list(found.facts)) if found.facts else none, wide=wide)
    if found.facts:
        distances = [f"{escape(name)} ({distance})" for name, distance in found.hops.items()]
        out.print(f"[dim]Distances: {', '.join(distances)}[/]")
    return found


@terminal.with_json
def merge_entities(
    entity: Annotated[str, typer.Argument(help="The name that facts are kept under.", show_default=False)],
    aliases: Annotated[list[str], typer.Argument(help="Other names of it.", show_default=False)],
    *,
    user: User = None,
    namespace: Namespace = None,
) -> list[Fact]:
    """Merge the facts of several names of one entity, for example Melanie and Mel."""

    async def work(memory: Memory) -> list[Fact]:
        await terminal.record_read(memory, Action.EDIT, user=user, namespace=namespace, by="merge-entities")
        return await memory.facts.merge_entities(entity, *aliases, user_id=user, namespace=namespace)

    found = terminal.with_memory(work)
    out.print(believed(found) if found else f"Merged. `aftermind graph {escape(entity)}` shows the facts that name it.")
    return found


def events(
    *,
    user: User = None,
    namespace: Namespace = None,
    after: Annotated[str | None, typer.Option(help="Start after the event with this cursor.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Follow a user's events until Ctrl-C."""

    async def work(memory: Memory) -> None:
        await terminal.record_read(memory, Action.READ, user=user, namespace=namespace, by="events")
        async for event in memory.events(user_id=user, namespace=namespace, after=after):
            if json:
                terminal.print_json(event.to_json(), indent=False)
            else:
                out.print(line(event))

    terminal.with_memory(work)


def matches(block: RecallBlock, *, most: int | None = None) -> Table:
    """What was found, best first, as a table for people."""
    shown = Table(box=None, pad_edge=False, header_style="dim")
    shown.add_column("score", justify="right")
    shown.add_column("when", no_wrap=True)
    shown.add_column("source", no_wrap=True)
    shown.add_column("content", overflow="fold")
    for each in block.matches[:most]:
        shown.add_row(f"{each.score:.2f}", *(escape(text) for text in _described(each)))
    return shown


def excluded(found: RecallExplanation) -> Table:
    """What a block left out, best first, as a table for people."""
    shown = Table(box=None, pad_edge=False, header_style="dim", show_header=bool(found.excluded))
    shown.add_column("score", justify="right")
    shown.add_column("reason", no_wrap=True)
    shown.add_column("tokens", justify="right")
    shown.add_column("source", no_wrap=True)
    shown.add_column("content", overflow="fold")
    for each in found.excluded:
        _, source, content = _described(each.match)
        score = f"{each.match.score:.2f}" if isinstance(each.match.item, Episode | Fact) else ""
        shown.add_row(score, each.reason, str(each.tokens), escape(source), escape(content))
    return shown


def _reason_for_none(block: RecallBlock) -> str:
    if block.chunks_available > block.chunks_included:
        return "No match fits the token budget. `--budget` raises it; `--explain` shows the matches."
    return "No matches."


def summary(block: RecallBlock) -> str:
    """One line about how the block came to be."""
    included = f"{block.chunks_included} of {block.chunks_available} chunks"
    loads = (("summary", block.summary), ("profile", block.profile), ("blocks", block.blocks))
    loaded = [name for name, load in loads if load]
    included += "".join(f", {name}" for name in loaded)
    node = f"{block.served_by}{f' {block.replica}' if block.replica else ''}"
    return f"{included}, {block.tokens_used} tokens, {block.duration_ms:.1f} ms, served by {node}"


def believed(
    found: list[Fact],
    sources: Mapping[FactId, Provenance] | None = None,
    *,
    with_beliefs: bool = False,
    show_minutes: bool = True,
) -> Table:
    """Facts as a table for people, with the messages that they came from where these are given.

    `with_beliefs` adds from when until when each was believed, which distinguishes the rows of a history; without
    minutes, the four dates leave room for the facts at 80 columns.
    """

    def when(moment: datetime | None) -> str:
        return terminal.when(moment)[: None if show_minutes else DATE_CHARACTERS] if moment else ""

    shown = Table(box=None, pad_edge=False, header_style="dim")
    beliefs = ("believed from", "superseded") if with_beliefs else ("times", "extractor")
    for title in ("fact", "valid from", "until", *beliefs):
        shown.add_column(title)
    if sources is not None:
        shown.add_column("sources", overflow="fold")
    for each in found:
        start, end = when(each.valid_from), when(each.valid_to)
        gone = each.superseded_at is not None
        text = f"[strike dim]{escape(each.text)}[/]" if gone else escape(each.text)
        because = [] if sources is None else [_because(sources.get(each.id))]
        belief = [str(each.strength), escape(each.extractor)]
        if with_beliefs:
            belief = [when(each.recorded_at), when(each.superseded_at)]
        shown.add_row(text, start, end, *belief, *because)
    return shown


def _because(found: Provenance | None) -> str:
    episodes, replaced = (found.episodes, found.replaced) if found is not None else ((), ())
    lines = [f"{terminal.when(each.occurred_at)} {each.role}: {each.content}" for each in episodes]
    return escape("\n".join([*(lines or ["stated by an API call"]), *(f"replaced: {each.text}" for each in replaced)]))


def line(event: MemoryEvent) -> str:
    """An event as one line for people."""
    colour = next((colour for ending, colour in COLOURS.items() if event.event.endswith(ending)), "cyan")
    rest = {name: value for name, value in event.to_json().items() if name not in _BASIC and value not in (None, "")}
    details = "  ".join(
        f"{name}={value:.0f}" if isinstance(value, float) else f"{name}={value}" for name, value in rest.items()
    )
    who = f"{event.scope.user_id or 'anonymous'}/{event.scope.session_id or '-'}"
    clock = event.at.astimezone().strftime("%H:%M:%S")
    return f"[dim]{clock}[/]  [{colour}]{event.event}[/]  {escape(who)}  {escape(details)}"


def _described(match: Match) -> tuple[str, str, str]:
    item = match.item
    if isinstance(item, Episode):
        return terminal.when(item.occurred_at), item.name or str(item.role), item.content + superseded_note(match)
    if isinstance(item, Fact):
        ended = period(item) if item.valid_to else ""
        return terminal.when(item.valid_from) if item.valid_from else "", "fact", item.text + ended
    if isinstance(item, Summary):
        return terminal.when(item.last_message_at or item.updated_at), "summary", item.text
    assert isinstance(item, Block)
    return terminal.when(item.updated_at), f"block {item.name}", item.content


def follow(memory: Memory, user_id: str | None) -> "asyncio.Task[None]":
    """Print a user's events in the background, until cancelled."""

    async def work() -> None:
        async for event in memory.events(user_id=user_id):
            out.print(line(event))

    return asyncio.create_task(work(), name="follow events")
