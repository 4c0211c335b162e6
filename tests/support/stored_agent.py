"""An agent whose store is a file or a Redis, in a process that tests kill: `python -m tests.support.stored_agent URL`.

It remembers turns one after the other and prints the text of each when it has been accepted. With `--deadly` the
process ends in the first extraction.
"""

import asyncio
import itertools
import os
import signal
import sys

from aftermind import Memory
from aftermind.llm.offline.rule_extractor import RuleExtractor
from aftermind.llm.protocols import Extraction, ExtractionRequest


class DeadlyExtractor(RuleExtractor):
    """Ends the process as a power failure does."""

    async def extract(self, request: ExtractionRequest) -> Extraction:
        os.kill(os.getpid(), signal.SIGKILL)
        return await super().extract(request)


async def main(url: str, prefix: str, *, is_deadly: bool) -> None:
    """Remember until the process is killed."""
    async with Memory(url, extractor=DeadlyExtractor() if is_deadly else None) as memory:
        for number in range(1) if is_deadly else itertools.count():
            text = f"{prefix} {number}"
            await memory.remember(text, user_id=f"user {number % 3}", session_id="s")
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], is_deadly="--deadly" in sys.argv))
