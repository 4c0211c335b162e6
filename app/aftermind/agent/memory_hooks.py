"""Recall before a run and remember after it. Neither delays the answer or makes it fail, unless the agent is strict."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypedDict, TypeVar

from aftermind import errors
from aftermind.api import turn_builder
from aftermind.events.types import (
    MemoryEvent,
    MemoryRecallCompleted,
    MemoryRecallStarted,
    MemoryUpdateFailed,
    MemoryUpdateQueued,
)
from aftermind.memory import Memory
from aftermind.recall.render import without_turns
from aftermind.receipt import Receipt, joined
from aftermind.telemetry.logger import get_logger
from aftermind.types import Episode, Message, RecallBlock, Role, Scope, ServedBy
from aftermind.types.message import UNDONE

log = get_logger(__name__)
T = TypeVar("T")

REMEMBERED_ROLES = frozenset({Role.USER, Role.ASSISTANT})  # of the history, as chat messages
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
    tool_results: bool = False
    failing: set[str] = field(default_factory=set)

    async def recall(
        self,
        query: str,
        scope: Scope,
        tell: Callable[[MemoryEvent], None],
        *,
        given: Sequence[Message] | None = None,
    ) -> tuple[RecallBlock | None, Sequence[Episode]]:
        """The block for a question, and the session so far, if the caller has not `given` it. None and nothing where
        memory fails: `MemoryRecallCompleted.degraded` has the reason.
        """
        tell(MemoryRecallStarted(scope=scope, at=_now(), query=query))
        seconds = self.memory.settings.recall_budget_seconds + GRACE_SECONDS
        failures: list[str] = []
        block, history = await asyncio.gather(
            self._tried("recall", self._block(query, scope), seconds, failures.append),
            self._tried("history", self._history(scope, is_given=given is not None), seconds, failures.append),
        )
        if block is None:
            tell(MemoryRecallCompleted(scope=scope, at=_now(), query=query, degraded="; ".join(failures)))
            return None, history or ()
        roles = REMEMBERED_ROLES | ({Role.TOOL} if self.tool_results else set())
        ids = {each.id for each in history or () if each.role in roles}
        contents = {(each.role, each.content) for each in given or ()}
        block = _without(
            block,
            lambda each: (
                each.id in ids or (each.scope.session_id == scope.session_id and (each.role, each.content) in contents)
            ),
        )
        done = MemoryRecallCompleted(
            scope=scope,
            at=_now(),
            query=query,
            recall_id=str(block.id),
            tokens_used=block.tokens_used,
            chunks_included=block.chunks_included,
            chunks_available=block.chunks_available,
            duration_ms=block.duration_ms,
            degraded="; ".join(filter(None, [block.degraded, *failures])) or None,
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
        recalled: RecallBlock | None = None,
    ) -> Receipt | None:
        """Hand the turn over, in parts if it is too large for one; a receipt of all. None where memory fails.

        What is forgotten after `recalled` was made covers it.
        """
        seconds = self.memory.settings.remember_budget_seconds + self.memory.settings.db_timeout_seconds + GRACE_SECONDS
        work = self._hand_over(messages, scope, tell, idempotency_key, recalled)

        def report(error: str) -> None:
            tell(MemoryUpdateFailed(scope=scope, at=_now(), kind="remember", error=error, attempts=1))

        return await self._tried("remember", work, seconds, report)

    async def _hand_over(
        self,
        messages: Sequence[Message],
        scope: Scope,
        tell: Callable[[MemoryEvent], None],
        idempotency_key: str | None,
        recalled: RecallBlock | None,
    ) -> Receipt | None:
        receipts: list[Receipt] = []
        for part, key in turn_builder.split_turn(messages, self.memory.settings, idempotency_key=idempotency_key):
            try:
                receipt = await self.memory.remember(
                    part, save=self.save, idempotency_key=key, recalled=recalled, **_labels(scope)
                )
            except errors.IdempotencyConflict:
                if not receipts:
                    raise
                break  # the prompt is the same: the rest of this answer, of which the first run's is stored already
            receipts.append(receipt)
            job = str(receipt.job_id)
            tell(MemoryUpdateQueued(scope=scope, at=_now(), job_id=job, message_count=len(part)))
        return joined(receipts) if receipts else None

    async def _block(self, query: str, scope: Scope) -> RecallBlock:
        block = await self.memory.recall(query, token_budget=self.token_budget, load=self.load, **_labels(scope))
        if self.strict and block.served_by is ServedBy.NONE:
            raise errors.StoreUnavailable("recall", block.degraded or "no database answers", "Repeat the run.")
        return block

    async def _history(self, scope: Scope, *, is_given: bool) -> Sequence[Episode]:
        wanted = not is_given and (self.load is None or "history" in self.load)
        if not wanted or scope.session_id is None or not self.history_messages:
            return ()
        if self.tool_results:
            return await self.memory.context_window(max_messages=self.history_messages, **_labels(scope))
        found = await self.memory.history(limit=self.history_messages, **_labels(scope))
        return [each for each in found if each.mark != UNDONE]

    async def _tried(self, what: str, work: Awaitable[T], seconds: float, report: Callable[[str], None]) -> T | None:
        try:
            async with asyncio.timeout(seconds):
                found = await work
        except Exception as exc:  # memory failing as a whole must not take the answer with it
            if self.strict:
                raise
            if not self.failing:
                is_named = isinstance(exc, errors.AftermindError)  # its text has the remedy
                log.warning(
                    "memory fails, the agent answers without it",
                    extra=_fields(what, exc),
                    exc_info=None if is_named else exc,
                )
            self.failing.add(what)
            report(f"{type(exc).__name__}: {exc}")
            return None
        self.failing.discard(what)
        return found


def _without(block: RecallBlock, is_given: Callable[[Episode], bool]) -> RecallBlock:
    """The block without the messages that the model is given as chat messages: each is in the prompt once.

    A message that the budget shortened stays: its line is not the whole message.
    """
    shown = [match.item for match in block.matches if isinstance(match.item, Episode)]
    return without_turns(block, {each.id for each in shown if is_given(each)})


def _fields(step: str, exc: Exception) -> dict[str, str]:
    """Fields of the log line. Text of other libraries' errors may have content."""
    return {"step": step, "reason": str(exc) if isinstance(exc, errors.AftermindError) else type(exc).__name__}


def _labels(scope: Scope) -> _Labels:
    return _Labels(
        namespace=scope.namespace, user_id=scope.user_id, session_id=scope.session_id, agent_id=scope.agent_id
    )


def _now() -> datetime:
    return datetime.now(UTC)
