"""What `aftermind ingest` reports about messages that are new and messages that were accepted before."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import orjson

from aftermind import Memory
from aftermind.cli import importers, ingest, terminal
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


async def test_messages_that_were_undone_are_hidden_where_an_export_is_ingested_too(tmp_path: Path) -> None:
    async with Memory(f"sqlite:{tmp_path}/memory.db", embedder="hash", extractor="rules") as memory:
        for said in ("I like tea.", "I am allergic to nuts.", "I live in Oslo."):
            receipt = await memory.remember(said, user_id="cora", session_id="s")
            await receipt.stored(timeout=30)
            if "nuts" in said:
                await memory.undo(*receipt.episode_ids, user_id="cora")
        exported = await memory.export(user_id="cora")
        text = orjson.dumps(terminal.to_plain(exported), option=orjson.OPT_NON_STR_KEYS)
        (tmp_path / "cora.json").write_bytes(text)
        read = list(importers.read(tmp_path / "cora.json", user=None, session=None))

        done = [await ingest.play(memory, read, namespace="other") for _ in range(2)]

        block = await memory.recall("What am I allergic to?", user_id="cora", namespace="other")
        kept = {each.content: each.mark for each in await memory.history(user_id="cora", namespace="other")}
    assert [(each.messages, each.known, each.undone) for each in done] == [(3, 0, 1), (3, 3, 1)]
    assert "nuts" not in block.text
    assert kept == {"I like tea.": None, "I am allergic to nuts.": "undone", "I live in Oslo.": None}
