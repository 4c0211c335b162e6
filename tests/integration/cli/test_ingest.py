"""What `aftermind ingest` reports about messages that are new and messages that were accepted before."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from aftermind import Memory
from aftermind.cli import importers, ingest
from aftermind.cli.importers import BadLine, FileTurn


def turns(folder: Path, name: str, texts: Sequence[str]) -> list[FileTurn | BadLine]:
    path = folder / name
    path.write_text("".join(json.dumps({"messages": [{"role": "user", "content": text}]}) + "\n" for text in texts))
    return list(importers.read(path, user="ann", session="s"))


async def test_two_concurrent_runs_for_a_user_each_count_their_own_messages(tmp_path: Path) -> None:
    first = turns(tmp_path, "a.jsonl", [f"I read book {number}." for number in range(70)])
    second = turns(tmp_path, "b.jsonl", ["I like rain.", "I like snow."])
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        both = await asyncio.gather(ingest.play(memory, first), ingest.play(memory, second))
        again = await ingest.play(memory, [*second, *turns(tmp_path, "c.jsonl", ["I like hail."])])

    assert [(done.messages, done.known) for done in (*both, again)] == [(70, 0), (2, 0), (3, 2)]
