"""An agent in a process of its own, of whichever release its PYTHONPATH names: JSON lines of what to do on stdin, one
answer each on stdout. Run as a file; it imports `aftermind` alone."""

import asyncio
import json
import sys
import time
from typing import Any  # Any: what JSON says

from aftermind import Memory

SECONDS = 60.0  # for a turn to get so far


async def answer(memory: Memory, asked: dict[str, Any], receipts: list[Any]) -> object:
    """What came of one line."""
    owner = {"user_id": asked["user"]}
    match asked["do"]:
        case "remember":
            receipt = await memory.remember(
                asked["text"], session_id=asked["session"], accept=asked.get("accept"), **owner
            )
            receipts.append((asked["text"], receipt))
            return receipt.spooled
        case "receipts":
            return [[text, str((await receipt.status()).stored)] for text, receipt in receipts]
        case "time":
            return time.time()
        case "is_valid":
            return await memory.api_keys.check(asked["text"]) is not None
        case "last_at":
            return [user.last_at and user.last_at.timestamp() for user in await memory.users()]
        case "learn":
            receipt = await memory.remember(asked["text"], session_id=asked["session"], accept=asked["accept"], **owner)
            await receipt.stored(timeout=SECONDS)
            await receipt.embedded(timeout=SECONDS)
            await receipt.extracted(timeout=SECONDS)
            return str(receipt.job_id)
        case "recall":
            block = await memory.recall(asked["text"], **owner)
            return {"text": block.text, "degraded": block.degraded}
        case "history":
            return [episode.content for episode in await memory.history(limit=10_000, **owner)]
        case "vectors":
            everything = await memory.export(vectors=True, **owner)
            ids = {episode.id for episode in everything.episodes}
            return [len(everything.episodes), len(ids & everything.vectors.keys())]
        case "forget":
            await memory.forget(**owner)
            return None
        case "state":
            return (await memory.facts.add("user", "lives_in", asked["text"], **owner)).object
        case "facts":
            rows = await memory.facts.history(**owner)
            return [[fact.predicate, fact.object] for fact in rows if fact.superseded_at is None]
    raise ValueError(asked["do"])


async def main() -> None:
    """Answer until stdin ends; an error is an answer too."""
    async with Memory() as memory:
        receipts: list[Any] = []
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                told = {"answer": await answer(memory, json.loads(line), receipts)}
            except Exception as exc:  # the edge: the test is to see it
                told = {"failed": f"{type(exc).__name__}: {exc}"}
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
