"""`aftermind ingest` and `remember`: conversations from files, turn by turn and resumable, and single messages."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, TypeGuard

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from aftermind import errors
from aftermind.api import health as api_health
from aftermind.api import turn_builder
from aftermind.api.retention import archives
from aftermind.cli import importers, terminal
from aftermind.cli.importers import BadLine, FileEdits, FileTurn
from aftermind.cli.terminal import err, out
from aftermind.memory import Memory
from aftermind.receipt import Receipt, StepState
from aftermind.types import Episode, EpisodeId, Scope
from aftermind.types.message import UNDONE, keyed_ids

MAX_IN_FLIGHT = 64  # concurrent turns: they share round trips, and a file is never held in memory twice
MAX_PAGE = 1_000  # messages of one query
MAX_LISTED = 20  # bad lines named one by one; the rest is counted
POLL_SECONDS = 0.25
STILL_SECONDS = 45.0  # without progress: a lost lease is detected and re-notified well within this time

SAMPLE = Path(__file__).with_name("conversation.jsonl")  # examples/ links to it

# Of a message and its copies: session, agent, role, content and time
Identity = tuple[str | None, str | None, str, str, datetime]

Files = Annotated[
    list[str] | None,
    typer.Argument(
        help="OpenAI chats as JSONL or as a JSON list, `conversations.json` of ChatGPT's or Claude's data export, "
        "LoCoMo JSON, or a file of `aftermind export`; also as s3://bucket/key.",
        show_default=False,
    ),
]
Sample = Annotated[bool, typer.Option("--sample", help="Ingest the sample conversation of the package.")]
User = Annotated[
    str | None,
    typer.Option(
        "--user",
        "-u",
        help="User of conversations without one, or in place of the user of an export. Default: the anonymous user.",
    ),
]
Session = Annotated[
    str | None, typer.Option("--session", "-s", help="Session of conversations without one; not of exports.")
]
Wait = Annotated[bool, typer.Option(help="Wait until all turns are stored, embedded and extracted.")]


@dataclass(slots=True)
class Ingested:
    """What became of the files."""

    queued: int = 0
    spooled: int = 0
    messages: int = 0
    known: int | None = 0  # of the messages: accepted before, by an earlier command or another one; None: not counted
    repeated: int = 0  # of the messages: in these files more than once, and sent once
    forgotten: int | None = None  # of the messages: refused by an earlier forget; None: not counted
    users: set[tuple[str | None, str | None]] = field(default_factory=set)  # namespace, user
    bad: list[BadLine] = field(default_factory=list)
    dead: int = 0  # dead letters of the users, when all was done
    undone: int = 0  # messages that were undone where they were exported, and are again
    edits: int = 0  # of facts and blocks, made again as where they were exported
    stalled: str = ""  # why the end was not waited for, if it was not


@dataclass(slots=True)
class Watch:
    """Notices when nothing has changed for a while."""

    still_seconds: float
    _last: object = None
    _since: float = field(default_factory=time.monotonic)

    def is_still(self, seen: object) -> bool:
        """Whether what is seen has been the same for too long."""
        if seen != self._last:
            self._last, self._since = seen, time.monotonic()
        return time.monotonic() - self._since > self.still_seconds


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(ingest)
    app.command()(remember)


@terminal.with_json
def ingest(
    files: Files = None,
    *,
    sample: Sample = False,
    user: User = None,
    session: Session = None,
    namespace: terminal.Namespace = None,
    wait: Wait = True,
) -> Ingested:
    """Remember conversations from files, and wait until they are stored, embedded and extracted.

    An export is stored in its own namespace, unless --namespace names another one.

    Repeating the command resumes where it stopped: no turn is stored twice. Invalid lines are reported and skipped, and
    the exit code is 1. It is also 1 if the command stops waiting because there is no progress; nothing is lost, and the
    reason is printed.
    """
    names = [*(files or ()), *([str(SAMPLE)] if sample else ())]
    if not names:
        raise errors.InvalidInput("nothing to ingest. Name a file, or try `aftermind ingest --sample`.")
    found = [each for name in names for each in _read(name, user, session)]
    if user is not None:
        found = _exports_for(user, found)
    done = terminal.with_memory(lambda memory: play(memory, found, namespace=namespace, wait=wait))
    report(done)
    if done.bad or done.stalled:
        raise terminal.ExitWithResult(1, done)
    return done


@terminal.with_json
def remember(
    text: Annotated[str, typer.Argument(help="The message of the user.", show_default=False)],
    *,
    user: terminal.User = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="The session.")] = None,
    namespace: terminal.Namespace = None,
) -> dict[str, object]:
    """Remember one message of a user. Recall includes it immediately; facts follow in the background."""

    async def work(memory: Memory) -> Receipt:
        return await memory.remember(text, user_id=user, session_id=session, namespace=namespace)

    receipt = terminal.with_memory(work)
    out.print(f"Remembered for {escape(user or 'the anonymous user')}: {receipt.episode_ids[0]}")
    if receipt.spooled:
        terminal.warn("Redis is down: the message is in this host's spool, and is sent later.")
    return {name: getattr(receipt, name) for name in ("job_id", "episode_ids", "spooled")}


def _read(name: str, user: str | None, session: str | None) -> Iterable[importers.Found]:
    if not name.startswith("s3://"):
        return importers.read(Path(name), user=user, session=session)
    archive, key = archives.open_object(name)
    return importers.read_bytes(Path(name), asyncio.run(archive.read(key)), user=user, session=session)


def _exports_for(user: str, found: Sequence[importers.Found]) -> list[importers.Found]:
    """What is of an export, for this user in place of its own."""
    owners = {str(each.user_id) for each in found if _is_exported(each)}
    if len(owners) > 1:
        why = f"the exports are of {len(owners)} users ({', '.join(sorted(owners))}). Ingest one, or leave --user out."
        raise errors.InvalidFilter("user", user, why)
    return [replace(each, user_id=user) if _is_exported(each) else each for each in found]


def _is_exported(found: importers.Found) -> TypeGuard[FileTurn | FileEdits]:
    return isinstance(found, FileEdits) or (isinstance(found, FileTurn) and bool(found.exported_ids))


async def play(
    memory: Memory,
    found: Sequence[importers.Found],
    *,
    namespace: str | None = None,
    wait: bool = True,
    still_seconds: float = STILL_SECONDS,
) -> Ingested:
    """Hand the turns over in order, with a progress bar, and follow them if asked to, for as long as anything moves."""
    done = Ingested(bad=[each for each in found if isinstance(each, BadLine)])
    turns = [replace(each, namespace=namespace or each.namespace) for each in found if isinstance(each, FileTurn)]
    edits = [each for each in found if isinstance(each, FileEdits)]
    if not turns and not edits:
        return done
    turns = [part for each in turns for part in _parts(each, memory)]
    undone = [each for each in turns if each.undone]
    turns, present = await _without_present(memory, turns, done)
    total = done.queued + len(turns)
    columns = (SpinnerColumn(), TextColumn("{task.description:<9}"), BarColumn(), TextColumn("{task.fields[said]}"))
    stored: list[tuple[FileTurn, Receipt]] = []
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=False) as bars:
        queued = bars.add_task("queued", total=total, said=f"0 of {terminal.count_of(total, 'turn')}")
        for start in range(0, len(turns), MAX_IN_FLIGHT):
            stored += await _hand_over(memory, turns[start : start + MAX_IN_FLIGHT], done)
            bars.update(
                queued,
                completed=done.queued + len(done.bad),
                said=f"{done.queued:,} of {terminal.count_of(total, 'turn')}",
            )
        bars.update(queued, completed=total)
        if wait and done.users:
            await _follow(memory, done, bars, Watch(still_seconds=still_seconds))
            done.forgotten = None if done.stalled else await _count_forgotten(memory, stored)
        await _undo(memory, undone, present, stored, done, seconds=still_seconds)
    if edits:
        edits = [replace(each, namespace=namespace or each.namespace) for each in edits]
        await _apply_all_edits(memory, edits, present, stored, done, seconds=still_seconds)
    return done


async def _without_present(
    memory: Memory, turns: Sequence[FileTurn], done: Ingested
) -> tuple[list[FileTurn], dict[str, EpisodeId]]:
    """The turns without messages of an export that their user has already; and the ids of these here.

    A turn that was sent under its key is sent again, as that adds nothing, and nothing that was forgotten here.
    Raises `StoreUnavailable` for an export alone: sent unchecked, its messages would be stored twice.
    """
    missing: list[FileTurn] = []
    present: dict[str, EpisodeId] = {}
    owners = sorted(turns, key=lambda turn: (turn.namespace or "", turn.user_id or ""))  # several files may have one
    for (namespace, user), of_owner in groupby(owners, key=lambda turn: (turn.namespace, turn.user_id)):
        same_owner = list(of_owner)
        stored: dict[Identity, list[EpisodeId]] = {}
        if any(turn.exported_ids for turn in same_owner):
            with suppress(errors.InvalidInput):  # reported when the turn is handed over
                stored = await _stored_messages(memory, namespace, user)
        copied: dict[str, EpisodeId] = {}  # `present` of this owner
        keys: set[str] = set()  # of the turns that are sent
        sent: set[str] = set()  # exported ids; another export of the user may have its message in another turn
        for turn in same_owner:
            here = _present_ids(turn, stored, copied)
            copied |= here
            present |= here
            if turn.key in keys and not here:
                done.queued += 1
                done.messages += len(turn.messages)
                done.repeated += len(turn.messages)
                continue
            new = [id_ for id_ in turn.exported_ids if id_ not in here and id_ not in sent]
            repeated = len(turn.exported_ids) - len(new) - len(here)
            if (not here and not repeated) or (here and set(here.values()) <= set(_ids_of(memory, turn))):
                missing.append(turn)
                keys.add(turn.key)
                sent.update(turn.exported_ids)
                continue
            singles = importers.single_messages(turn)
            missing += [singles[id_] for id_ in new if id_ in singles]
            keys.update(singles[id_].key for id_ in new if id_ in singles)
            sent.update(new)
            done.queued += not new
            done.messages += len(here) + repeated
            done.known = (done.known or 0) + len(here)
            done.repeated += repeated
            done.users.add((namespace, user))
    return missing, present


async def _stored_messages(memory: Memory, namespace: str | None, user: str | None) -> dict[Identity, list[EpisodeId]]:
    """All messages of a user, the oldest first, by what is the same where they are copied to."""
    found: list[Episode] = []
    while True:
        page = await memory.history(
            user_id=user, namespace=namespace, limit=MAX_PAGE, before=found[0] if found else None
        )
        found = [*page, *found]
        if len(page) < MAX_PAGE:
            break
    ids: dict[Identity, list[EpisodeId]] = {}
    for each in found:
        identity = (each.scope.session_id, each.scope.agent_id, each.role, each.content, each.occurred_at)
        ids.setdefault(identity, []).append(each.id)
    return ids


def _present_ids(
    turn: FileTurn, stored: Mapping[Identity, list[EpisodeId]], copied: Mapping[str, EpisodeId]
) -> dict[str, EpisodeId]:
    """Those of its messages that are there, which are taken from `stored`: each is the copy of one message.

    An export that is read twice, or with a later one, has the same copies: those of `copied`.
    """
    here: dict[str, EpisodeId] = {}
    for id_, message in zip(turn.exported_ids, turn.messages, strict=False):
        if id_ in copied:
            here[id_] = copied[id_]
            continue
        named = message if isinstance(message, Mapping) else {}
        role, content, at = (named.get(name) for name in ("role", "content", "occurred_at"))
        if not (isinstance(role, str) and isinstance(content, str) and isinstance(at, str)):  # of another program
            continue
        copies = stored.get((turn.session_id, turn.agent_id, role, content, datetime.fromisoformat(at)))
        if copies:
            here[id_] = copies.pop(0)
    return here


def _ids_of(memory: Memory, turn: FileTurn) -> tuple[EpisodeId, ...]:
    """The ids that its messages get here."""
    scope = Scope(namespace=turn.namespace or memory.namespace, user_id=turn.user_id)
    return keyed_ids(scope, turn.key, len(turn.messages))[1]


def _parts(turn: FileTurn, memory: Memory) -> list[FileTurn]:
    """The turn as several ones if it is too large. One that cannot be read is reported when it is handed over."""
    try:
        parts = turn_builder.split_turn(turn.messages, memory.settings, idempotency_key=turn.key)
    except errors.InvalidInput:
        return [turn]
    if len(parts) == 1:
        return [turn]
    messages, ids = iter(turn.messages), iter(turn.exported_ids)
    return [
        replace(
            turn,
            messages=tuple(islice(messages, len(part))),
            key=key or turn.key,
            exported_ids=tuple(islice(ids, len(part))),
        )
        for part, key in parts
    ]


async def _count_known(memory: Memory, turns: Iterable[FileTurn]) -> int | None:
    """Messages of these turns that were accepted before; None while the store is away."""
    ids = list[tuple[FileTurn, Sequence[EpisodeId]]]()
    for turn in turns:
        with suppress(errors.InvalidInput):  # reported when it is handed over
            ids.append((turn, _ids_of(memory, turn)))
    try:
        found = await _existing(memory, ids)
    except errors.StoreUnavailable:
        return None
    return sum(each in found for _, of_turn in ids for each in of_turn)


async def _count_forgotten(memory: Memory, turns: Sequence[tuple[FileTurn, Receipt]]) -> int | None:
    """Messages of these turns that an earlier forget refused; None while the store is away."""
    count = 0
    try:
        for start in range(0, len(turns), MAX_IN_FLIGHT):
            some = turns[start : start + MAX_IN_FLIGHT]
            found = await _existing(memory, [(turn, receipt.episode_ids) for turn, receipt in some])
            for _, receipt in some:
                missing = sum(each not in found for each in receipt.episode_ids)
                if missing and (await receipt.status()).stored in (StepState.DONE, StepState.FORGOTTEN):
                    count += missing
    except errors.StoreUnavailable:
        return None
    return count


async def _existing(memory: Memory, ids: Iterable[tuple[FileTurn, Sequence[EpisodeId]]]) -> set[EpisodeId]:
    by_owner = dict[tuple[str | None, str | None], list[EpisodeId]]()  # namespace, user
    for turn, of_turn in ids:
        by_owner.setdefault((turn.namespace, turn.user_id), []).extend(of_turn)
    found = [await memory.get(*each, user_id=user, namespace=space) for (space, user), each in by_owner.items()]
    return {each.id for episodes in found for each in episodes if each is not None}


def report(done: Ingested) -> None:
    """What was handed over, and what was not."""
    for each in done.bad[:MAX_LISTED]:
        err.print(f"[yellow]skipped[/]  {escape(str(each.place))}: {escape(each.reason)}")
    if len(done.bad) > MAX_LISTED:
        err.print(f"[yellow]skipped[/]  … and {len(done.bad) - MAX_LISTED:,} more")
    turns, messages, users = (
        terminal.count_of(count, noun)
        for count, noun in ((done.queued, "turn"), (done.messages, "message"), (len(done.users), "user"))
    )
    out.print(f"{turns} ({messages}{_shares(done)}) of {users} accepted, {len(done.bad):,} skipped.")
    if done.undone:
        out.print(f"{terminal.count_of(done.undone, 'message')} undone, as where they were exported.")
    if done.edits:
        edited = terminal.count_of(done.edits, "edit")
        out.print(f"{edited} of facts and blocks made again, as where they were exported.")
    if any(user is None for _, user in done.users):
        terminal.warn("Conversations without a user are those of the anonymous user. --user names another one.")
    if done.stalled:
        terminal.warn(f"No progress, so the command stops waiting: {done.stalled}")
        terminal.warn(
            "Nothing is lost. Check that workers run (`aftermind status`, `aftermind doctor`); they continue the work."
        )
    if done.dead:
        letters = terminal.count_of(done.dead, "dead letter")
        terminal.warn(f"These users have {letters}. `aftermind dead-letters list` shows them, with the errors.")
    if done.spooled:
        terminal.warn(f"{done.spooled:,} of them are in this host's spool because Redis is down; they are sent later.")


def _shares(done: Ingested) -> str:
    if done.known is None:
        return ""
    # Until all turns are stored, messages that were not stored before are new ones or forgotten ones.
    sent = done.messages - done.known - done.repeated
    new = "" if done.forgotten is None else f", {max(0, sent - done.forgotten):,} new"
    forgotten = f", {done.forgotten:,} forgotten here" if done.forgotten else ""
    repeated = f", {done.repeated:,} repeated in these files" if done.repeated else ""
    return f"{new}, {done.known:,} already stored{forgotten}{repeated}"


async def _hand_over(memory: Memory, turns: Sequence[FileTurn], done: Ingested) -> list[tuple[FileTurn, Receipt]]:
    """Tasks start in the order of the file, so each session keeps its order while calls share round trips.

    Returns the turns that were accepted, with their receipts.
    """
    known = None if done.known is None else await _count_known(memory, turns)
    done.known = None if known is None or done.known is None else done.known + known
    receipts = await asyncio.gather(*(_remember(memory, turn, done) for turn in turns))
    return [(turn, receipt) for turn, receipt in zip(turns, receipts, strict=True) if receipt is not None]


async def _undo(
    memory: Memory,
    undone: Sequence[FileTurn],
    present: Mapping[str, EpisodeId],
    stored: Sequence[tuple[FileTurn, Receipt]],
    done: Ingested,
    *,
    seconds: float,
) -> None:
    """Hide messages that were undone where they were exported, also those that were copied before that.

    They can be undone once they are stored.
    """
    ids = {present[id_]: turn for turn in undone for id_ in turn.exported_ids if id_ in present}
    hidden = {(turn.namespace, turn.user_id, id_) for turn in undone for id_ in turn.exported_ids}
    try:
        for turn, receipt in stored:
            sent = zip(turn.exported_ids, receipt.episode_ids, strict=False)  # maybe by an export before the undo
            here = {each: turn for id_, each in sent if (turn.namespace, turn.user_id, id_) in hidden}
            if turn.undone:
                here |= dict.fromkeys(receipt.episode_ids, turn)
            if here:
                with suppress(errors.JobDead, errors.Forgotten):  # not stored, so not visible
                    await receipt.stored(timeout=seconds)
                    ids |= here
        for turn, of_turn in groupby(ids, key=lambda id_: ids[id_]):
            got = await memory.get(*of_turn, user_id=turn.user_id, namespace=turn.namespace)
            found = [each for each in got if each is not None]
            if visible := [each.id for each in found if each.mark != UNDONE]:
                await memory.undo(*visible, user_id=turn.user_id, namespace=turn.namespace)
            done.undone += len(found)
    except (errors.ReceiptTimeout, errors.InvalidQuery):  # accepted, and pending
        done.stalled = "messages that were undone are not stored yet, so they are shown. Repeat the command"


async def _apply_all_edits(
    memory: Memory,
    edits: Sequence[FileEdits],
    present: Mapping[str, EpisodeId],
    stored: Sequence[tuple[FileTurn, Receipt]],
    done: Ingested,
    *,
    seconds: float,
) -> None:
    """Edit facts and blocks as where they were exported, once the messages that they name are stored."""
    named = {str(source) for each in edits for claim in each.assertions for source in claim.sources}
    ids: dict[str, EpisodeId | None] = {**present}  # of messages where they were exported; None: forgotten here
    for turn, receipt in stored:
        if named.isdisjoint(turn.exported_ids) or len(turn.exported_ids) != len(receipt.episode_ids):
            continue
        try:
            await receipt.stored(timeout=seconds)
        except errors.ReceiptTimeout:
            done.stalled = "edits of facts and blocks wait for messages that are not stored yet. Repeat the command"
            return
        except (errors.JobDead, errors.Forgotten):
            pass  # none of its messages is found below
        found = await memory.get(*receipt.episode_ids, user_id=turn.user_id, namespace=turn.namespace)
        here = [None if each is None else each.id for each in found]
        ids.update(zip(turn.exported_ids, here, strict=True))
    for each in edits:
        await _apply_edits(memory, each, ids, done)


async def _apply_edits(memory: Memory, edits: FileEdits, ids: Mapping[str, EpisodeId | None], done: Ingested) -> None:
    """What was stated about messages that were forgotten here is left out; existing blocks stay."""
    user, space = edits.user_id, edits.namespace
    claims = []
    for claim in edits.assertions:
        imported = [ids[str(each)] for each in claim.sources if str(each) in ids]
        sources = tuple(each for each in imported if each is not None)
        if sources or not imported:
            claims.append(replace(claim, sources=sources))
    try:
        done.edits += await memory.facts.restore(claims, user_id=user, namespace=space)
    except errors.InvalidInput as exc:
        done.bad.append(BadLine(place=edits.place, reason=f"edits of facts: {exc}"))
    for block in edits.blocks:
        try:
            if await memory.blocks.get(block.name, user_id=user, namespace=space) is None:
                await memory.blocks.set(
                    block.name, block.content, description=block.description, user_id=user, namespace=space
                )
                done.edits += 1
        except errors.InvalidInput as exc:
            done.bad.append(BadLine(place=edits.place, reason=f"block {block.name!r}: {exc}"))


async def _remember(memory: Memory, turn: FileTurn, done: Ingested) -> Receipt | None:
    try:
        receipt = await memory.remember(
            turn.messages,
            user_id=turn.user_id,
            session_id=turn.session_id,
            agent_id=turn.agent_id,
            namespace=turn.namespace,
            idempotency_key=turn.key,
            save=turn.save,
        )
    except errors.InvalidInput as exc:
        done.bad.append(BadLine(place=turn.place, reason=str(exc)))
        return None
    done.queued += 1
    done.messages += len(turn.messages)
    done.spooled += receipt.spooled
    done.users.add((turn.namespace, turn.user_id))
    return receipt


async def _follow(memory: Memory, done: Ingested, bars: Progress, watch: Watch) -> None:
    stored = bars.add_task("stored", total=done.queued, said="")
    embedded = bars.add_task("embedded", total=1, said="")
    facts = bars.add_task("facts", total=None, said="")
    while True:
        seen = await _read_progress(memory, done)
        if isinstance(seen, errors.Unavailable):  # a restart of Redis takes a second
            if watch.is_still(None):
                done.stalled = str(seen)
                return
            await asyncio.sleep(POLL_SECONDS)
            continue
        waiting = sum(each.pending_turns for each in seen)
        episodes, vectors = sum(each.episodes for each in seen), sum(each.embedded for each in seen)
        learnt, jobs, dead = (
            sum(each.facts for each in seen),
            sum(each.jobs for each in seen),
            sum(each.dead for each in seen),
        )
        left = max(0, done.queued - waiting)
        bars.update(stored, completed=left, said=f"{left:,} of {terminal.count_of(done.queued, 'turn')}")
        bars.update(
            embedded,
            total=max(episodes, 1),
            completed=vectors,
            said=f"{vectors:,} of {terminal.count_of(episodes, 'episode')}",
        )
        trouble = f", {terminal.count_of(dead, 'dead letter')}" if dead else ""
        bars.update(facts, said=f"{terminal.count_of(learnt, 'fact')}, {terminal.count_of(jobs, 'job')} left{trouble}")
        if not waiting and not jobs:
            done.dead = dead
            _complete(bars, facts)
            return
        if watch.is_still(seen):
            done.stalled = await _why_still(memory)
            return
        await asyncio.sleep(POLL_SECONDS)


async def _read_progress(memory: Memory, done: Ingested) -> "list[api_health.Progress] | errors.Unavailable":
    """Of each user; the error of a component that does not answer."""
    try:
        return [
            await memory.progress(namespace=namespace, user_id=user) for namespace, user in sorted(done.users, key=str)
        ]
    except errors.Unavailable as exc:
        return exc


async def _why_still(memory: Memory) -> str:
    """Reasons for missing progress: unhealthy components and overdue jobs."""
    health = await memory.health()
    sick = [f"{part.name}: {part.detail}" for part in health.parts if part.state != "ok"]
    overdue = [f"{row.kind}: {row.runnable:,} pending, {row.waiting:,} scheduled" for row in health.work if row.kind]
    return "; ".join(sick + overdue) or "the reason is unknown"


def _complete(bars: Progress, task: TaskID) -> None:
    bars.update(task, total=1, completed=1)
