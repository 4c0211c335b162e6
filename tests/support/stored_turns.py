"""Episodes in a database without workers: for tests of what reads them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

import asyncpg
import numpy as np
import orjson
from numpy.typing import NDArray

from aftermind.db.engine import decode_half, encode_half
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.ranking import spoken
from aftermind.stores.postgres.owner_term_keys import term_keys
from aftermind.types import Episode, Json, Role, Scope
from aftermind.types.message import new_ids

START = datetime(2024, 3, 1, 9, 0, tzinfo=UTC)
_COLUMNS = [
    *("namespace", "user_id", "id", "session_id", "agent_id", "role", "name", "content", "metadata"),
    *("occurred_at", "remembered_at", "position", "mark", "terms", "embedding", "stored_at"),
]
_places = count()
_embedder = HashEmbedder()


def said(
    content: str,
    *,
    user: str | None = "alice",
    namespace: str = "default",
    session: str | None = "s1",
    agent: str | None = None,
    role: Role = Role.USER,
    name: str | None = None,
    metadata: dict[str, Json] | None = None,
    at: datetime | None = None,
    remembered_at: datetime | None = None,
) -> Episode:
    """An episode, each a minute after the one before it."""
    place = next(_places)
    moment = at or START + timedelta(minutes=place)
    return Episode(
        id=new_ids(1)[1][0],
        scope=Scope(namespace=namespace, user_id=user, session_id=session, agent_id=agent),
        role=role,
        content=content,
        name=name,
        metadata=metadata or {},
        occurred_at=moment,
        remembered_at=remembered_at or moment,
        position=1_700_000_000_000_000 + place,
    )


async def keep(
    url: str, episodes: Sequence[Episode], vectors: Sequence[NDArray[np.float32] | None] | None = None
) -> None:
    """Write them as the store job would: terms, and hash vectors where none are given (None: not embedded yet)."""
    made = (
        list(_embedder.vectors([spoken(each.name, each.content) for each in episodes])) if vectors is None else vectors
    )
    rows = [_row(episode, vector) for episode, vector in zip(episodes, made, strict=True)]
    connection = await asyncpg.connect(url)
    try:
        await connection.set_type_codec(
            "halfvec", schema="public", encoder=encode_half, decoder=decode_half, format="binary"
        )
        owners = {(row[0], row[1]) for row in rows}
        insert = "INSERT INTO aftermind.users (namespace, user_id) VALUES ($1, $2) ON CONFLICT DO NOTHING"
        await connection.executemany(insert, sorted(owners))
        values = ", ".join(f"${number}" for number in range(1, len(_COLUMNS) + 1))
        # Not COPY: Postgres refuses it where row-level security holds.
        await connection.executemany(f"INSERT INTO aftermind.episodes ({', '.join(_COLUMNS)}) VALUES ({values})", rows)
    finally:
        await connection.close()


def _row(episode: Episode, vector: NDArray[np.float32] | None) -> tuple[object, ...]:
    scope = episode.scope
    return (
        *(scope.namespace, scope.user_column, episode.id, scope.session_id, scope.agent_id, episode.role.value),
        *(episode.name, episode.content, orjson.dumps(episode.metadata).decode(), episode.occurred_at),
        *(episode.remembered_at, episode.position, episode.mark, term_keys(scope, episode.content), vector),
        episode.remembered_at,
    )
