"""The `Ledger` protocol: jobs as rows, claimed by lease, closed behind a fence."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Protocol
from uuid import UUID

from aftermind.db.database_protocol import Transaction
from aftermind.types import Attempt, Job, JobId, JobKind, JobState, Json, Lease, LeaseToken, NewJob, Scope, Turn
from aftermind.types.job import FollowUp
from aftermind.types.session_order import Counted

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Unfinished work of one kind: how much may run now, for how long the oldest could, how much runs or waits.

    `oldest_wait` leaves out jobs that an operator has paused: no worker may claim them. Afterwards it leaves out the
    time of the last pause. `replays` are those of the runnable that a replay plan put in.
    """

    kind: JobKind
    runnable: int
    oldest_wait: timedelta | None
    running: int
    waiting: int
    dead: int
    replays: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unstored:
    """Accepted turns that no store job has committed yet: how many, their size, the age of the oldest."""

    turns: int = 0
    size_bytes: int = 0
    oldest: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt failed: a reason code for filters, a redacted text for people, a fingerprint for grouping.

    `answer` is a model's answer that could not be used, and the episodes that it was shown; a dead letter keeps it.
    """

    reason_code: str
    error_class: str
    error: str
    fingerprint: str
    model: str | None = None
    answer: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """How often a pending turn was tried before it was stored or given up: Redis counts that, where it has no rows."""

    attempts: int = 0
    lost_leases: int = 0  # of these, leases that expired without a result
    worker: str = ""  # the last one
    since: datetime = BEGINNING  # when the turn was accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUsage:
    """Cost of an attempt: model calls, input and output tokens, US dollars if there is a price, milliseconds.

    A call for several jobs is counted with the first of them, its tokens with each.
    """

    model: str | None = None
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    latency_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyUsage:
    """What the answers of a model have cost an owner in a day (UTC), by kind of job. Kept where jobs are pruned."""

    owner: Scope
    day: date
    kind: JobKind
    spent: ModelUsage
    is_cost_unknown: bool = False  # the model had no price: `spent.cost_usd` is 0


OnBuried = Callable[[Transaction, Sequence[tuple[Job, Failure]]], Awaitable[None]]


class Ledger(Protocol):
    """Times are the database's clock. Methods with `tx` take part in the caller's; the others have their own.

    All raise `StoreUnavailable` where the database does not answer.
    """

    # entering

    async def enqueue(self, tx: Transaction, jobs: Sequence[NewJob]) -> list[JobId]:
        """Put jobs in; the ids that are new. One whose effect key has an unfinished job already is left out."""

    async def debounce(
        self, tx: Transaction, jobs: Sequence[NewJob], *, quiet: timedelta, at_most: timedelta
    ) -> list[JobId]:
        """Put jobs in to run after `quiet`, or push those of the same effect key that still wait.

        One never waits longer than `at_most` after it was first put in. Where it is running already, a successor is
        put in behind it. For each, in order, the id of the job that will do the work. Effect keys are distinct.
        """

    async def record_stored(self, tx: Transaction, turns: Sequence[Turn]) -> frozenset[JobId]:
        """Insert `(job_id, store, done)` for turns accepted by Redis; the ids that were not there yet.

        A turn that is missing in the answer was stored before: write nothing for it.
        """

    async def record_forgotten(
        self, tx: Transaction, owner: Scope, ids: Sequence[JobId], *, closed: bool = False
    ) -> None:
        """Record that turns of an owner were forgotten before they were stored, so that receipts report it.

        A stored or dead-lettered one is not changed. `closed`: this transaction has just closed them as done.
        """

    async def content_hash(self, tx: Transaction, owner: Scope, job_id: JobId) -> str | None:
        """The hash of the content that an idempotency key was used for, while its turn exists and is not forgotten."""

    async def accept(self, tx: Transaction, turn: Turn, payload: bytes) -> bool:
        """Accept a turn as a queued store job (`accept="postgres"`); False if the job id exists."""

    async def accepted_order(self, tx: Transaction, scopes: Sequence[Scope]) -> Mapping[tuple[str, str], Counted]:
        """The order of sessions of one namespace at their last turn that is accepted and not stored yet.

        The keys are those of `session_columns`; sessions without such a turn are left out.
        """

    async def unstored(self, tx: Transaction, owner: Scope) -> list[bytes]:
        """Payloads of the owner's accepted turns that no store job has committed yet, oldest first."""

    async def measure_unstored(self, tx: Transaction, namespace: str, user: str | None, *, limit: int) -> Unstored:
        """The accepted and not yet stored turns of a namespace, or of one of its users (`Scope.user_column`).

        Counts up to `limit` turns.
        """

    async def list_turn_payloads(self, tx: Transaction, owner: Scope) -> list[tuple[JobId, bytes]]:
        """Store jobs of the owner with their payload: accepted by Postgres and not stored yet, or dead. Locks them.

        Those that a worker closes at this very moment are left out.
        """

    async def rewrite_turn(self, tx: Transaction, job_id: JobId, payload: bytes | None) -> None:
        """Put another payload in a store job's place; None where all of its turn was forgotten."""

    # working

    async def claim(
        self,
        kind: JobKind,
        *,
        worker: str,
        for_: timedelta,
        limit: int = 1,
        size_bytes: int | None = None,
        weight: int | None = None,
        ids: Sequence[JobId] | None = None,
        replays: bool = False,
        alone: bool = False,
        except_namespaces: Sequence[str] = (),
        claim_id: UUID | None = None,
    ) -> list[Lease]:
        """Claim up to `limit` runnable jobs of a kind (of `ids` only, if given), fairest and oldest first.

        With `size_bytes`, their turns have at most that size together; a larger turn is claimed alone. With `weight`,
        namespaces have equal shares of it (`NewJob.weight`), and the claim ends with the job that reaches it.

        The attempt is counted now, not at the end, so that a crash uses one up. A job is skipped while another one of
        its kind and session runs. Jobs that lost a lease are claimed with others that lost as many, and fewer of them
        (`aftermind.types.job.together`); those on their last chance only by a process without other jobs, which passes
        `alone`: others get nothing while one is next. Unknown ids return nothing. Jobs of `except_namespaces` are
        skipped. Jobs of a replay plan are claimed only with `replays`: live traffic never waits behind them.
        If the answer is lost, `return_claim` releases what a claim of that `claim_id` took.
        """

    async def last_chance_is_next(
        self, kind: JobKind, *, replays: bool = False, except_namespaces: Sequence[str] = ()
    ) -> bool:
        """Whether the next runnable job of the kind can only be claimed with `alone`."""

    async def heartbeat(self, leases: Sequence[Lease], *, for_: timedelta) -> frozenset[LeaseToken]:
        """Renew; the tokens that still hold."""

    async def hold(self, tx: Transaction, leases: Sequence[Lease]) -> frozenset[JobId]:
        """The ids of those whose token still fits: neither finished nor forgotten before the transaction ends."""

    async def finish_all(self, tx: Transaction, leases: Sequence[Lease]) -> frozenset[JobId]:
        """Close those as done whose token still fits; their ids. The caller leaves out the effect of the others."""

    async def finish(
        self, tx: Transaction, lease: Lease, *, spent: ModelUsage | None = None, note: str | None = None
    ) -> None:
        """Close the job as done, in the effect's own transaction. Raises `LeaseLost` where the token does not fit."""

    async def save_answer(self, lease: Lease, answer: Mapping[str, Json], *, spent: ModelUsage) -> None:
        """Keep a model's answer with the job, so that a retry neither pays nor asks again. Raises `LeaseLost`."""

    async def spend(self, costs: Sequence[tuple[Lease, ModelUsage]]) -> None:
        """Count the cost of model calls without a kept answer, even if the lease was lost."""

    async def retry(self, lease: Lease, failure: Failure, *, after: timedelta, spent: ModelUsage | None = None) -> None:
        """Hand back a failed attempt, to run again `after` from now. Whether there is another try is the caller's."""

    async def snooze(self, lease: Lease, *, after: timedelta, why: str) -> None:
        """Hand back without a failure: an outage, a budget or a pause. Gives the attempt back.

        Keeps the wait and its reason for timelines, the last `MAX_WAITS` of a job.
        """

    async def mark_dead(
        self, tx: Transaction | None, lease: Lease, failure: Failure, *, spent: ModelUsage | None = None
    ) -> None:
        """Make a dead letter of it, payload whole; a failed dry run is discarded."""

    async def dead_letter_turn(
        self,
        tx: Transaction,
        job_id: JobId,
        owner: Scope,
        payload: bytes,
        failure: Failure,
        *,
        tried: Tried | None = None,
    ) -> bool:
        """Park a pending turn, or bytes that cannot be read, as a dead letter; False where it was stored after all.

        Its tries become rows of `attempts`, the last one with the failure.
        """

    async def note_lost_leases(self, tx: Transaction, lost: Mapping[JobId, Tried]) -> None:
        """Record that workers crashed with these turns, which are stored now: as attempts, of the store job."""

    async def return_leases(self, leases: Sequence[Lease], *, why: str, uncount_loss: bool = False) -> frozenset[JobId]:
        """Release several jobs like `snooze`, in one call and without a wait; those whose token fitted.

        With `uncount_loss` (the database was away when they were to be released), the loss of a lease that has expired
        since is not counted any more, and a job that was dead-lettered for it waits again; an attempt of another worker
        continues. These are returned as well.
        """

    async def return_claim(self, claim_id: UUID, *, worker: str, why: str) -> int:
        """Release like `snooze` what a claim took whose answer never arrived; returns the number."""

    async def expire_leases(self, *, on_buried: OnBuried | None = None) -> Counter[JobKind]:
        """Make jobs with an expired lease runnable, counting a lost lease; dead-letter those with too many. Returns the
        numbers by kind.

        `on_buried` is called in the same transaction with the new dead letters, if any, and the reason.
        """

    async def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Delete finished jobs, never dead letters, that ended so long ago; how many, at most `limit`."""

    # queries

    async def job(self, job_id: JobId, *, owner: Scope | None = None) -> Job | None:
        """One job, or None. `owner` is its owner, if the caller has it: an agent cannot see other tenants' jobs."""

    async def successor(self, job: Job) -> Job | None:
        """The newest job that replays this one, a dead letter; None if there is none."""

    async def jobs(
        self,
        *,
        owner: Scope | None = None,
        states: Sequence[JobState] = (),
        kinds: Sequence[JobKind] = (),
        limit: int = 100,
    ) -> list[Job]:
        """Jobs that fit, the latest first."""

    async def attempts(self, job_id: JobId) -> list[Attempt]:
        """Every claim of a job, in order."""

    async def backlog(self) -> list[Backlog]:
        """Unfinished work by kind."""

    async def spending(self, namespace: str, *, since: date | None, owner: Scope | None = None) -> list[DailyUsage]:
        """What models have cost a namespace, or one of its owners, from that day (UTC) on, None: the ledger's today.
        By day, owner, kind and model.

        Counted when an answer is kept, so what a job did with it plays no part.
        """

    async def follow_ups(self, job_id: JobId, *, owner: Scope | None = None) -> dict[JobKind, FollowUp]:
        """The follow-up jobs of a store job, for a receipt, by their kind."""
