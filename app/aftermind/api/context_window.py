"""Context windows: the part of a conversation that a model continues from, within tokens or messages."""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from aftermind import errors
from aftermind.api import conversation_history
from aftermind.api.memory_services import Parts
from aftermind.db.database_protocol import Transaction
from aftermind.llm import token_count
from aftermind.llm.injection import screening
from aftermind.recall.query import Query, RecallOptions
from aftermind.recall.token_budget import MOST_CHARACTERS
from aftermind.stores.protocol import EpisodeFilter
from aftermind.types import Episode, Json, Role, Scope, Summary
from aftermind.types.blocks_summaries_profiles import latest_message_at
from aftermind.types.message import UNDONE

# The summary so far (None: there is none) and the episodes that the window has no space for, oldest first; returns
# the new summary.
Summarise = Callable[[str | None, Sequence[Episode]], str | Awaitable[str]]

PAGE_EPISODES = 500
MESSAGE_TOKENS = 4  # role and separators of a chat message, as OpenAI's formats count them
SUMMARY_SHARE = 0.25  # of the tokens, at most, for a summary
SUMMARY_HEADING = "Summary of the conversation so far:\n"
LEAST_SUMMARY_TOKENS = 12  # of a summary that is cut
_SENTENCE_END = re.compile(r"[.!?…](?=\s)|\n")
BEFORE_ALL = -(2**63)


class ContextWindow(list[Episode]):
    """A list of episodes that a model continues from, oldest first.

    `summary` condenses what came before them; None if none was wanted or made, or nothing came before.
    `tokens` counts both.
    """

    def __init__(self, episodes: Iterable[Episode] = (), *, summary: str | None = None, tokens: int = 0) -> None:
        super().__init__(episodes)
        self.summary, self.tokens = summary, tokens

    def to_chat(self) -> list[dict[str, Json]]:
        """Messages for chat models: the summary as a system message, then the episodes."""
        head = [] if self.summary is None else [{"role": "system", "content": SUMMARY_HEADING + self.summary}]
        return [*head, *(each.to_chat() for each in self)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a window may hold; None is no bound. `tool_results` False leaves out tool calls and their results."""

    max_tokens: int | None
    max_messages: int | None
    roles: frozenset[Role] | None
    tool_results: bool

    @classmethod
    def checked(
        cls, max_tokens: object, max_messages: object, roles: Iterable[str] | None, *, tool_results: bool
    ) -> "Bounds":
        """Raises `InvalidQuery`."""
        for field, number in (("max_tokens", max_tokens), ("max_messages", max_messages)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number <= 0):
                raise errors.InvalidQuery(field, number, "it is a whole number above 0.")
        if max_tokens is None and max_messages is None:
            raise errors.InvalidQuery("max_tokens", None, "give max_tokens or max_messages.")
        return cls(
            max_tokens=max_tokens,  # type: ignore[arg-type]  # checked above
            max_messages=max_messages,  # type: ignore[arg-type]
            roles=None if roles is None else checked_roles(roles),
            tool_results=tool_results,
        )


def checked_roles(roles: Iterable[str]) -> frozenset[Role]:
    """Raises `InvalidQuery` for an unknown role."""
    wanted = Query.checked("", Scope(), **RecallOptions(roles=roles)).wanted
    return wanted.roles or frozenset()


async def window(parts: Parts, scope: Scope, bounds: Bounds, *, summary: bool | Summarise = False) -> ContextWindow:
    """The newest units of a conversation that fit together; none is cut, and none that was undone is there."""
    if summary is False:
        chosen, tokens, _ = await _newest(parts, scope, bounds)
        return ContextWindow(chosen, tokens=tokens)
    if scope.session_id is None:
        raise errors.InvalidQuery("session_id", None, "a summary is of one session; name it.")
    if not callable(summary):
        stored = await conversation_history.summary(parts, scope.owner, scope.session_id)
        text = None if stored is None else _shortened(stored.text, bounds)
        chosen, tokens, is_whole = await _newest(parts, scope, bounds)
        is_filtered = bounds.roles is not None or not bounds.tool_results or scope.agent_id is not None
        if text is None or (is_whole and not is_filtered):  # nothing came before
            return ContextWindow(chosen, tokens=tokens)
        rest = _beside(bounds, _size(text))
        if rest.max_tokens is not None and tokens > rest.max_tokens:
            chosen, tokens, _ = await _newest(parts, scope, rest)
        return ContextWindow(chosen, summary=text, tokens=tokens + _size(text))
    reserve = 0 if bounds.max_tokens is None else int(bounds.max_tokens * SUMMARY_SHARE)
    chosen, tokens, _ = await _newest(parts, scope, _beside(bounds, reserve))
    made = await _summarised(parts, scope, summary, before=chosen[0].position if chosen else None)
    text = None if made is None else _shortened(made, bounds)
    return ContextWindow(chosen, summary=text, tokens=tokens + _size(text))


def _shortened(text: str, bounds: Bounds) -> str | None:
    """The summary within its share, without its last sentence or line if that is cut; None where too little is left."""
    most = None if bounds.max_tokens is None else int(bounds.max_tokens * SUMMARY_SHARE) - _size("")
    if most is None or token_count.count(text) <= most:
        return text
    if most < LEAST_SUMMARY_TOKENS:
        return None
    begun = token_count.cut(text, most)
    ends = [match.end() for match in _SENTENCE_END.finditer(begun)]
    return begun[: ends[-1]].rstrip() if ends else begun


def _beside(bounds: Bounds, tokens: int) -> Bounds:
    return bounds if bounds.max_tokens is None else replace(bounds, max_tokens=max(bounds.max_tokens - tokens, 1))


def _size(text: str | None) -> int:
    return 0 if text is None else token_count.count(SUMMARY_HEADING + text) + MESSAGE_TOKENS


async def _newest(parts: Parts, scope: Scope, bounds: Bounds) -> tuple[list[Episode], int, bool]:
    """The newest units within the bounds, oldest first, with their tokens, and whether these are all."""
    chosen: list[Episode] = []
    used = 0
    units = _Units(bounds)
    before: Episode | None = None
    wanted = EpisodeFilter(session_id=scope.session_id, agent_id=scope.agent_id, undone=False)
    while True:
        page = await conversation_history.search(
            parts, scope, conversation_history.paged(wanted, before), limit=PAGE_EPISODES
        )
        for episode in reversed(page):
            for unit in units.add(episode):
                size = _tokens(unit, bounds, used)
                if size is None or (bounds.max_messages is not None and len(chosen) + len(unit) > bounds.max_messages):
                    return chosen[::-1], used, False
                used += size
                chosen += unit[::-1]
        if len(page) < PAGE_EPISODES:
            return chosen[::-1], used, True
        before = page[0]


def _tokens(unit: Sequence[Episode], bounds: Bounds, used: int) -> int | None:
    """The tokens of a unit; None if it does not fit."""
    left = None if bounds.max_tokens is None else bounds.max_tokens - used
    if left is not None and sum(len(each.content) for each in unit) > left * MOST_CHARACTERS:
        return None  # too long for every tokenizer: no need to count on the loop
    size = sum(token_count.count(_counted(each)) + MESSAGE_TOKENS for each in unit)
    return None if left is not None and size > left else size


def _counted(episode: Episode) -> str:
    calls = episode.metadata.get("tool_calls")
    return episode.content if not calls else f"{episode.content}{calls}"


class _Units:
    """Groups episodes, given from the newest to the oldest: a tool call and its results are one unit.

    Chat models refuse a result without its call, and a call without its results, unless nothing follows it yet.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._results: dict[str | None, list[Episode]] = {}  # by session; their call is older
        self._seen: set[str | None] = set()  # sessions with a newer message

    def add(self, episode: Episode) -> list[list[Episode]]:
        """The units that this episode completes; each in its order."""
        session = episode.scope.session_id
        if episode.role is Role.TOOL:
            self._results.setdefault(session, []).insert(0, episode)
            return []
        results, is_newest = self._results.pop(session, []), session not in self._seen
        self._seen.add(session)
        unit = self._unit(episode, results, is_newest=is_newest and not results)
        roles = self._bounds.roles
        shown = [each for each in unit if roles is None or each.role in roles]
        return [shown] if shown else []

    def _unit(self, episode: Episode, results: list[Episode], *, is_newest: bool) -> list[Episode]:
        calls = episode.metadata.get("tool_calls")
        if not calls:
            return [episode] if episode.content.strip() or "attachments" in episode.metadata else []
        if not self._bounds.tool_results:
            metadata = {name: value for name, value in episode.metadata.items() if name != "tool_calls"}
            return [replace(episode, metadata=metadata)] if episode.content.strip() else []
        wanted = {str(each["id"]) for each in calls if isinstance(each, dict) and each.get("id") is not None}
        known = [each for each in results if str(each.metadata.get("tool_call_id")) in wanted] if wanted else results
        answered = {str(each.metadata.get("tool_call_id")) for each in known} if wanted else wanted
        return [episode, *known] if is_newest or (known and answered == wanted) else []


async def _summarised(parts: Parts, scope: Scope, summarise: Summarise, *, before: int | None) -> str | None:
    """The summary of what is before a position, brought up to date and stored; None if there is nothing before it."""
    store, owner, session = parts.store, scope.owner, scope.session_id

    async def read(tx: Transaction) -> tuple[Summary | None, list[Episode], int]:
        stored = await store.summary(tx, owner, session)
        size = 0 if stored is None else await store.session_size(tx, owner, session, up_to=stored.covers_to)
        base = stored if stored is not None and size == stored.messages else None  # else some arrived late: begin again
        after = BEFORE_ALL if base is None else base.covers_to
        found = await store.session_span(
            tx, owner, session, after_position=after, limit=conversation_history.MAX_EPISODES
        )
        version = 0 if stored is None else stored.version
        return base, [each for each in found if before is None or each.position < before], version

    base, uncovered, version = await conversation_history.read(parts, owner, read)
    shown = [each for each in uncovered if each.mark is None and "summary" in each.keep]
    if not shown:
        return None if base is None else base.text
    made = summarise(None if base is None else base.text, shown)
    text = await made if inspect.isawaitable(made) else made
    if not isinstance(text, str):
        raise errors.InvalidQuery("summary", text, "a summariser returns text.")
    text = await screening.without_instructions(text)
    if not text:
        return None if base is None else base.text
    ids, seen = [each.id for each in uncovered], {each.id for each in shown}
    summary = Summary(
        scope=replace(scope, agent_id=None),
        text=text,
        covers_to=uncovered[-1].position,
        messages=(0 if base is None else base.messages) + len(uncovered),
        updated_at=datetime.now(UTC),
        last_message_at=latest_message_at(base, (each.occurred_at for each in uncovered)),
        summariser=f"own:{getattr(summarise, '__qualname__', type(summarise).__qualname__)}",
    )

    async def keep(tx: Transaction) -> None:
        await store.tombstones(tx, [owner])  # holds a forget of this user off until the end
        former = await store.summary(tx, owner, session)
        there = [each for each in await store.episodes(tx, owner, ids) if each.id not in seen or each.mark != UNDONE]
        is_sound = len(there) == len(ids) and (former.version if former else 0) == version
        if is_sound:  # else content was forgotten or undone during the call, or another summary was faster
            await store.put_summary(tx, summary, over=version)

    await parts.effects.commit(owner, keep)
    return text
