"""Statements over assertions: all are kept, so that facts can be computed from them again."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Row, text

from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption.keyring import Ring, Vault
from aftermind.db.postgres_transaction import pg
from aftermind.facts.predicates import folded
from aftermind.stores.postgres.encrypted_columns import CLAIM_OBJECT, open_said, sealed
from aftermind.stores.postgres.owner_term_keys import hash_terms
from aftermind.types import Cardinality, EpisodeId, Scope
from aftermind.types.assertion import Assertion, Operation, RecordedAssertion

_OWNED = "namespace = :namespace AND user_id = :user"

# By `assertions_subject`; everything of the owner by the primary key.
_SAID = text(
    f"""
    SELECT id, subject, predicate, object, operation, said_at, valid_from, valid_to, latest_at, confidence, cardinality,
           sources, place, extractor
    FROM aftermind.assertions
    WHERE {_OWNED} AND (CAST(:about AS bigint[]) IS NULL OR subject_key = ANY(CAST(:about AS bigint[])))
    ORDER BY said_at, id
    """
)
_KEEP = text(
    """
    INSERT INTO aftermind.assertions (namespace, user_id, id, subject_key, subject, predicate, object, operation,
                                      said_at, valid_from, valid_to, latest_at, confidence, cardinality, sources,
                                      place, extractor)
    SELECT :namespace, :user, id, subject_key, subject, predicate, object, operation, said_at, valid_from, valid_to,
           latest_at, confidence, cardinality, CAST(sources AS uuid[]), place, extractor
    FROM unnest(CAST(:ids AS uuid[]), CAST(:abouts AS bigint[]), CAST(:subjects AS text[]),
                CAST(:predicates AS text[]), CAST(:objects AS text[]), CAST(:operations AS text[]),
                CAST(:saids AS timestamptz[]), CAST(:valid_froms AS timestamptz[]), CAST(:valid_tos AS timestamptz[]),
                CAST(:latests AS timestamptz[]), CAST(:confidences AS float8[]), CAST(:cardinalities AS text[]),
                CAST(:sources AS text[]), CAST(:places AS int[]), CAST(:extractors AS text[]))
         AS given (id, subject_key, subject, predicate, object, operation, said_at, valid_from, valid_to, latest_at,
                   confidence, cardinality, sources, place, extractor)
    ON CONFLICT DO NOTHING
    """
)
_DROP = text(f"DELETE FROM aftermind.assertions WHERE {_OWNED} AND id = ANY(CAST(:ids AS uuid[]))")


async def recorded_assertions(
    tx: Transaction, owner: Scope, subjects: Collection[str] | None = None, *, vault: Vault
) -> list[RecordedAssertion]:
    """See `Store.recorded_assertions`."""
    about = None if subjects is None else hash_terms(owner, map(folded, subjects))
    rows = await pg(tx).rows(_SAID, namespace=owner.namespace, user=owner.user_column, about=about)
    return await open_said(vault, tx, owner, [_to_assertion(row) for row in rows])


async def put(
    tx: Transaction, owner: Scope, given: Sequence[RecordedAssertion], ring: Ring, *, unsaid: Sequence[UUID]
) -> None:
    """See `Store.keep_said`."""
    owned = {"namespace": owner.namespace, "user": owner.user_column}
    if unsaid:
        await pg(tx).execute(_DROP, {**owned, "ids": list(unsaid)})
    if not given:
        return
    claims = [one.claim for one in given]
    values = {
        "ids": [one.id for one in given],
        "abouts": hash_terms(owner, [folded(claim.subject) for claim in claims]),
        "subjects": [claim.subject for claim in claims],
        "predicates": [claim.predicate for claim in claims],
        "objects": [sealed(ring, one.claim.object, CLAIM_OBJECT.place(owner, one.id)) for one in given],
        "operations": [claim.operation.value for claim in claims],
        "saids": [claim.said_at for claim in claims],
        "valid_froms": [claim.valid_from for claim in claims],
        "valid_tos": [claim.valid_to for claim in claims],
        "latests": [claim.latest_at for claim in claims],
        "confidences": [claim.confidence for claim in claims],
        "cardinalities": [claim.cardinality.value if claim.cardinality else None for claim in claims],
        "sources": ["{" + ",".join(map(str, claim.sources)) + "}" for claim in claims],
        "places": [one.place for one in given],
        "extractors": [one.extractor for one in given],
    }
    await pg(tx).execute(_KEEP, {**owned, **values})


def _to_assertion(row: Row[Any]) -> RecordedAssertion:  # Any: a row of `claims`
    claim = Assertion(
        subject=row.subject,
        predicate=row.predicate,
        object=row.object,
        said_at=row.said_at,
        operation=Operation(row.operation),
        valid_from=row.valid_from,
        valid_to=row.valid_to,
        latest_at=row.latest_at,
        confidence=row.confidence,
        cardinality=Cardinality(row.cardinality) if row.cardinality else None,
        sources=tuple(EpisodeId(source) for source in row.sources),
    )
    return RecordedAssertion(id=row.id, claim=claim, extractor=row.extractor, place=row.place)
