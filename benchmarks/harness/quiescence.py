"""When nothing is left to do: nothing pending, nothing spooled, no job that is not final, for a while."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

import asyncpg
import redis.asyncio as aioredis
from redis.exceptions import RedisError

from aftermind.wire.redis_keys import Keys
from benchmarks.harness import hostile_tenant
from benchmarks.harness.history import now

LOOKS = 3  # in a row that must all find nothing: between two jobs of a chain there is a moment without any
EVERY = 0.25  # seconds

_JOBS = f"""
    SELECT count(*) FILTER (WHERE state IN ('queued', 'running', 'retrying')) AS left,
           count(*) FILTER (WHERE state NOT IN ('queued', 'running', 'retrying')) AS ended
    FROM aftermind.jobs WHERE namespace <> '{hostile_tenant.NAMESPACE}'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is still to be done, and the jobs that have ended; -1 where it could not be asked."""

    pending: int
    jobs: int
    spooled_bytes: int
    ended: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether all is done."""
        return self.pending == self.jobs == self.spooled_bytes == 0


async def wait_for_quiet(
    database_url: str, redis_url: str, spools: Path, *, timeout: float, at_most: float = inf
) -> tuple[float, Left]:
    """How many seconds it took, and what was left: nothing, unless no job had ended for `timeout` seconds, or it
    took longer than `at_most`.
    """
    began = progressed = now()
    found, in_a_row = await look(database_url, redis_url, spools), 0
    most = found.ended
    while now() - progressed < timeout and now() - began < at_most:
        in_a_row = in_a_row + 1 if found.is_nothing else 0
        if in_a_row >= LOOKS:
            break
        await asyncio.sleep(EVERY)
        found = await look(database_url, redis_url, spools)
        if found.ended > most:
            most, progressed = found.ended, now()
    return now() - began, found


async def look(database_url: str, redis_url: str, spools: Path) -> Left:
    """What is left at this moment."""
    jobs, ended = await _jobs(database_url)
    return Left(pending=await _pending(redis_url), jobs=jobs, spooled_bytes=_spooled(spools), ended=ended)


async def _pending(url: str) -> int:
    with suppress(RedisError, OSError):
        async with aioredis.Redis.from_url(url, socket_timeout=2) as client:
            theirs = Keys().pending(f"{hostile_tenant.NAMESPACE}/").encode()
            found = [key async for key in client.scan_iter(match=Keys().pending("*"), count=1_000)]
            return sum([int(await client.zcard(key)) for key in found if not key.startswith(theirs)])
    return -1


async def _jobs(url: str) -> tuple[int, int]:
    """Unfinished jobs, and ended ones."""
    with suppress(asyncpg.PostgresError, OSError, TimeoutError):
        connection = await asyncpg.connect(url, timeout=2)
        try:
            row = await connection.fetchrow(_JOBS)
            assert row is not None  # aggregates have one row
            return int(row["left"]), int(row["ended"])
        finally:
            await connection.close()
    return -1, -1


def _spooled(folder: Path) -> int:
    """Bytes of segments; damaged records are kept aside in other files, for people."""
    total = 0
    for path in folder.rglob("*.spool"):
        with suppress(FileNotFoundError):  # a segment is removed as soon as it is sent
            total += path.stat().st_size if path.is_file() else 0
    return total
