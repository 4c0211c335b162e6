"""`Receipt`: the result of a turn that was handed over. Waiting for it is optional."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from aftermind import errors
from aftermind.events.types import MemoryEmbedded, MemoryEvent, MemoryFactsExtracted
from aftermind.ledger.protocol import Ledger
from aftermind.types import EpisodeId, Job, JobId, JobKind, JobState, Scope, Turn
from aftermind.types.job import TURN_FORGOTTEN, FollowUp

FIRST_POLL_SECONDS, MAX_POLL_SECONDS = (
    0.05,
    2.0,
)  # seconds between reads of the ledger, in case events were missed; doubles
LAST_READ_SECONDS = 0.25  # after a timeout: what it may be exceeded by
CLEAN_UP = 0.05  # seconds that an answer waits for its subscription to end


class Step(StrEnum):
    """How far a turn has come; each step follows the one before."""

    STORED = "stored"
    EMBEDDED = "embedded"
    EXTRACTED = "extracted"


class StepState(StrEnum):
    """What a step has come to. Only `WAITING` changes by itself."""

    DONE = "done"
    NOT_NEEDED = "not needed"
    WAITING = "waiting"
    DEAD = "dead"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptStatus:
    """State of a turn. `why` is the reason for waiting, or the error of a dead step; None if all is done."""

    stored: StepState
    embedded: StepState
    extracted: StepState
    why: str | None = None

    def of(self, step: Step) -> StepState:
        """The state of one step."""
        return {Step.STORED: self.stored, Step.EMBEDDED: self.embedded, Step.EXTRACTED: self.extracted}[step]


class News(Protocol):
    """Where events are heard, live."""

    def subscribe(self, owner: Scope, *, after: str | None = None) -> AsyncGenerator[MemoryEvent, None]:
        """The owner's events as they come."""

    async def past(self, owner: Scope, *, after: str, limit: int = 500) -> list[MemoryEvent]:
        """The owner's kept events after a cursor."""

    async def last(self, owner: Scope) -> str:
        """The cursor of the owner's newest event."""


Confirm = Callable[[Scope], Awaitable[None]]
IsPending = Callable[[Scope, JobId], Awaitable[bool]]
Follow = Callable[[str, str], tuple[Ledger, News, Confirm | None]]


class Receipt:
    """Receipt of one turn. `spooled`: it is on this host's disk until Redis is back, and as safe as that disk.

    The second receipt of one idempotency key follows the first turn. `confirm` makes a state that the primary has shown
    visible to recalls, or waits until it is on disk. `is_pending` separates a turn whose key was used before a forget
    from the forgotten one. `follow` gives ledger, news and `confirm` of the database that a tenant has moved to.

    A run of an `Agent` can be several turns (its prompt and its answer, with an `idempotency_key`): its receipt is of
    all of them, `job_id` of the last.
    """

    def __init__(
        self,
        turn: Turn,
        *,
        spooled: bool,
        ledger: Ledger,
        news: News,
        confirm: Confirm | None = None,
        is_pending: IsPending | None = None,
        follow: Follow | None = None,
    ) -> None:
        self.job_id: JobId = turn.job_id
        self.episode_ids: tuple[EpisodeId, ...] = turn.episode_ids
        self.spooled = spooled
        self._scope, self._keep = turn.scope, turn.keep
        self._is_pending = None if turn.idempotency_key is None else is_pending
        self._ledger, self._news, self._confirm, self._follow = ledger, news, confirm, follow
        self._earlier: tuple[Receipt, ...] = ()
        self._seen: ReceiptStatus | None = None  # by the last read that ended

    @property
    def _owner(self) -> Scope:
        return self._scope.owner  # created on demand: most receipts are dropped immediately

    def __repr__(self) -> str:
        return f"Receipt(job_id={self.job_id}, episodes={len(self.episode_ids)}, spooled={self.spooled})"

    async def stored(self, timeout: float | None = None) -> None:
        """Wait until the turn is committed, at most `timeout` seconds (None: as long as it takes).

        Raises `ReceiptTimeout` (the turn is safe all the same), `JobDead` where it is a dead letter, `Forgotten`.
        """
        await self._wait(Step.STORED, timeout)

    async def embedded(self, timeout: float | None = None) -> None:
        """Wait until its episodes have vectors, or need none. Raises as `stored`."""
        await self._wait(Step.EMBEDDED, timeout)

    async def extracted(self, timeout: float | None = None) -> None:
        """Wait until it has been mined for facts, or is not to be. Raises as `stored`."""
        await self._wait(Step.EXTRACTED, timeout)

    async def status(self) -> ReceiptStatus:
        """Its current state, without waiting. Raises `StoreUnavailable`."""
        found = [await part._read_status(is_whole=True) for part in (*self._earlier, self)]
        return ReceiptStatus(
            stored=_least([each.stored for each in found]),
            embedded=_least([each.embedded for each in found]),
            extracted=_least([each.extracted for each in found]),
            why=next((each.why for each in found if each.why is not None), None),
        )

    async def _read_status(self, *, is_whole: bool) -> ReceiptStatus:
        try:
            return await self._read(is_whole=is_whole)
        except errors.TenantMoved as exc:
            if exc.database is None or self._follow is None:
                raise
            self._ledger, self._news, self._confirm = self._follow(exc.namespace, exc.database)
            return await self._read(is_whole=is_whole)

    async def _read(self, *, is_whole: bool) -> ReceiptStatus:
        job = await self._ledger.job(self.job_id, owner=self._owner)
        if job is not None and job.state is JobState.FORGOTTEN and self._is_pending is not None:
            is_pending = await self._is_pending(self._owner, self.job_id)
            job = None if is_pending else await self._ledger.job(self.job_id, owner=self._owner)  # stored in between
        return await turn_status(self._ledger, job, keep=self._keep, spooled=self.spooled, is_whole=is_whole)

    async def _wait(self, step: Step, timeout: float | None) -> None:
        waiting = self
        try:
            async with asyncio.timeout(timeout):
                for part in (*self._earlier, self):
                    waiting = part
                    if not await part._is_over(step):
                        await part._wait_for_event(step)
        except TimeoutError as exc:
            raise errors.ReceiptTimeout(self.job_id, step, timeout or 0.0, await waiting._last_state(step)) from exc

    async def _wait_for_event(self, step: Step) -> None:
        heard = asyncio.Event()
        listening = asyncio.create_task(self._listen(step, heard))
        try:
            await self._resolve(step, heard)
        finally:
            listening.cancel()
            await asyncio.wait([listening], timeout=CLEAN_UP)

    async def _resolve(self, step: Step, heard: asyncio.Event) -> None:
        pause = FIRST_POLL_SECONDS
        while True:
            heard.clear()
            if await self._is_over(step):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await heard.wait()
            pause = min(pause * 2, MAX_POLL_SECONDS)

    async def _is_over(self, step: Step) -> bool:
        self._seen = None
        try:
            self._seen = status = await self._read_status(is_whole=step is not Step.STORED)
        except errors.StoreUnavailable:
            return False  # jobs wait for it as well
        state = status.of(step)
        if state is StepState.DEAD:
            raise errors.JobDead(self.job_id, status.why or "unknown")
        if state is StepState.FORGOTTEN:
            raise errors.Forgotten(self.job_id)
        if state is StepState.WAITING:
            return False
        if self._confirm is not None:  # the worker commits first and raises the watermark then
            try:
                await self._confirm(self._owner)
            except errors.StoreUnavailable:
                return False  # it was shown, and could not be written
        return True

    async def _listen(self, step: Step, heard: asyncio.Event) -> None:
        with suppress(errors.Unavailable):  # reads of the ledger continue without events
            async for event in self._news.subscribe(self._owner):
                if event.job_id == str(self.job_id) or (
                    step is not Step.STORED and isinstance(event, MemoryEmbedded | MemoryFactsExtracted)
                ):
                    heard.set()

    async def _last_state(self, step: Step) -> str:
        """The state that was read last; read now, for a moment, if the time was too short for one read."""
        status = self._seen
        if status is None:
            try:
                async with asyncio.timeout(LAST_READ_SECONDS):
                    status = await self.status()
            except (errors.Unavailable, TimeoutError):
                return "unknown, since the store does not answer in time"
        return f"{status.of(step)} ({status.why})" if status.why else str(status.of(step))


def joined(receipts: Sequence[Receipt]) -> Receipt:
    """One receipt of several turns: their messages, and each step once all of them have come to it."""
    whole = copy(receipts[-1])
    whole._earlier = tuple(receipts[:-1])
    whole.episode_ids = tuple(each for receipt in receipts for each in receipt.episode_ids)
    whole.spooled = any(receipt.spooled for receipt in receipts)
    return whole


async def turn_status(
    ledger: Ledger, job: Job | None, *, keep: frozenset[str], spooled: bool = False, is_whole: bool = True
) -> ReceiptStatus:
    """The status of a turn by its store job; of a dead letter that was replayed, by the job that replays it.

    With `is_whole` False the jobs that follow are not read: only `stored` counts.
    """
    last = job
    while last is not None and last.state is JobState.REPLAYED and (then := await ledger.successor(last)) is not None:
        last = then
    follow: Mapping[JobKind, FollowUp] = {}
    if is_whole and job is not None and last is not None and last.state is JobState.DONE:
        follow = await ledger.follow_ups(job.id, owner=job.scope.owner)
    return judge(last, follow, keep=keep, spooled=spooled)


def judge(
    job: Job | None, follow: Mapping[JobKind, FollowUp], *, keep: frozenset[str], spooled: bool = False
) -> ReceiptStatus:
    """The status of a turn by its store job and by the jobs that follow; a kind without a job is not needed. Pure."""
    if job is None:
        why = "on this host's disk, or pending" if spooled else "pending"
        return ReceiptStatus(stored=StepState.WAITING, embedded=StepState.WAITING, extracted=StepState.WAITING, why=why)
    is_forgotten = job.state is JobState.DONE and job.reason_code == TURN_FORGOTTEN
    if job.state is not JobState.DONE or is_forgotten:
        state = StepState.FORGOTTEN if is_forgotten else _step(job.state)
        why = job.reason_code or job.error or str(job.state)
        return ReceiptStatus(stored=state, embedded=state, extracted=state, why=why)
    embedded = _following(follow, JobKind.EMBED)
    extracted = _following(follow, JobKind.EXTRACT) if "facts" in keep else StepState.NOT_NEEDED
    open_ = [
        f"{kind} is {follow[kind].state}" + (f": {reason}" if (reason := follow[kind].reason) else "")
        for kind, state in ((JobKind.EMBED, embedded), (JobKind.EXTRACT, extracted))
        if state not in (StepState.DONE, StepState.NOT_NEEDED)
    ]
    return ReceiptStatus(stored=StepState.DONE, embedded=embedded, extracted=extracted, why="; ".join(open_) or None)


def _least(states: Sequence[StepState]) -> StepState:
    order = (StepState.DEAD, StepState.FORGOTTEN, StepState.WAITING, StepState.DONE, StepState.NOT_NEEDED)
    return min(states, key=order.index)


def _following(follow: Mapping[JobKind, FollowUp], kind: JobKind) -> StepState:
    return _step(follow[kind].state) if kind in follow else StepState.NOT_NEEDED


def _step(state: JobState) -> StepState:
    match state:
        case JobState.DONE:
            return StepState.DONE
        case JobState.DEAD | JobState.DISCARDED:
            return StepState.DEAD
        case JobState.FORGOTTEN:
            return StepState.FORGOTTEN
        case _:  # a replayed dead letter has a successor, which does its work
            return StepState.WAITING
