"""Writes in this process, reads in another one through a replica that replays nothing, and workers that are killed."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent, indent

import psutil

from aftermind import Memory, Settings
from tests.fundamentals.conftest import as_environment
from tests.support.fork_server import ForkedProcess, start_module
from tests.support.servers import Database, psql
from tests.support.waiting import PATIENCE_SECONDS, wait_until


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


async def stored_after_a_kill(
    memory: Memory, settings: Settings, folder: Path, write: Callable[[], Awaitable[object]], **whose: str
) -> list[str]:
    """What the user's episodes say once a write is stored whose worker was killed, as `kill -9` does, on the way."""
    environment = {**os.environ, **as_environment(settings), "AFTERMIND_RECONCILE_SECONDS": "0.5"}
    argv = ["aftermind.cli", "worker", "--queues", "all"]

    def start(name: str) -> ForkedProcess | psutil.Popen:
        with (folder / name).open("wb") as log:
            return start_module(argv, env=environment, output=log, start_new_session=True)

    first = start("first.log")
    try:
        await (await memory.remember("Before.", user_id="another-user")).stored(timeout=PATIENCE_SECONDS)
        await write()
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    second = start("second.log")
    try:

        async def stored() -> bool:
            progress = await memory.progress(**whose)
            return progress.pending_turns == 0 and progress.episodes > 0

        await wait_until(stored, description="the second worker has stored every turn")
    finally:
        os.killpg(second.pid, signal.SIGKILL)
        second.wait()
    return [each.content for each in await memory.history(**whose)]
