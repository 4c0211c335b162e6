"""`memory.jobs`: the background jobs of a user, and the state of a turn from any process."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from aftermind import errors
from aftermind.api.memory_services import Parts
from aftermind.api.turn_builder import KINDS
from aftermind.receipt import ReceiptStatus, StepState, turn_status
from aftermind.types import Job, JobId, JobKind, JobState, Scope
from aftermind.types.whole_number import check_whole_number

MAX_JOBS = 10_000
PAGE_JOBS = 500


class Jobs:
    """The jobs of a user. Every call raises `InvalidScope`, `InvalidFilter` and `StoreUnavailable`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def list(
        self,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        states: Sequence[JobState | str] = (),
        kinds: Sequence[JobKind | str] = (),
        limit: int = 100,
    ) -> list[Job]:
        """Jobs of the user, the latest first; of these states and kinds where any are named."""
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        check_whole_number(limit, most=MAX_JOBS, error=errors.InvalidFilter)
        try:
            wanted, of = [JobState(each) for each in states], [JobKind(each) for each in kinds]
        except ValueError as exc:
            why = f"states are {', '.join(JobState)}; kinds are {', '.join(JobKind)}."
            raise errors.InvalidFilter("states, kinds", [*states, *kinds], why) from exc
        return await self._parts.ledger.jobs(owner=owner, states=wanted, kinds=of, limit=limit)

    async def get(self, job_id: JobId | str, *, user_id: str | None = None, namespace: str | None = None) -> Job | None:
        """One job of the user, or None. A turn in Redis has no row yet: ask for its `status`."""
        return await self._find(self._parts.scope(namespace=namespace, user_id=user_id), _id(job_id))

    async def status(
        self, job_id: JobId | str, *, user_id: str | None = None, namespace: str | None = None
    ) -> ReceiptStatus | None:
        """State of a user's turn, by the job id of its receipt; None if there is no such turn."""
        owner, wanted = self._parts.scope(namespace=namespace, user_id=user_id), _id(job_id)
        is_waiting = await is_pending(self._parts, owner, wanted)  # before the ledger: turns move from there to it
        job = await self._find(owner, wanted)
        if job is None and not is_waiting:
            return None
        if job is not None and job.state is JobState.FORGOTTEN and is_waiting:
            job = None  # its idempotency key was used before a forget
        return await self._with_pause(owner, await turn_status(self._parts.ledger, job, keep=KINDS))

    async def _with_pause(self, owner: Scope, status: ReceiptStatus) -> ReceiptStatus:
        """The status, with an operator's pause as the reason for waiting, or with a provider's as one more."""
        steps = ((status.stored, JobKind.STORE), (status.embedded, JobKind.EMBED), (status.extracted, JobKind.EXTRACT))
        kind = next((kind for state, kind in steps if state is StepState.WAITING), None)
        if kind is None:
            return status
        pause = await self._parts.find_pause(kind, owner.namespace)
        if pause is None and (of_provider := await self._parts.find_provider_pause(kind)) is not None:
            pause = f"{status.why}; {of_provider}" if status.why else of_provider
        return status if pause is None else replace(status, why=pause)

    async def _find(self, owner: Scope, job_id: JobId) -> Job | None:
        found = await self._parts.ledger.job(job_id, owner=owner)
        return found if found is not None and found.scope.owner == owner else None


async def is_pending(parts: Parts, owner: Scope, job_id: JobId) -> bool:
    """Whether a turn waits in Redis or on this host; False where Redis does not answer."""
    if any(turn.job_id == job_id for turn in await parts.outboxes.local_turns(owner)):
        return True
    if parts.pending is None:
        return False
    skip = 0
    while True:
        try:
            read = await parts.pending.read(owner, limit=PAGE_JOBS, skip=skip)
        except errors.RedisUnavailable:
            return False
        if any(turn.job_id == job_id for turn in read.turns):
            return True
        seen = len(read.turns) + read.unreadable
        if seen < PAGE_JOBS:
            return False
        skip += seen


def _id(given: object) -> JobId:
    try:
        return JobId(given if isinstance(given, UUID) else UUID(str(given)))
    except ValueError as exc:
        raise errors.InvalidFilter("job_id", given, "it is the id of a receipt or a job.") from exc
