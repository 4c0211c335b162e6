"""`memory.reembedding`: re-embedding every stored episode by another embedder, while the former one serves.

    start ─► jobs make second vectors ─► compare ─► cutover ─► drop (the former vectors)
                                            │           └────► rollback
                                            └► drop (the new vectors)

The steps are embed jobs (`ledger.reembed_jobs`). Where the vectors are is behind `StoredVectors`.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Protocol

from aftermind import errors
from aftermind.db.database_protocol import Database
from aftermind.ledger.reembed_jobs import new_step
from aftermind.llm import factory
from aftermind.llm.protocols import Embedder, embedder_identity
from aftermind.llm.provider_connections import Providers, make_limiter
from aftermind.ranking import compares_sentences, models_of
from aftermind.recall import Query, Recall, RecallMode, Routing
from aftermind.recall.query_embeddings import QueryVectors
from aftermind.settings import Settings
from aftermind.stores.protocol import Store
from aftermind.stores.search import EpisodeSearch
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, NewJob, Scope
from aftermind.types.reembedding import (
    RecallDifference,
    Reembedding,
    ReembeddingCounts,
    ReembeddingPlan,
    ReembeddingStatus,
    ReembeddingSteps,
)

CHARACTERS_PER_TOKEN = 4
MAX_LACKING_SHARE = 0.01  # of episodes, at the cutover: turns that came a moment ago are embedded just after it
COUNT_PAUSE_SECONDS = 1.0
COMPARED = 10  # hits of either embedder
COMPARE_SECONDS = 120.0  # for a question: a person waits, and owners are read whole
OWN_EMBEDDER = (
    "An embedder object is passed to the memory: open it with Memory(embedder=…), and call `reembedding.start()` "
    "without an argument."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searches:
    """For a comparison: a search over the vectors of either embedder."""

    database: Database
    store: Store
    active: EpisodeSearch
    standby: EpisodeSearch


class StoredVectors(Protocol):
    """The vectors of a store's embedders. Every method raises `StoreUnavailable`."""

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """No other such call changes the vectors at the same time, else `ReembeddingConflict`."""

    async def read(self) -> Reembedding:
        """Which embedders' vectors the store has."""

    async def count(self) -> ReembeddingCounts:
        """Read every episode once: seconds for millions."""

    async def steps(self, target: EmbedderIdentity) -> ReembeddingSteps:
        """The unfinished jobs that make vectors of an embedder."""

    async def lacking(self, embedder: EmbedderIdentity) -> Sequence[Scope]:
        """Owners with episodes that lack a vector of an embedder, which is the active or the standby one."""

    async def sample(
        self, *, limit: int, namespace: str | None, user_id: str | None
    ) -> Sequence[tuple[Scope, EpisodeId]]:
        """The newest messages of users, one of each; of a single user the newest ones."""

    async def begin(self, target: EmbedderIdentity) -> None:
        """Prepare storage for the vectors of a standby embedder."""

    async def index_standby(self) -> None:
        """What the exchange needs and takes long. Does not block writes."""

    async def exchange(self) -> None:
        """Make the standby embedder the active one, and the reverse. Raises `NoReembedding`."""

    async def drop_standby(self) -> None:
        """Delete the standby embedder's vectors."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> None:
        """Put in embed jobs, and begin them if they run in this process."""

    def open_searches(self) -> AbstractAsyncContextManager[Searches]:
        """The searches of a comparison, and what they read from."""


class Reembeddings:
    """Changes the embedder of the stored vectors; see `aftermind reembed`. Every call raises `StoreUnavailable`.

    With Postgres it needs the role that owns the tables (`AFTERMIND_MIGRATOR_URL`); of several databases it changes
    that of the memory's namespace. `embedder` is the default of `plan` and `start`; None: that of the settings.
    """

    def __init__(self, vectors: StoredVectors, settings: Settings, *, embedder: Embedder | None = None) -> None:
        self._vectors, self._settings, self._embedder = vectors, settings, embedder

    async def plan(self, to: str | None = None, *, dimension: int | None = None) -> ReembeddingPlan:
        """What it would do. `to` names an embedder like `AFTERMIND_EMBEDDER`; None: that of this memory.

        Raises `ReembeddingConflict` if it is the active one, and `InvalidSettings`.
        """
        target, identity = await self._target(to, dimension)
        stored = (await self._vectors.read()).stored
        if identity == stored.active:
            raise errors.ReembeddingConflict(f"{identity} is the active embedder", "There is nothing to re-embed.")
        counts = await self._vectors.count()
        standby = counts.standby if identity == stored.standby else 0
        tokens = counts.characters // CHARACTERS_PER_TOKEN
        if self._settings.embed_sentences and compares_sentences(models_of(target.name)):
            tokens *= 2  # each text is embedded whole and by sentence
        price = target.usd_per_million_tokens
        return ReembeddingPlan(
            active=stored.active,
            target=identity,
            episodes=counts.episodes - standby,
            tokens=tokens,
            cost_usd=None if price is None else tokens * price / 1_000_000,
        )

    async def start(
        self, to: str | None = None, *, dimension: int | None = None, rate: float = 0.0
    ) -> ReembeddingStatus:
        """Start or continue a re-embedding: jobs make second vectors from here on, and every new turn gets both.

        `rate` is in episodes per second over all workers, 0 unlimited. Raises `ReembeddingConflict` if another one is
        running, and `InvalidSettings`.
        """
        _, identity = await self._target(to, dimension)
        async with self._vectors.exclusive():
            stored = (await self._vectors.read()).stored
            if identity == stored.active:
                raise errors.ReembeddingConflict(f"{identity} is the active embedder", "There is nothing to re-embed.")
            if stored.standby is not None and stored.standby != identity:
                why = f"vectors of {stored.standby} are on standby already"
                raise errors.ReembeddingConflict(why, "`aftermind reembed drop` removes them.")
            if stored.standby is None:
                await self._vectors.begin(identity)
            owners, counts = await self._vectors.lacking(identity), await self._vectors.count()
            await self._enqueue(owners, identity, rate=rate, episodes=counts.episodes - counts.standby)
        return await self.status()

    async def status(self) -> ReembeddingStatus:
        """Counts read every episode: seconds for millions."""
        now = await self._vectors.read()
        target = now.stored.active if now.is_cut_over or now.stored.standby is None else now.stored.standby
        return ReembeddingStatus(
            reembedding=now, counts=await self._vectors.count(), steps=await self._vectors.steps(target)
        )

    async def cutover(self, *, force: bool = False, wait_seconds: float = 60.0) -> ReembeddingStatus:
        """Activate the target. The former vectors are kept up to date for `rollback`, until `drop`.

        Waits for the newest episodes. Raises `ReembeddingConflict` if more than 1 % of all episodes still lack a vector
        then, unless `force`; those are found by words until jobs have embedded them.
        """
        target = await self._standby(is_cut_over=False)
        async with self._vectors.exclusive():
            await self._catch_up(target)
            deadline = monotonic() + wait_seconds
            while not force:
                counts = await self._vectors.count()
                lacking = counts.episodes - counts.standby
                if lacking == 0 or (monotonic() > deadline and lacking <= MAX_LACKING_SHARE * counts.episodes):
                    break
                if monotonic() > deadline:
                    why = f"{lacking:,} of {counts.episodes:,} episodes have no vector of {target}"
                    raise errors.ReembeddingConflict(why, "See `aftermind reembed status`, or use --force.")
                await asyncio.sleep(COUNT_PAUSE_SECONDS)
            await self._vectors.index_standby()
            await self._vectors.exchange()
        await self._catch_up(target)
        return await self.status()

    async def rollback(self) -> ReembeddingStatus:
        """Let the former embedder serve again. Raises `ReembeddingConflict` if there was no cutover."""
        former = await self._standby(is_cut_over=True)
        async with self._vectors.exclusive():
            await self._vectors.exchange()
        await self._catch_up(former)
        return await self.status()

    async def drop(self) -> EmbedderIdentity:
        """Drop the standby vectors: the former embedder's after a cutover, else the target's; returns their
        embedder. Raises `NoReembedding`.
        """
        async with self._vectors.exclusive():
            standby = (await self._vectors.read()).stored.standby
            if standby is None:
                raise errors.NoReembedding()
            await self._vectors.drop_standby()
        return standby

    async def compare(
        self,
        *,
        questions: Sequence[str] = (),
        namespace: str | None = None,
        user_id: str | None = None,
        sample: int = 20,
    ) -> list[RecallDifference]:
        """What questions find by the active and by the standby embedder, each compared with every episode.

        Without `questions` the newest messages of users are asked, one of each of up to `sample` users. Raises
        `NoReembedding`, `ReembeddingConflict` while there is nothing to compare, and `InvalidSettings` if an embedder
        is neither this memory's nor can be made from its name.
        """
        stored = (await self._vectors.read()).stored
        if stored.standby is None:
            raise errors.NoReembedding()
        counts = await self._vectors.count()
        if counts.episodes and not counts.standby:
            why = f"none of {counts.episodes:,} episodes has a vector of {stored.standby}"
            raise errors.ReembeddingConflict(why, "`aftermind reembed status` shows the reason, and the progress.")
        drawn = await self._vectors.sample(limit=sample, namespace=namespace, user_id=user_id)
        owner = Scope(namespace=self._settings.namespace if namespace is None else namespace, user_id=user_id)
        providers = Providers(make_limiter(self._settings))
        try:
            async with self._vectors.open_searches() as searches:
                active = await self._recall(searches, searches.active, stored.active, providers)
                standby = await self._recall(searches, searches.standby, stored.standby, providers)
                asked = await _sample_questions(searches, questions, drawn, owner)
                found = [await _compare(active, standby, *each) for each in asked]
                await active.close()
                await standby.close()
                return found
        finally:
            await providers.close()

    async def _target(self, to: str | None, dimension: int | None) -> tuple[Embedder, EmbedderIdentity]:
        if to is not None and not isinstance(to, str):
            raise errors.InvalidSettings("embedder", to, f"this is no name of an embedder. {OWN_EMBEDDER}")
        changed = {"embedder": to, "embedding_dimension": dimension}
        changed = {name: value for name, value in changed.items() if value is not None}
        if to is not None and to.rpartition(":")[2].isdecimal():  # its name has the dimension
            changed["embedding_dimension"] = dimension
        found = None if changed else self._embedder
        try:
            found = found or factory.embedder(self._settings.model_copy(update=changed))
        except errors.InvalidSettings as exc:
            if to is None or exc.field != "AFTERMIND_EMBEDDER":  # another field: a name that needs an extra or a key
                raise
            raise errors.InvalidSettings("embedder", to, f"{exc.why} {OWN_EMBEDDER}") from exc
        if found is None:
            raise errors.InvalidSettings("embedder", "off", "name one: hash, openai:MODEL or local:PATH.")
        return found, await asyncio.to_thread(embedder_identity, found)

    async def _recall(
        self, searches: Searches, search: EpisodeSearch, identity: EmbedderIdentity, providers: Providers
    ) -> Recall:
        own = self._embedder
        if own is not None and await asyncio.to_thread(embedder_identity, own) == identity:
            embedder: Embedder | None = own
        else:
            embedder = await asyncio.to_thread(factory.make_embedder_for, identity, self._settings, providers=providers)
        if embedder is None:
            why = "it cannot be made from its name. Pass the object: Memory(embedder=…)."
            raise errors.InvalidSettings("embedder", str(identity), why)
        budgets = {"recall_budget_seconds": COMPARE_SECONDS, "query_embedding_budget_seconds": COMPARE_SECONDS}
        return Recall(
            searches.store,
            search,
            Routing(searches.database, [], search),
            QueryVectors(embedder, budget_seconds=COMPARE_SECONDS),
            settings=self._settings.model_copy(update=budgets),
        )

    async def _standby(self, *, is_cut_over: bool) -> EmbedderIdentity:
        now = await self._vectors.read()
        if now.stored.standby is None:
            raise errors.NoReembedding()
        if now.is_cut_over != is_cut_over:
            why = f"{now.stored.active} serves {'after' if now.is_cut_over else 'before'} the cutover"
            remedy = "`aftermind reembed status` shows what can follow."
            raise errors.ReembeddingConflict(why, remedy)
        return now.stored.standby

    async def _catch_up(self, embedder: EmbedderIdentity) -> None:
        await self._enqueue(await self._vectors.lacking(embedder), embedder)

    async def _enqueue(
        self, owners: Sequence[Scope], target: EmbedderIdentity, *, rate: float = 0.0, episodes: int = 0
    ) -> None:
        """One step of each owner; at a rate they begin one after the other, by the mean of their episodes."""
        pause = timedelta(seconds=episodes / len(owners) / rate) if rate and owners else None
        delays = [None if pause is None else place * pause for place in range(len(owners))]
        steps = [new_step(each, target, rate=rate, delay=delay) for each, delay in zip(owners, delays, strict=True)]
        await self._vectors.enqueue(steps)


async def _sample_questions(
    searches: Searches, questions: Sequence[str], drawn: Sequence[tuple[Scope, EpisodeId]], owner: Scope
) -> list[tuple[str, Scope, EpisodeId | None]]:
    if questions:
        return [(question, owner, None) for question in questions]
    asked: list[tuple[str, Scope, EpisodeId | None]] = []
    for scope, id_ in drawn:
        async with searches.database.transaction(namespace=scope.namespace, read_only=True) as tx:
            found = await searches.store.episodes(tx, scope, [id_])
        asked.extend((episode.content, scope, id_) for episode in found)
    return asked


async def _compare(
    active: Recall, standby: Recall, question: str, owner: Scope, id_: EpisodeId | None
) -> RecallDifference:
    query = Query.checked(question, owner, limit=COMPARED + 1, load=["history"], mode=RecallMode.HYBRID)
    blocks = [await each.recall(query) for each in (active, standby)]
    if degraded := next((block.degraded for block in blocks if block.degraded), None):
        raise errors.ReembeddingConflict(f"a question cannot be compared: {degraded}", "Repeat the call after it.")
    before, after = _ids(await active.scored(query), id_), _ids(await standby.scored(query), id_)
    shared = set(before) & set(after)
    size = max(len(before), len(after))
    return RecallDifference(
        question=question,
        owner=owner,
        overlap=len(shared) / size if size else 1.0,
        gone=tuple(each for each in before if each not in shared),
        new=tuple(each for each in after if each not in shared),
    )


def _ids(matches: Sequence[object], without: EpisodeId | None) -> list[EpisodeId]:
    items = [getattr(match, "item", None) for match in matches]
    return [item.id for item in items if isinstance(item, Episode) and item.id != without][:COMPARED]
