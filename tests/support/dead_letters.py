"""Dead letters for tests: rows as the ledger leaves them."""

from collections.abc import Sequence
from uuid import UUID, uuid4

import asyncpg

_INSERT = """
    INSERT INTO aftermind.jobs (id, namespace, user_id, session_id, kind, state, payload, raw, effect_key, attempts,
                                reason_code, error_class, error, fingerprint, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 8, $10, 'BadModelAnswer', $11, $12, clock_timestamp())
"""


class Letters:
    """A hand on the rows of `jobs`, past all code of ours."""

    def __init__(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        self.connection = connection

    async def mark_dead(
        self,
        count: int = 1,
        *,
        namespace: str = "default",
        user: str = "alice",
        kind: str = "embed",
        state: str = "dead",
        reason: str = "llm_bad_answer",
        error: str = "openai gave an answer that cannot be used",
        effect: str | None = None,
    ) -> list[UUID]:
        """So many dead letters alike, each of an effect of its own unless one is named."""
        made = []
        for _ in range(count):
            job = uuid4()
            fingerprint = f"print-of-{reason}"
            scope = (namespace, user, "s1")
            values = (kind, state, '{"episodes": ["e"]}', b"whole", effect or f"effect-{job}", reason, error)
            await self.connection.execute(_INSERT, job, *scope, *values, fingerprint)
            made.append(job)
        return made

    async def mine(self, job: UUID) -> None:
        """Let a job have the last word about an episode."""
        await self.connection.execute(
            "INSERT INTO aftermind.extractions (namespace, user_id, episode_id, outcome, extractor, job_id) "
            "SELECT namespace, user_id, gen_random_uuid(), 'facts', 'openai:x:1', id FROM aftermind.jobs WHERE id = $1",
            job,
        )

    async def end(self, state: str, jobs: Sequence[UUID] | None = None) -> int:
        """Let unfinished jobs end in a state: all of them, or those named."""
        unfinished = "state IN ('queued', 'running', 'retrying')"
        chosen = unfinished if jobs is None else f"{unfinished} AND id = ANY($2)"
        done = await self.connection.execute(
            f"UPDATE aftermind.jobs SET state = $1, reason_code = 'llm_bad_answer' WHERE {chosen}",
            state,
            *([] if jobs is None else [list(jobs)]),
        )
        return int(done.split()[-1])

    async def states(self) -> dict[str, int]:
        """Jobs by state."""
        rows = await self.connection.fetch("SELECT state, count(*) AS jobs FROM aftermind.jobs GROUP BY 1")
        return {row["state"]: row["jobs"] for row in rows}

    async def successors(self) -> dict[UUID, int]:
        """How many jobs name each replayed one as their origin."""
        rows = await self.connection.fetch(
            "SELECT old.id, count(new.id) AS jobs FROM aftermind.jobs old "
            "LEFT JOIN aftermind.jobs new ON new.origin_job_id = old.id WHERE old.state = 'replayed' GROUP BY 1"
        )
        return {row["id"]: row["jobs"] for row in rows}
