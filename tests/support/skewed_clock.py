"""Processes with a wrong clock: libfaketime, preloaded, reads the offset from a file that a test may change."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

AGENT = Path(__file__).with_name("agent_process.py")
PATCHES = Path(__file__).with_name("skewed_clock_path")
LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/local/lib/faketime/libfaketimeMT.so.1")


def libfaketime() -> Path:
    """The library. Where there is none: an error under CI, a skip with the reason elsewhere."""
    for pattern in LIBRARIES:
        for found in Path("/").glob(pattern.lstrip("/")):
            return found
    if os.environ.get("CI"):
        raise RuntimeError("wrong clocks are tested with libfaketime, which is not installed")
    pytest.skip("libfaketime is not installed: apt-get install faketime")


class SkewedClock:
    """A wall clock that differs from this machine's by `seconds`; the monotonic clock is right."""

    def __init__(self, file: Path, seconds: float = 0.0) -> None:
        self._file = file
        self.step(seconds)

    def step(self, seconds: float) -> None:
        """From now on it differs by so many seconds: processes that run see it step."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(f"{seconds:+g}\n")
        draft.replace(self._file)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Environment variables of a process that has this clock."""
        return {
            **env,
            "LD_PRELOAD": str(libfaketime()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Else pthread_cond_timedwait waits too long, and threads of Python wait seconds for the interpreter's lock.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "PYTHONPATH": os.pathsep.join([str(PATCHES), *filter(None, [env.get("PYTHONPATH")])]),
        }


class SkewedAgent:
    """An agent in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lock = asyncio.Lock()

    async def do(self, what: str, **named: Any) -> Any:  # Any: JSON
        """The answer of its memory; see `agent_process.py`."""
        asked = {"do": what, "user": "alice", "session": "s", "text": "", "accept": None, **named}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._lock:
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            answer = json.loads(await self._process.stdout.readline() or b'{"failed": "it ended"}')
        assert "failed" not in answer, f"{what}: {answer['failed']}"
        return answer["answer"]


@asynccontextmanager
async def skewed_agent(env: Mapping[str, str], log: Path) -> AsyncIterator[SkewedAgent]:
    """A process for the block, with the clock of its environment; it ends with its stdin."""
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", str(AGENT)),
            env=dict(env),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=out,
            limit=2**24,
        )
    try:
        yield SkewedAgent(process)
        assert process.stdin is not None
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 180) == 0, f"see {log}"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
