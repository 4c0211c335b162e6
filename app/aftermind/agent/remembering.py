"""The memory around a run: nothing of it delays the answer or makes it fail, unless the agent is strict."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypedDict, TypeVar

from aftermind.events.types import (
    MemoryEvent,
    MemoryRecallCompleted,
    MemoryRecallStarted,
    MemoryUpdateFailed,
    MemoryUpdateQueued,
)
from aftermind.memory import Memory
from aftermind.recall.render import CLOSING, OPENING, closing_of, line_of, opening_of
from aftermind.receipt import Receipt
from aftermind.types import Episode, Message, RecallBlock, Role, Scope

log = logging.getLogger(__name__)
T = TypeVar("T")

TOLD_ROLES = frozenset({Role.USER, Role.ASSISTANT})  # of the history, as chat messages
GRACE_SECONDS = 0.5  # beyond memory's own deadlines: what does not end by itself is cut off


class _Labels(TypedDict):
    namespace: str
    user_id: str | None
    session_id: str | None
    agent_id: str | None


@dataclass(slots=True)
class Remembering:
    """What one agent does with its memory. `failing` steps are kept over runs, so that an outage is logged once."""

    memory: Memory
    strict: bool
    save: frozenset[str] | None
    load: frozenset[str] | None
    token_budget: int | None
    history_messages: int
    failing: set[str] = field(default_factory=set)

    async def recall(
        self, query: str, scope: Scope, tell: Callable[[MemoryEvent], None]
    ) -> tuple[RecallBlock | None, Sequence[Episode]]:
        """The block for a question, and the session so far. None and nothing where memory fails."""
        tell(MemoryRecallStarted(scope=scope, at=_now(), query=query))
        seconds = self.memory.settings.recall_budget_seconds + GRACE_SECONDS
        block, history = await asyncio.gather(
            self._tried("recall", self._block(query, scope), seconds, scope, tell),
            self._tried("history", self._history(scope), seconds, scope, tell),
        )
        if block is None:
            return None, history or ()
        block = _without(block, history or ())
        done = MemoryRecallCompleted(
            scope=scope,
            at=_now(),
            query=query,
            tokens_used=block.tokens_used,
            chunks_included=block.chunks_included,
            chunks_available=block.chunks_available,
            duration_ms=block.duration_ms,
        )
        tell(done)
        return block, history or ()

    async def remember(
        self,
        messages: Sequence[Message],
        scope: Scope,
        tell: Callable[[MemoryEvent], None],
        *,
        idempotency_key: str | None = None,
    ) -> Receipt | None:
        """Hand the turn over. None where memory fails."""
        seconds = self.memory.settings.remember_budget_seconds + self.memory.settings.db_timeout_seconds + GRACE_SECONDS
        work = self.memory.remember(messages, save=self.save, idempotency_key=idempotency_key, **_labels(scope))
        receipt = await self._tried("remember", work, seconds, scope, tell)
        if receipt is not None:
            job = str(receipt.job_id)
            tell(MemoryUpdateQueued(scope=scope, at=_now(), job_id=job, message_count=len(messages)))
        return receipt

    async def _block(self, query: str, scope: Scope) -> RecallBlock:
        return await self.memory.recall(query, token_budget=self.token_budget, load=self.load, **_labels(scope))

    async def _history(self, scope: Scope) -> Sequence[Episode]:
        wanted = self.load is None or "history" in self.load
        if not wanted or scope.session_id is None or not self.history_messages:
            return ()
        return await self.memory.history(limit=self.history_messages, **_labels(scope))

    async def _tried(
        self, what: str, work: Awaitable[T], seconds: float, scope: Scope, tell: Callable[[MemoryEvent], None]
    ) -> T | None:
        try:
            async with asyncio.timeout(seconds):
                found = await work
        except Exception as exc:  # memory failing as a whole must not take the answer with it
            if self.strict:
                raise
            if not self.failing:
                log.warning("memory fails, the agent answers without it", extra={"step": what}, exc_info=exc)
            self.failing.add(what)
            error = f"{type(exc).__name__}: {exc}"
            tell(MemoryUpdateFailed(scope=scope, at=_now(), kind=what, error=error, attempts=1))
            return None
        self.failing.discard(what)
        return found


def _without(block: RecallBlock, history: Sequence[Episode]) -> RecallBlock:
    """The block without the messages that the model is given as the session's history: each is in the prompt once.

    A message that the budget shortened stays: its line is not the whole message.
    """
    given = {each.id for each in history if each.role in TOLD_ROLES}
    text, kept = block.text, []
    for match in block.matches:
        line = line_of(match.item) if isinstance(match.item, Episode) and match.item.id in given else ""
        if line and line in text:
            text = text.replace(line, "", 1)
        else:
            kept.append(match)
    text = text.replace(opening_of("episodes") + closing_of("episodes"), "")
    if text == OPENING + CLOSING:
        text = ""
    dropped = len(block.matches) - len(kept)
    return replace(block, text=text, matches=tuple(kept), chunks_included=block.chunks_included - dropped)


def _labels(scope: Scope) -> _Labels:
    return _Labels(
        namespace=scope.namespace, user_id=scope.user_id, session_id=scope.session_id, agent_id=scope.agent_id
    )


def _now() -> datetime:
    return datetime.now(UTC)
