"""Re-embedding every stored episode by another embedder, while the former one serves.

    start ─► workers fill the second column ─► compare ─► cutover ─► drop (the former vectors)
                                                  │           └────► rollback
                                                  └► drop (the new vectors)

The steps are embed jobs (`ledger.reembed_steps`). The columns are changed by `db.reembed`, as the tables' owner.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from aftermind import errors
from aftermind.api.connections import Addresses
from aftermind.db import migrate
from aftermind.db import reembed as db_reembed
from aftermind.db.encryption.keyfiles import master_keys
from aftermind.db.encryption.keyring import Vault
from aftermind.db.engine import PostgresDatabase
from aftermind.db.reembed import Counts, Reembedding, Steps
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.ledger.reembed_steps import new_step
from aftermind.llm import factory
from aftermind.llm.protocols import Embedder, embedder_identity
from aftermind.llm.provider_connections import Providers, make_limiter
from aftermind.recall import Mode, Query, Recall, Routing
from aftermind.recall.query_embeddings import QueryVectors
from aftermind.settings import Settings
from aftermind.stores.postgres import PostgresStore
from aftermind.stores.postgres.search import READ_SETTINGS, PostgresSearch
from aftermind.stores.postgres.search_exhaustive import EVERY_EPISODE
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, Scope

CHARACTERS_PER_TOKEN = 4
ENQUEUED_AT_ONCE = 1_000  # jobs a transaction
MAX_LACKING_SHARE = 0.01  # of episodes, at the cutover: turns that came a moment ago are embedded just after it
COUNT_PAUSE_SECONDS = 1.0
COMPARED = 10  # hits of either embedder
COMPARE_SECONDS = 120.0  # for a question: a person waits, and owners are read whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a re-embedding would do. `cost_usd` is None if the embedder's price is unknown or nothing is paid."""

    active: EmbedderIdentity
    target: EmbedderIdentity
    episodes: int
    tokens: int
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Which embedders' vectors the database holds, how many episodes have them, and the jobs that are unfinished."""

    reembedding: Reembedding
    counts: Counts
    steps: Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What a question finds by either embedder: ids that only one of them has among its best, best first."""

    question: str
    owner: Scope
    overlap: float
    gone: tuple[EpisodeId, ...]
    new: tuple[EpisodeId, ...]


class Reembeddings:
    """The operator's side; every method connects for itself. See `aftermind reembed`."""

    def __init__(self, where: Addresses, settings: Settings) -> None:
        if where.is_in_process:
            why = "re-embedding needs Postgres. Set AFTERMIND_EMBEDDER to the embedder of the stored vectors."
            raise errors.InvalidSettings("AFTERMIND_DATABASE_URL", where.scheme, why)
        self._where, self._settings = where, settings
        self._owner_url = where.owner or where.store

    async def plan(self, target: Embedder) -> Plan:
        """What it would do. Raises `ReembeddingConflict` if the embedder is the active one."""
        identity = await asyncio.to_thread(embedder_identity, target)
        async with db_reembed.connected(self._owner_url) as connection:
            stored = (await db_reembed.read(connection)).stored
            if identity == stored.active:
                raise errors.ReembeddingConflict(f"{identity} is the active embedder", "There is nothing to re-embed.")
            counts = await db_reembed.count(connection)
            standby = counts.standby if identity == stored.standby else 0
        tokens = counts.characters // CHARACTERS_PER_TOKEN
        price = target.usd_per_million_tokens
        return Plan(
            active=stored.active,
            target=identity,
            episodes=counts.episodes - standby,
            tokens=tokens,
            cost_usd=None if price is None else tokens * price / 1_000_000,
        )

    async def start(self, target: Embedder, *, rate: float = 0.0) -> Status:
        """Start or continue a re-embedding: workers fill the second column by jobs from here on.

        `rate` is in episodes per second over all workers, 0 unlimited. Raises `ReembeddingConflict` if another one is
        running.
        """
        identity = await asyncio.to_thread(embedder_identity, target)
        async with db_reembed.connected(self._owner_url, alone=True) as connection:
            stored = (await db_reembed.read(connection)).stored
            if identity == stored.active:
                raise errors.ReembeddingConflict(f"{identity} is the active embedder", "There is nothing to re-embed.")
            if stored.standby is not None and stored.standby != identity:
                why = f"vectors of {stored.standby} are on standby already"
                raise errors.ReembeddingConflict(why, "`aftermind reembed drop` removes them.")
            if stored.standby is None:

                async def begin() -> None:
                    await db_reembed.begin(connection, identity)
                    await connection.commit()

                await migrate.patiently(connection, begin)
            stored = (await db_reembed.read(connection)).stored
            owners = await db_reembed.lacking(connection, identity, stored)
            counts = await db_reembed.count(connection)
            await self._enqueue(owners, identity, rate=rate, episodes=counts.episodes - counts.standby)
        return await self.status()

    async def status(self) -> Status:
        """Counts read every episode's row: seconds for millions."""
        async with db_reembed.connected(self._owner_url) as connection:
            now = await db_reembed.read(connection)
            target = now.stored.standby if now.stored.standby is not None else now.stored.active
            return Status(
                reembedding=now,
                counts=await db_reembed.count(connection),
                steps=await db_reembed.steps(connection, now.stored.active if now.is_cut_over else target),
            )

    async def cutover(self, *, force: bool = False, wait_seconds: float = 60.0) -> Status:
        """Activate the target: an index is built first, then two columns swap their names in one transaction.

        Waits for the newest episodes. Raises `ReembeddingConflict` if more than 1 % of all episodes still lack a vector
        then, unless `force`; those are found by words until workers have embedded them.
        """
        target = await self._standby(is_cut_over=False)
        async with db_reembed.connected(self._owner_url, alone=True) as connection:
            await self._catch_up(target)
            deadline = monotonic() + wait_seconds
            while not force:
                counts = await db_reembed.count(connection)
                await connection.rollback()
                lacking = counts.episodes - counts.standby
                if lacking == 0 or (monotonic() > deadline and lacking <= MAX_LACKING_SHARE * counts.episodes):
                    break
                if monotonic() > deadline:
                    why = f"{lacking:,} of {counts.episodes:,} episodes have no vector of {target}"
                    raise errors.ReembeddingConflict(why, "See `aftermind reembed status`, or use --force.")
                await asyncio.sleep(COUNT_PAUSE_SECONDS)
            async with db_reembed.connected(self._owner_url, autocommit=True) as building:
                await db_reembed.index_standby(building)
            await self._exchange(connection)
        await self._catch_up(target)
        return await self.status()

    async def rollback(self) -> Status:
        """Let the former embedder serve again. Raises `ReembeddingConflict` if there was no cutover."""
        former = await self._standby(is_cut_over=True)
        async with db_reembed.connected(self._owner_url, alone=True) as connection:
            await self._exchange(connection)
        await self._catch_up(former)
        return await self.status()

    async def drop(self) -> EmbedderIdentity:
        """Drop the standby vectors: the former embedder's after a cutover, else the target's; returns their
        embedder.
        """
        async with db_reembed.connected(self._owner_url, alone=True) as connection:
            standby = (await db_reembed.read(connection)).stored.standby
            if standby is None:
                raise errors.NoReembedding()

            async def drop() -> None:
                await db_reembed.drop_standby(connection)
                await connection.commit()

            await migrate.patiently(connection, drop)
        return standby

    async def compare(
        self,
        *,
        questions: Sequence[str] = (),
        namespace: str | None = None,
        user: str | None = None,
        sample: int = 20,
    ) -> list[Difference]:
        """What questions find by the active and by the standby embedder, each compared with every episode.

        Without `questions` the newest messages of users are asked, one of each of up to `sample` users.
        """
        async with db_reembed.connected(self._owner_url) as connection:
            stored = (await db_reembed.read(connection)).stored
            drawn = await db_reembed.sample(connection, limit=sample, namespace=namespace, user=user)
        if stored.standby is None:
            raise errors.NoReembedding()
        providers = Providers(make_limiter(self._settings))
        database = PostgresDatabase(
            self._where.store,
            session_settings=READ_SETTINGS,
            timeout_seconds=COMPARE_SECONDS,
            allow_owner=self._settings.allow_owner,
            pooled=self._settings.database_pooler,
            password_file=self._settings.database_password_file,
        )
        try:
            active = await self._recall(database, stored.active, providers, standby=False)
            standby = await self._recall(database, stored.standby, providers, standby=True)
            owner = Scope(namespace=self._settings.namespace if namespace is None else namespace, user_id=user)
            asked = await self._sample_questions(database, questions, drawn, owner)
            found = [await _compare(active, standby, *each) for each in asked]
            await active.close()
            await standby.close()
            return found
        finally:
            await providers.close()
            await database.close()

    async def _sample_questions(
        self,
        database: PostgresDatabase,
        questions: Sequence[str],
        drawn: Sequence[tuple[Scope, EpisodeId]],
        owner: Scope,
    ) -> list[tuple[str, Scope, EpisodeId | None]]:
        if questions:
            return [(question, owner, None) for question in questions]
        asked: list[tuple[str, Scope, EpisodeId | None]] = []
        for scope, id_ in drawn:
            async with database.transaction(namespace=scope.namespace, read_only=True) as tx:
                found = await self._store().episodes(tx, scope, [id_])
            asked.extend((episode.content, scope, id_) for episode in found)
        return asked

    async def _recall(
        self, database: PostgresDatabase, identity: EmbedderIdentity, providers: Providers, *, standby: bool
    ) -> Recall:
        embedder = await asyncio.to_thread(factory.make_embedder_for, identity, self._settings, providers=providers)
        if embedder is None:
            why = "this command cannot make it from its name; only hash, openai and local embedders can be compared."
            raise errors.InvalidSettings("embedder", str(identity), why)
        budgets = {"recall_budget_seconds": COMPARE_SECONDS, "query_embedding_budget_seconds": COMPARE_SECONDS}
        search = PostgresSearch(self._vault(), whole=EVERY_EPISODE, standby=standby)
        return Recall(
            self._store(),
            search,
            Routing(database, [], search),
            QueryVectors(embedder, budget_seconds=COMPARE_SECONDS),
            settings=self._settings.model_copy(update=budgets),
        )

    async def _standby(self, *, is_cut_over: bool) -> EmbedderIdentity:
        async with db_reembed.connected(self._owner_url) as connection:
            now = await db_reembed.read(connection)
        if now.stored.standby is None:
            raise errors.NoReembedding()
        if now.is_cut_over != is_cut_over:
            why = f"{now.stored.active} serves {'after' if now.is_cut_over else 'before'} the cutover"
            remedy = "`aftermind reembed status` shows what can follow."
            raise errors.ReembeddingConflict(why, remedy)
        return now.stored.standby

    async def _exchange(self, connection: db_reembed.Connection) -> None:
        async def exchange() -> None:
            await db_reembed.exchange(connection)
            await connection.commit()

        await migrate.patiently(connection, exchange)

    async def _catch_up(self, embedder: EmbedderIdentity) -> None:
        async with db_reembed.connected(self._owner_url) as connection:
            stored = (await db_reembed.read(connection)).stored
            owners = await db_reembed.lacking(connection, embedder, stored)
        await self._enqueue(owners, embedder)

    async def _enqueue(
        self, owners: Sequence[Scope], target: EmbedderIdentity, *, rate: float = 0.0, episodes: int = 0
    ) -> None:
        """One step of each owner; at a rate they begin one after the other, by the mean of their episodes."""
        database = PostgresDatabase(self._owner_url, timeout_seconds=60.0, pool_size=1)
        ledger = PostgresLedger(database)
        pause = timedelta(seconds=episodes / len(owners) / rate) if rate and owners else None
        try:
            for first in range(0, len(owners), ENQUEUED_AT_ONCE):
                jobs = [
                    new_step(owner, target, rate=rate, delay=None if pause is None else place * pause)
                    for place, owner in enumerate(owners[first : first + ENQUEUED_AT_ONCE], start=first)
                ]
                async with database.transaction() as tx:
                    await ledger.enqueue(tx, jobs)
        finally:
            await database.close()

    def _vault(self) -> Vault:
        return Vault(master_keys(self._settings.encryption_key, self._settings.state_dir))

    def _store(self) -> PostgresStore:
        return PostgresStore(language=self._settings.language, vault=self._vault())


async def _compare(active: Recall, standby: Recall, question: str, owner: Scope, id_: EpisodeId | None) -> Difference:
    query = Query.checked(question, owner, limit=COMPARED + 1, load=["history"], mode=Mode.HYBRID)
    before, after = _ids(await active.scored(query), id_), _ids(await standby.scored(query), id_)
    shared = set(before) & set(after)
    size = max(len(before), len(after))
    return Difference(
        question=question,
        owner=owner,
        overlap=len(shared) / size if size else 1.0,
        gone=tuple(each for each in before if each not in shared),
        new=tuple(each for each in after if each not in shared),
    )


def _ids(matches: Sequence[object], without: EpisodeId | None) -> list[EpisodeId]:
    items = [getattr(match, "item", None) for match in matches]
    return [item.id for item in items if isinstance(item, Episode) and item.id != without][:COMPARED]
