"""A memory whose jobs this process runs itself, one look at a time, on real servers: what is learned and when."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import text

from aftermind import Memory, Message, Settings
from aftermind.db.encryption.keyfiles import master_keys
from aftermind.db.encryption.keyring import Vault
from aftermind.db.engine import PostgresDatabase
from aftermind.db.postgres_transaction import pg
from aftermind.events.bus import EventBus
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.llm import factory
from aftermind.llm.protocols import Embedder, embedder_identity
from aftermind.receipt import Receipt
from aftermind.stores.postgres import PostgresStore, episode_vectors
from aftermind.types import JobId
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from aftermind_tasks.inmemory import open_work
from tests.support.scripted_openai import ScriptedOpenAI
from tests.support.servers import Database

# A session is mined as soon as it is looked at, and an attempt that failed is made again at once.
AT_ONCE = {
    "extract_quiet_seconds": 0.0,
    "extract_max_wait_seconds": 0.0,
    "backoff_base_seconds": 0.001,
    "backoff_cap_seconds": 0.002,
}
# What is recalled is compared as a whole: a starved machine may not make it degraded.
UNHURRIED = {
    "recall_budget_seconds": 10.0,
    "query_embedding_budget_seconds": 10.0,
    "remember_budget_seconds": 20.0,  # nor spool a turn, which no job would store then
}


_DUE = text("UPDATE aftermind.jobs SET run_at = now() WHERE id = :id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """A memory, the work behind it, and the ledger to look at. `owner` sees everything of everybody."""

    memory: Memory
    ledger: PostgresLedger
    database: PostgresDatabase
    owner: PostgresDatabase
    store: PostgresStore
    work: Callable[[], Awaitable[bool]]

    async def settle(self) -> None:
        """Work until there is nothing left that can run now."""
        while await self.work():
            pass

    async def due(self, job_id: JobId) -> None:
        """Let a job run that waits for its time."""
        async with self.database.transaction() as tx:
            await pg(tx).execute(_DUE, {"id": job_id})

    async def learn(self, user: str, messages: Sequence[Message | str], *, session: str = "s1") -> Receipt:
        """Remember messages, one turn, and do everything that follows."""
        receipt = await self.memory.remember(list(messages), user_id=user, session_id=session)
        await self.settle()
        return receipt


@asynccontextmanager
async def learning(
    database: Database,
    redis_url: str,
    state_dir: Path,
    provider: ScriptedOpenAI | None = None,
    embeds_with: Embedder | None = None,
    **changed: Any,  # Any: settings by name
) -> AsyncIterator[Learning]:
    """A memory on these servers, with the scripted provider as its model, or rules where there is none.

    `embeds_with` None: the embedder of the settings.
    """
    settings = Settings(
        **{
            "database_url": database.app_url,
            "relay_url": database.relay_url,
            "broker_url": redis_url,
            "redis_prefix": f"learning-{uuid4().hex[:8]}:",
            "state_dir": state_dir,
            "accept": "postgres",
            "embedder": "hash",
            "extractor": "rules" if provider is None else "openai:scripted",
            **({} if provider is None else {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": provider.url}),
            **AT_ONCE,
            **UNHURRIED,
            **changed,
        }
    )
    db, owner = (
        PostgresDatabase(url, timeout_seconds=10.0, connect_timeout_seconds=5.0, pool_size=5, application_name="tests")
        for url in (database.relay_url, database.url)
    )
    link = RedisLink(redis_url, timeout=2.0, name="learning")
    events = EventBus(db, link, Keys(settings.redis_prefix))
    vault = Vault(master_keys(settings.encryption_key, settings.state_dir))
    store, ledger = PostgresStore(vault=vault), PostgresLedger(db)
    extractor, summariser = factory.extractor(settings), factory.summariser(settings)
    profiler, embedder = factory.profiler(settings), embeds_with or factory.embedder(settings)
    work = open_work(
        settings=settings,
        db=db,
        store=store,
        ledger=ledger,
        events=events,
        embedder=embedder,
        extractor=extractor,
        summariser=summariser,
        profiler=profiler,
    )
    if embedder is not None:  # as a worker does when it starts
        async with db.transaction() as tx:
            await episode_vectors.adopt(tx, embedder_identity(embedder))
    models = (extractor, summariser, profiler, embedder)
    try:
        async with Memory(settings=settings, embedder=embeds_with) as memory:
            yield Learning(memory=memory, ledger=ledger, database=db, owner=owner, store=store, work=work)
    finally:
        for client in filter(None, (getattr(model, "_client", None) for model in models)):
            await client.close()
        for close in (events.close, link.close, db.close, owner.close):
            await close()
