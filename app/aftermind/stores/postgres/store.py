"""`PostgresStore`: the `Store` protocol, by the statements of the modules beside it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from aftermind.db.base import Transaction
from aftermind.db.vault import Vault, no_masters
from aftermind.stores.base import (
    Batch,
    EpisodeFilter,
    MiningOutcome,
    SessionInfo,
    ShownTogether,
    Standing,
    Vector,
)
from aftermind.stores.postgres import claims, documents, embedders, episodes, facts, forgetting, mining, sealed, undoing
from aftermind.stores.postgres.learning import PostgresLearning
from aftermind.types import (
    Block,
    Cardinality,
    EmbedderIdentity,
    Episode,
    EpisodeId,
    Fact,
    FactId,
    JobId,
    Profile,
    Scope,
    StoredEmbedders,
    Summary,
    Trait,
)
from aftermind.types.claim import Said
from aftermind.types.counting import Counted
from aftermind.types.erasure import Tombstone


class PostgresStore(PostgresLearning):
    """Memory in Postgres. `language` names the stemmer and stop words of new episodes. See `Store` for the promises.

    `vault` has the keys of namespaces whose content is encrypted; without one there is no such namespace.
    """

    def __init__(self, *, language: str = "english", vault: Vault | None = None) -> None:
        super().__init__(vault or Vault(no_masters))
        self._language = language

    # writing turns

    async def tombstones(self, tx: Transaction, owners: Sequence[Scope]) -> list[Tombstone]:
        """Lock each owner against a concurrent forget; their tombstones."""
        return await episodes.tombstones(tx, owners)

    async def standing(
        self, tx: Transaction, owner: Scope, sessions: Collection[str | None], *, generation: int | None = None
    ) -> Standing:
        """Tombstones since a generation, and the newest of each session."""
        return await episodes.standing(tx, owner, sessions, generation=generation)

    async def hold_order(self, tx: Transaction, owner: Scope, session_id: str | None) -> None:
        """Let nobody else place turns of a session that are counted from elsewhere."""
        await episodes.hold_order(tx, owner, session_id)

    async def shift_of(self, tx: Transaction, owner: Scope, session_id: str | None, counted_from: int) -> int | None:
        """The shift of the newest episode of a session that was counted from there."""
        return await episodes.shift_of(tx, owner, session_id, counted_from)

    async def add_episodes(
        self,
        tx: Transaction,
        given: Sequence[Episode],
        vectors: Mapping[EpisodeId, Vector] | None = None,
        *,
        counted: Mapping[EpisodeId, Counted] | None = None,
    ) -> frozenset[EpisodeId]:
        """Store them with their lexical entries and vectors; the ids that were new."""
        if not given:
            return frozenset()
        rings = {name: await self._vault.ring(tx, name) for name in {each.scope.namespace for each in given}}
        return await episodes.add(tx, given, vectors or {}, rings, language=self._language, counted=counted or {})

    async def stored_embedders(self, tx: Transaction, *, hold: bool = False) -> StoredEmbedders | None:
        """The embedders whose vectors the database holds."""
        return await embedders.stored(tx, hold=hold)

    async def set_vectors(
        self,
        tx: Transaction,
        vectors: Mapping[tuple[Scope, EpisodeId], Vector],
        *,
        embedder: EmbedderIdentity | None = None,
    ) -> int:
        """Give stored episodes their vectors; how many were written."""
        return await embedders.set_vectors(tx, vectors, embedder=embedder)

    async def unembedded(
        self, tx: Transaction, owner: Scope, embedder: EmbedderIdentity, *, after_position: int, limit: int
    ) -> list[Episode]:
        """The owner's episodes without a vector of that embedder, in the order of positions."""
        found = await embedders.lacking(tx, owner, embedder, after_position=after_position, limit=limit)
        return await self._episodes(tx, owner, found)

    # reading episodes

    async def episodes(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Episode]:
        """Those of the owner that exist, in the order asked for."""
        return await self._episodes(tx, owner, await episodes.by_ids(tx, owner, ids))

    async def history(self, tx: Transaction, owner: Scope, wanted: EpisodeFilter, *, limit: int) -> list[Episode]:
        """The newest `limit` that fit, oldest first."""
        return await self._episodes(tx, owner, await episodes.history(tx, owner, wanted, limit=limit))

    async def sessions(self, tx: Transaction, owner: Scope, *, limit: int = 100) -> list[SessionInfo]:
        """The owner's sessions, the latest first."""
        return await episodes.sessions(tx, owner, limit=limit)

    async def session_span(
        self, tx: Transaction, owner: Scope, session_id: str | None, *, after_position: int, limit: int
    ) -> list[Episode]:
        """A session's episodes after a position, oldest first."""
        found = await episodes.session_span(tx, owner, session_id, after_position=after_position, limit=limit)
        return await self._episodes(tx, owner, found)

    async def embedded(
        self,
        tx: Transaction,
        owner: Scope,
        ids: Sequence[EpisodeId],
        *,
        embedder: EmbedderIdentity | None = None,
    ) -> frozenset[EpisodeId]:
        """Which of them have a vector."""
        return await embedders.embedded(tx, owner, ids, embedder=embedder)

    async def vectors(self, tx: Transaction, owner: Scope) -> dict[EpisodeId, Vector]:
        """Every vector of the owner's episodes."""
        return await embedders.vectors(tx, owner)

    # mining

    async def unmined(self, tx: Transaction, owner: Scope, session_id: str | None, *, limit: int) -> list[Episode]:
        """A session's episodes without an outcome, oldest first."""
        return await self._episodes(tx, owner, await mining.unmined(tx, owner, session_id, limit=limit))

    async def note_outcomes(self, tx: Transaction, owner: Scope, outcomes: Sequence[MiningOutcome]) -> None:
        """Say what came of mining."""
        await mining.note(tx, owner, outcomes)

    async def outcomes(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[MiningOutcome]:
        """What came of mining those of them that were mined."""
        return await mining.outcomes(tx, owner, ids)

    async def mined_in(self, tx: Transaction, owner: Scope, job_id: JobId) -> list[Episode]:
        """The owner's episodes of which that job had the last word, in session order."""
        return await self._episodes(tx, owner, await mining.mined_in(tx, owner, job_id))

    async def note_batch(self, tx: Transaction, owner: Scope, batch: Batch) -> None:
        """Record which episodes a model was shown."""
        await mining.note_batch(tx, owner, batch)

    async def shown_together(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> ShownTogether:
        """What models were shown together with these episodes."""
        return await mining.shown_together(tx, owner, ids)

    # facts

    async def hold_beliefs(self, tx: Transaction, owner: Scope) -> None:
        """Let nobody else decide about the owner's facts until the transaction ends."""
        await facts.hold(tx, owner)

    async def add_facts(self, tx: Transaction, given: Sequence[Fact]) -> int:
        """Insert rows as they are."""
        rings = {name: await self._vault.ring(tx, name) for name in {each.scope.namespace for each in given}}
        return await facts.add(tx, given, rings, language=self._language)

    async def supersede_facts(
        self, tx: Transaction, owner: Scope, ids: Sequence[FactId], *, at: datetime, by_id: FactId | None = None
    ) -> int:
        """End our belief in them at `at`."""
        return await facts.supersede(tx, owner, ids, at=at, by_id=by_id)

    async def strengthen_fact(
        self, tx: Transaction, owner: Scope, fact_id: FactId, *, sources: Sequence[EpisodeId], confidence: float
    ) -> None:
        """The same claim once more."""
        await facts.strengthen(tx, owner, fact_id, sources=sources, confidence=confidence)

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
        """Facts of the owner, newest belief first."""
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
        return await sealed.open_facts(self._vault, tx, owner, found)

    async def fact(self, tx: Transaction, owner: Scope, fact_id: FactId) -> Fact | None:
        """One fact by id, superseded or not."""
        found = await facts.one(tx, owner, fact_id)
        return None if found is None else (await sealed.open_facts(self._vault, tx, owner, [found]))[0]

    async def facts_from(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Fact]:
        """Facts, believed now, that have one of the episodes among their sources."""
        return await sealed.open_facts(self._vault, tx, owner, await facts.from_episodes(tx, owner, ids))

    async def said(self, tx: Transaction, owner: Scope, subjects: Collection[str] | None = None) -> list[Said]:
        """Every claim that was kept of the subjects."""
        return await claims.said(tx, owner, subjects, vault=self._vault)

    async def keep_said(self, tx: Transaction, owner: Scope, given: Sequence[Said], *, unsaid: Sequence[UUID]) -> None:
        """Keep claims, and those that are `unsaid` no longer."""
        await claims.keep(tx, owner, given, await self._vault.ring(tx, owner.namespace), unsaid=unsaid)

    async def cardinalities(self, tx: Transaction, namespace: str) -> dict[str, Cardinality]:
        """How the namespace treats the predicates of which it has said so."""
        return await facts.cardinalities(tx, namespace)

    async def set_cardinality(
        self, tx: Transaction, namespace: str, predicate: str, cardinality: Cardinality | None
    ) -> None:
        """Say how the namespace treats a predicate from now on."""
        await facts.set_cardinality(tx, namespace, predicate, cardinality)

    async def undo(
        self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId], *, beside: ShownTogether
    ) -> dict[str, int]:
        """Mark episodes as undone and drop what drew on them."""
        return await undoing.undo(tx, owner, ids, beside=beside)

    # blocks, summaries, profiles

    async def block(self, tx: Transaction, owner: Scope, name: str) -> Block | None:
        """One block, or None."""
        found = await documents.block(tx, owner, name)
        return None if found is None else (await sealed.open_blocks(self._vault, tx, owner, [found]))[0]

    async def blocks(self, tx: Transaction, owner: Scope) -> list[Block]:
        """All blocks of the owner, by name."""
        return await sealed.open_blocks(self._vault, tx, owner, await documents.blocks(tx, owner))

    async def put_block(self, tx: Transaction, block: Block, *, expected_version: int | None) -> Block:
        """Create or replace; the stored block with its new version."""
        ring = await self._vault.ring(tx, block.scope.namespace)
        text = sealed.sealed(ring, block.content, sealed.place_of_block(block.scope, block.name))
        stored = await documents.put_block(tx, replace(block, content=text), expected_version=expected_version)
        return replace(stored, content=block.content)

    async def delete_block(self, tx: Transaction, owner: Scope, name: str) -> bool:
        """Whether there was one."""
        return await documents.delete_block(tx, owner, name)

    async def summary(self, tx: Transaction, owner: Scope, session_id: str | None) -> Summary | None:
        """The session's latest summary, or None."""
        found = await documents.summary(tx, owner, session_id)
        return None if found is None else (await sealed.open_summaries(self._vault, tx, owner, [found]))[0]

    async def summaries(self, tx: Transaction, owner: Scope, *, limit: int = 20) -> list[Summary]:
        """The latest summary of each session."""
        return await sealed.open_summaries(self._vault, tx, owner, await documents.summaries(tx, owner, limit=limit))

    async def put_summary(self, tx: Transaction, summary: Summary, *, over: int | None = None) -> bool:
        """Keep it, unless a stored one covers more of the session."""
        ring = await self._vault.ring(tx, summary.scope.namespace)
        text = sealed.sealed(ring, summary.text, sealed.place_of_summary(summary.scope, summary.scope.session_id))
        return await documents.put_summary(tx, replace(summary, text=text), over=over)

    async def profile(self, tx: Transaction, owner: Scope) -> Profile | None:
        """The owner's profile, or None."""
        return await sealed.open_profile(self._vault, tx, owner, await documents.profile(tx, owner))

    async def merge_profile(
        self, tx: Transaction, owner: Scope, traits: Mapping[str, Trait], *, at: datetime
    ) -> Profile:
        """Set the named traits and leave every other as it is."""
        ring = await self._vault.ring(tx, owner.namespace)
        merged = await documents.merge_profile(tx, owner, sealed.sealed_traits(ring, owner, traits), at=at)
        found = await sealed.open_profile(self._vault, tx, owner, merged)
        return merged if found is None else found

    # forgetting, counting

    async def begin_erasure(self, tx: Transaction, owner: Scope, *, known: int = 0) -> int:
        """Lock the owner against concurrent effects; the generation of the erasure."""
        return await forgetting.begin(tx, owner, known=known)

    async def undelivered(self, tx: Transaction, namespace: str) -> list[Tombstone]:
        """Erasures of a namespace that Redis may not have."""
        return await forgetting.undelivered(tx, namespace)

    async def delivered(self, tx: Transaction, tombstone: Tombstone) -> None:
        """Redis has it."""
        await forgetting.delivered(tx, tombstone)

    async def forget(self, tx: Transaction, tombstone: Tombstone) -> dict[str, int]:
        """Write the tombstone and delete what it covers."""
        return await forgetting.forget(tx, tombstone)

    async def counts(self, tx: Transaction, owner: Scope) -> dict[str, int]:
        """Rows of the owner by kind."""
        return await forgetting.counts(tx, owner)
