"""Facts of one process: rows as in a database, superseded and strengthened; their content never changes."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import mem
from aftermind.facts.predicates import folded
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Scope
from aftermind.types.assertion import RecordedAssertion


class InMemoryFacts:
    """The part of the store that keeps facts. See `Store` for what each method promises."""

    async def hold_beliefs(self, tx: Transaction, owner: Scope) -> None:
        """Nothing to hold: transactions of one process follow each other."""

    async def add_facts(self, tx: Transaction, given: Sequence[Fact]) -> int:
        added = 0
        for fact in given:
            rows = await mem(tx).owned("facts", fact.scope)
            if fact.id not in rows:
                mem(tx).put(rows, fact.id, fact)
                added += 1
        return added

    async def supersede_facts(
        self, tx: Transaction, owner: Scope, ids: Sequence[FactId], *, at: datetime, by_id: FactId | None = None
    ) -> int:
        rows = await mem(tx).owned("facts", owner)
        ended = [id_ for id_ in ids if id_ in rows and rows[id_].superseded_at is None]
        for id_ in ended:
            mem(tx).put(rows, id_, replace(rows[id_], superseded_at=at))
        return len(ended)

    async def delete_facts(self, tx: Transaction, owner: Scope, ids: Sequence[FactId]) -> None:
        rows = await mem(tx).owned("facts", owner)
        for id_ in ids:
            mem(tx).drop(rows, id_)

    async def strengthen_fact(
        self, tx: Transaction, owner: Scope, fact_id: FactId, *, sources: Sequence[EpisodeId], confidence: float
    ) -> None:
        rows = await mem(tx).owned("facts", owner)
        fact: Fact | None = rows.get(fact_id)
        if fact is None:
            return
        joined = fact.sources + tuple(source for source in sources if source not in fact.sources)
        stronger = replace(
            fact, strength=fact.strength + 1, sources=joined, confidence=max(fact.confidence, confidence)
        )
        mem(tx).put(rows, fact_id, stronger)

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
        now = mem(tx).database.now()

        def fits(fact: Fact) -> bool:
            if subject not in (None, fact.subject) or predicate not in (None, fact.predicate):
                return False
            believed = fact.superseded_at is None if known_at is None else fact.is_believed_at(known_at)
            return history or (believed and fact.is_valid_at(as_of or now))

        rows = [fact for fact in (await mem(tx).owned("facts", owner)).values() if fits(fact)]
        return sorted(rows, key=lambda fact: (fact.recorded_at, fact.id), reverse=True)[:limit]

    async def fact(self, tx: Transaction, owner: Scope, fact_id: FactId) -> Fact | None:
        found: Fact | None = (await mem(tx).owned("facts", owner)).get(fact_id)
        return found

    async def existing_ids(self, tx: Transaction, owner: Scope, ids: Collection[UUID]) -> set[UUID]:
        tables = [await mem(tx).owned(name, owner) for name in ("episodes", "facts")]
        return {id_ for id_ in ids if any(id_ in rows for rows in tables)}

    async def facts_from(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Fact]:
        wanted = set(ids)
        believed = await self.facts(tx, owner, history=True, limit=1_000_000)
        return [fact for fact in believed if fact.superseded_at is None and wanted & set(fact.sources)]

    async def recorded_assertions(
        self, tx: Transaction, owner: Scope, subjects: Collection[str] | None = None
    ) -> list[RecordedAssertion]:
        wanted = None if subjects is None else frozenset(map(folded, subjects))
        rows: list[RecordedAssertion] = list((await mem(tx).owned("assertions", owner)).values())
        found = [one for one in rows if wanted is None or folded(one.claim.subject) in wanted]
        return sorted(found, key=lambda one: (one.claim.said_at, one.id))

    async def put_assertions(
        self, tx: Transaction, owner: Scope, given: Sequence[RecordedAssertion], *, unsaid: Sequence[UUID]
    ) -> None:
        rows = await mem(tx).owned("assertions", owner)
        for id_ in unsaid:
            mem(tx).drop(rows, id_)
        for one in given:
            if one.id not in rows:
                mem(tx).put(rows, one.id, one)

    async def cardinalities(self, tx: Transaction, namespace: str) -> dict[str, Cardinality]:
        rows: dict[tuple[str, str], Cardinality] = mem(tx).table("predicates")
        return {predicate: said for (space, predicate), said in sorted(rows.items()) if space == namespace}

    async def set_cardinality(
        self, tx: Transaction, namespace: str, predicate: str, cardinality: Cardinality | None
    ) -> None:
        rows = mem(tx).table("predicates")
        if cardinality is None:
            mem(tx).drop(rows, (namespace, predicate))
        else:
            mem(tx).put(rows, (namespace, predicate), cardinality)
