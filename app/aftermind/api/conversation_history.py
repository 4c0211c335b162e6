"""Conversation history: stored and pending turns, merged without duplicates."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from aftermind import errors
from aftermind.api.health import spent_budgets
from aftermind.api.memory_services import Parts
from aftermind.db.database_protocol import Transaction
from aftermind.llm.injection import detect, screening
from aftermind.recall.pending_candidates import standing_turns
from aftermind.stores.protocol import EpisodeFilter, SessionInfo, UserInfo
from aftermind.types import (
    Episode,
    EpisodeId,
    ExtractionResult,
    ExtractionState,
    JobKind,
    Profile,
    Role,
    Scope,
    Summary,
    Turn,
    Watermark,
)
from aftermind.types.whole_number import check_whole_number
from aftermind.wire.pending import Pending
from aftermind.wire.turn_encoding import decode_readable

T = TypeVar("T")
Before = Episode | tuple[int, EpisodeId] | int | None

MAX_EPISODES = 10_000  # rows of one call; page back with `before` for more
PAGE_EPISODES = 500
CHECK_SECONDS = 2.0  # to mark pending episodes, else they are unchecked; an ordinary message of 256 KB takes 1 to 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingTurns:
    """Turns that no store job has committed yet, and the watermark that a replica needs to be read with them."""

    accepted: tuple[Turn, ...]
    local: tuple[Turn, ...]  # those that only this host has
    passed: tuple[Watermark, ...] | None  # None: no replica is read


async def history(
    parts: Parts,
    scope: Scope,
    *,
    limit: int,
    offset: int = 0,
    roles: frozenset[Role] | None = None,
    before: Before = None,
) -> list[Episode]:
    """The newest that carry the scope's labels, oldest first."""
    check_whole_number(limit, most=MAX_EPISODES)
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= MAX_EPISODES - limit:
        why = f"it is a whole number from 0, with `limit` at most {MAX_EPISODES:,}. Use `before` for older pages."
        raise errors.InvalidQuery("offset", offset, why)
    wanted = EpisodeFilter(session_id=scope.session_id, agent_id=scope.agent_id, roles=roles)
    found = await search(parts, scope, paged(wanted, before), limit=limit + offset)
    end = len(found) - offset
    return found[max(end - limit, 0) : max(end, 0)]


def paged(wanted: EpisodeFilter, before: Before) -> EpisodeFilter:
    """A page of episodes older than an episode, its position and id, or a position."""
    if before is None:
        return wanted
    # Episodes of one position, which two sessions can share, are in the order of their ids.
    position: object = before
    id_: object = None
    if isinstance(before, Episode):
        position, id_ = before.position, before.id
    elif isinstance(before, tuple) and len(before) == 2:
        position, id_ = before
    is_place = isinstance(id_, UUID | None) and not isinstance(position, bool)
    if not is_place or not isinstance(position, int) or not -(2**63) <= position < 2**63:
        raise errors.InvalidQuery("before", before, "it is an episode, its position and id, or a position.")
    return replace(wanted, before_position=position, before_id=EpisodeId(id_) if isinstance(id_, UUID) else None)


async def search(parts: Parts, scope: Scope, wanted: EpisodeFilter, *, limit: int) -> list[Episode]:
    """The newest that fit, oldest first. Pending is read before the database, so that nothing falls in between."""
    check_whole_number(limit, most=MAX_EPISODES)
    owner = scope.owner
    waiting = await _read_pending(parts, owner, wanted, limit=limit)

    async def read(tx: Transaction) -> list[Episode]:
        shown = await _matching_pending(
            parts, tx, owner, waiting, wanted
        )  # first: what is stored in between is then in both
        return _merged(await parts.store.history(tx, owner, wanted, limit=limit), shown)

    return await _marked((await _from_a_node(parts, waiting, read, namespace=owner.namespace))[-limit:])


async def get(parts: Parts, owner: Scope, ids: Sequence[EpisodeId]) -> list[Episode | None]:
    """Episodes by id, pending ones included; None for each that the owner does not have."""
    everything = EpisodeFilter()
    waiting = await _read_pending(parts, owner, everything, limit=MAX_EPISODES)

    async def read(tx: Transaction) -> list[Episode]:
        shown = await _matching_pending(parts, tx, owner, waiting, everything)  # first, as in `search`
        return _merged(await parts.store.episodes(tx, owner, ids), shown)

    found = await _from_a_node(parts, waiting, read, namespace=owner.namespace)
    wanted = set(ids)
    by_id = {each.id: each for each in await _marked([each for each in found if each.id in wanted])}
    return [by_id.get(each) for each in ids]


async def everything(parts: Parts, owner: Scope) -> list[Episode]:
    """All episodes of an owner, oldest first."""
    found: list[Episode] = []
    before: Episode | None = None
    while True:
        page = await history(parts, owner, limit=MAX_EPISODES, before=before)
        found = [*page, *found]
        if len(page) < MAX_EPISODES:
            return found
        before = page[0]


async def sessions(parts: Parts, owner: Scope, *, limit: int) -> list[SessionInfo]:
    """Stored sessions, the latest first."""
    check_whole_number(limit, most=MAX_EPISODES)
    return await read(parts, owner, lambda tx: parts.store.sessions(tx, owner, limit=limit))


async def users(
    parts: Parts, space: Scope, prefix: str, after: str | None, *, limit: int, groups: bool
) -> list[UserInfo]:
    """The users of a namespace, or those and its groups, from the primary: one stored a moment ago is included."""
    check_whole_number(limit, most=MAX_EPISODES)
    for field, text in (("prefix", prefix), ("after", after)):
        if text and "\x00" in text:
            raise errors.InvalidQuery(field, text, "an id cannot hold a NUL character.")
    async with parts.db.transaction(namespace=space.namespace, read_only=True) as tx:
        return await parts.store.users(tx, space.namespace, prefix=prefix, after=after, limit=limit, groups=groups)


async def summary(parts: Parts, owner: Scope, session_id: str | None) -> Summary | None:
    """A session's summary."""
    return await read(parts, owner, lambda tx: parts.store.summary(tx, owner, session_id))


async def profile(parts: Parts, owner: Scope) -> Profile | None:
    """An owner's profile."""
    return await read(parts, owner, lambda tx: parts.store.profile(tx, owner))


async def extraction_results(
    parts: Parts, owner: Scope, session_id: str | None, *, limit: int
) -> list[ExtractionResult]:
    """The extraction outcome of each of the newest episodes; pending ones wait to be stored."""
    check_whole_number(limit, most=MAX_EPISODES)
    wanted = EpisodeFilter(session_id=session_id)
    waiting = await _read_pending(parts, owner, wanted, limit=limit)
    async with parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:  # jobs are on the primary
        stored = await parts.store.extraction_results(tx, owner, session_id, limit=limit)
        shown = await _matching_pending(parts, tx, owner, waiting, wanted)
    known = {each.episode_id for each in stored}
    pending = [
        ExtractionResult(
            episode_id=episode.id,
            session_id=episode.scope.session_id,
            occurred_at=episode.occurred_at,
            state=ExtractionState.WAITING,
            reason="not stored yet",
        )
        for episode in shown
        if episode.id not in known
    ]
    found = [*stored, *pending][-limit:]
    if any(each.state is ExtractionState.WAITING for each in found):
        pause = await parts.find_pause(JobKind.EXTRACT, owner.namespace)
        if pause is None:
            with suppress(errors.Unavailable):  # a replica has answered so far
                pause = next(map(str, await spent_budgets(parts, owner.namespace)), None)
        if pause is not None:
            found = [replace(each, reason=pause) if each.state is ExtractionState.WAITING else each for each in found]
        elif (of_provider := await parts.find_provider_pause(JobKind.EXTRACT)) is not None:
            found = [
                replace(each, reason=f"{each.reason}; {of_provider}") if each.state is ExtractionState.WAITING else each
                for each in found
            ]
    return found


async def read(parts: Parts, owner: Scope, query: Callable[[Transaction], Awaitable[T]]) -> T:
    """Read an owner's rows; from a replica only if it has the owner's last write."""
    return await _from_a_node(parts, await _read_pending(parts, owner), query, namespace=owner.namespace)


async def _from_a_node(
    parts: Parts, waiting: _PendingTurns, read: Callable[[Transaction], Awaitable[T]], *, namespace: str
) -> T:
    """From a replica that has seen the owner's last write, else from the primary."""
    deadline = asyncio.get_running_loop().time() + parts.settings.db_timeout_seconds
    if waiting.passed is not None:
        with suppress(errors.StoreUnavailable):  # the replica failed: the primary has all rows
            async with parts.routing.replica(waiting.passed, deadline=deadline, namespace=namespace) as route:
                if route is not None:
                    return await read(route.tx)
    async with parts.routing.primary(deadline=deadline, namespace=namespace) as first:
        return await read(first.tx)


async def _read_pending(
    parts: Parts, owner: Scope, wanted: EpisodeFilter | None = None, *, limit: int = 0
) -> _PendingTurns:
    """The newest matching turns, at least `limit` if there are as many; without a filter none, only the watermark."""
    local = await parts.outboxes.local_turns(owner)
    waiting: list[Turn] = []
    passed: tuple[Watermark, ...] | None = None
    if parts.pending is not None:
        with suppress(errors.RedisUnavailable):  # the primary has the stored turns, and this host its spooled ones
            turns, passed = await _pending(parts, parts.pending, owner, wanted, limit=limit)
            waiting += turns
    if wanted is None:
        return _PendingTurns(accepted=(), local=(), passed=passed)
    return _PendingTurns(accepted=tuple(waiting), local=tuple(local), passed=passed)


async def _pending(
    parts: Parts, pending: Pending, owner: Scope, wanted: EpisodeFilter | None, *, limit: int
) -> tuple[list[Turn], tuple[Watermark, ...] | None]:
    """Page by page from the newest, with the watermark of the last page, which covers turns stored in between."""
    found: list[Turn] = []
    passed_over = fitting = 0
    while True:
        read = await pending.read(owner, limit=0 if wanted is None else PAGE_EPISODES, skip=passed_over)
        found += read.turns
        seen = len(read.turns) + read.unreadable
        passed_over += seen
        is_last = not seen or passed_over >= read.total
        fitting += 0 if is_last else len(_fitting(read.turns, wanted))
        if is_last or fitting >= limit:
            deadline = asyncio.get_running_loop().time() + parts.settings.db_timeout_seconds
            passed = None if parts.lease is None else await parts.lease.passed(owner, read, deadline=deadline)
            return found, None if passed is None else passed.marks


async def _matching_pending(
    parts: Parts, tx: Transaction, owner: Scope, waiting: _PendingTurns, wanted: EpisodeFilter
) -> list[Episode]:
    """Matching pending turns relative to the node that is read; including those accepted by its ledger."""
    ledger = decode_readable(await parts.ledger.unstored(tx, owner), owner=owner)
    turns = await standing_turns(parts.store, tx, owner, [*ledger, *waiting.accepted], waiting.local)
    return _fitting(turns, wanted)


async def _marked(episodes: list[Episode]) -> list[Episode]:
    """The episodes, those that no store has checked yet with the marks that storing gives them, see `CHECK_SECONDS`."""
    waiting = [each for each in episodes if each.pending]
    found = await screening.marks_in_time(screening.by_turn(waiting), seconds=CHECK_SECONDS) if waiting else {}
    return [detect.marked(each, found) for each in episodes] if found else episodes


def _fitting(turns: Iterable[Turn], wanted: EpisodeFilter | None) -> list[Episode]:
    if wanted is None:
        return []
    episodes = (episode for turn in turns if turn.keep for episode in turn.episodes(pending=True))
    return [episode for episode in episodes if wanted.fits(episode)]


def _merged(stored: Sequence[Episode], waiting: Iterable[Episode]) -> list[Episode]:
    """Each once, in order; what is stored already is not pending any more."""
    known = {episode.id: episode for episode in waiting}
    known |= {episode.id: replace(episode, pending=False) for episode in stored}
    return sorted(known.values(), key=lambda episode: (episode.position, episode.id))
