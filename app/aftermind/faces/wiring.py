"""How a `Memory` is put together from addresses and settings. Nothing here connects."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from aftermind import errors
from aftermind.db.base import Database
from aftermind.db.keyfiles import audit_keys, master_keys
from aftermind.faces.addresses import Addresses
from aftermind.faces.erasure import Deliveries
from aftermind.faces.looking import Looking
from aftermind.faces.parts import Parts
from aftermind.faces.turns import limits
from aftermind.faces.ways import Accept, Ways
from aftermind.faces.witnesses import witnesses
from aftermind.freshness import ReplicaLease, WatermarkDelivery
from aftermind.ledger.base import Ledger
from aftermind.ledger.overrides import OverrideRules
from aftermind.llm import resolver
from aftermind.llm.base import Embedder, Extractor, identity_of
from aftermind.llm.providers import Providers, gate_of
from aftermind.outbox import wiring as outbox_wiring
from aftermind.outbox.base import Outbox
from aftermind.outbox.positions import Positions
from aftermind.recall import Node, Recall, Routing
from aftermind.recall.pending import PendingTurns
from aftermind.recall.pipeline import Follow, UnstoredTurns
from aftermind.recall.query_vectors import QueryVectors
from aftermind.recall.reranking import Reranker
from aftermind.settings import Settings
from aftermind.stores.base import Store
from aftermind.stores.searching import EpisodeSearch
from aftermind.types import EmbedderIdentity, ServedBy, StoredEmbedders
from aftermind.types.erasure import Generation
from aftermind.wire.connection import RedisLink
from aftermind.wire.keys import Keys
from aftermind.wire.pending import Pending
from aftermind.wire.watermark import Watermarks


def open_parts(
    where: Addresses,
    settings: Settings,
    *,
    namespace: str | None = None,
    embedder: str | Embedder | None = None,
    extractor: str | Extractor | None = None,
    reranker: Reranker | None = None,
) -> Parts:
    """The parts of a memory. Raises `InvalidSettings`."""
    named = {
        name: given for name, given in (("embedder", embedder), ("extractor", extractor)) if isinstance(given, str)
    }
    settings = settings.model_copy(update=named) if named else settings
    providers = Providers(gate_of(settings))
    if embedder is None or isinstance(embedder, str):
        embedder = resolver.embedder(settings, providers=providers)
    namespace = settings.namespace if namespace is None else namespace
    if where.is_in_process:
        if extractor is None or isinstance(extractor, str):
            extractor = resolver.extractor(settings, providers=providers)
        return _of_one_process(where, settings, namespace, embedder, extractor, reranker, providers)
    return _of_postgres(where, settings, namespace, embedder, reranker, providers)


def _of_one_process(
    where: Addresses,
    settings: Settings,
    namespace: str,
    embedder: Embedder | None,
    extractor: Extractor | None,
    reranker: Reranker | None,
    providers: Providers,
) -> Parts:
    if where.store.rstrip(":/") != "inmemory":
        raise errors.InvalidSettings("url", where.store, "a store is a postgresql:// URL, or 'inmemory'.")
    from aftermind.db.memory import MemoryDatabase
    from aftermind.events.local import LocalBus
    from aftermind.ledger.inmemory import InMemoryLedger
    from aftermind.stores.inmemory import InMemoryStore

    db, store = MemoryDatabase(), InMemoryStore(language=settings.language)
    ledger, events = InMemoryLedger(db, max_lost_leases=settings.max_lost_leases), LocalBus(db)
    queue = outbox_wiring.make_in_process(
        settings,
        db=db,
        store=store,
        ledger=ledger,
        events=events,
        embedder=embedder,
        extractor=extractor,
        summariser=resolver.summariser(settings, providers=providers),
        profiler=resolver.profiler(settings, providers=providers),
    )
    ways = Ways(settings, lambda accept: queue)
    routing = Routing(db, [], store, served_by=ServedBy.PROCESS)
    recall = _recall(settings, embedder, reranker, store, store, routing, _vectors(settings, embedder), ways, None)
    return Parts(
        settings=settings,
        namespace=namespace,
        db=db,
        store=store,
        ledger=ledger,
        events=events,
        recall=recall,
        routing=routing,
        ways=ways,
        check_schema=_nothing_to_check,
        gate=providers.gate,
        wake=queue.wake,
        closing=(recall.close, providers.close),
    )


async def _nothing_to_check() -> None:
    """A store inside the process has no schema."""


def _of_postgres(
    where: Addresses,
    settings: Settings,
    namespace: str,
    embedder: Embedder | None,
    reranker: Reranker | None,
    providers: Providers,
) -> Parts:
    # SQLAlchemy and asyncpg: loaded for those who use Postgres
    from aftermind.db import migrate
    from aftermind.db.api_keys import PostgresApiKeys
    from aftermind.db.audit import Trail
    from aftermind.db.postgres import PostgresDatabase
    from aftermind.db.vault import Vault
    from aftermind.events.bus import EventBus
    from aftermind.ledger.postgres import PostgresLedger
    from aftermind.ledger.postgres_dead import PostgresDeadLetters
    from aftermind.ledger.postgres_replays import PostgresReplays
    from aftermind.stores.postgres import PostgresStore
    from aftermind.stores.postgres.keeping import PostgresKeeping
    from aftermind.stores.postgres.search import READ_SETTINGS, PostgresSearch

    keys, link = Keys(settings.redis_prefix), outbox_wiring.remember_link(settings, where.required_redis)
    providers.gate.bind(link, keys)
    open_database = partial(
        PostgresDatabase,
        timeout_seconds=settings.db_timeout_seconds,
        connect_timeout_seconds=settings.db_connect_timeout_seconds,
        pool_size=settings.db_pool_size,
        application_name="aftermind-agent",
        allow_owner=settings.allow_owner,
        pooled=settings.database_pooler,
    )
    secret = settings.database_password_file
    db = open_database(where.store, password_file=secret)
    longest = min(settings.recall_budget_seconds, settings.db_timeout_seconds)
    reading = {**READ_SETTINGS, "statement_timeout": str(max(1, round(longest * 1000)))}  # nobody waits for more
    primary, *replicas = (
        open_database(url, session_settings=reading, password_file=secret) for url in (where.store, *where.replicas)
    )
    masters = master_keys(settings.encryption_key, settings.state_dir)
    vault = Vault(masters)
    # Recall has one of its own: a replica that is behind must not tell the writes of this process which key seals.
    store, search = PostgresStore(language=settings.language, vault=vault), PostgresSearch(Vault(masters))
    # What an operator looks at is every tenant's, where this process was given the role for it; else its own alone.
    work, seen = (db, namespace) if where.relay is None else (open_database(where.relay), None)
    ledger = PostgresLedger(work, namespace=seen, max_lost_leases=settings.max_lost_leases)
    routing = Routing(
        primary,
        [Node(each.name, each) for each in replicas],
        search,
        max_lag=timedelta(seconds=settings.replica_max_lag_seconds),
        check=timedelta(seconds=settings.replica_check_seconds),
    )
    generation = Generation()
    pending, watermarks = Pending(link, keys, generation), Watermarks(link, keys)
    delivery = WatermarkDelivery(db, watermarks)
    lease = ReplicaLease(primary, watermarks, delivery, has_replicas=bool(replicas))
    trail = Trail(audit_keys(settings.audit_key, settings.state_dir), witnesses(settings.state_dir, link, keys))
    ways = Ways(settings, _publishers(settings, where, link, pending, db, ledger, delivery))
    vectors = _vectors(settings, embedder, link, keys)

    async def check_schema() -> None:
        await migrate.check(db.url, allow_owner=settings.allow_owner, password_file=secret)

    async def embedders() -> tuple[StoredEmbedders | None, EmbedderIdentity | None]:
        # In a thread: a local model is loaded for its identity.
        configured = None if embedder is None else await asyncio.to_thread(identity_of, embedder)
        async with db.transaction(read_only=True) as tx:
            return await store.stored_embedders(tx), configured

    async def follow(identity: EmbedderIdentity) -> tuple[QueryVectors, PendingTurns] | None:
        other = await asyncio.to_thread(resolver.embedder_of, identity, settings, providers=providers)
        if other is None:
            return None
        return _vectors(settings, other, link, keys), PendingTurns(other, language=settings.language)

    events = EventBus(db, link, keys)
    rules = OverrideRules(extractors=resolver.replayable(settings), limits=limits(settings))
    recall = _recall(
        settings, embedder, reranker, store, search, routing, vectors, ways, pending, lease, ledger.unstored, follow
    )
    return Parts(
        settings=settings,
        namespace=namespace,
        db=db,
        store=store,
        ledger=ledger,
        events=events,
        recall=recall,
        routing=routing,
        ways=ways,
        check_schema=check_schema,
        embedders=embedders,
        redis=link,
        pending=pending,
        delivery=delivery,
        lease=lease,
        deliveries=Deliveries(db, store, ledger, pending),
        generation=generation,
        dead=PostgresDeadLetters(work, namespace=seen, trail=trail),
        replays=PostgresReplays(work, trail=trail, rules=rules),
        trail=trail,
        work=work,
        sees_all=seen is None,
        keeping=PostgresKeeping(vault),
        vault=vault,
        looking=Looking(settings, where),
        keys=PostgresApiKeys(db, trail=trail),
        gate=providers.gate,
        closing=(
            recall.close,
            providers.close,
            events.close,
            link.close,
            db.close,
            work.close,
            primary.close,
            *(each.close for each in replicas),
        ),
    )


def _publishers(
    settings: Settings,
    where: Addresses,
    link: RedisLink,
    pending: Pending,
    db: Database,
    ledger: Ledger,
    delivery: WatermarkDelivery,
) -> Callable[[Accept], Outbox]:
    positions = Positions()  # of this process: turns of one caller stay in order, whichever way each of them goes

    def make(accept: Accept) -> Outbox:
        chosen = settings.model_copy(update={"accept": accept})
        return outbox_wiring.make_publisher(
            chosen,
            broker=where.required_broker,
            link=link,
            database=db,
            ledger=ledger,
            delivery=delivery,
            pending=pending,
            positions=positions,
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
    ways: Ways,
    pending: Pending | None,
    lease: ReplicaLease | None = None,
    unstored: UnstoredTurns | None = None,
    follow: Follow | None = None,
) -> Recall:
    return Recall(
        store,
        search,
        routing,
        vectors,
        settings=settings,
        pending=pending,
        lease=lease,
        pending_turns=PendingTurns(embedder, language=settings.language),
        local_turns=ways.local_turns,
        unstored=unstored,
        reranker=reranker,
        follow=follow,
    )
