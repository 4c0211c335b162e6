"""When nothing is left to do: nothing pending, nothing spooled, no job that is not final, for a while."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import redis.asyncio as aioredis
from redis.exceptions import RedisError

from aftermind.wire.redis_keys import Keys
from benchmarks.harness import hostile
from benchmarks.harness.history import now

LOOKS = 3  # in a row that must all find nothing: between two jobs of a chain there is a moment without any
EVERY = 0.25  # seconds

_UNFINISHED = f"""
    SELECT count(*) FROM aftermind.jobs
    WHERE state IN ('queued', 'running', 'retrying') AND namespace <> '{hostile.NAMESPACE}'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is still to be done; -1 where it could not be asked."""

    pending: int
    jobs: int
    spooled_bytes: int

    @property
    def is_nothing(self) -> bool:
        """Whether all is done."""
        return self == Left(pending=0, jobs=0, spooled_bytes=0)

    def is_less_than(self, other: "Left") -> bool:
        """Whether work was done since the other look: stored turns become jobs, so pending turns count first."""
        mine, others = ((each.spooled_bytes, each.pending, each.jobs) for each in (self, other))
        return -1 not in mine and (-1 in others or mine < others)


async def wait_for_quiet(database_url: str, redis_url: str, spools: Path, *, timeout: float) -> tuple[float, Left]:
    """How many seconds it took, and what was left at the end: nothing, or what had not become less for `timeout`."""
    began = progressed = now()
    found, in_a_row = await look(database_url, redis_url, spools), 0
    least = found
    while now() - progressed < timeout:
        in_a_row = in_a_row + 1 if found.is_nothing else 0
        if in_a_row >= LOOKS:
            break
        await asyncio.sleep(EVERY)
        found = await look(database_url, redis_url, spools)
        if found.is_less_than(least):
            least, progressed = found, now()
    return now() - began, found


async def look(database_url: str, redis_url: str, spools: Path) -> Left:
    """What is left at this moment."""
    return Left(pending=await _pending(redis_url), jobs=await _jobs(database_url), spooled_bytes=_spooled(spools))


async def _pending(url: str) -> int:
    with suppress(RedisError, OSError):
        async with aioredis.Redis.from_url(url, socket_timeout=2) as client:
            theirs = Keys().pending(f"{hostile.NAMESPACE}/").encode()
            found = [key async for key in client.scan_iter(match=Keys().pending("*"), count=1_000)]
            return sum([int(await client.zcard(key)) for key in found if not key.startswith(theirs)])
    return -1


async def _jobs(url: str) -> int:
    with suppress(asyncpg.PostgresError, OSError, TimeoutError):
        connection = await asyncpg.connect(url, timeout=2)
        try:
            return int(await connection.fetchval(_UNFINISHED))
        finally:
            await connection.close()
    return -1


def _spooled(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a segment is removed as soon as it is sent
            total += path.stat().st_size if path.is_file() else 0
    return total
