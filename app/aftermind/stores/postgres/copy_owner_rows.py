"""Copies between stores: all rows of an owner, read and written as they are.

Rows are those of a store of one process (`stores.inmemory.tables`), by table and key. Texts are decrypted when they are
read, and encrypted with the keys of the namespace when they are written.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import Row, Table, insert, select, text, update

from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption.keyring import Vault
from aftermind.db.postgres_transaction import pg
from aftermind.db.tables import (
    ASSERTIONS,
    BLOCKS,
    EPISODES,
    EVENT_COUNTERS,
    EVENTS,
    EXTRACTIONS,
    FACTS,
    ITEMS,
    MODEL_BATCHES,
    PREDICATES,
    PROFILE_BACKLOG,
    PROFILE_TRAITS,
    PROFILES,
    RANKING_MODELS,
    RETENTION_POLICIES,
    SUMMARIES,
    TOMBSTONES,
    USERS,
)
from aftermind.ranking.tokenizer import LanguageFor
from aftermind.stores.postgres import encrypted_columns, extraction_outcomes
from aftermind.stores.postgres.episodes import now, to_tombstone
from aftermind.stores.postgres.items import to_item
from aftermind.stores.postgres.rows import EPISODE_COLUMNS, to_episode
from aftermind.stores.postgres.store import PostgresStore
from aftermind.stores.protocol import ExtractionBatch, StoredItem, Vector
from aftermind.types import Block, Cardinality, Episode, EpisodeId, JobId, JobKind, Profile, Scope, Summary
from aftermind.types.retention import RetentionPolicy
from aftermind.types.session_order import Counted
from aftermind.types.tombstone import Tombstone

Rows = dict[str, dict[Any, Any]]  # Any: each table has keys and rows of another type

PAGE_ROWS = 1_000  # of episodes and facts: a statement has their texts, terms and vectors
UNLIMITED = 2**31 - 1
OWNED = (
    *(EPISODES, FACTS, ASSERTIONS, EXTRACTIONS, MODEL_BATCHES, PROFILE_BACKLOG, BLOCKS, ITEMS, SUMMARIES, PROFILES),
    *(TOMBSTONES, EVENTS, EVENT_COUNTERS),
)
SHARED = (PREDICATES, RANKING_MODELS, RETENTION_POLICIES)

_OWNERS = text(
    " UNION ".join(f"SELECT namespace, user_id FROM aftermind.{table.name}" for table in OWNED) + " ORDER BY 1, 2"
)
_VECTORS = text(
    """
    SELECT id, CAST(embedding AS public.halfvec) AS embedding,
           CAST(passage_embedding AS public.halfvec[]) AS passage_embedding
    FROM aftermind.episodes WHERE namespace = :namespace AND user_id = :user AND embedding IS NOT NULL
    """
)


async def list_owners(tx: Transaction) -> list[tuple[str, str]]:
    """Namespace and user of every owner with rows, across namespaces: as the owner of the tables."""
    return [(row.namespace, row.user_id) for row in await pg(tx).rows(_OWNERS)]


async def read(tx: Transaction, owner: Scope, *, vault: Vault) -> Rows:
    """Every row of an owner, also what has expired and is not deleted yet."""
    found: Rows = await _read_episodes(tx, owner, vault)
    store = PostgresStore(vault=vault)
    facts = await store.facts(tx, owner, history=True, limit=UNLIMITED)
    found["facts"] = {each.id: each for each in reversed(facts)}
    found["assertions"] = {each.id: each for each in await store.recorded_assertions(tx, owner)}
    batches = await _select(tx, MODEL_BATCHES, owner, order=(MODEL_BATCHES.c.at, MODEL_BATCHES.c.job_id))
    found["model_batches"] = {row.job_id: _to_batch(row) for row in batches}
    backlog = await _select(tx, PROFILE_BACKLOG, owner)
    found["profile_backlog"] = {EpisodeId(row.episode_id): True for row in backlog}
    found["blocks"] = {each.name: each for each in await store.blocks(tx, owner)}
    items = [to_item(row) for row in await _select(tx, ITEMS, owner)]
    found["items"] = {each.name: each for each in await encrypted_columns.open_items(vault, tx, owner, items)}
    summaries = await store.summaries(tx, owner, limit=UNLIMITED)
    found["summaries"] = {each.scope.session_id: each for each in summaries}
    profile = await store.profile(tx, owner)
    found["profiles"] = {} if profile is None else {"profile": profile}
    stones = await _select(tx, TOMBSTONES, owner, order=(TOMBSTONES.c.id,))
    found["tombstones"] = dict(enumerate(map(to_tombstone, stones)))
    events = await _select(tx, EVENTS, owner, order=(EVENTS.c.seq,))
    found["events"] = {row.seq: {**row.event, "cursor": str(row.seq)} for row in events}
    counters = await _select(tx, EVENT_COUNTERS, owner)
    found["event_counters"] = {"last": counters[0].last} if counters else {}
    return found


async def write(tx: Transaction, owner: Scope, rows: Rows, *, vault: Vault, language_for: LanguageFor) -> None:
    """Insert every row of an owner that has none. `language_for` gives the language of the search terms."""
    given = {name: dict(table) for name, table in rows.items()}
    await PostgresStore.tombstones(tx, [owner])  # makes the user's row, and locks it
    await _write_episodes(tx, owner, given, vault, language_for)
    store = PostgresStore(language_for=language_for, vault=vault)
    facts = list(given.get("facts", {}).values())
    for first in range(0, len(facts), PAGE_ROWS):
        await store.add_facts(tx, facts[first : first + PAGE_ROWS])
    await store.put_assertions(tx, owner, list(given.get("assertions", {}).values()), unsaid=())
    await extraction_outcomes.note(tx, owner, list(given.get("extractions", {}).values()))
    began = await now(tx)
    for table, values in (
        (MODEL_BATCHES, _batch_rows(given, began)),
        (PROFILE_BACKLOG, [{"episode_id": id_} for id_ in given.get("profile_backlog", {})]),
        (TOMBSTONES, [_tombstone_row(each, began) for each in given.get("tombstones", {}).values()]),
        *await _document_rows(tx, owner, given, vault, began),
        (EVENTS, [_event_row(seq, event, began) for seq, event in given.get("events", {}).items()]),
        (EVENT_COUNTERS, _counter_rows(given)),
    ):
        await _insert(tx, table, owner, values)
    stones = len(given.get("tombstones", {}))
    counted = update(USERS).where(*_owned(USERS, owner)).values(tombstone_count=stones)
    await pg(tx).execute(counted)


async def clear(tx: Transaction, owner: Scope) -> None:
    """Delete every row of an owner."""
    for table in OWNED:
        await pg(tx).execute(table.delete().where(*_owned(table, owner)))


async def read_shared(tx: Transaction) -> Rows:
    """What belongs to namespaces: predicates, ranking models, retention policies."""
    run = pg(tx)
    predicates = (await run.execute(select(PREDICATES))).all()
    models = (await run.execute(select(RANKING_MODELS))).all()
    policies = (await run.execute(select(RETENTION_POLICIES))).all()
    return {
        "predicates": {(row.namespace, row.predicate): Cardinality(row.cardinality) for row in predicates},
        "ranking_models": {(row.namespace, row.embedder): row.models for row in models},
        "retention_policies": {
            row.namespace: RetentionPolicy(
                namespace=row.namespace,
                max_age=row.max_age,
                max_episodes=row.max_episodes,
                keep_important=row.keep_important,
                archive=row.archive,
                set_at=row.updated_at,
                ran_at=row.ran_at,
            )
            for row in policies
        },
    }


async def write_shared(tx: Transaction, rows: Rows) -> None:
    """Insert what belongs to namespaces."""
    predicates = rows.get("predicates", {}).items()
    models = rows.get("ranking_models", {}).items()
    fields = ("namespace", "max_age", "max_episodes", "keep_important", "archive", "ran_at")
    for table, values in (
        (
            PREDICATES,
            [{"namespace": space, "predicate": name, "cardinality": str(each)} for (space, name), each in predicates],
        ),
        (RANKING_MODELS, [{"namespace": space, "embedder": key, "models": each} for (space, key), each in models]),
        (
            RETENTION_POLICIES,
            [
                {name: getattr(each, name) for name in fields} | {"updated_at": each.set_at or datetime.now(UTC)}
                for each in rows.get("retention_policies", {}).values()
            ],
        ),
    ):
        if values:
            await pg(tx).execute(insert(table), values)


async def clear_shared(tx: Transaction) -> None:
    """Delete what belongs to namespaces."""
    for table in SHARED:
        await pg(tx).execute(table.delete())


async def _read_episodes(tx: Transaction, owner: Scope, vault: Vault) -> Rows:
    columns = (*EPISODE_COLUMNS, EPISODES.c.counted_from, EPISODES.c.shift, EPISODES.c.job_id)
    wanted = select(*columns).where(*_owned(EPISODES, owner)).order_by(EPISODES.c.position, EPISODES.c.id)
    rows = (await pg(tx).execute(wanted)).all()
    stored = [to_episode(owner, row) for row in rows]
    episodes = {each.id: each for each in await encrypted_columns.open_episodes(vault, tx, owner, stored)}
    vectors = await pg(tx).rows(_VECTORS, namespace=owner.namespace, user=owner.user_column)
    outcomes = await extraction_outcomes.outcomes(tx, owner, list(episodes))
    return {
        "episodes": episodes,
        "counted": {EpisodeId(row.id): (row.counted_from, row.shift or 0) for row in rows},
        "turns": {EpisodeId(row.id): JobId(row.job_id) for row in rows if row.job_id is not None},
        "expiring": {each.id: each.expires_at for each in episodes.values() if each.expires_at is not None},
        "vectors": {EpisodeId(row.id): _to_vector(row) for row in vectors},
        "extractions": {each.episode_id: each for each in outcomes},
    }


async def _write_episodes(tx: Transaction, owner: Scope, given: Rows, vault: Vault, language_for: LanguageFor) -> None:
    store = PostgresStore(language_for=language_for, vault=vault)
    vectors: Mapping[EpisodeId, Vector] = given.get("vectors", {})
    places, turns = given.get("counted", {}), given.get("turns", {})
    episodes: list[Episode] = list(given.get("episodes", {}).values())
    for first in range(0, len(episodes), PAGE_ROWS):
        page = episodes[first : first + PAGE_ROWS]
        counted = {
            each.id: Counted(position=each.position, counted_from=counted_from, shift=shift, job_id=turns.get(each.id))
            for each in page
            for counted_from, shift in [places.get(each.id, (None, 0))]
        }
        of_page = {each.id: vectors[each.id] for each in page if each.id in vectors}
        await store.add_episodes(tx, page, of_page, counted=counted)
    # Retention counts from there; a copy makes no message younger.
    aged = update(EPISODES).where(*_owned(EPISODES, owner)).values(stored_at=EPISODES.c.remembered_at)
    await pg(tx).execute(aged)


async def _document_rows(
    tx: Transaction, owner: Scope, given: Rows, vault: Vault, began: datetime
) -> list[tuple[Table, list[dict[str, Any]]]]:  # Any: values of columns
    """Blocks, items, summaries, profile and traits, with their texts encrypted if the namespace is."""
    ring, column = await vault.ring(tx, owner.namespace), encrypted_columns
    blocks: Sequence[Block] = list(given.get("blocks", {}).values())
    items: Sequence[StoredItem] = list(given.get("items", {}).values())
    summaries: Sequence[Summary] = list(given.get("summaries", {}).values())
    profiles: Sequence[Profile] = list(given.get("profiles", {}).values())
    traits = {
        name: column.sealed_trait(ring, owner, name, trait, at=trait.updated_at or began)
        for profile in profiles
        for name, trait in profile.traits.items()
    }
    return [
        (
            BLOCKS,
            [
                {
                    **{name: getattr(each, name) for name in ("name", "description", "version", "updated_at")},
                    "content": column.sealed(
                        ring, each.content, column.BLOCK_TEXT.place(owner, each.name, each.updated_at)
                    ),
                }
                for each in blocks
            ],
        ),
        (
            ITEMS,
            [
                {
                    **{name: getattr(each, name) for name in ("name", "ttl", "expires_at", "created_at", "updated_at")},
                    "content": column.sealed(
                        ring, each.content, column.ITEM_CONTENT.place(owner, each.name, each.updated_at)
                    ),
                    "vectors": None if each.vectors is None else each.vectors.astype("<f4").tobytes(),
                    "dimension": None if each.vectors is None else each.vectors.shape[1],
                }
                for each in items
            ],
        ),
        (
            SUMMARIES,
            [
                {
                    **{
                        name: getattr(each, name)
                        for name in ("covers_to", "messages", "updated_at", "summariser", "version", "last_message_at")
                    },
                    "session_id": each.scope.session_id or "",
                    "text": column.sealed(
                        ring, each.text, column.SUMMARY_TEXT.place(owner, each.scope.session_id, each.updated_at)
                    ),
                }
                for each in summaries
            ],
        ),
        (PROFILES, [{"version": each.version, "updated_at": each.updated_at or began} for each in profiles]),
        (
            PROFILE_TRAITS,
            [
                {
                    "name": name,
                    "value": each.value,
                    "evidence": list(each.evidence),
                    "updated_at": each.updated_at or began,
                    "last_message_at": each.last_message_at,
                }
                for name, each in traits.items()
            ],
        ),
    ]


def _batch_rows(given: Rows, began: datetime) -> list[dict[str, Any]]:  # Any: values of columns
    """Their times keep the order, which an undo asks for."""
    batches: Sequence[ExtractionBatch] = list(given.get("model_batches", {}).values())
    return [
        {
            "job_id": each.job_id,
            "kind": each.kind.value,
            "session_id": each.session_id,
            "episode_ids": list(each.shown),
            "at": began - timedelta(microseconds=len(batches) - number),
        }
        for number, each in enumerate(batches)
    ]


def _tombstone_row(stone: Tombstone, began: datetime) -> dict[str, Any]:  # Any: values of columns
    """Redis does not have it: the reconciler delivers it."""
    fields = {name: getattr(stone, name) for name in ("generation", "session_id", "before", "member", "by_policy")}
    return {**fields, "at": stone.at or began, "ids": sorted(stone.ids), "delivered": stone.by_policy}


def _event_row(seq: int, event: Mapping[str, Any], began: datetime) -> dict[str, Any]:  # Any: JSON
    """It was published where it happened, so no webhook gets it again."""
    return {"seq": seq, "id": event["id"], "event": dict(event), "created_at": began, "published_at": began}


def _counter_rows(given: Rows) -> list[dict[str, Any]]:  # Any: values of columns
    last = given.get("event_counters", {}).get("last")
    first = min(given.get("events", {}), default=None)
    return [] if last is None else [{"last": last, "pruned_to": last if first is None else first - 1}]


def _to_batch(row: Row[Any]) -> ExtractionBatch:  # Any: a row of `model_batches`
    return ExtractionBatch(
        job_id=JobId(row.job_id),
        kind=JobKind(row.kind),
        session_id=row.session_id,
        shown=tuple(EpisodeId(id_) for id_ in row.episode_ids),
    )


def _to_vector(row: Row[Any]) -> Vector:  # Any: a row of `_VECTORS`
    vectors: Vector = (
        row.embedding if row.passage_embedding is None else np.stack([row.embedding, *row.passage_embedding])
    )
    return vectors


def _owned(table: Table, owner: Scope) -> tuple[Any, Any]:  # Any: column expressions
    return table.c.namespace == owner.namespace, table.c.user_id == owner.user_column


async def _select(
    tx: Transaction, table: Table, owner: Scope, *, order: Sequence[Any] = ()
) -> Sequence[Row[Any]]:  # Any: column expressions; rows of the table
    return (await pg(tx).execute(select(table).where(*_owned(table, owner)).order_by(*order))).all()


async def _insert(tx: Transaction, table: Table, owner: Scope, rows: Sequence[dict[str, Any]]) -> None:  # Any: values
    named = {"namespace": owner.namespace, "user_id": owner.user_column}
    if rows:
        await pg(tx).execute(insert(table), [{**named, **row} for row in rows])
