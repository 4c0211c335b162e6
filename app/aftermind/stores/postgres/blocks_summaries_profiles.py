"""Statements over blocks, summaries and profiles."""

from collections.abc import Mapping
from datetime import datetime

import orjson
from sqlalchemy import select, text

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.postgres_transaction import pg
from aftermind.db.tables import BLOCKS, PROFILE_TRAITS, PROFILES, SUMMARIES
from aftermind.stores.postgres.rows import to_block, to_summary
from aftermind.types import Block, EpisodeId, Profile, Scope, Summary, Trait

# The version is checked and raised by the statement itself: two edits of one version meet at the row's lock.
_PUT_BLOCK = text(
    """
    INSERT INTO aftermind.blocks AS there (namespace, user_id, name, agent_id, content, description, version,
                                           updated_at)
    VALUES (:namespace, :user, :name, :agent, :content, :description, 1, :at)
    ON CONFLICT (namespace, user_id, name) DO UPDATE
    SET content = excluded.content, description = excluded.description, agent_id = excluded.agent_id,
        version = there.version + 1, updated_at = excluded.updated_at
    WHERE CAST(:expected AS int) IS NULL
    RETURNING name, content, version, updated_at, description
    """
)
# An upsert would write a block again that was deleted or renamed since it was read.
_EDIT_BLOCK = text(
    """
    UPDATE aftermind.blocks
    SET content = :content, description = :description, agent_id = :agent, version = version + 1, updated_at = :at
    WHERE namespace = :namespace AND user_id = :user AND name = :name AND version = :expected
    RETURNING name, content, version, updated_at, description
    """
)
_PUT_SUMMARY = text(
    """
    INSERT INTO aftermind.summaries AS there (namespace, user_id, session_id, text, covers_to, messages, updated_at,
                                              summariser, version, last_message_at)
    VALUES (:namespace, :user, :session, :text, :covers_to, :messages, :at, :summariser, 1, :last_message_at)
    ON CONFLICT (namespace, user_id, session_id) DO UPDATE
    SET text = excluded.text, covers_to = excluded.covers_to, messages = excluded.messages,
        updated_at = excluded.updated_at, summariser = excluded.summariser, version = there.version + 1,
        last_message_at = excluded.last_message_at
    WHERE excluded.covers_to >= there.covers_to OR there.version = CAST(:over AS int)
    RETURNING version
    """
)
_DROP_TRAITS = text(
    """
    DELETE FROM aftermind.profile_traits
    WHERE namespace = :namespace AND user_id = :user AND name <> ALL(CAST(:kept AS text[]))
      AND (CAST(:names AS text[]) IS NULL OR name = ANY(CAST(:names AS text[])))
    """
)
_TOUCH_PROFILE = text(
    """
    INSERT INTO aftermind.profiles AS there (namespace, user_id, version, updated_at)
    VALUES (:namespace, :user, 1, :at)
    ON CONFLICT (namespace, user_id) DO UPDATE SET version = there.version + 1, updated_at = excluded.updated_at
    """
)
_SET_TRAIT = text(
    """
    INSERT INTO aftermind.profile_traits (namespace, user_id, name, value, evidence, updated_at, last_message_at)
    VALUES (:namespace, :user, :name, CAST(:value AS jsonb), CAST(:evidence AS uuid[]), :at, :last_message_at)
    ON CONFLICT (namespace, user_id, name) DO UPDATE
    SET value = excluded.value, evidence = excluded.evidence, updated_at = excluded.updated_at,
        last_message_at = excluded.last_message_at
    """
)


async def block(tx: Transaction, owner: Scope, name: str) -> Block | None:
    """See `Store.block`."""
    rule = (BLOCKS.c.namespace == owner.namespace, BLOCKS.c.user_id == owner.user_column, BLOCKS.c.name == name)
    row = (await pg(tx).execute(select(BLOCKS).where(*rule))).first()
    return None if row is None else to_block(owner, row)


async def blocks(tx: Transaction, owner: Scope) -> list[Block]:
    """See `Store.blocks`."""
    rule = (BLOCKS.c.namespace == owner.namespace, BLOCKS.c.user_id == owner.user_column)
    rows = (await pg(tx).execute(select(BLOCKS).where(*rule).order_by(BLOCKS.c.name))).all()
    return [to_block(owner, row) for row in rows]


async def put_block(tx: Transaction, given: Block, *, expected_version: int | None) -> Block:
    """See `Store.put_block`."""
    row = await pg(tx).row(
        _EDIT_BLOCK if expected_version else _PUT_BLOCK,
        namespace=given.scope.namespace,
        user=given.scope.user_column,
        name=given.name,
        agent=given.scope.agent_id,
        content=given.content,
        description=given.description,
        at=given.updated_at,
        expected=expected_version,
    )
    if row is None:
        there = await block(tx, given.scope, given.name)
        raise errors.BlockConflict(given.name, expected_version or 0, there.version if there else 0)
    return to_block(given.scope, row)


async def delete_block(tx: Transaction, owner: Scope, name: str) -> bool:
    """See `Store.delete_block`."""
    rule = (BLOCKS.c.namespace == owner.namespace, BLOCKS.c.user_id == owner.user_column, BLOCKS.c.name == name)
    return bool((await pg(tx).execute(BLOCKS.delete().where(*rule))).rowcount)


async def summary(tx: Transaction, owner: Scope, session_id: str | None) -> Summary | None:
    """See `Store.summary`. The sessionless bucket is kept under the empty text."""
    rule = (SUMMARIES.c.namespace == owner.namespace, SUMMARIES.c.user_id == owner.user_column)
    row = (await pg(tx).execute(select(SUMMARIES).where(*rule, SUMMARIES.c.session_id == (session_id or "")))).first()
    return None if row is None else to_summary(owner, row)


async def summaries(tx: Transaction, owner: Scope, *, limit: int) -> list[Summary]:
    """See `Store.summaries`."""
    rule = (SUMMARIES.c.namespace == owner.namespace, SUMMARIES.c.user_id == owner.user_column)
    wanted = select(SUMMARIES).where(*rule).order_by(SUMMARIES.c.updated_at.desc()).limit(limit)
    return [to_summary(owner, row) for row in (await pg(tx).execute(wanted)).all()]


async def put_summary(tx: Transaction, given: Summary, *, over: int | None) -> bool:
    """See `Store.put_summary`."""
    rows = await pg(tx).rows(
        _PUT_SUMMARY,
        namespace=given.scope.namespace,
        user=given.scope.user_column,
        session=given.scope.session_id or "",
        text=given.text,
        covers_to=given.covers_to,
        messages=given.messages,
        at=given.updated_at,
        summariser=given.summariser,
        last_message_at=given.last_message_at,
        over=over,
    )
    return bool(rows)


async def profile(tx: Transaction, owner: Scope) -> Profile | None:
    """See `Store.profile`."""
    head = select(PROFILES).where(PROFILES.c.namespace == owner.namespace, PROFILES.c.user_id == owner.user_column)
    found = (await pg(tx).execute(head)).first()
    if found is None:
        return None
    rule = (PROFILE_TRAITS.c.namespace == owner.namespace, PROFILE_TRAITS.c.user_id == owner.user_column)
    rows = (await pg(tx).execute(select(PROFILE_TRAITS).where(*rule).order_by(PROFILE_TRAITS.c.name))).all()
    traits = {
        row.name: Trait(
            value=row.value,
            evidence=tuple(EpisodeId(id_) for id_ in row.evidence),
            updated_at=row.updated_at,
            last_message_at=row.last_message_at,
        )
        for row in rows
    }
    return Profile(scope=owner.owner, traits=traits, version=found.version, updated_at=found.updated_at)


async def merge_profile(
    tx: Transaction, owner: Scope, traits: Mapping[str, Trait | None], *, at: datetime, replace: bool = False
) -> Profile:
    """See `Store.merge_profile`. The profile's row is locked first, so that two merges follow each other."""
    given = {"namespace": owner.namespace, "user": owner.user_column, "at": at}
    await pg(tx).execute(_TOUCH_PROFILE, given)
    rows = [
        {
            **given,
            "name": name,
            "value": orjson.dumps(trait.value).decode(),
            "evidence": list(trait.evidence),
            "last_message_at": trait.last_message_at,
        }
        for name, trait in sorted(traits.items())
        if trait is not None
    ]
    if replace or len(rows) < len(traits):
        names, kept = sorted(traits), [row["name"] for row in rows]
        await pg(tx).execute(_DROP_TRAITS, {**given, "names": None if replace else names, "kept": kept})
    if rows:
        await pg(tx).execute(_SET_TRAIT, rows)
    merged = await profile(tx, owner)
    if merged is None:
        raise errors.Bug("a profile that was just written is not there.")
    return merged
