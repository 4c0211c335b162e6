"""Bi-temporal statements over facts: rows are added, superseded and strengthened; their content never changes."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import TextClause, text

from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption.keyring import Ring
from aftermind.db.postgres_transaction import pg
from aftermind.facts.predicates import searched_text
from aftermind.ranking.tokenizer import LanguageFor
from aftermind.stores.postgres.encrypted_columns import sealed_fact
from aftermind.stores.postgres.owner_term_keys import term_keys
from aftermind.stores.postgres.rows import to_fact
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Scope

_OWNED = "facts.namespace = :namespace AND facts.user_id = :user"
_SOURCES = """
    (SELECT array_agg(episode_id ORDER BY episode_id) FROM aftermind.fact_sources AS sources
     WHERE sources.namespace = facts.namespace AND sources.user_id = facts.user_id AND sources.fact_id = facts.id)
"""

# A lock of the transaction, not of rows: a user's first facts have no row to lock yet.
_HOLD = text("SELECT pg_advisory_xact_lock(hashtextextended('aftermind.facts/' || :namespace || '/' || :user, 0))")

_ADD = text(
    """
    INSERT INTO aftermind.facts (namespace, user_id, id, session_id, agent_id, subject, predicate, object, confidence,
                                 cardinality, valid_from, valid_to, recorded_at, superseded_at, strength, extractor,
                                 terms)
    SELECT namespace, user_id, id, session_id, agent_id, subject, predicate, object, confidence, cardinality,
           valid_from, valid_to, recorded_at, superseded_at, strength, extractor, CAST(terms AS bigint[])
    FROM unnest(CAST(:namespaces AS text[]), CAST(:users AS text[]), CAST(:ids AS uuid[]), CAST(:sessions AS text[]),
                CAST(:agents AS text[]), CAST(:subjects AS text[]), CAST(:predicates AS text[]),
                CAST(:objects AS text[]), CAST(:confidences AS float8[]), CAST(:cardinalities AS text[]),
                CAST(:valid_froms AS timestamptz[]), CAST(:valid_tos AS timestamptz[]),
                CAST(:recorded AS timestamptz[]), CAST(:superseded AS timestamptz[]), CAST(:strengths AS int[]),
                CAST(:extractors AS text[]), CAST(:terms AS text[]))
         AS given (namespace, user_id, id, session_id, agent_id, subject, predicate, object, confidence, cardinality,
                   valid_from, valid_to, recorded_at, superseded_at, strength, extractor, terms)
    ON CONFLICT DO NOTHING
    """
)
_ADD_SOURCES = text(
    """
    INSERT INTO aftermind.fact_sources (namespace, user_id, fact_id, episode_id)
    SELECT * FROM unnest(CAST(:namespaces AS text[]), CAST(:users AS text[]), CAST(:facts AS uuid[]),
                         CAST(:episodes AS uuid[]))
    ON CONFLICT DO NOTHING
    """
)
_SUPERSEDE = text(
    f"""
    UPDATE aftermind.facts AS facts SET superseded_at = :at, superseded_by = :by
    WHERE {_OWNED} AND id = ANY(CAST(:ids AS uuid[])) AND superseded_at IS NULL
    """
)
_DELETE = text(f"DELETE FROM aftermind.facts AS facts WHERE {_OWNED} AND id = ANY(CAST(:ids AS uuid[]))")
_STRENGTHEN = text(
    f"""
    UPDATE aftermind.facts AS facts SET strength = strength + 1, confidence = greatest(confidence, :confidence)
    WHERE {_OWNED} AND id = :id
    """
)


def selected(rule: str) -> TextClause:
    """Facts of an owner (`:namespace`, `:user`) that a rule fits, as `to_fact` reads them."""
    return text(
        f"""
        SELECT id, session_id, agent_id, subject, predicate, object, confidence, cardinality, valid_from, valid_to,
               recorded_at, superseded_at, strength, extractor, {_SOURCES} AS sources
        FROM aftermind.facts AS facts WHERE {_OWNED} AND {rule}
        """
    )


# `facts_believed` for what is believed now, else the primary key's owner.
_QUERY = selected(
    """
    (CAST(:subject AS text) IS NULL OR subject = :subject)
    AND (CAST(:predicate AS text) IS NULL OR predicate = :predicate)
    AND (CAST(:history AS boolean) OR (
        recorded_at <= coalesce(CAST(:known_at AS timestamptz), 'infinity')
        AND (superseded_at IS NULL OR superseded_at > CAST(:known_at AS timestamptz))
        AND (valid_from IS NULL OR valid_from <= coalesce(CAST(:as_of AS timestamptz), now()))
        AND (valid_to IS NULL OR valid_to > coalesce(CAST(:as_of AS timestamptz), now()))))
    ORDER BY recorded_at DESC, id DESC LIMIT :limit
    """
)
_ONE = selected("id = :id")
_EXISTING = text(
    """
    SELECT id FROM aftermind.episodes
    WHERE namespace = :namespace AND user_id = :user AND id = ANY(CAST(:ids AS uuid[]))
    UNION ALL
    SELECT id FROM aftermind.facts
    WHERE namespace = :namespace AND user_id = :user AND id = ANY(CAST(:ids AS uuid[]))
    """
)
_FROM = selected(
    """
    superseded_at IS NULL AND id IN (
        SELECT fact_id FROM aftermind.fact_sources AS sources
        WHERE sources.namespace = :namespace AND sources.user_id = :user
          AND sources.episode_id = ANY(CAST(:ids AS uuid[])))
    ORDER BY recorded_at DESC, id DESC
    """
)
_CARDINALITIES = text(
    "SELECT predicate, cardinality FROM aftermind.predicates WHERE namespace = :namespace ORDER BY predicate"
)
_SET_CARDINALITY = text(
    """
    INSERT INTO aftermind.predicates (namespace, predicate, cardinality) VALUES (:namespace, :predicate, :cardinality)
    ON CONFLICT (namespace, predicate) DO UPDATE SET cardinality = excluded.cardinality
    """
)
_UNSET_CARDINALITY = text("DELETE FROM aftermind.predicates WHERE namespace = :namespace AND predicate = :predicate")


async def hold(tx: Transaction, owner: Scope) -> None:
    """See `Store.hold_beliefs`. Two owners whose hashes meet wait for each other, and nothing more."""
    await pg(tx).execute(_HOLD, {"namespace": owner.namespace, "user": owner.user_column})


async def add(tx: Transaction, facts: Sequence[Fact], rings: Mapping[str, Ring], *, language_for: LanguageFor) -> int:
    """See `Store.add_facts`. Their terms are found as those of episodes are; objects are sealed by namespace."""
    if not facts:
        return 0
    added = await pg(tx).count(
        _ADD,
        namespaces=[fact.scope.namespace for fact in facts],
        users=[fact.scope.user_column for fact in facts],
        ids=[fact.id for fact in facts],
        sessions=[fact.scope.session_id for fact in facts],
        agents=[fact.scope.agent_id for fact in facts],
        subjects=[fact.subject for fact in facts],
        predicates=[fact.predicate for fact in facts],
        objects=[sealed_fact(rings[fact.scope.namespace], fact).object for fact in facts],
        confidences=[fact.confidence for fact in facts],
        cardinalities=[fact.cardinality.value for fact in facts],
        valid_froms=[fact.valid_from for fact in facts],
        valid_tos=[fact.valid_to for fact in facts],
        recorded=[fact.recorded_at for fact in facts],
        superseded=[fact.superseded_at for fact in facts],
        strengths=[fact.strength for fact in facts],
        extractors=[fact.extractor for fact in facts],
        terms=[_terms(fact, rings[fact.scope.namespace], language_for(fact.scope.namespace)) for fact in facts],
    )
    await _add_sources(tx, [(fact.scope, fact.id, source) for fact in facts for source in fact.sources])
    return added


def _terms(fact: Fact, ring: Ring, language: str) -> str:
    return "{" + ",".join(map(str, term_keys(fact.scope, searched_text(fact), language, key=ring.terms or b""))) + "}"


async def supersede(
    tx: Transaction, owner: Scope, ids: Sequence[FactId], *, at: datetime, by_id: FactId | None = None
) -> int:
    """See `Store.supersede_facts`."""
    if not ids:
        return 0
    return await pg(tx).count(
        _SUPERSEDE, namespace=owner.namespace, user=owner.user_column, ids=list(ids), at=at, by=by_id
    )


async def delete(tx: Transaction, owner: Scope, ids: Sequence[FactId]) -> None:
    """See `Store.delete_facts`. Their sources are deleted by the foreign key."""
    if ids:
        await pg(tx).execute(_DELETE, {"namespace": owner.namespace, "user": owner.user_column, "ids": list(ids)})


async def strengthen(
    tx: Transaction, owner: Scope, fact_id: FactId, *, sources: Sequence[EpisodeId], confidence: float
) -> None:
    """See `Store.strengthen_fact`."""
    given = {"namespace": owner.namespace, "user": owner.user_column, "id": fact_id, "confidence": confidence}
    if await pg(tx).count(_STRENGTHEN, **given):
        await _add_sources(tx, [(owner, fact_id, source) for source in sources])


async def query(
    tx: Transaction,
    owner: Scope,
    *,
    subject: str | None,
    predicate: str | None,
    as_of: datetime | None,
    known_at: datetime | None,
    history: bool,
    limit: int,
) -> list[Fact]:
    """See `Store.facts`."""
    rows = await pg(tx).rows(
        _QUERY,
        namespace=owner.namespace,
        user=owner.user_column,
        subject=subject,
        predicate=predicate,
        as_of=as_of,
        known_at=known_at,
        history=history,
        limit=limit,
    )
    return [to_fact(owner, row) for row in rows]


async def one(tx: Transaction, owner: Scope, fact_id: FactId) -> Fact | None:
    """See `Store.fact`."""
    row = await pg(tx).row(_ONE, namespace=owner.namespace, user=owner.user_column, id=fact_id)
    return None if row is None else to_fact(owner, row)


async def existing_ids(tx: Transaction, owner: Scope, ids: Collection[UUID]) -> set[UUID]:
    """See `Store.existing_ids`. By the primary keys."""
    rows = await pg(tx).rows(_EXISTING, namespace=owner.namespace, user=owner.user_column, ids=list(ids))
    return {row.id for row in rows}


async def from_episodes(tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Fact]:
    """See `Store.facts_from`. By `fact_sources_episode`."""
    rows = await pg(tx).rows(_FROM, namespace=owner.namespace, user=owner.user_column, ids=list(ids))
    return [to_fact(owner, row) for row in rows]


async def cardinalities(tx: Transaction, namespace: str) -> dict[str, Cardinality]:
    """See `Store.cardinalities`."""
    rows = await pg(tx).rows(_CARDINALITIES, namespace=namespace)
    return {row.predicate: Cardinality(row.cardinality) for row in rows}


async def set_cardinality(tx: Transaction, namespace: str, predicate: str, cardinality: Cardinality | None) -> None:
    """See `Store.set_cardinality`."""
    named = {"namespace": namespace, "predicate": predicate}
    if cardinality is None:
        await pg(tx).execute(_UNSET_CARDINALITY, named)
    else:
        await pg(tx).execute(_SET_CARDINALITY, {**named, "cardinality": cardinality.value})


async def _add_sources(tx: Transaction, rows: Sequence[tuple[Scope, FactId, EpisodeId]]) -> None:
    if rows:
        await pg(tx).execute(
            _ADD_SOURCES,
            {
                "namespaces": [scope.namespace for scope, _, _ in rows],
                "users": [scope.user_column for scope, _, _ in rows],
                "facts": [fact_id for _, fact_id, _ in rows],
                "episodes": [episode_id for _, _, episode_id in rows],
            },
        )
