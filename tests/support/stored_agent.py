"""An agent whose store is a file or a server, in a process that tests kill: `python -m tests.support.stored_agent URL`.

It remembers turns one after the other and prints the text of each when it has been accepted; a turn that is refused is
repeated with its key. With `--deadly` the process ends in the first extraction, with `--stops` it freezes there. With
`--freezes` it stops itself in a transaction, and prints when that is refused after it has been continued.
"""

import asyncio
import itertools
import os
import signal
import sys

from aftermind import Memory, errors
from aftermind.db.inmemory_database import mem
from aftermind.llm.offline.rule_extractor import RuleExtractor
from aftermind.llm.protocols import Extraction, ExtractionRequest


class SignallingExtractor(RuleExtractor):
    """Sends its own process a signal: SIGKILL ends it as a power failure does, SIGSTOP freezes it."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self._number = number

    async def extract(self, request: ExtractionRequest) -> Extraction:
        os.kill(os.getpid(), self._number)
        return await super().extract(request)


async def main(url: str, prefix: str, *, number: signal.Signals | None, freezes: bool) -> None:
    """Remember until the process is killed."""
    async with Memory(url, extractor=None if number is None else SignallingExtractor(number)) as memory:
        if freezes:
            await freeze(memory)
            return
        for turn in itertools.count() if number is None else range(1):
            text = f"{prefix} {turn}"
            await remember(memory, text, user=f"user {turn % 3}")
            write(text)
        await asyncio.Event().wait()


async def remember(memory: Memory, text: str, *, user: str) -> None:
    """Remember a turn once, also where it is unknown whether it was accepted."""
    while True:
        try:
            await memory.remember(text, user_id=user, session_id=text.rpartition(" ")[0], idempotency_key=text)
        except errors.StoreInUse as exc:
            if not memory._parts.db.is_shared:  # type: ignore[attr-defined]
                raise exc
        except errors.StoreUnavailable:
            pass
        else:
            return


async def freeze(memory: Memory) -> None:
    """Stop with the right to write, and with a change that is not committed."""
    try:
        async with memory._parts.db.transaction() as tx:
            mem(tx).put(mem(tx).table("generation"), "last", 1_000_000)
            write("frozen")
            os.kill(os.getpid(), signal.SIGSTOP)
    except errors.StoreUnavailable:
        write("refused")


def write(line: str) -> None:
    """Report to the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    flags = sys.argv[3:]
    named = {"--deadly": signal.SIGKILL, "--stops": signal.SIGSTOP}
    sent = next((named[flag] for flag in flags if flag in named), None)
    asyncio.run(main(sys.argv[1], sys.argv[2], number=sent, freezes="--freezes" in flags))
