"""What `aftermind ingest` reports about messages that are new and messages that were accepted before."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import orjson

from aftermind import Memory
from aftermind.cli import importers, ingest, terminal
from aftermind.cli.importers import BadLine


def turns(folder: Path, name: str, texts: Sequence[str]) -> list[importers.Found]:
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


async def test_what_calls_have_set_is_set_again_where_an_export_is_ingested(tmp_path: Path) -> None:
    async with Memory(f"sqlite:{tmp_path}/memory.db", embedder="hash", extractor="rules") as memory:
        for said in ("I live in Oslo. I have a dog named Rex.", "I work at Acme."):
            await (await memory.remember(said, user_id="dora", session_id="s")).stored(timeout=30)
        await memory.drain(user_id="dora", timeout=30)
        by_object = {fact.object: fact for fact in await memory.facts.query(user_id="dora")}
        await memory.facts.correct(by_object["Oslo"], "Bergen", user_id="dora")
        await memory.facts.retract(by_object["Acme"], user_id="dora")
        await memory.facts.add("user", "allergic_to", "nuts", user_id="dora")
        await memory.facts.merge_entities("Melanie", "Mel", user_id="dora")
        await memory.blocks.set("human", "Likes short answers.", description="of the user", user_id="dora")
        text = orjson.dumps(terminal.to_plain(await memory.export(user_id="dora")), option=orjson.OPT_NON_STR_KEYS)
        (tmp_path / "dora.json").write_bytes(text)
        (tmp_path / "all.jsonl").write_bytes(text + b"\n")

        once = await ingest.play(memory, list(importers.read(tmp_path / "dora.json")), namespace="other")
        twice = await ingest.play(memory, list(importers.read(tmp_path / "all.jsonl")), namespace="other")

        here = await memory.facts.query(user_id="dora")
        there = await memory.facts.query(user_id="dora", namespace="other")
        facts = [
            {(fact.subject, fact.predicate, fact.object, fact.valid_from) for fact in found if fact.subject != "Mel"}
            for found in (here, there)
        ]
        block = await memory.blocks.get("human", user_id="dora", namespace="other")
    assert (once.changes, twice.changes) == (6, 0), "Bergen is two: the retraction of Oslo, and the new object"
    assert facts[0] == facts[1]
    assert "Mel same as Melanie" in {fact.text for fact in there}
    assert max(fact.strength for fact in there) == 1
    assert block is not None
    assert (block.content, block.description, block.version) == ("Likes short answers.", "of the user", 1)


async def test_a_change_of_an_export_waits_for_the_facts_of_its_messages(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="rules") as memory:
        await (await memory.remember("I live in Oslo.", user_id="eva")).stored(timeout=30)
        await memory.facts.add("user", "likes", "tea", user_id="eva")
        text = orjson.dumps(terminal.to_plain(await memory.export(user_id="eva")), option=orjson.OPT_NON_STR_KEYS)
        (tmp_path / "eva.json").write_bytes(text)
        read = list(importers.read(tmp_path / "eva.json"))

        early = await ingest.play(memory, read, namespace="other", wait=False)
        later = await ingest.play(memory, read, namespace="other")

    assert early.changes == 0
    assert "Repeat the command" in early.stalled
    assert later.changes == 1


async def test_assertions_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    stated = {"extractor": "user", "place": 0, "claim": {"said_at": "2026-01-01T00:00:00Z", "subject": "user"}}
    export = {"scope": {"user_id": "eva"}, "episodes": [], "assertions": [stated], "blocks": []}
    (tmp_path / "eva.json").write_text(json.dumps(export, indent=2))

    [bad] = importers.read(tmp_path / "eva.json")

    assert isinstance(bad, BadLine)
    assert "assertions cannot be read" in bad.reason
