"""Running the short programs that come with the servers: initdb, pg_basebackup, psql, pg_isready."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Exit code and output of a finished program."""

    code: int
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """The last thing it complained about, in one line."""
        lines = (self.errors or self.output).strip().splitlines()
        return " ".join(lines[-3:]) if lines else f"exit code {self.code}"


def environment() -> dict[str, str]:
    """Our environment for Postgres's programs: none of the user's PG*, which would lead them elsewhere, and English."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**ours, "LC_ALL": "C"}  # and macOS's libc starts threads for other locales, which postgres refuses


async def run(
    argv: Sequence[str],
    *,
    timeout_seconds: float,
    env: Mapping[str, str],
    stdin: str = "",
    cwd: Path | None = None,
) -> Finished:
    """Run a program to its end; it is killed when it takes too long or when the caller is cancelled."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(env),
        cwd=cwd,
    )
    try:
        async with asyncio.timeout(timeout_seconds):
            output, errors = await process.communicate(stdin.encode())
    except TimeoutError:
        return Finished(code=-1, output="", errors=f"no end after {timeout_seconds:g} s")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Finished(
        code=process.returncode or 0,
        output=output.decode(errors="replace"),
        errors=errors.decode(errors="replace"),
    )
