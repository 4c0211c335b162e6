"""The services of a `Memory`, and operations that sub-APIs share."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from aftermind import errors
from aftermind.api.audit import Audit
from aftermind.api.encryption import Encryption
from aftermind.api.erasure_delivery_to_redis import Deliveries
from aftermind.api.erasure_scan import ErasureScan
from aftermind.api.outbox_per_accept_mode import Outboxes
from aftermind.api.reembed import Reembeddings
from aftermind.db.api_keys import InMemoryApiKeys, PostgresApiKeys
from aftermind.db.audit.log import Trail
from aftermind.db.database_protocol import Database, Transaction
from aftermind.db.encryption.keyring import Vault
from aftermind.db.webhook_protocol import WebhookRows
from aftermind.freshness import EffectCommitter, ReplicaLease
from aftermind.indexes.client import IndexClient
from aftermind.ledger.inmemory.dead_letters import InMemoryDeadLetters
from aftermind.ledger.inmemory.replays import InMemoryReplays
from aftermind.ledger.job_admin_protocol import JobOperations
from aftermind.ledger.postgres.dead_letters import DeadLetters
from aftermind.ledger.postgres.replay_plans import Replays
from aftermind.ledger.protocol import Ledger
from aftermind.llm.factory import find_provider_pause
from aftermind.llm.rate_limit_and_circuit_breaker import ProviderLimiter, ProviderState
from aftermind.outbox.spool_deployment import Deployment
from aftermind.recall import Recall, Routing
from aftermind.receipt import Confirm, News
from aftermind.settings import Settings
from aftermind.stores.protocol import Store
from aftermind.stores.retention_protocol import RetentionStore
from aftermind.telemetry.recall_counts import RecallCounts
from aftermind.types import EmbedderIdentity, JobKind, Scope, StoredEmbedders
from aftermind.types.job import MODEL_KINDS
from aftermind.types.scope import GROUP_PREFIX
from aftermind.types.tombstone import Generation
from aftermind.wire.pending import Pending
from aftermind.wire.redis.client import RedisLink

T = TypeVar("T")


async def nothing_to_do() -> None:
    """A store that each connection opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The services of a `Memory`. Those with a default are None if jobs run in this process.

    `embedders` returns those of the store, and the configured one of this process.
    """

    settings: Settings
    namespace: str
    db: Database
    store: Store
    ledger: Ledger
    events: News
    recall: Recall
    routing: Routing
    outboxes: Outboxes
    effects: EffectCommitter
    webhook_rows: WebhookRows
    operations: Database  # reads of operators: of every tenant if the role allows it
    job_operations: JobOperations
    operations_namespace: str | None  # the tenant that its role is limited to; None: it reads every tenant's jobs
    stored_keys: PostgresApiKeys | InMemoryApiKeys
    dead_letters: DeadLetters | InMemoryDeadLetters
    replays: Replays | InMemoryReplays
    policies: RetentionStore
    audit: Audit
    encryption: Encryption
    reembedding: Reembeddings
    erasure_scan: ErasureScan
    check_schema: Callable[[], Awaitable[None]]
    identify_embedder: Callable[[], Awaitable[EmbedderIdentity]]  # the configured one; raises `InvalidSettings`
    embedders: Callable[[], Awaitable[tuple[StoredEmbedders | None, EmbedderIdentity | None]]] | None = None
    redis: RedisLink | None = None
    pending: Pending | None = None
    confirm: Callable[[Scope], Awaitable[None]] | None = None  # see `Receipt`
    lease: ReplicaLease | None = None
    deliveries: Deliveries | None = None
    generation: Generation = field(default_factory=Generation)
    recall_counts: RecallCounts | None = None
    index: IndexClient | None = None  # the external vector index
    trail: Trail | None = None
    vault: Vault | None = None
    deployment: Deployment | None = None  # the one whose spool files this process sends
    gate: ProviderLimiter = field(default_factory=ProviderLimiter)
    open_store: Callable[[], Awaitable[None]] = nothing_to_do  # before its first use; earlier jobs continue
    adopt_embedder: Callable[[], Awaitable[None]] = nothing_to_do  # record that of a store without vectors
    wake: Callable[[], None] = lambda: None  # begin what was put into the ledger, where this process works it off
    serve_jobs: Callable[[], Awaitable[None]] = nothing_to_do  # run jobs of other processes, until cancelled
    wake_courier: Callable[[], None] = lambda: None  # post events to webhooks, where this process does it
    refused_texts: Callable[[], int] = lambda: 0  # since the start: changed, replaced, or plain where it may not be
    closing: Sequence[Callable[[], Awaitable[None]]] = ()

    def scope(
        self,
        *,
        namespace: str | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        agent_id: str | None = None,
    ) -> Scope:
        """The scope of a call.

        Raises `InvalidScope`, also for the owner of a group (only members reach its rows), and for a namespace that is
        placed in another database.
        """
        if isinstance(user_id, str) and user_id.startswith(GROUP_PREFIX):
            why = f"ids that begin with {GROUP_PREFIX!r} belong to groups. Pass group= and the id of a member."
            raise errors.InvalidScope("user_id", user_id, why)
        chosen = self.namespace if namespace is None else namespace
        self.settings.check_placed_here(chosen)
        return Scope(namespace=chosen, user_id=user_id, session_id=session_id, agent_id=agent_id)

    def follow_move(self, namespace: str, database: str) -> tuple[Ledger, News, Confirm | None]:
        """What a receipt reads in the database that a namespace has moved to."""
        self.settings.follow_move(namespace, database)
        assert self.settings.moved.parts is not None  # of a memory with several databases
        parts: Parts = self.settings.moved.parts(database)
        return parts.ledger, parts.events, parts.confirm

    async def find_pause(self, kind: JobKind, namespace: str) -> str | None:
        """An operator's pause of these jobs, in words for tenants; only the relay sees those of all namespaces."""
        async with self.operations.transaction(namespace=self.operations_namespace, read_only=True) as tx:
            pauses = await self.job_operations.pauses(tx)
        found = next((each for each in pauses if each.covers(kind, namespace)), None)
        return None if found is None else f"{kind} jobs are paused by an operator since {found.created_at:%F %R} UTC"

    async def find_provider_pause(self, kind: JobKind) -> str | None:
        """The pause of the provider that these jobs call, in words for tenants."""
        states = await self.provider_states() if kind in MODEL_KINDS else []
        return "the model provider is paused" if find_provider_pause(kind, self.settings, states) else None

    async def provider_states(self) -> list[ProviderState]:
        """Every provider that was asked lately; none while Redis does not answer."""
        try:
            return await self.gate.states()
        except errors.Unavailable:
            return []

    async def check_index(self, *, seconds: float) -> None:
        """Raise `IndexMismatch` or `InvalidSettings` if the index cannot serve this memory; checked until it answers.

        Waits for `seconds` at most: one that does not answer is no error.
        """
        if self.index is not None:
            await self.index.check(self.identify_embedder, seconds=seconds)

    async def commit_and_wake(self, owner: Scope, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Commit work for an owner, and begin the jobs that it put in, if they run in this process."""
        result = await self.effects.commit(owner, work)
        self.wake()
        return result

    async def close(self) -> None:
        """Close all services, the outboxes first: their remaining turns are sent or stay on disk."""
        await self.outboxes.close()
        if self.recall_counts is not None:
            await self.recall_counts.close()
        if self.deliveries is not None:
            await self.deliveries.task.cancel()
        for close in self.closing:
            await close()
