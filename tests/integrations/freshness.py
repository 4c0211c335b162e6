"""Writes in this process, and reads in another one through a replica that stands still."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from textwrap import dedent, indent

from aftermind import Settings
from tests.fundamentals.conftest import as_environment
from tests.support.servers import Database, psql


@asynccontextmanager
async def standing_replica(database: Database) -> AsyncIterator[None]:
    """The replica of the database replays nothing."""
    await asyncio.to_thread(psql, database.replica_admin_urls[0], "SELECT pg_wal_replay_pause()")
    try:
        yield
    finally:
        await asyncio.to_thread(psql, database.replica_admin_urls[0], "SELECT pg_wal_replay_resume()")


async def read_elsewhere(settings: Settings, code: str) -> object:
    """What `code`, the body of an async function with a `memory`, returns in a process of its own: JSON."""
    body = indent(dedent(code), " " * 8)
    program = (
        "import asyncio, json\nfrom aftermind import Memory\nasync def main():\n"
        f"    async with Memory() as memory:\n{body}\nprint(json.dumps(asyncio.run(main())))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        env={**os.environ, **as_environment(settings)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)
