"""Every error a user can meet, in one tree.

AftermindError
├── InvalidInput            the call is wrong; nothing was handed over
│   ├── InvalidScope        a namespace, user, session or agent id
│   ├── InvalidMessage      role, content, metadata or time of a message
│   ├── MessageTooLarge     a message over the size limit
│   ├── InvalidQuery        a recall or search
│   ├── InvalidFact, InvalidBlock, InvalidFilter, InvalidKey, InvalidWebhook
│   └── InvalidSettings     a URL, a name or a combination of settings
├── Unavailable             something does not answer; the same call may work later
│   ├── StoreUnavailable, RedisUnavailable, BrokerUnavailable, SpoolUnavailable, ArchiveUnavailable, KeyMissing
│   ├── ModelUnavailable    timeout, connection or 5xx of a model provider
│   │   └── RateLimited     429, with the provider's Retry-After
│   ├── ProviderPaused      not asked at all: its budget is spent, or its breaker is open
│   ├── ReceiptTimeout      the write is safe, but not done within the time asked for
│   └── StackError          a component of the embedded stack
├── Refused                 understood, and declined
│   ├── QueueFull, SpoolFull
│   ├── TooManyListeners    of one web process
│   ├── TooManyRequests     of one key, to one web process
│   ├── BudgetExhausted     a namespace spent what it may spend on models
│   ├── WrongRole           a Postgres role with too many rights, or too few
│   │   └── UnboundRole, RoleMissing, NotAllowed
│   ├── ModelRefused, BadModelRequest, BadModelAnswer, ModelKeyRefused
│   ├── KeyRefused          the service was shown no key, or none that opens anything
│   ├── RightMissing        the key does not allow this
│   ├── NotThere            no such thing, or it is another tenant's
│   ├── JobDead             the awaited job is a dead letter
│   └── Forgotten           what was awaited was forgotten meanwhile
├── Conflict                the state is not the one the caller believed
│   ├── LeaseLost, BlockConflict, DimensionMismatch, EmbedderMismatch, SchemaOutdated
│   ├── NoReembedding, ReembeddingConflict
│   ├── IdempotencyConflict an idempotency key that was used for another turn
│   ├── ReplayConflict      a replay plan that cannot go where it was sent
│   ├── Unreadable          encrypted content that was changed, or moved to another row
│   └── UnknownPayload      bytes of a version this release does not know
└── Bug                     ours; please report it
"""

from datetime import timedelta
from typing import Any
from uuid import UUID


class AftermindError(Exception):
    """Root of everything that Aftermind raises on purpose."""

    usage: Any = None  # Any: `llm.base.Usage` of model calls that were paid for although this came of them


class InvalidInput(AftermindError):
    """The call is wrong as it stands; nothing was handed over."""


class Unavailable(AftermindError):
    """Something does not answer; the same call may work later."""


class Refused(AftermindError):
    """Understood, and declined."""


class Conflict(AftermindError):
    """The state is not the one that the caller believed."""


class Bug(AftermindError):
    """A fault of Aftermind itself; please report it with the text of the error."""


class _InvalidField(InvalidInput):
    """A value that cannot be used: `field` names it, `why` says what to do."""

    def __init__(self, field: str, value: object, why: str) -> None:
        self.field, self.value, self.why = field, value, why
        super().__init__(f"{field}={_shown(value)}: {why}")


class InvalidScope(_InvalidField):
    """A namespace, user, session or agent id that cannot be used."""


class InvalidMessage(InvalidInput):
    """A message whose role, content, metadata or time cannot be used."""

    def __init__(self, field: str, value: object, why: str, *, index: int | None = None) -> None:
        self.field, self.value, self.why, self.index = field, value, why, index
        where = "" if index is None else f"message {index}: "
        super().__init__(f"{where}{field}={_shown(value)}: {why}")


class MessageTooLarge(InvalidMessage):
    """A message over `settings.message_max_bytes`."""

    def __init__(self, size_bytes: int, limit_bytes: int, *, index: int | None = None) -> None:
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes
        why = f"the limit is {limit_bytes:,} bytes. Split the message, or raise AFTERMIND_MESSAGE_MAX_BYTES."
        super().__init__("size_bytes", size_bytes, why, index=index)


class InvalidQuery(_InvalidField):
    """A recall or search whose text, mode, filter or budget cannot be used."""


class InvalidFilter(InvalidQuery):
    """A filter of dead letters, jobs or replay plans."""


class InvalidFact(_InvalidField):
    """A fact without subject, predicate or object, or with times the wrong way round."""


class InvalidBlock(_InvalidField):
    """A block whose name or size cannot be used."""


class InvalidKey(_InvalidField):
    """A key to the service that cannot be made: its name, its rights or its time."""


class InvalidWebhook(_InvalidField):
    """A webhook whose address, kinds of events or description cannot be used."""


class InvalidSettings(_InvalidField):
    """A setting, or a combination of settings, that cannot work."""


class StoreUnavailable(Unavailable):
    """The database does not answer within its deadline, or could not run a statement that it will run the next time."""

    def __init__(self, what: str, why: str, hint: str = "Is Postgres running? Ask `aftermind doctor`.") -> None:
        self.what, self.why = what, why
        super().__init__(f"{what}: {why}. {hint}")


class RedisUnavailable(Unavailable):
    """Redis does not answer, or refuses to write (OOM, READONLY, LOADING, MISCONF)."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"Redis: {why}. `aftermind doctor` looks at every component.")


class BrokerUnavailable(Unavailable):
    """The Celery broker does not take a doorbell; what was handed over is safe and rings later."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"broker: {why}. The reconciler rings again when it is back.")


class SpoolUnavailable(Unavailable):
    """The local disk does not take a turn while Redis is away: no room, no right, a fault."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"the spool {path}: {why}. The turn was not taken; give the folder room, or bring Redis back.")


class ArchiveUnavailable(Unavailable):
    """The archive of a retention policy does not take a file; nothing was deleted."""

    def __init__(self, where: str, why: str) -> None:
        self.where, self.why = where, why
        super().__init__(f"the archive {where}: {why}. Nothing was deleted; the next run tries again.")


class ModelUnavailable(Unavailable):
    """A model provider timed out, dropped the connection or answered 5xx."""

    def __init__(self, provider: str, why: str) -> None:
        self.provider, self.why = provider, why
        super().__init__(f"{provider}: {why}")


class RateLimited(ModelUnavailable):
    """A model provider answered 429; `retry_after` is its own word, where it gave one."""

    def __init__(self, provider: str, retry_after: timedelta | None = None) -> None:
        self.retry_after = retry_after
        wait = "no Retry-After" if retry_after is None else f"retry after {retry_after.total_seconds():g} s"
        super().__init__(provider, f"rate limited ({wait})")


class KeyMissing(Unavailable):
    """Content of a namespace is encrypted, and this process cannot open it: its jobs wait until it can."""

    def __init__(self, namespace: str, key_id: str, why: str) -> None:
        self.namespace, self.key_id, self.why = namespace, key_id, why
        remedy = "Set AFTERMIND_ENCRYPTION_KEY (or _FILE) to what `aftermind encrypt` was run with."
        super().__init__(f"content of namespace {namespace!r} is encrypted with key {key_id}: {why}. {remedy}")


class ProviderPaused(Unavailable):
    """A model provider is not asked for a while, by any process: `wait` is how long."""

    def __init__(self, provider: str, why: str, wait: timedelta) -> None:
        self.provider, self.why, self.wait = provider, why, wait
        super().__init__(f"{provider} is not asked for {wait.total_seconds():.1f} s: {why}")


class ReceiptTimeout(Unavailable):
    """The awaited step was not done in time. The write itself is safe: nothing has to be sent again."""

    def __init__(self, job_id: UUID, step: str, timeout: float, state: str) -> None:
        self.job_id, self.step, self.timeout, self.state = job_id, step, timeout, state
        super().__init__(f"{step} of job {job_id} not done within {timeout:g} s; it is {state}. The turn is safe.")


class StackError(Unavailable):
    """A component of the embedded stack cannot be started or does not stay up."""

    def __init__(self, component: str, why: str, remedy: str) -> None:
        self.component, self.why, self.remedy = component, why, remedy
        super().__init__(f"{component}: {why}. {remedy}")


class QueueFull(Refused):
    """More is pending than `settings.pending_max_*` allows, and the caller chose to be told."""

    def __init__(self, what: str, value: float, limit: float) -> None:
        self.what, self.value, self.limit = what, value, limit
        super().__init__(f"{what} is {value:g}, the limit is {limit:g}. Add store workers, or retry later.")


class SpoolFull(Refused):
    """Redis is away and the local spool holds all that it may."""

    def __init__(self, path: str, size_bytes: int, limit_bytes: int) -> None:
        self.path, self.size_bytes, self.limit_bytes = path, size_bytes, limit_bytes
        super().__init__(
            f"the spool {path} holds {size_bytes:,} of {limit_bytes:,} bytes and Redis is away. "
            "Bring Redis back, or raise AFTERMIND_SPOOL_MAX_BYTES."
        )


class TooManyListeners(Refused):
    """A web process has as many listeners to events as it may."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"{limit:,} listeners are connected to this process, and no more may be. Try again later, add a process, "
            "or raise AFTERMIND_WEB_MAX_LISTENERS."
        )


class TooManyRequests(Refused):
    """A key uses as much of a web process as it may; `retry_after` is in seconds."""

    def __init__(self, what: str, limit: float, *, retry_after: float) -> None:
        self.what, self.limit, self.retry_after = what, limit, retry_after
        super().__init__(
            f"this key may have {limit:,g} {what} in this process. Retry later, or raise the AFTERMIND_WEB_* limit."
        )


class BudgetExhausted(Refused):
    """A namespace has spent what it may spend on models in this period; its jobs wait."""

    def __init__(self, namespace: str, what: str, limit: float) -> None:
        self.namespace, self.what, self.limit = namespace, what, limit
        super().__init__(f"namespace {namespace!r} reached its budget of {limit:g} {what}; its jobs wait.")


class ModelRefused(Refused):
    """A model declined to answer on grounds of policy; trying again would not help."""

    def __init__(self, provider: str, why: str) -> None:
        self.provider, self.why = provider, why
        super().__init__(f"{provider} refused: {why}")


class BadModelRequest(Refused):
    """A model provider says that the request itself is wrong (400, 404, 413, 422)."""

    def __init__(self, provider: str, status: int, why: str) -> None:
        self.provider, self.status, self.why = provider, status, why
        super().__init__(f"{provider} answered {status}: {why}")


class BadModelAnswer(Refused):
    """A model's answer could not be used: unparsable, truncated, or not of the schema."""

    def __init__(self, provider: str, why: str) -> None:
        self.provider, self.why = provider, why
        super().__init__(f"{provider} gave an answer that cannot be used: {why}")


class ModelKeyRefused(Refused):
    """A provider's key is missing or was refused (401, 403); jobs of that kind pause until it is mended."""

    def __init__(self, provider: str, why: str) -> None:
        self.provider, self.why = provider, why
        super().__init__(f"{provider}: {why}. Set a valid key; jobs of this kind wait until then.")


class WrongRole(Refused):
    """A database role with too many rights, or too few."""


class UnboundRole(WrongRole):
    """The database role of an agent or a worker could see every tenant's rows, or lift what keeps them apart."""

    def __init__(self, role: str, what: str, why: str) -> None:
        self.role, self.what, self.why = role, what, why
        super().__init__(
            f"{what}: role {role!r} is refused, for {why}, and tenants would be kept apart by our own WHERE alone. "
            "Connect as a member of aftermind_app (agents) or aftermind_relay (workers), which `aftermind migrate` "
            "makes: CREATE ROLE me LOGIN PASSWORD '…' IN ROLE aftermind_app. On a machine of your own, with one "
            "tenant, AFTERMIND_ALLOW_OWNER=true takes it as it is."
        )


class RoleMissing(WrongRole):
    """A role that the schema needs is not there, and this one may not make it."""

    def __init__(self, role: str) -> None:
        self.role = role
        super().__init__(
            f"the role {role} does not exist and this one may not create roles. Let an administrator run "
            f"CREATE ROLE {role} NOLOGIN; then migrate again."
        )


class NotAllowed(WrongRole):
    """The database role has no right to what was asked, or the row is another tenant's."""

    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(
            f"{what}: {why}. What concerns every tenant (dead letters of all, replay plans) needs the role "
            "aftermind_relay: set AFTERMIND_RELAY_URL."
        )


class KeyRefused(Refused):
    """The service was shown no key, or one that is unknown, revoked or expired. Which of them is not told."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"{why} Send `Authorization: Bearer am_…`; `aftermind keys create NAME` makes one.")


class RightMissing(Refused):
    """The key is good, and does not allow this."""

    def __init__(self, right: str, has: str) -> None:
        self.right, self.has = right, has
        super().__init__(f"this needs a key with the right {right!r}; the one shown has {has}.")


class NotThere(Refused):
    """No such thing in this namespace; whether another one has it is not told."""

    def __init__(self, what: str, value: object) -> None:
        self.what, self.value = what, value
        super().__init__(f"there is no {what} {_shown(value)} here.")


class JobDead(Refused):
    """The awaited job is out of tries and lies among the dead letters, payload whole."""

    def __init__(self, job_id: UUID, reason: str) -> None:
        self.job_id, self.reason = job_id, reason
        super().__init__(f"job {job_id} is a dead letter ({reason}); see `aftermind dead show {job_id}`.")


class Forgotten(Refused):
    """What was awaited has been forgotten meanwhile."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        super().__init__(f"what job {job_id} was to keep has been forgotten.")


class LeaseLost(Conflict):
    """Somebody else holds the job by now; this worker's effect was rolled back."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        super().__init__(f"the lease on job {job_id} is no longer ours; its effect was rolled back.")


class BlockConflict(Conflict):
    """A block was changed since the version that the caller read."""

    def __init__(self, name: str, expected: int, found: int) -> None:
        self.name, self.expected, self.found = name, expected, found
        super().__init__(f"block {name!r} is at version {found}, not {expected}. Read it again and repeat the edit.")


class IdempotencyConflict(Conflict):
    """An idempotency key that this user has used for another turn: other content, or another session."""

    def __init__(self, key: str | None) -> None:
        self.field, self.key = "idempotency_key", key
        super().__init__(
            f"idempotency_key={_shown(key)}: it was used for a turn with other content, or of another session. A key "
            "belongs to one turn: repeat that turn as it was, or use a new key."
        )


class DimensionMismatch(Conflict):
    """The embedder's vectors do not fit the stored ones."""

    def __init__(self, stored: int, wanted: int) -> None:
        self.stored, self.wanted = stored, wanted
        super().__init__(
            f"stored vectors have {stored} dimensions, this embedder's have {wanted}. Set AFTERMIND_EMBEDDER to the "
            "stored embedder (`aftermind reembed status` shows it), or run `aftermind reembed start`."
        )


class EmbedderMismatch(Conflict):
    """Stored vectors were made by another embedder than the one that is configured; they are never compared."""

    def __init__(self, stored: object, configured: object) -> None:
        self.stored, self.configured = stored, configured
        super().__init__(
            f"stored vectors were made by {stored}, this process is configured with {configured}. Run `aftermind "
            f"reembed start` to re-embed, or set AFTERMIND_EMBEDDER to the stored embedder."
        )


class NoReembedding(Conflict):
    """There is no re-embedding to show, cut over, roll back or drop."""

    def __init__(self) -> None:
        super().__init__("no re-embedding is under way. `aftermind reembed start` begins one.")


class ReembeddingConflict(Conflict):
    """The re-embedding is not in the state that was asked for."""

    def __init__(self, why: str, remedy: str) -> None:
        self.why, self.remedy = why, remedy
        super().__init__(f"{why}. {remedy}")


class SchemaOutdated(Conflict):
    """The database's schema is not the one that this release reads."""

    def __init__(self, found: str | None, wanted: str) -> None:
        self.found, self.wanted = found, wanted
        super().__init__(
            f"the schema is at {found or 'nothing'}, this release needs {wanted}. Run `aftermind migrate`."
        )


class ReplayConflict(Conflict):
    """A replay plan is not in a state that allows what was asked of it."""

    def __init__(self, plan_id: str, state: str, wanted: str) -> None:
        self.plan_id, self.state, self.wanted = plan_id, state, wanted
        super().__init__(f"replay plan {plan_id} is {state}: it cannot be {wanted}. Make a new plan for what is left.")


class Unreadable(Conflict):
    """Encrypted content that its key does not open: it was changed, or moved there from another row."""

    def __init__(self, table: str, row: str) -> None:
        self.table, self.row = table, row
        why = "it was changed in the database, or somebody moved it there from another row"
        super().__init__(f"content of {table} {row}: {why}. Restore the row from a backup, or forget it by its id.")


class UnknownPayload(Conflict):
    """Bytes of a kind or version that this release cannot read; they are kept as they are."""

    def __init__(self, what: str, version: object) -> None:
        self.what, self.version = what, version
        super().__init__(f"{what} of version {version!r} is not known to this release. Upgrade the reader first.")


class ForeignPayload(Conflict):
    """A turn whose own job or owner is not that of the entry that carries it; nothing of it is stored."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"the {what} in the payload is not that of its entry. A process other than an agent wrote it.")


def _shown(value: object) -> str:
    """At most 80 characters of a value that may be of any size, depth or number of digits."""
    try:
        text = repr(value[:80] if isinstance(value, str) else value)
    except (RecursionError, ValueError):  # nested too deep, or an integer of more digits than Python prints
        return f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."
