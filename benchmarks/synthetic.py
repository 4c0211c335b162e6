"""Conversations that nobody had, in the sizes that a benchmark wants, and the way to have them in Postgres at once.

Words are those of Python's own documentation, by their frequency there and drawn by Zipf's law; a session keeps coming
back to forty of them, as people do. Vectors are the offline embedder's: neighbours of each other in hundreds of
dimensions, which is harder for an index of neighbours than the vectors of a trained model.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pydoc_data.topics import topics

import asyncpg
import numpy as np

from aftermind.db import migrate
from aftermind.db.engine import decode_half, encode_half
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.ranking import spoken
from aftermind.ranking.tokenizer import is_stop_word
from aftermind.settings import Settings
from aftermind.stores.postgres.owner_term_keys import term_keys
from aftermind.types import Scope
from aftermind.types.message import new_ids

DIMENSION = 384
NAMES = ("Ann", "Bob")
START = datetime(2025, 1, 1, tzinfo=UTC)
COLUMNS = [
    *("namespace", "user_id", "id", "session_id", "role", "name", "content", "occurred_at", "remembered_at"),
    *("position", "terms", "embedding"),
]
_CHUNK = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """So many users with so many episodes each."""

    users: int
    episodes: int

    @property
    def name(self) -> str:
        return f"{self.users}x{self.episodes}"


class Talk:
    """Turns and questions without end, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        counted = Counter(re.findall(r"[a-z]{3,14}", " ".join(topics.values()).lower()))
        self._words = np.array([word for word, _ in counted.most_common()])
        shares = 1 / np.arange(5, len(self._words) + 5)
        self._shares = shares / shares.sum()
        self._random = np.random.default_rng(seed)

    def turns(self, count: int) -> Iterator[tuple[str, str, str]]:
        """Session, speaker and text of so many turns."""
        session = 0
        while count > 0:
            subject = self._random.choice(len(self._words), 40, p=self._shares)
            length = min(int(self._random.integers(10, 30)), count)
            for turn in range(length):
                some = np.concatenate([self._random.choice(subject, 6), self._drawn(8)])
                yield f"s{session}", NAMES[turn % 2], " ".join(self._words[some]) + "."
            count -= length
            session += 1

    def question(self, text: str) -> str:
        """Six of a turn's words in another order, not all of them stop words if it has others."""
        words = [str(each) for each in self._random.permutation(text.rstrip(".").split())]
        first = next((each for each in words if not is_stop_word(each.lower())), words[0])
        words.remove(first)
        return f"What about {' '.join([*words[:5], first])}?"

    def chosen(self, count: int, among: int) -> list[int]:
        """So many different places."""
        return [int(place) for place in self._random.choice(among, min(count, among), replace=False)]

    def _drawn(self, count: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
        return self._random.choice(len(self._words), count, p=self._shares)


async def connect(url: str) -> "asyncpg.Connection[asyncpg.Record]":
    """A bare connection that speaks half-precision vectors."""
    connection = await asyncpg.connect(url, command_timeout=900)
    await connection.set_type_codec(
        "halfvec", schema="public", encoder=encode_half, decoder=decode_half, format="binary"
    )
    return connection


async def fill(url: str, size: Size, *, seed: int = 1) -> None:
    """Migrate a database and load it by COPY, users interleaved as they would have come; vectors indexed afterwards."""
    await migrate.apply(url, dimension=DIMENSION)
    connection = await connect(url)
    try:
        indexed = await connection.fetchval("SELECT indexdef FROM pg_indexes WHERE indexname = 'episodes_embedding'")
        await connection.execute("DROP INDEX aftermind.episodes_embedding")
        await connection.execute("ALTER TABLE aftermind.episodes NO FORCE ROW LEVEL SECURITY")  # it refuses COPY
        users = [("default", f"user-{number}") for number in range(size.users)]
        await connection.executemany("INSERT INTO aftermind.users (namespace, user_id) VALUES ($1, $2)", users)
        rows: list[tuple[object, ...]] = []
        for row in _rows(size, Talk(seed)):
            rows.append(row)
            if len(rows) == _CHUNK:
                await _copy(connection, rows)
                rows = []
        await _copy(connection, rows)
        if size.episodes > Settings().exact_search_max_rows:
            await connection.execute("UPDATE aftermind.users SET index_state = 2")
            await connection.execute("UPDATE aftermind.episodes SET indexed = true")
        await connection.execute("ALTER TABLE aftermind.episodes FORCE ROW LEVEL SECURITY")
        await connection.execute("SET maintenance_work_mem = '512MB'")
        await connection.execute(indexed)
        await connection.execute("VACUUM ANALYZE aftermind.episodes")
    finally:
        await connection.close()


async def _copy(connection: "asyncpg.Connection[asyncpg.Record]", rows: list[tuple[object, ...]]) -> None:
    vectors = HashEmbedder(DIMENSION).vectors([spoken(str(row[5]), str(row[6])) for row in rows])
    records = [(*row, vector) for row, vector in zip(rows, vectors, strict=True)]
    await connection.copy_records_to_table("episodes", schema_name="aftermind", records=records, columns=COLUMNS)


def _rows(size: Size, talk: Talk) -> Iterator[tuple[object, ...]]:
    streams = [(Scope(user_id=f"user-{number}"), talk.turns(size.episodes)) for number in range(size.users)]
    for place in range(size.episodes):
        moment = START + timedelta(minutes=place)
        for owner, stream in streams:
            session, name, text = next(stream)
            yield (
                *(owner.namespace, owner.user_column, new_ids(1)[1][0], session, "user", name, text, moment, moment),
                *(int(moment.timestamp() * 1_000_000), term_keys(owner, text)),
            )
