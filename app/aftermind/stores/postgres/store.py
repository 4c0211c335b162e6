"""`PostgresStore`: the `Store` protocol, with the statements of the other modules of this package."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption.keyring import Vault
from aftermind.ranking.tokenizer import LanguageFor, english
from aftermind.stores.postgres import (
    assertions,
    blocks_summaries_profiles,
    encrypted_columns,
    episode_vectors,
    episodes,
    erase,
    extraction_outcomes,
    facts,
    fitted_models,
    items,
    undo,
)
from aftermind.stores.postgres.summary_and_profile_backlog import PostgresLearning
from aftermind.stores.protocol import EpisodeFilter, StoredItem, Vector
from aftermind.types import (
    Block,
    EmbedderIdentity,
    Episode,
    EpisodeId,
    Fact,
    FactId,
    JobId,
    Profile,
    Scope,
    Summary,
    Trait,
)
from aftermind.types.assertion import RecordedAssertion
from aftermind.types.session_order import Counted


class PostgresStore(PostgresLearning):
    """Memory in Postgres. `language_for` gives the language of a namespace's new texts. See `Store` for the promises.

    `vault` has the keys of namespaces whose content is encrypted; without one there is no such namespace.
    """

    # Statements that need neither keys nor the language. Above the methods: those hide the modules of the same name.
    now = staticmethod(episodes.now)
    tombstones = staticmethod(episodes.tombstones)
    admission_state = staticmethod(episodes.admission_state)
    hold = staticmethod(episodes.hold)
    find_session_shift = staticmethod(episodes.find_session_shift)
    stored_embedders = staticmethod(episode_vectors.stored)
    set_vectors = staticmethod(episode_vectors.set_vectors)
    sessions = staticmethod(episodes.sessions)
    embedded = staticmethod(episode_vectors.embedded)
    vectors = staticmethod(episode_vectors.vectors)
    existing_ids = staticmethod(facts.existing_ids)
    note_outcomes = staticmethod(extraction_outcomes.note)
    outcomes = staticmethod(extraction_outcomes.outcomes)
    note_batch = staticmethod(extraction_outcomes.note_batch)
    list_batch_neighbours = staticmethod(extraction_outcomes.list_batch_neighbours)
    hold_beliefs = staticmethod(facts.hold)
    supersede_facts = staticmethod(facts.supersede)
    delete_facts = staticmethod(facts.delete)
    strengthen_fact = staticmethod(facts.strengthen)
    cardinalities = staticmethod(facts.cardinalities)
    set_cardinality = staticmethod(facts.set_cardinality)
    ranking_models = staticmethod(fitted_models.read)
    set_ranking_models = staticmethod(fitted_models.write)
    undo = staticmethod(undo.undo)
    delete_block = staticmethod(blocks_summaries_profiles.delete_block)
    delete_items = staticmethod(items.delete)
    item_paths = staticmethod(items.paths)
    renew_items = staticmethod(items.renew)
    begin_erasure = staticmethod(erase.begin)
    undelivered = staticmethod(erase.undelivered)
    delivered = staticmethod(erase.delivered)
    forget = staticmethod(erase.forget)
    counts = staticmethod(erase.counts)

    def __init__(self, *, language_for: LanguageFor = english, vault: Vault | None = None) -> None:
        super().__init__(vault or Vault())
        self._language_for = language_for

    # writing turns

    async def add_episodes(
        self,
        tx: Transaction,
        given: Sequence[Episode],
        vectors: Mapping[EpisodeId, Vector] | None = None,
        *,
        counted: Mapping[EpisodeId, Counted] | None = None,
    ) -> frozenset[EpisodeId]:
        if not given:
            return frozenset()
        rings = {name: await self._vault.ring(tx, name) for name in {each.scope.namespace for each in given}}
        return await episodes.add(
            tx, given, vectors or {}, rings, language_for=self._language_for, counted=counted or {}
        )

    async def unembedded(
        self, tx: Transaction, owner: Scope, embedder: EmbedderIdentity, *, after_position: int, limit: int
    ) -> list[Episode]:
        found = await episode_vectors.lacking(tx, owner, embedder, after_position=after_position, limit=limit)
        return await encrypted_columns.open_episodes(self._vault, tx, owner, found)

    # reading episodes

    async def episodes(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Episode]:
        return await encrypted_columns.open_episodes(self._vault, tx, owner, await episodes.by_ids(tx, owner, ids))

    async def history(self, tx: Transaction, owner: Scope, wanted: EpisodeFilter, *, limit: int) -> list[Episode]:
        return await encrypted_columns.open_episodes(
            self._vault, tx, owner, await episodes.history(tx, owner, wanted, limit=limit)
        )

    async def session_span(
        self, tx: Transaction, owner: Scope, session_id: str | None, *, after_position: int, limit: int
    ) -> list[Episode]:
        found = await episodes.session_span(tx, owner, session_id, after_position=after_position, limit=limit)
        return await encrypted_columns.open_episodes(self._vault, tx, owner, found)

    # mining

    async def unmined(self, tx: Transaction, owner: Scope, session_id: str | None, *, limit: int) -> list[Episode]:
        return await encrypted_columns.open_episodes(
            self._vault, tx, owner, await extraction_outcomes.unmined(tx, owner, session_id, limit=limit)
        )

    async def mined_in(self, tx: Transaction, owner: Scope, job_id: JobId) -> list[Episode]:
        return await encrypted_columns.open_episodes(
            self._vault, tx, owner, await extraction_outcomes.mined_in(tx, owner, job_id)
        )

    # facts

    async def add_facts(self, tx: Transaction, given: Sequence[Fact]) -> int:
        rings = {name: await self._vault.ring(tx, name) for name in {each.scope.namespace for each in given}}
        return await facts.add(tx, given, rings, language_for=self._language_for)

    async def facts(
        self,
        tx: Transaction,
        owner: Scope,
        *,
        subject: str | None = None,
        predicate: str | None = None,
        as_of: datetime | None = None,
        known_at: datetime | None = None,
        history: bool = False,
        limit: int = 1_000,
    ) -> list[Fact]:
        found = await facts.query(
            tx,
            owner,
            subject=subject,
            predicate=predicate,
            as_of=as_of,
            known_at=known_at,
            history=history,
            limit=limit,
        )
        return await encrypted_columns.open_facts(self._vault, tx, owner, found)

    async def fact(self, tx: Transaction, owner: Scope, fact_id: FactId) -> Fact | None:
        found = await facts.one(tx, owner, fact_id)
        return None if found is None else (await encrypted_columns.open_facts(self._vault, tx, owner, [found]))[0]

    async def facts_from(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Fact]:
        return await encrypted_columns.open_facts(self._vault, tx, owner, await facts.from_episodes(tx, owner, ids))

    async def recorded_assertions(
        self, tx: Transaction, owner: Scope, subjects: Collection[str] | None = None
    ) -> list[RecordedAssertion]:
        return await assertions.recorded_assertions(tx, owner, subjects, vault=self._vault)

    async def put_assertions(
        self, tx: Transaction, owner: Scope, given: Sequence[RecordedAssertion], *, unsaid: Sequence[UUID]
    ) -> None:
        await assertions.put(tx, owner, given, await self._vault.ring(tx, owner.namespace), unsaid=unsaid)

    # blocks, items, summaries, profiles

    async def block(self, tx: Transaction, owner: Scope, name: str) -> Block | None:
        found = await blocks_summaries_profiles.block(tx, owner, name)
        return None if found is None else (await encrypted_columns.open_blocks(self._vault, tx, owner, [found]))[0]

    async def blocks(self, tx: Transaction, owner: Scope) -> list[Block]:
        return await encrypted_columns.open_blocks(
            self._vault, tx, owner, await blocks_summaries_profiles.blocks(tx, owner)
        )

    async def put_block(self, tx: Transaction, block: Block, *, expected_version: int | None) -> Block:
        ring = await self._vault.ring(tx, block.scope.namespace)
        text = encrypted_columns.sealed(
            ring, block.content, encrypted_columns.BLOCK_TEXT.place(block.scope, block.name, block.updated_at)
        )
        stored = await blocks_summaries_profiles.put_block(
            tx, replace(block, content=text), expected_version=expected_version
        )
        return replace(stored, content=block.content)

    async def put_items(self, tx: Transaction, owner: Scope, given: Sequence[StoredItem]) -> None:
        ring, place = await self._vault.ring(tx, owner.namespace), encrypted_columns.ITEM_CONTENT.place
        places = [place(owner, each.name, each.updated_at) for each in given]
        texts = [encrypted_columns.sealed(ring, each.content, at) for each, at in zip(given, places, strict=True)]
        await items.put(tx, owner, [replace(each, content=text) for each, text in zip(given, texts, strict=True)])

    async def items(self, tx: Transaction, owner: Scope, names: Sequence[str]) -> list[StoredItem]:
        return await encrypted_columns.open_items(self._vault, tx, owner, await items.get(tx, owner, names))

    async def items_under(
        self, tx: Transaction, owner: Scope, path: Sequence[str], *, limit: int | None = None
    ) -> list[StoredItem]:
        found = await items.under(tx, owner, path, limit=limit)
        return await encrypted_columns.open_items(self._vault, tx, owner, found)

    async def summary(self, tx: Transaction, owner: Scope, session_id: str | None) -> Summary | None:
        found = await blocks_summaries_profiles.summary(tx, owner, session_id)
        return None if found is None else (await encrypted_columns.open_summaries(self._vault, tx, owner, [found]))[0]

    async def summaries(self, tx: Transaction, owner: Scope, *, limit: int = 20) -> list[Summary]:
        return await encrypted_columns.open_summaries(
            self._vault, tx, owner, await blocks_summaries_profiles.summaries(tx, owner, limit=limit)
        )

    async def put_summary(self, tx: Transaction, summary: Summary, *, over: int | None = None) -> bool:
        ring = await self._vault.ring(tx, summary.scope.namespace)
        where = encrypted_columns.SUMMARY_TEXT.place(summary.scope, summary.scope.session_id, summary.updated_at)
        text = encrypted_columns.sealed(ring, summary.text, where)
        return await blocks_summaries_profiles.put_summary(tx, replace(summary, text=text), over=over)

    async def profile(self, tx: Transaction, owner: Scope) -> Profile | None:
        return await encrypted_columns.open_profile(
            self._vault, tx, owner, await blocks_summaries_profiles.profile(tx, owner)
        )

    async def merge_profile(
        self, tx: Transaction, owner: Scope, traits: Mapping[str, Trait | None], *, at: datetime, replace: bool = False
    ) -> Profile:
        ring = await self._vault.ring(tx, owner.namespace)
        sealed = {
            name: trait and encrypted_columns.sealed_trait(ring, owner, name, trait, at=at)
            for name, trait in traits.items()
        }
        merged = await blocks_summaries_profiles.merge_profile(tx, owner, sealed, at=at, replace=replace)
        found = await encrypted_columns.open_profile(self._vault, tx, owner, merged)
        return merged if found is None else found

    # forgetting, counting
