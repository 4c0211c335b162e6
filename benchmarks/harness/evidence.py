"""What the database holds at the end: the other side of the comparison. Read by plain SQL, past all code of ours."""

from dataclasses import dataclass, field

import asyncpg

from benchmarks.harness import hostile_tenant

_OURS = f"namespace <> '{hostile_tenant.NAMESPACE}'"  # what becomes of the hostile tenant is its own affair
_EPISODES = f"""
    SELECT user_id, session_id, position, content, embedding IS NOT NULL AS embedded FROM aftermind.episodes
    WHERE {_OURS}
"""
_FACTS = f"""
    SELECT user_id, predicate, object, strength FROM aftermind.facts WHERE superseded_at IS NULL AND {_OURS}
"""
_STORED = """
    SELECT id, extract(epoch FROM updated_at)::float8 AS at FROM aftermind.jobs WHERE kind = 'store' AND state = 'done'
"""
_DEAD = f"""
    SELECT coalesce(reason_code, '?') || ' (' || kind || ')' AS reason, count(*) AS jobs
    FROM aftermind.jobs WHERE state = 'dead' AND {_OURS} GROUP BY 1
"""
_UNFINISHED = f"""
    SELECT kind || ' ' || state AS what, count(*) AS jobs FROM aftermind.jobs
    WHERE state IN ('queued', 'running', 'retrying') AND {_OURS} GROUP BY 1
"""
_DONE_TWICE = """
    SELECT count(*) FROM (
        SELECT job_id FROM aftermind.job_attempts WHERE outcome = 'done' GROUP BY 1 HAVING count(*) > 1) AS twice
"""
# By the plans' items: a letter may have joined a job that was put in meanwhile, whose origin is another one.
_SUCCESSORS = """
    SELECT count(*) FILTER (WHERE successors = 0) AS orphans, count(*) FILTER (WHERE successors > 1) AS doubled FROM (
        SELECT old.id, count(DISTINCT new.id) AS successors FROM aftermind.jobs AS old
        LEFT JOIN aftermind.replay_items AS item ON item.job_id = old.id
        LEFT JOIN aftermind.jobs AS new ON new.id = item.new_job_id OR new.origin_job_id = old.id
        WHERE old.state = 'replayed' GROUP BY 1
    ) AS counted
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEpisode:
    """One row of `episodes`."""

    user: str
    session: str
    position: int
    content: str
    embedded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFact:
    """One fact that is believed."""

    user: str
    predicate: str
    object: str
    strength: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is looked at. `dead` and `unfinished` count jobs by reason and by kind and state.

    `stored_at` is when store jobs were closed, in seconds since 1970.

    `done_twice`: jobs of which two attempts claim the effect. `orphans`, `doubled`: replayed dead letters without a
    successor, and with several.
    """

    episodes: tuple[StoredEpisode, ...]
    facts: tuple[StoredFact, ...]
    dead: dict[str, int]
    unfinished: dict[str, int]
    done_twice: int
    orphans: int
    doubled: int
    stored_at: dict[str, float] = field(default_factory=dict)

    @property
    def dead_letters(self) -> int:
        """All of them."""
        return sum(self.dead.values())


async def read(database_url: str) -> Evidence:
    """The whole of it, on one connection and in one snapshot."""
    connection = await asyncpg.connect(database_url, timeout=10)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return await _read(connection)
    finally:
        await connection.close()


async def _read(connection: "asyncpg.Connection[asyncpg.Record]") -> Evidence:
    successors = await connection.fetchrow(_SUCCESSORS)
    assert successors is not None
    return Evidence(
        episodes=tuple(
            StoredEpisode(
                user=row["user_id"],
                session=row["session_id"] or "",
                position=row["position"],
                content=row["content"],
                embedded=row["embedded"],
            )
            for row in await connection.fetch(_EPISODES)
        ),
        facts=tuple(
            StoredFact(user=row["user_id"], predicate=row["predicate"], object=row["object"], strength=row["strength"])
            for row in await connection.fetch(_FACTS)
        ),
        dead={row["reason"]: row["jobs"] for row in await connection.fetch(_DEAD)},
        unfinished={row["what"]: row["jobs"] for row in await connection.fetch(_UNFINISHED)},
        done_twice=await connection.fetchval(_DONE_TWICE),
        orphans=successors["orphans"],
        doubled=successors["doubled"],
        stored_at={str(row["id"]): row["at"] for row in await connection.fetch(_STORED)},
    )
