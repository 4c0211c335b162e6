"""Every public error, in one tree.

AftermindError
├── InvalidInput            an argument is invalid; nothing was accepted
│   ├── InvalidScope        a namespace, user, session or agent id
│   ├── InvalidMessage      role, content, metadata or time of a message
│   ├── MessageTooLarge     a message over the size limit
│   ├── InvalidQuery        a recall or search
│   ├── InvalidFact, InvalidBlock, InvalidItem, InvalidFilter, InvalidFeedback
│   ├── InvalidKey, InvalidWebhook, InvalidGoldSet
│   └── InvalidSettings     a URL, a name or a combination of settings
│       ├── NoStoreNamed    neither a setting nor a running embedded stack names a store
│       ├── KeyFileLost     a key file is missing, although rows made with its key exist
│       └── ExtraMissing    a package that an extra installs is not installed
├── Unavailable             a component does not answer; the same call may succeed later
│   ├── StoreUnavailable
│   │   ├── StatementAborted the database answers, but ended this statement (timeout, lock, memory)
│   │   │   └── TenantMoved the tenant is moving to another database, or has moved
│   │   └── StoreInUse      a store of one process that another process has opened
│   ├── IndexUnavailable    an external vector index
│   ├── RedisUnavailable (UnknownSentinelService), BrokerUnavailable, SpoolUnavailable, ArchiveUnavailable, KeyMissing
│   ├── ModelUnavailable    timeout, connection or 5xx of a model provider
│   │   └── RateLimited     429, with the provider's Retry-After
│   ├── ProviderPaused      no request was sent: the budget is spent, or the breaker is open
│   ├── ReceiptTimeout      the write is safe, but was not completed within the timeout
│   ├── DrainTimeout        the same, of all writes of a user
│   └── StackError          a component of the embedded stack
├── Refused                 valid, but not permitted or not possible
│   ├── QueueFull, SpoolFull
│   ├── TooManyListeners    one web process has no free slot
│   ├── TooManyRequests     an API key exceeds its rate at one web process
│   ├── BudgetExhausted     a namespace has used its model budget
│   ├── WrongRole           a Postgres role with too many rights, or too few
│   │   └── UnboundRole, RoleMissing, NotAllowed
│   ├── ModelRefused, BadModelRequest, BadModelAnswer, ModelKeyRefused
│   ├── KeyRefused          the API key is missing, unknown, revoked or expired
│   ├── RightMissing        the key does not allow this
│   ├── GroupReadOnly       a reader of a group writes to it
│   ├── PauseOfOperator     an API key may not end it
│   ├── NotThere            the object does not exist, or belongs to another tenant
│   ├── JobDead             the awaited job is a dead letter
│   └── Forgotten           the awaited content was forgotten
├── Conflict                the current state does not allow the call
│   ├── LeaseLost, BlockConflict, CheckpointResumed, DimensionMismatch, EmbedderMismatch, SchemaOutdated
│   ├── IndexMismatch       a vector index of another program, dimension, metric or embedder
│   ├── NoReembedding, ReembeddingConflict
│   ├── GenerationOutOfRange Redis holds an erasure number that was never given
│   ├── StoreDamaged        stored bytes that cannot be read
│   ├── IdempotencyConflict an idempotency key was used for another turn
│   ├── ReplayConflict      a replay plan is in a state that does not allow the call
│   ├── NoSample            a replay plan has no sample that ran without writing
│   ├── Unreadable          encrypted content was changed, or moved to another row
│   │   └── PlainTextRefused plain text in a namespace whose content is encrypted
│   └── UnknownPayload      bytes of a version that this release does not support
└── Bug                     a fault of Aftermind; please report it
"""

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any
from uuid import UUID


class AftermindError(Exception):
    """Root of everything that Aftermind raises on purpose."""

    usage: Any = None  # Any: `llm.protocols.Usage` of model calls that were paid for although this came of them
    model: str | None = None  # the model whose call failed


class InvalidInput(AftermindError):
    """An argument is invalid; nothing was accepted."""


class Unavailable(AftermindError):
    """A component does not answer; the same call may succeed later."""


class Refused(AftermindError):
    """The call is valid, but not permitted or not possible."""


class Conflict(AftermindError):
    """The current state does not allow the call."""


class Bug(AftermindError):
    """A fault of Aftermind itself; please report it with the text of the error."""


class _InvalidField(InvalidInput):
    """An invalid value: `field` names it, `why` gives the reason or the remedy."""

    def __init__(self, field: str, value: object, why: str) -> None:
        self.field, self.value, self.why = field, value, why
        super().__init__(f"{field}={_shorten(value)}: {why}")


class InvalidScope(_InvalidField):
    """An invalid namespace, user, session or agent id."""


class InvalidMessage(InvalidInput):
    """A message with an invalid role, content, metadata or time."""

    def __init__(self, field: str, value: object, why: str, *, index: int | None = None) -> None:
        self.field, self.value, self.why, self.index = field, value, why, index
        where = "" if index is None else f"message {index}: "
        super().__init__(f"{where}{field}={_shorten(value)}: {why}")


class MessageTooLarge(InvalidMessage):
    """A message over `settings.message_max_bytes`."""

    def __init__(self, size_bytes: int, limit_bytes: int, *, index: int | None = None) -> None:
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes
        why = f"the limit is {limit_bytes:,} bytes. Split the message, or raise AFTERMIND_MESSAGE_MAX_BYTES."
        super().__init__("size_bytes", size_bytes, why, index=index)


class InvalidQuery(_InvalidField):
    """A recall or search with an invalid text, mode, filter or budget."""


class InvalidFilter(InvalidQuery):
    """An invalid filter of dead letters, jobs or replay plans."""


class InvalidFact(_InvalidField):
    """A fact without subject, predicate or object, or with an end before its start."""


class InvalidBlock(_InvalidField):
    """A block with an invalid name or size."""


class InvalidItem(_InvalidField):
    """An item with an invalid path, key, value, vector or time to live."""


class InvalidFeedback(_InvalidField):
    """Feedback without ids, with too many, or about what the block does not show."""


class InvalidKey(_InvalidField):
    """An API key with an invalid name, rights or expiry."""


class InvalidWebhook(_InvalidField):
    """A webhook with an invalid address, event kinds or description."""


class InvalidGoldSet(_InvalidField):
    """A file of questions and evidence that cannot be read, or a gold set that is too small."""


class InvalidSettings(_InvalidField):
    """An invalid setting or combination of settings."""


class NoStoreNamed(InvalidSettings):
    """Neither a setting nor a running embedded stack names a store."""

    def __init__(self, state_dir: object) -> None:
        super().__init__(
            "AFTERMIND_DATABASE_URL",
            None,
            f"no store is named, and no embedded stack is up in {state_dir} (AFTERMIND_STATE_DIR; "
            "`aftermind up` uses its own folder). Set AFTERMIND_DATABASE_URL: sqlite:/path/memory.db needs "
            "nothing else, postgresql://… needs AFTERMIND_BROKER_URL too. Or start a stack by `aftermind up`.",
        )


class ExtraMissing(InvalidSettings):
    """A package that an extra installs is not installed; `what` needs it. `python` is the version that it needs."""

    def __init__(self, extra: str, package: str, what: str = "", *, python: tuple[int, int] = (0, 0)) -> None:
        self.extra, self.package, self.what, self.python = extra, package, what, python
        needed = f", and {what} needs it" if what else ""
        remedy = f"Install it by: pip install 'aftermind[{extra}]'"
        if sys.version_info < python:  # pip skips the package silently
            own, wanted = (".".join(str(part) for part in each) for each in (sys.version_info[:2], python))
            remedy = f"It needs Python {wanted} or later, and this is Python {own}. {remedy} there"
        super().__init__("package", package, f"not installed{needed}. {remedy}.")


class KeyFileLost(InvalidSettings):
    """A key file is missing, although the database holds rows that were made with its key."""

    def __init__(self, setting: str, path: str) -> None:
        self.path = path
        super().__init__(
            setting,
            path,
            "the file is missing, and rows in the database were made with its key. Restore it from a backup, or set "
            f"AFTERMIND_{setting.upper()} (or _FILE) to the key that the other processes use. A new key cannot "
            "decrypt or verify the existing rows; to use a new one anyway, write it into the file.",
        )


class StoreUnavailable(Unavailable):
    """The database did not answer within its deadline, or failed with an error that a retry resolves."""

    def __init__(self, what: str, why: str, hint: str = "Is Postgres running? Run `aftermind doctor`.") -> None:
        self.what, self.why = what, why
        super().__init__(f"{what}: {why.removesuffix('.')}. {hint}")


class StatementAborted(StoreUnavailable):
    """The database answers, but it ended this statement: a timeout, a lock, memory, or a conflict with another
    transaction.
    """

    def __init__(self, what: str, why: str) -> None:
        hint = "Other statements are served. Retry; if it repeats, check pg_stat_activity for long transactions."
        super().__init__(what, why, hint)


class TenantMoved(StatementAborted):
    """A tenant moves to another database of the map, or has moved there.

    `database` is the one where the tenant is served; None while the move pauses its writes. `Memory` repeats a call of
    a tenant that has moved; a turn of one whose writes are paused waits.
    """

    def __init__(self, namespace: str, *, database: str | None, other: str) -> None:
        self.namespace, self.database = namespace, database
        why = f"namespace {namespace!r} " + ("is served by" if database else "is being moved to or from")
        hint = "Repeat the call." if database else "Its writes are paused for some seconds: repeat the call then."
        StoreUnavailable.__init__(self, "move", f"{why} database {other!r}", hint)


class StoreInUse(StoreUnavailable):
    """Another process, or another `Memory` of this one, has a store that serves one at a time, or holds its lock."""

    def __init__(self, what: str) -> None:
        hint = "Close the other process or `Memory`; several processes share a sqlite:, sql+… or postgresql:// store."
        super().__init__(what, "it is in use", hint)


class IndexUnavailable(Unavailable):
    """A vector index does not answer. Turns are stored and recalled without it, and it takes them over later."""

    def __init__(self, index: str, why: str) -> None:
        self.index, self.why = index, why
        reason = why.removesuffix(".")
        super().__init__(f"the index {index} does not answer: {reason}. It is updated when it answers again.")


class RedisUnavailable(Unavailable):
    """Redis does not answer, or refuses to write (OOM, READONLY, LOADING, MISCONF)."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"Redis: {why.removesuffix('.')}. Run `aftermind doctor` to check every component.")


class UnknownSentinelService(RedisUnavailable):
    """The sentinels answer, but do not watch the service that the URL names."""

    def __init__(self, service: str, sentinel: str) -> None:
        self.service, self.sentinel = service, sentinel
        why = f"sentinel {sentinel} watches no service {service!r}; correct its name at the end of the sentinel:// URL"
        super().__init__(why)


class BrokerUnavailable(Unavailable):
    """The Celery broker does not accept a doorbell; the turn is safe, and its doorbell is sent later."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"broker: {why}. The reconciler re-notifies workers when it is back.")


class SpoolUnavailable(Unavailable):
    """The spool cannot store a turn while Redis is unavailable: disk full, no permission, or an I/O error."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(
            f"spool {path}: {why}. The turn was not accepted. Free disk space, fix the permissions, or restart Redis."
        )


class ArchiveUnavailable(Unavailable):
    """A folder or an S3-compatible store cannot read or write a file. Retention has then deleted nothing."""

    def __init__(self, where: str, why: str, remedy: str) -> None:
        self.where, self.why = where, why
        super().__init__(f"archive {where}: {why}. {remedy}")


class ModelUnavailable(Unavailable):
    """A model provider timed out, dropped the connection or answered 5xx."""

    def __init__(self, provider: str, why: str) -> None:
        self.provider, self.why = provider, why
        super().__init__(f"{provider}: {why}")


class RateLimited(ModelUnavailable):
    """A model provider answered 429; `retry_after` is the value of its header, or None."""

    def __init__(self, provider: str, retry_after: timedelta | None = None) -> None:
        self.retry_after = retry_after
        wait = "no Retry-After" if retry_after is None else f"retry after {retry_after.total_seconds():g} s"
        super().__init__(provider, f"rate limited ({wait})")


class KeyMissing(Unavailable):
    """A namespace is encrypted and this process lacks its key; the namespace's jobs wait."""

    def __init__(self, namespace: str, key_id: str, why: str) -> None:
        self.namespace, self.key_id, self.why = namespace, key_id, why
        remedy = "Set AFTERMIND_ENCRYPTION_KEY (or _FILE) to the key with which `aftermind encrypt` was run."
        super().__init__(f"content of namespace {namespace!r} is encrypted with key {key_id}: {why}. {remedy}")


class ProviderPaused(Unavailable):
    """All processes pause requests to a model provider; `wait` is the remaining time.

    `is_large_only`: requests with little text are sent.
    """

    def __init__(self, provider: str, why: str, wait: timedelta, *, is_large_only: bool = False) -> None:
        self.provider, self.why, self.wait, self.is_large_only = provider, why, wait, is_large_only
        super().__init__(f"{provider} is paused for {wait.total_seconds():.1f} s: {why}")


class ReceiptTimeout(Unavailable):
    """The awaited step was not completed in time. The turn is safe: do not send it again."""

    def __init__(self, job_id: UUID, step: str, timeout: float, state: str) -> None:
        self.job_id, self.step, self.timeout, self.state = job_id, step, timeout, state
        super().__init__(f"{step} of job {job_id} not completed within {timeout:g} s; it is {state}. The turn is safe.")


class DrainTimeout(Unavailable):
    """Work for a user was not completed in time: `pending_turns` are not stored yet, `jobs` are later steps.

    Everything that was accepted is safe.
    """

    def __init__(self, user_id: str | None, timeout: float, *, pending_turns: int, jobs: int) -> None:
        self.user_id, self.timeout, self.pending_turns, self.jobs = user_id, timeout, pending_turns, jobs
        super().__init__(
            f"user {user_id!r}: after {timeout:g} s, pending turns: {pending_turns}, unfinished jobs: {jobs}. "
            "Nothing is lost. Allow more time than AFTERMIND_EXTRACT_QUIET_SECONDS; if that is not enough, see whether "
            "workers run: `aftermind status`."
        )


class StackError(Unavailable):
    """A component of the embedded stack fails to start or stops."""

    def __init__(self, component: str, why: str, remedy: str) -> None:
        self.component, self.why, self.remedy = component, why, remedy
        super().__init__(f"{component}: {why}. {remedy}")


class QueueFull(Refused):
    """Pending turns exceed `settings.pending_max_*`, and `settings.when_full` is `refuse`."""

    def __init__(self, what: str, value: float, limit: float) -> None:
        self.what, self.value, self.limit = what, value, limit
        super().__init__(f"{what} is {value:g}, the limit is {limit:g}. Add store workers, or retry later.")


class SpoolFull(Refused):
    """Redis is unavailable and the local spool is full."""

    def __init__(self, path: str, size_bytes: int, limit_bytes: int) -> None:
        self.path, self.size_bytes, self.limit_bytes = path, size_bytes, limit_bytes
        super().__init__(
            f"spool {path} is full ({size_bytes:,} of {limit_bytes:,} bytes) and Redis is unavailable. "
            "Restart Redis, or raise AFTERMIND_SPOOL_MAX_BYTES."
        )


class TooManyListeners(Refused):
    """A web process has its maximum number of event listeners."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"{limit:,} listeners are connected to this process, which is the limit. Retry later, add a process, "
            "or raise AFTERMIND_WEB_MAX_LISTENERS."
        )


class TooManyRequests(Refused):
    """An API key exceeds its limit at a web process; `retry_after` is in seconds."""

    def __init__(self, what: str, limit: float, *, retry_after: float) -> None:
        self.what, self.limit, self.retry_after = what, limit, retry_after
        super().__init__(f"the limit is {limit:,g} {what}. Retry later, or raise the AFTERMIND_WEB_*_PER_KEY settings.")


class BudgetExhausted(Refused):
    """A namespace has used its model budget of this period; its jobs wait."""

    def __init__(self, namespace: str, what: str, limit: float) -> None:
        self.namespace, self.what, self.limit = namespace, what, limit
        super().__init__(f"namespace {namespace!r} reached its budget of {limit:g} {what}; its jobs wait.")


class ModelRefused(Refused):
    """A model declined to answer because of a policy; a retry does not help."""

    def __init__(self, provider: str, why: str) -> None:
        self.provider, self.why = provider, why
        super().__init__(f"{provider} refused: {why}")


class BadModelRequest(Refused):
    """A model provider rejected the request as invalid (400, 404, 413, 422).

    `path` is that of the requested URL, without its query; empty where the SDK does not report it. `answer` is the
    provider's own message. It may quote the request, so it is no part of this error's message.
    `evidence` is what a dead letter keeps of it.
    """

    evidence: Mapping[str, Any] | None = None  # Any: JSON

    def __init__(self, provider: str, status: int, why: str, *, path: str = "", answer: str | None = None) -> None:
        self.provider, self.status, self.why, self.path, self.answer = provider, status, why, path, answer
        super().__init__(f"{provider}{path} answered {status}: {why}")


class BadModelAnswer(Refused):
    """A model's answer is unusable: it does not parse, is truncated, or does not match the schema.

    `answer` is its text, which is no part of the message. `evidence` is what a dead letter keeps of it.
    """

    evidence: Mapping[str, Any] | None = None  # Any: JSON

    def __init__(self, provider: str, why: str, *, answer: str | None = None) -> None:
        self.provider, self.why, self.answer = provider, why, answer
        super().__init__(f"{provider} returned an unusable answer: {why}")


class ModelKeyRefused(Refused):
    """A provider's key is missing or was refused (401, 403); jobs of that kind pause until it is corrected."""

    def __init__(self, provider: str, why: str) -> None:
        self.provider, self.why = provider, why
        super().__init__(f"{provider}: {why}. Set a valid key; jobs of this kind wait until then.")


class WrongRole(Refused):
    """A database role with too many rights or too few."""


class UnboundRole(WrongRole):
    """The database role of an agent or a worker bypasses the isolation of tenants."""

    def __init__(self, role: str, what: str, why: str) -> None:
        self.role, self.what, self.why = role, what, why
        super().__init__(
            f"{what}: role {role!r} is refused because {why}, so row-level security would not isolate tenants. "
            "Connect as a member of aftermind_app (agents) or aftermind_relay (workers), which `aftermind migrate` "
            "creates: CREATE ROLE me LOGIN PASSWORD '…' IN ROLE aftermind_app. For a single tenant on your own "
            "machine, set AFTERMIND_ALLOW_OWNER=true."
        )


class RoleMissing(WrongRole):
    """The schema needs a role that does not exist, and this role may not create it."""

    def __init__(self, role: str) -> None:
        self.role = role
        super().__init__(
            f"role {role} does not exist and the current role may not create roles. Ask an administrator to run "
            f"CREATE ROLE {role} NOLOGIN; then migrate again."
        )


class NotAllowed(WrongRole):
    """The database role lacks a privilege, or the row belongs to another tenant."""

    def __init__(
        self,
        what: str,
        why: str,
        remedy: str = (
            "Operations on every tenant (all dead letters, replay plans) need the role aftermind_relay: set "
            "AFTERMIND_RELAY_URL."
        ),
    ) -> None:
        self.what, self.why, self.remedy = what, why, remedy
        super().__init__(f"{what}: {why}. {remedy}")


class KeyRefused(Refused):
    """The API key is missing, unknown, revoked or expired; the message does not reveal which."""

    def __init__(
        self,
        why: str,
        remedy: str = "Send `Authorization: Bearer am_…`; create a key with `aftermind api-keys create NAME`.",
    ) -> None:
        self.why = why
        super().__init__(f"{why} {remedy}")


class RightMissing(Refused):
    """The API key is valid but lacks a right, or the stream token is for other events."""

    def __init__(self, right: str, has: str, *, why: str = "") -> None:
        self.right, self.has = right, has
        super().__init__(why or f"this needs an API key with the right '{right}'; the key has {has}.")


class PauseOfOperator(Refused):
    """An operator paused the jobs by the command line; an API key ends only pauses that keys have made."""

    def __init__(self, summary: str) -> None:
        self.summary = summary
        super().__init__(
            f"{summary}. An API key ends only pauses that keys have made; `aftermind jobs resume` ends this one."
        )


class NotThere(Refused):
    """The object does not exist in this namespace; the message does not reveal whether another namespace has it."""

    def __init__(self, what: str, value: object) -> None:
        self.what, self.value = what, value
        super().__init__(f"{what} {_shorten(value)} does not exist in this namespace.")


class GroupReadOnly(Refused):
    """A member that may only read a group writes to it."""

    def __init__(self, group: str, user_id: str) -> None:
        self.group, self.user_id = group, user_id
        super().__init__(
            f"user {_shorten(user_id)} is a reader of group {_shorten(group)}. Add the user to the group again, "
            "with the role 'writer'."
        )


class JobDead(Refused):
    """The awaited job is a dead letter: it has used all attempts. Its payload is kept."""

    def __init__(self, job_id: UUID, reason: str) -> None:
        self.job_id, self.reason = job_id, reason
        super().__init__(f"job {job_id} is a dead letter ({reason}); see `aftermind dead-letters get {job_id}`.")


class Forgotten(Refused):
    """The awaited content was forgotten before the job was done."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        super().__init__(f"the content of job {job_id} was forgotten.")


class LeaseLost(Conflict):
    """Another worker holds the lease; this worker's effect was rolled back."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        super().__init__(f"the lease on job {job_id} has ended; the effect was rolled back.")


class BlockConflict(Conflict):
    """A block has changed since the version that the caller read."""

    def __init__(self, name: str, expected: int, found: int) -> None:
        self.name, self.expected, self.found = name, expected, found
        super().__init__(f"block {name!r} is at version {found}, not {expected}. Read it again and repeat the edit.")


class CheckpointResumed(Conflict):
    """A paused run was resumed by another call: it continues there."""

    def __init__(self, run_id: str, resumed_at: datetime) -> None:
        self.run_id, self.resumed_at = run_id, resumed_at
        super().__init__(
            f"run {_shorten(run_id)} was resumed at {resumed_at:%Y-%m-%d %H:%M:%S} UTC. If that run was lost, save its "
            "state again, then resume it."
        )


class GenerationOutOfRange(Conflict):
    """Redis holds a number of an erasure that is far beyond those that the database has given; nothing was erased."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"{why}. Another program wrote the hash `generation` (with AFTERMIND_REDIS_PREFIX before it) in Redis: "
            "delete that key and repeat the call; workers write it again."
        )


class IdempotencyConflict(Conflict):
    """The user has used this idempotency key for a turn with other content or of another session."""

    def __init__(self, key: str | None) -> None:
        self.field, self.key = "idempotency_key", key
        super().__init__(
            f"idempotency_key={_shorten(key)}: it was used for a turn with other content or of another session. A key "
            "belongs to one turn: repeat that turn unchanged, or use a new key."
        )


class DimensionMismatch(Conflict):
    """The embedder's dimension differs from that of the stored vectors."""

    def __init__(self, stored: int, wanted: int) -> None:
        self.stored, self.wanted = stored, wanted
        super().__init__(
            f"stored vectors have {stored} dimensions, this embedder's have {wanted}. Set AFTERMIND_EMBEDDER to the "
            "stored embedder (`aftermind reembed status` shows it), or run `aftermind reembed start`."
        )


class EmbedderMismatch(Conflict):
    """The stored vectors are of another embedder than the configured one; the two are never compared."""

    def __init__(self, stored: object, configured: object) -> None:
        self.stored, self.configured = stored, configured
        super().__init__(
            f"stored vectors were made by {stored}, this process is configured with {configured}. Run `aftermind "
            f"reembed start` to re-embed, or set AFTERMIND_EMBEDDER to the stored embedder."
        )


class IndexMismatch(Conflict):
    """A collection that does not fit: it belongs to another program, or has another dimension, metric or embedder."""

    def __init__(self, index: str, what: str, found: object, wanted: object) -> None:
        self.index, self.what, self.found, self.wanted = index, what, found, wanted
        super().__init__(
            f"the index {index} has {what} {found!s}, this memory needs {wanted!s}. Name another collection; or run "
            "`aftermind reindex --recreate`, which deletes only a collection of Aftermind."
        )


class StoreDamaged(Conflict):
    """Stored bytes cannot be read. Nothing was changed."""

    def __init__(self, store: str, why: str) -> None:
        self.store, self.why = store, why
        super().__init__(f"{store} is damaged: {why}. Restore it from a backup.")


class NoReembedding(Conflict):
    """No re-embedding exists that could be shown, cut over, rolled back or dropped."""

    def __init__(self) -> None:
        super().__init__("no re-embedding exists. Start one with `aftermind reembed start`.")


class ReembeddingConflict(Conflict):
    """The re-embedding is in a state that does not allow the call."""

    def __init__(self, why: str, remedy: str) -> None:
        self.why, self.remedy = why, remedy
        super().__init__(f"{why}. {remedy}")


class SchemaOutdated(Conflict):
    """This release needs another version of the database schema."""

    def __init__(self, found: str | None, wanted: str) -> None:
        self.found, self.wanted = found, wanted
        super().__init__(
            f"the schema is at {found or 'no revision'}, this release needs {wanted}. Run `aftermind migrate`."
        )


class ReplayConflict(Conflict):
    """A replay plan is in a state that does not allow the call."""

    def __init__(self, plan_id: str, state: str, wanted: str) -> None:
        self.plan_id, self.state, self.wanted = plan_id, state, wanted
        super().__init__(
            f"replay plan {plan_id} is {state}: it cannot be {wanted}. Create a new plan for the remaining jobs."
        )


class NoSample(Conflict):
    """A replay plan has no sample that ran without writing: none was run, or no job of it extracts facts."""

    def __init__(self, plan_id: str, *, has_extractions: bool) -> None:
        self.plan_id, self.has_extractions = plan_id, has_extractions
        why = "none was run. `aftermind replay create --sample` runs one when it creates a plan."
        if not has_extractions:
            why = "none of its jobs extracts facts, and only extractions can run without writing. Start it without one."
        super().__init__(f"replay plan {plan_id} has no sample: {why}")


class Unreadable(Conflict):
    """Encrypted content that its key does not decrypt: it was changed, or copied from another row or version."""

    def __init__(
        self,
        table: str,
        row: str,
        why: str = "it was changed in the database, or copied from another row or an older version of this one",
    ) -> None:
        self.table, self.row, self.why = table, row, why
        super().__init__(f"content of {table} {row}: {why}. Restore the row from a backup, or forget it by its id.")


class PlainTextRefused(Unreadable):
    """Plain text where a namespace has encrypted content alone: it was written by other means than Aftermind."""

    def __init__(self, table: str, row: str) -> None:
        super().__init__(table, row, "it is plain text, and all content of this namespace is encrypted")


class UnknownPayload(Conflict):
    """Bytes of a kind or version that this release does not support; they are kept unchanged."""

    def __init__(self, what: str, version: object) -> None:
        self.what, self.version = what, version
        super().__init__(f"{what} of version {version!r} is not supported by this release. Upgrade this process.")


class ForeignPayload(Conflict):
    """The payload of a pending entry names another job or owner than the entry; it is not stored."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"the {what} in the payload is not that of its entry. A process other than an agent wrote it.")


def _shorten(value: object) -> str:
    """At most 80 characters of any value, however large or deeply nested."""
    try:
        text = repr(value[:80] if isinstance(value, str) else str(value) if isinstance(value, PurePath) else value)
    except (RecursionError, ValueError):  # nested too deep, or an integer of more digits than Python prints
        return f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."
