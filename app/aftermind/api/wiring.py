"""Composition root: builds the parts of a `Memory` from addresses and settings. Nothing here connects."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from aftermind import errors
from aftermind.api.address_resolution import Addresses, spool_deployment
from aftermind.api.audit import Audit
from aftermind.api.audit_anchors import witnesses
from aftermind.api.encryption import Encryption
from aftermind.api.erasure_delivery_to_redis import Deliveries
from aftermind.api.erasure_scan import ErasureScan
from aftermind.api.journalled_tables import make_codec
from aftermind.api.memory_services import Parts, nothing_to_do
from aftermind.api.outbox_per_accept_mode import Accept, Outboxes
from aftermind.api.reembed import Reembeddings
from aftermind.api.reembed_inprocess import InProcessVectors
from aftermind.api.reembed_postgres import open_reembeddings
from aftermind.api.retention.policies import DuePolicies, Retention
from aftermind.api.turn_builder import limits
from aftermind.api.webhooks_inprocess import InProcessCourier
from aftermind.db import metric_history, webhook_deliveries, webhook_deliveries_inmemory
from aftermind.db.api_keys import InMemoryApiKeys, PostgresApiKeys
from aftermind.db.audit.log import Trail
from aftermind.db.database_protocol import Database, NoDatabase, Transaction
from aftermind.db.encryption.keyfiles import audit_keys, master_keys
from aftermind.db.encryption.keyring import Vault
from aftermind.db.engine import PostgresDatabase
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.db.record_store_journals.group_commit_writer import JournalWriter
from aftermind.events.bus import EventBus
from aftermind.events.inmemory import LocalBus
from aftermind.freshness import EffectCommitter, ReplicaLease, WatermarkDelivery
from aftermind.indexes.client import IndexClient
from aftermind.indexes.factory import open_index
from aftermind.ledger.inmemory import job_admin as local_job_admin
from aftermind.ledger.inmemory.dead_letters import InMemoryDeadLetters
from aftermind.ledger.inmemory.ledger import InMemoryLedger
from aftermind.ledger.inmemory.replays import InMemoryReplays
from aftermind.ledger.postgres import job_admin as postgres_job_admin
from aftermind.ledger.postgres.dead_letters import DeadLetters
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.ledger.postgres.replay_plans import Replays
from aftermind.ledger.protocol import Ledger
from aftermind.ledger.replay_overrides import OverrideRules
from aftermind.llm import factory
from aftermind.llm.profile_schema import profile_schema
from aftermind.llm.protocols import Embedder, Extractor, embedder_identity
from aftermind.llm.provider_connections import Providers, make_limiter
from aftermind.outbox import factory as outbox_wiring
from aftermind.outbox.inmemory import OpenWork
from aftermind.outbox.protocol import Outbox
from aftermind.outbox.spool_deployment import Deployment
from aftermind.outbox.turn_positions import Positions
from aftermind.ranking.tokenizer import check_language
from aftermind.recall import ReadNode, Recall, Routing
from aftermind.recall.pending_candidates import PendingTurns
from aftermind.recall.pipeline import Follow, LocalTurns, UnstoredTurns
from aftermind.recall.query_embeddings import QueryVectors
from aftermind.recall.reranker import Reranker
from aftermind.settings import Settings
from aftermind.stores.inmemory import InMemoryStore
from aftermind.stores.inmemory.erasure_scan import search_rows
from aftermind.stores.inmemory.retention import InMemoryRetention
from aftermind.stores.postgres import PostgresStore
from aftermind.stores.postgres.retention import PostgresRetention
from aftermind.stores.postgres.search import READ_SETTINGS, PostgresSearch
from aftermind.stores.protocol import Store
from aftermind.stores.search import EpisodeSearch
from aftermind.telemetry.logger import get_logger
from aftermind.telemetry.recall_counts import RecallCounts
from aftermind.types import EmbedderIdentity, Scope, ServedBy, StoredEmbedders, Turn
from aftermind.types.tombstone import Generation
from aftermind.wire.pending import Pending
from aftermind.wire.pending_shards import open_pending
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from aftermind.wire.watermark import Watermarks

log = get_logger(__name__)

POLICY_SECONDS = 1.0  # that a retention policy works before the jobs of this process continue


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What agents and workers share of one database and one Redis."""

    keys: Keys
    vault: Vault
    store: PostgresStore
    events: EventBus
    pending: Pending
    delivery: WatermarkDelivery


def open_database(
    settings: Settings,
    url: str,
    *,
    name: str,
    session_settings: Mapping[str, str] | None = None,
    check_namespace: Callable[[str], None] | None = None,
) -> PostgresDatabase:
    """A database configured by the settings; the server shows `name` as the application."""
    return PostgresDatabase(
        url,
        timeout_seconds=settings.db_timeout_seconds,
        connect_timeout_seconds=settings.db_connect_timeout_seconds,
        pool_size=settings.db_pool_size,
        application_name=name,
        allow_owner=settings.allow_owner,
        pooled=settings.database_pooler,
        session_settings=session_settings,
        check_namespace=check_namespace,
    )


def open_backend(
    settings: Settings,
    db: PostgresDatabase,
    link: RedisLink,
    providers: Providers,
    *,
    mark_after: float = 0.0,
) -> Backend:
    """The parts of an agent or a worker; its model clients share their limits through the same Redis."""
    check_languages(settings)
    keys = link.keys(settings.redis_prefix)
    providers.gate.bind(link, keys)
    vault = Vault(master_keys(settings.encryption_key, settings.state_dir))
    return Backend(
        keys=keys,
        vault=vault,
        store=PostgresStore(language_for=settings.language_for, vault=vault),
        events=EventBus(db, link, keys, mark_after=mark_after),
        pending=open_pending(link, keys, Generation()),
        delivery=WatermarkDelivery(db, Watermarks(link, keys)),
    )


def check_languages(settings: Settings) -> None:
    """Raise `InvalidSettings` for a language without a stemmer: no turn could be stored."""
    check_language("AFTERMIND_LANGUAGE", settings.language)
    for rule, language in settings.namespace_languages.items():
        check_language(f"AFTERMIND_NAMESPACE_LANGUAGES ({rule})", language)


def open_parts(
    where: Addresses,
    settings: Settings,
    *,
    namespace: str | None = None,
    embedder: str | Embedder | None = None,
    extractor: str | Extractor | None = None,
    reranker: Reranker | None = None,
    open_work: OpenWork | None = None,
) -> Parts:
    """The parts of a memory. `open_work` makes what a Celery worker does in place of running the jobs of a store
    itself. Raises `InvalidSettings`, also for an `extractor` of a store whose jobs run in workers.
    """
    has_workers = not where.is_in_process or (where.broker is not None and open_work is None)
    if has_workers and extractor not in (None, settings.extractor):
        why = "the jobs of this store run in Celery workers, which would ignore it. Set AFTERMIND_EXTRACTOR for them."
        raise errors.InvalidSettings("extractor", getattr(extractor, "name", extractor), why)
    named = {
        name: given for name, given in (("embedder", embedder), ("extractor", extractor)) if isinstance(given, str)
    }
    settings = settings.model_copy(update=named) if named else settings
    providers = Providers(make_limiter(settings))
    if embedder is None or isinstance(embedder, str):
        embedder = factory.embedder(settings, providers=providers)
    namespace = settings.namespace if namespace is None else namespace
    index = open_index(settings, where.index)
    if where.is_in_process:
        if extractor is None or isinstance(extractor, str):
            extractor = factory.extractor(settings, providers=providers)
        return _in_process_services(
            where, settings, namespace, embedder, extractor, reranker, providers, index, open_work
        )
    return _postgres_services(where, settings, namespace, embedder, reranker, providers, index)


def _in_process_services(
    where: Addresses,
    settings: Settings,
    namespace: str,
    embedder: Embedder | None,
    extractor: Extractor | None,
    reranker: Reranker | None,
    providers: Providers,
    index: IndexClient | None,
    open_work: OpenWork | None,
) -> Parts:
    check_languages(settings)
    if settings.profile_schema is not None and settings.run_jobs and where.broker is None:
        profile_schema(settings.profile_schema)  # the jobs of this process would fail by it
    is_stored = where.journal is not None
    codec = make_codec()
    db = MemoryDatabase(None if where.journal is None else JournalWriter(where.journal, codec))
    store = InMemoryStore(language_for=settings.language_for)
    ledger, events = InMemoryLedger(db, max_lost_leases=settings.max_lost_leases), LocalBus(db)
    effects, keeping = EffectCommitter(db), InMemoryRetention()
    replays = InMemoryReplays(db, rules=_override_rules(settings))

    def retention(name: str) -> Retention:
        return Retention(
            db=db,
            store=store,
            ledger=ledger,
            keeping=keeping,
            effect=effects.commit,
            namespace=name,
            is_indexed=index is not None,
        )

    policies = DuePolicies(db, keeping, retention, every=timedelta(seconds=settings.retention_every_seconds))

    async def tidy() -> bool:
        return any([await policies.apply(each, seconds=POLICY_SECONDS) for each in await policies.list()])

    adopt = partial(_adopt_embedder, db, store, embedder) if is_stored and embedder is not None else None
    bells = None
    if where.broker is not None and open_work is None:
        bells = outbox_wiring.open_doorbells(settings, where.broker, None)

    queue = outbox_wiring.make_in_process(
        settings,
        db=db,
        store=store,
        ledger=ledger,
        events=events,
        embedder=embedder,
        index=index,
        extractor=extractor,
        summariser=factory.summariser(settings, providers=providers),
        profiler=factory.profiler(settings, providers=providers),
        providers=providers,
        prepare=adopt,
        tidy=tidy,
        replay=replays.step,
        abandoned=ledger.has_abandoned if db.is_shared else None,
        open_work=open_work,
        notify=None if bells is None else bells.ring_soon,
    )
    replays.on_start = queue.wake
    courier = InProcessCourier(db, settings)
    events.on_append = courier.note

    def continue_work() -> None:
        queue.wake()
        courier.wake()

    if is_stored:
        db.on_open = continue_work  # for jobs and deliveries of an earlier process
    outboxes = Outboxes(settings, lambda accept: queue)
    routing = Routing(db, [], store, served_by=ServedBy.PROCESS)
    vectors, identify = _vectors(settings, embedder), partial(_identify, embedder)

    async def find_rows(owner: Scope, texts: Sequence[str]) -> tuple[int, int, int]:
        async with db.transaction(namespace=owner.namespace, read_only=True) as tx:
            owned = sum((await store.counts(tx, owner)).values())
        return *await search_rows(db, codec, texts), owned

    recall = _recall(
        settings,
        embedder,
        reranker,
        store,
        store,
        routing,
        vectors,
        outboxes.local_turns,
        None,
        follow=partial(_open_embedder, settings, providers),
        index=index,
        generation=db.generation,
    )
    second = InProcessVectors(
        db, store, ledger, language_for=settings.language_for, identify=partial(_identify, embedder), wake=queue.wake
    )
    nothing, vault = NoDatabase(where.scheme), Vault()
    trail = Trail(audit_keys(settings.audit_key, settings.state_dir))  # unused: nothing can be recorded
    return Parts(
        settings=settings,
        namespace=namespace,
        db=db,
        store=store,
        ledger=ledger,
        events=events,
        recall=recall,
        routing=routing,
        outboxes=outboxes,
        effects=effects,
        webhook_rows=webhook_deliveries_inmemory,
        operations=db,
        job_operations=local_job_admin,
        operations_namespace=None,
        embedders=partial(_embedders, db, store, embedder),
        stored_keys=InMemoryApiKeys(db),
        dead_letters=InMemoryDeadLetters(db),
        replays=replays,
        policies=keeping,
        audit=Audit(db=nothing, work=nothing, trail=trail, namespace=namespace, of_all=False),
        encryption=Encryption(
            db=nothing, vault=vault, trail=trail, namespace=namespace, language_for=settings.language_for
        ),
        reembedding=Reembeddings(second, settings, embedder=embedder),
        check_schema=db.open,
        gate=providers.gate,
        wake=queue.wake,
        serve_jobs=queue.serve,
        wake_courier=courier.wake,
        open_store=db.open,
        adopt_embedder=adopt or nothing_to_do,
        confirm=db.confirm,
        index=index,
        identify_embedder=identify,
        erasure_scan=ErasureScan(settings, where, index, identify, in_rows=find_rows),
        # The queue also where nothing was remembered: opening the store began its work, which would open it again.
        closing=(
            queue.close,
            courier.close,
            recall.close,
            providers.close,
            db.close,
            *(each.close for each in (bells, index) if each is not None),
        ),
    )


async def _adopt_embedder(db: MemoryDatabase, store: InMemoryStore, embedder: Embedder) -> None:
    """Record the embedder of a store without vectors; log if the stored vectors are another's."""
    configured = await asyncio.to_thread(embedder_identity, embedder)
    async with db.transaction() as tx:
        known = await store.adopt_embedder(tx, configured)
    if configured not in known:
        log.error("embed jobs wait", extra={"error": str(errors.EmbedderMismatch(known.active, configured))})


def _postgres_services(
    where: Addresses,
    settings: Settings,
    namespace: str,
    embedder: Embedder | None,
    reranker: Reranker | None,
    providers: Providers,
    index: IndexClient | None,
) -> Parts:
    link = outbox_wiring.remember_link(settings, where.required_redis)

    # Workers have no such check: what was accepted here is stored here, whatever the placement is by then.
    # The own namespace is that of this process's recall counts, which each database has some of.
    def check(name: str) -> None:
        if name != namespace:
            settings.check_placed_here(name)

    agent_database = partial(open_database, settings, name="aftermind-agent", check_namespace=check)
    db = agent_database(where.store)
    longest = min(settings.recall_budget_seconds, settings.db_timeout_seconds)
    reading = {**READ_SETTINGS, "statement_timeout": str(max(1, round(longest * 1000)))}  # no caller waits longer
    primary, *replicas = (agent_database(url, session_settings=reading) for url in (where.store, *where.replicas))
    backend = open_backend(settings, db, link, providers)
    keys, vault, store, pending = backend.keys, backend.vault, backend.store, backend.pending
    # Recall has a separate one: a lagging replica must not determine the encryption key of this process's writes.
    recall_vault = Vault(master_keys(settings.encryption_key, settings.state_dir))
    search = PostgresSearch(recall_vault)
    # Operators' queries cover every tenant if this process has the role for it; else only its own.
    work, seen = (db, namespace) if where.relay is None else (agent_database(where.relay), None)
    ledger = PostgresLedger(work, namespace=seen, max_lost_leases=settings.max_lost_leases)
    routing = Routing(
        primary,
        [ReadNode(each.name, each) for each in replicas],
        search,
        max_lag=timedelta(seconds=settings.replica_max_lag_seconds),
        check=timedelta(seconds=settings.replica_check_seconds),
    )
    delivery = backend.delivery
    lease = ReplicaLease(primary, Watermarks(link, keys), delivery, has_replicas=bool(replicas))
    effects = EffectCommitter(db, delivery)
    trail = Trail(audit_keys(settings.audit_key, settings.state_dir), witnesses(settings.audit_dir, link, keys))
    deployment = spool_deployment(settings, where)
    outboxes = Outboxes(settings, _publishers(settings, where, link, pending, db, ledger, delivery, deployment))
    vectors, identify = _vectors(settings, embedder, link, keys), partial(_identify, embedder)

    async def check_schema() -> None:
        from aftermind.db import migrate  # Alembic: loaded only for the check

        await migrate.check(db.url, allow_owner=settings.allow_owner)

    async def local_turns(owner: Scope) -> list[Turn]:
        """Those of a tenant that has moved may also be spooled for its former database."""
        found = await outboxes.local_turns(owner)
        if owner.namespace in settings.moved.databases:
            for parts in settings.moved.opened():
                found += [] if parts.outboxes is outboxes else await parts.outboxes.local_turns(owner)
        return found

    async def send_recall_counts(counts: Mapping[str, Sequence[int]]) -> None:
        async with db.transaction(namespace=namespace) as tx:
            await metric_history.count_recalls(tx, namespace, counts)

    recall = _recall(
        settings,
        embedder,
        reranker,
        store,
        search,
        routing,
        vectors,
        local_turns,
        pending,
        lease,
        ledger.unstored,
        partial(_open_embedder, settings, providers, link=link, keys=keys),
        index,
    )
    return Parts(
        settings=settings,
        namespace=namespace,
        db=db,
        store=store,
        ledger=ledger,
        events=backend.events,
        recall=recall,
        routing=routing,
        outboxes=outboxes,
        check_schema=check_schema,
        embedders=partial(_embedders, db, store, embedder),
        redis=link,
        pending=pending,
        confirm=delivery.confirm,
        lease=lease,
        deliveries=Deliveries(db, store, ledger, pending),
        generation=pending.generation,
        effects=effects,
        webhook_rows=webhook_deliveries,
        operations=work,
        job_operations=postgres_job_admin,
        operations_namespace=seen,
        stored_keys=PostgresApiKeys(db, replicas=replicas, trail=trail),
        dead_letters=DeadLetters(work, namespace=seen, trail=trail),
        replays=Replays(work, trail=trail, rules=_override_rules(settings)),
        policies=PostgresRetention(vault),
        audit=Audit(db=db, work=work, trail=trail, namespace=namespace, of_all=seen is None),
        encryption=Encryption(
            db=work, vault=vault, trail=trail, namespace=namespace, language_for=settings.language_for
        ),
        reembedding=open_reembeddings(where, settings, embedder=embedder),
        trail=trail,
        vault=vault,
        recall_counts=RecallCounts(send_recall_counts) if settings.metric_history else None,
        index=index,
        identify_embedder=identify,
        erasure_scan=ErasureScan(settings, where, index, identify, deployment=deployment),
        deployment=deployment,
        gate=providers.gate,
        refused_texts=lambda: vault.refused + recall_vault.refused,
        closing=(
            recall.close,
            providers.close,
            backend.events.close,
            link.close,
            db.close,
            work.close,
            primary.close,
            *(each.close for each in replicas),
            *(() if index is None else (index.close,)),
        ),
    )


async def _open_embedder(
    settings: Settings,
    providers: Providers,
    identity: EmbedderIdentity,
    *,
    link: RedisLink | None = None,
    keys: Keys | None = None,
) -> tuple[QueryVectors, PendingTurns] | None:
    """The other embedder of a re-embedding, by its name; None if it cannot be made from that."""
    other = await asyncio.to_thread(factory.make_embedder_for, identity, settings, providers=providers)
    if other is None:
        return None
    return _vectors(settings, other, link, keys), PendingTurns(other, language_for=settings.language_for)


def _override_rules(settings: Settings) -> OverrideRules:
    return OverrideRules(extractors=factory.replayable(settings), limits=limits(settings))


async def _embedders(
    db: Database, store: Store, embedder: Embedder | None
) -> tuple[StoredEmbedders | None, EmbedderIdentity | None]:
    """Those whose vectors are stored, and the configured one."""
    # In a thread: a local model is loaded for its identity.
    configured = None if embedder is None else await asyncio.to_thread(embedder_identity, embedder)
    async with db.transaction(read_only=True) as tx:
        return await store.stored_embedders(tx), configured


async def _identify(embedder: Embedder | None) -> EmbedderIdentity:
    if embedder is None:
        raise errors.InvalidSettings("embedder", "off", "vectors need an embedder. Set AFTERMIND_EMBEDDER.")
    return await asyncio.to_thread(embedder_identity, embedder)  # a local model is loaded for its identity


def _publishers(
    settings: Settings,
    where: Addresses,
    link: RedisLink,
    pending: Pending,
    db: Database,
    ledger: Ledger,
    delivery: WatermarkDelivery,
    deployment: Deployment,
) -> Callable[[Accept], Outbox]:
    positions = Positions()  # of this process: turns of one caller stay in order in every accept mode

    def make(accept: Accept) -> Outbox:
        chosen = settings.model_copy(update={"accept": accept})
        return outbox_wiring.make_outbox(
            chosen,
            broker=where.required_broker,
            link=link,
            database=db,
            ledger=ledger,
            delivery=delivery,
            pending=pending,
            positions=positions,
            deployment=deployment,
        )

    return make


def _vectors(
    settings: Settings, embedder: Embedder | None, link: RedisLink | None = None, keys: Keys | None = None
) -> QueryVectors:
    return QueryVectors(
        embedder,
        budget_seconds=settings.query_embedding_budget_seconds,
        redis=link,
        keys=keys,
        keep_seconds=settings.vector_cache_seconds,
    )


def _recall(
    settings: Settings,
    embedder: Embedder | None,
    reranker: Reranker | None,
    store: Store,
    search: EpisodeSearch,
    routing: Routing,
    vectors: QueryVectors,
    local_turns: LocalTurns,
    pending: Pending | None,
    lease: ReplicaLease | None = None,
    unstored: UnstoredTurns | None = None,
    follow: Follow | None = None,
    index: IndexClient | None = None,
    generation: Callable[[Transaction], Awaitable[int]] | None = None,
) -> Recall:
    return Recall(
        store,
        search,
        routing,
        vectors,
        settings=settings,
        pending=pending,
        lease=lease,
        pending_turns=PendingTurns(embedder, language_for=settings.language_for),
        local_turns=local_turns,
        unstored=unstored,
        reranker=reranker,
        follow=follow,
        index=index,
        generation=generation,
    )
