"""An agent in a process of its own, asked by lines: see `agent_process.py`."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.fork_server import start_module

END_SECONDS = 180.0


class AgentProcess:
    """A process with a memory, of the release `name`."""

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.name, self._reader, self._writer = name, reader, writer
        self._lock = asyncio.Lock()

    async def do(self, what: str, *, user: str = "alice", session: str = "s", text: str = "", **named: Any) -> Any:
        """The answer of its memory; it fails here if it failed there."""  # Any: JSON
        request = {"do": what, "user": user, "session": session, "text": text, "accept": None, **named}
        async with self._lock:
            self._writer.write(json.dumps(request).encode() + b"\n")
            answer = json.loads(await self._reader.readline() or b'{"failed": "it ended"}')
        assert "failed" not in answer, f"the {self.name} agent could not {what}: {answer['failed']}"
        return answer["answer"]


@asynccontextmanager
async def agent_process(
    env: Mapping[str, str], log: Path, *, name: str = "this", cwd: Path | None = None
) -> AsyncIterator[AgentProcess]:
    """A process for the block; it ends with its stdin."""
    here, there = socket.socketpair()
    with log.open("wb") as errors, there:
        arguments, both = ["tests.support.agent_process"], there.fileno()
        process = start_module(arguments, env=env, stdin=both, output=both, errors=errors, cwd=cwd)
    reader, writer = await asyncio.open_connection(sock=here, limit=2**24)
    try:
        yield AgentProcess(name, reader, writer)
        writer.write_eof()
        assert await asyncio.to_thread(process.wait, END_SECONDS) == 0, f"see {log}"
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        writer.close()
