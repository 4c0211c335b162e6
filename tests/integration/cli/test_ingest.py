"""What `aftermind ingest` reports about messages that are new and messages that were accepted before."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from aftermind import Export, Memory, Message, Settings, errors
from aftermind.cli import importers, ingest
from aftermind.cli.importers import BadLine
from aftermind.types.plain_values import to_plain
from tests.support.fork_server import run_module
from tests.support.learning import AT_ONCE
from tests.support.servers import Database
from tests.support.workers import environment, workers

LEARNS_AT_ONCE = Settings(**AT_ONCE)


def turns(folder: Path, name: str, texts: Sequence[str]) -> list[importers.Found]:
    path = folder / name
    path.write_text("".join(json.dumps({"messages": [{"role": "user", "content": text}]}) + "\n" for text in texts))
    return list(importers.read(path, user="ann", session="s"))


def dated(folder: Path, name: str, messages: Sequence[tuple[str, int]]) -> list[importers.Found]:
    said = [{"role": "user", "content": text, "occurred_at": f"{year}-06-01T12:00:00+00:00"} for text, year in messages]
    path = folder / name
    path.write_text(json.dumps({"messages": said}) + "\n")
    return list(importers.read(path, user="ann", session="s"))


async def test_two_concurrent_runs_for_a_user_each_count_their_own_messages(tmp_path: Path) -> None:
    first = turns(tmp_path, "a.jsonl", [f"I read book {number}." for number in range(70)])
    second = turns(tmp_path, "b.jsonl", ["I like rain.", "I like snow."])
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        both = await asyncio.gather(ingest.play(memory, first), ingest.play(memory, second))
        again = await ingest.play(memory, [*second, *turns(tmp_path, "c.jsonl", ["I like hail."])])

    assert [(done.messages, done.known) for done in (*both, again)] == [(70, 0), (2, 0), (3, 2)]


async def test_messages_that_an_earlier_forget_refuses_are_counted_as_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = dated(tmp_path, "a.jsonl", [("I read a book.", 2022), ("I read two.", 2023), ("I read three.", 2025)])
    second = dated(tmp_path, "b.jsonl", [("I like rain.", 2021), ("I like snow.", 2026)])
    async with Memory(f"sqlite:{tmp_path}/m.db", embedder="hash", extractor="off") as memory:
        done = [await ingest.play(memory, first)]
        await memory.forget(user_id="ann", before=datetime(2024, 1, 1, tzinfo=UTC))
        done.append(await ingest.play(memory, first))
        done.append(await ingest.play(memory, second))
        done.append(await ingest.play(memory, first, wait=False))
    for each in done:
        ingest.report(each)

    printed = capsys.readouterr().out.splitlines()
    assert [(each.messages, each.known, each.forgotten) for each in done] == [
        (3, 0, 0),
        (3, 1, 2),
        (2, 0, 0),
        (3, 1, None),
    ]
    assert [line.partition(")")[0].partition("messages, ")[2] for line in printed] == [
        "3 new, 0 already stored",
        "0 new, 1 already stored, 2 forgotten here",
        "2 new, 0 already stored",
        "1 already stored",
    ]


async def test_messages_that_were_undone_are_hidden_where_an_export_is_ingested_too(tmp_path: Path) -> None:
    async with Memory(f"sqlite:{tmp_path}/m.db", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        for said in ("I like tea.", "I am allergic to nuts.", "I live in Oslo."):
            receipt = await memory.remember(said, user_id="cora", session_id="s")
            await receipt.stored(timeout=30)
            if "nuts" in said:
                await memory.undo(*receipt.episode_ids, user_id="cora")
        exported = await memory.export(user_id="cora")
        text = orjson.dumps(to_plain(exported), option=orjson.OPT_NON_STR_KEYS)
        (tmp_path / "cora.json").write_bytes(text)
        read = list(importers.read(tmp_path / "cora.json", user=None, session=None))

        done = [await ingest.play(memory, read, namespace="other") for _ in range(2)]

        block = await memory.recall("What am I allergic to?", user_id="cora", namespace="other")
        kept = {each.content: each.mark for each in await memory.history(user_id="cora", namespace="other")}
    assert [(each.messages, each.known, each.undone) for each in done] == [(3, 0, 1), (3, 3, 1)]
    assert "nuts" not in block.text
    assert kept == {"I like tea.": None, "I am allergic to nuts.": "undone", "I live in Oslo.": None}


async def exported(memory: Memory, user: str | None, path: Path) -> Path:
    return written(path, await memory.export(user_id=user))


def written(path: Path, export: Export) -> Path:
    path.write_bytes(orjson.dumps(to_plain(export), option=orjson.OPT_NON_STR_KEYS))
    return path


async def believed(memory: Memory, **owner: str | None) -> set[tuple[str, str, str, datetime | None, int]]:
    facts = await memory.facts.query(user_id=owner.get("user_id"), namespace=owner.get("namespace"))
    others = [fact for fact in facts if fact.predicate != "same_as"]
    return {(fact.subject, fact.predicate, fact.object, fact.valid_from, len(fact.sources)) for fact in others}


async def test_edits_of_facts_and_blocks_are_made_again_where_an_export_is_ingested(tmp_path: Path) -> None:
    async with Memory(f"sqlite:{tmp_path}/m.db", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        for said in ("I live in Oslo. I have a dog named Rex.", "I work at Acme."):
            await (await memory.remember(said, user_id="dora", session_id="s")).stored(timeout=30)
        await memory.drain(user_id="dora", timeout=30)
        by_object = {fact.object: fact for fact in await memory.facts.query(user_id="dora")}
        await memory.facts.correct(by_object["Oslo"], "Bergen", user_id="dora")
        await memory.facts.retract(by_object["Acme"], user_id="dora")
        await memory.facts.add("user", "allergic_to", "nuts", user_id="dora")
        await memory.facts.merge_entities("Melanie", "Mel", user_id="dora")
        await memory.blocks.set("human", "Likes short answers.", description="of the user", user_id="dora")
        one = await exported(memory, "dora", tmp_path / "dora.json")
        (tmp_path / "all.jsonl").write_bytes(one.read_bytes() + b"\n")
        owner: dict[str, Any] = {"user_id": "dora", "namespace": "other"}  # Any: arguments of several calls

        once = await ingest.play(memory, list(importers.read(one)), namespace="other")
        twice = await ingest.play(memory, list(importers.read(tmp_path / "all.jsonl")), namespace="other")

        here, there = await believed(memory, user_id="dora"), await believed(memory, **owner)
        merged = {fact.text for fact in await memory.facts.query(**owner)}
        [bergen] = [fact for fact in await memory.facts.query(**owner) if fact.object == "Bergen"]
        why = await memory.facts.why(bergen, **owner)
        block = await memory.blocks.get("human", **owner)
        await memory.forget(ids=bergen.sources, **owner)
        left = orjson.dumps(to_plain(await memory.export(**owner)), option=orjson.OPT_NON_STR_KEYS)
    assert (once.edits, twice.edits) == (6, 0), "a correction is two: a retraction, and the new object"
    assert here == there
    assert "Mel same as Melanie" in merged
    assert why is not None
    assert [each.content for each in why.episodes] == ["I live in Oslo. I have a dog named Rex."]
    assert block is not None
    assert (block.content, block.description, block.version) == ("Likes short answers.", "of the user", 1)
    assert b"Oslo" not in left
    assert b"Bergen" not in left


async def test_edits_of_an_export_have_their_own_times_also_before_its_messages_are_extracted(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        first = Message.user("I live in Rome.", occurred_at=datetime(2026, 1, 1, tzinfo=UTC))
        await memory.remember([first], user_id="eva", session_id="s")
        await memory.drain(user_id="eva", timeout=30)
        [rome] = await memory.facts.query(user_id="eva")
        await memory.facts.correct(rome, "Milan", user_id="eva")
        later = Message.user("I moved to Rome.", occurred_at=datetime.now(UTC))
        await memory.remember([later], user_id="eva", session_id="s")
        await memory.drain(user_id="eva", timeout=30)
        read = list(importers.read(await exported(memory, "eva", tmp_path / "eva.json")))

        early = await ingest.play(memory, read, namespace="other", wait=False)
        await memory.drain(user_id="eva", namespace="other", timeout=30)

        here, there = await believed(memory, user_id="eva"), await believed(memory, user_id="eva", namespace="other")
    assert (early.edits, early.stalled) == (2, "")
    assert {each[2] for each in here} == {"Rome"}
    assert here == there


async def test_edits_of_the_anonymous_user_are_those_of_the_user_who_is_named(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        await memory.remember("I live in Oslo.")
        await memory.drain(timeout=30)
        [oslo] = await memory.facts.query()
        await memory.facts.correct(oslo, "Bergen")
        path = await exported(memory, None, tmp_path / "anonymous.json")

        await ingest.play(memory, list(importers.read(path, user="bob")), namespace="other")

        assert {each[2] for each in await believed(memory, user_id="bob", namespace="other")} == {"Bergen"}
        assert not await believed(memory, namespace="other")


async def test_a_message_without_a_session_has_none_where_an_export_is_ingested(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        await memory.remember("I bought a telescope.", user_id="eva")
        await memory.drain(user_id="eva", timeout=30)
        path = await exported(memory, "eva", tmp_path / "eva.json")

        done = [await ingest.play(memory, list(importers.read(path)), namespace="other") for _ in range(2)]
        [copy] = await memory.history(user_id="eva", namespace="other")

    assert (copy.content, copy.scope.session_id) == ("I bought a telescope.", None)
    assert [(each.messages, each.known) for each in done] == [(1, 0), (1, 1)]


async def test_one_edit_that_is_refused_leaves_the_others(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        await memory.blocks.set("human", "Likes tea.", user_id="eva")
        await memory.blocks.set("x" * 60, "Likes tea.", user_id="eva")
        await memory.facts.add("user", "likes", "tea", user_id="eva")
        path = await exported(memory, "eva", tmp_path / "eva.json")
        path.write_text(path.read_text().replace("x" * 60, "x" * 5_000))

        done = await ingest.play(memory, list(importers.read(path)), namespace="other")

    assert done.edits == 2
    assert len(done.bad) == 1


async def test_assertions_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    stated = {"extractor": "user", "place": 0, "claim": {"said_at": "2026-01-01T00:00:00Z", "subject": "user"}}
    export = {"scope": {"user_id": "eva"}, "episodes": [], "assertions": [stated], "blocks": []}
    (tmp_path / "eva.json").write_text(json.dumps(export, indent=2))

    [bad] = importers.read(tmp_path / "eva.json")

    assert isinstance(bad, BadLine)
    assert "edits of facts and blocks cannot be read" in bad.reason


async def test_names_that_were_merged_otherwise_or_no_longer_are_so_where_an_export_is_ingested(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        for entity, alias in (("Melanie", "Mel"), ("Anna", "Annie"), ("Robert", "Bob")):
            await memory.facts.merge_entities(entity, alias, user_id="eva")
        await memory.facts.merge_entities("Annika", "Annie", user_id="eva")
        for fact in await memory.facts.query(predicate="same_as", user_id="eva"):
            if fact.subject in ("Mel", "Bob"):
                await memory.facts.retract(fact, user_id="eva")
        await memory.facts.merge_entities("Bob", "Robert", user_id="eva")
        await memory.facts.add("Annie", "likes", "tea", user_id="eva")
        path = await exported(memory, "eva", tmp_path / "eva.json")

        for _ in range(2):
            done = await ingest.play(memory, list(importers.read(path)), namespace="other")

        here = {fact.text for fact in await memory.facts.query(user_id="eva")}
        there = {fact.text for fact in await memory.facts.query(user_id="eva", namespace="other")}
    assert not done.bad
    assert here == there
    assert not [text for text in there if text.startswith("Mel ")]


async def test_a_correction_of_a_message_that_was_forgotten_is_not_made_again(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        await memory.remember("I live in Paris.", user_id="eva", session_id="s")
        await memory.drain(user_id="eva", timeout=30)
        [paris] = await memory.facts.query(user_id="eva")
        await memory.facts.correct(paris, "Rome")
        read = list(importers.read(await exported(memory, "eva", tmp_path / "eva.json")))
        await ingest.play(memory, read, namespace="other")
        [rome] = await memory.facts.query(user_id="eva", namespace="other")
        await memory.forget(ids=rome.sources, user_id="eva", namespace="other")

        again = await ingest.play(memory, read, namespace="other")

        assert again.edits == 0
        assert await memory.facts.query(user_id="eva", namespace="other") == []


TALK = [
    [Message.user("I live in Oslo."), Message.assistant("Noted.")],
    [Message.user("I like tea.")],
    [Message.user("I like tea.")],
    [Message.user("I work at Magna.")],
]


async def contents(memory: Memory, **owner: Any) -> list[str]:  # Any: arguments of a call
    return [each.content for each in await memory.history(**owner)]


async def test_an_export_adds_nothing_to_the_store_that_it_is_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Memory(f"sqlite:{tmp_path}/m.db", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        for turn in TALK:
            await memory.remember(turn, user_id="nadia", session_id="s")
        await memory.drain(user_id="nadia", timeout=30)
        [oslo] = [fact for fact in await memory.facts.query(user_id="nadia") if fact.object == "Oslo"]
        await memory.facts.correct(oslo, "Bergen", user_id="nadia")
        before = await memory.export(user_id="nadia")
        read = list(importers.read(written(tmp_path / "nadia.json", before)))

        done = [await ingest.play(memory, read) for _ in range(2)]

        after = await memory.export(user_id="nadia")
        elsewhere = [await ingest.play(memory, read, namespace="other") for _ in range(2)]
        copied = await contents(memory, user_id="nadia", namespace="other")
    ingest.report(done[0])
    assert [(each.messages, each.known, each.edits) for each in done] == [(5, 5, 0)] * 2
    assert (after.episodes, after.facts, after.assertions) == (before.episodes, before.facts, before.assertions)
    assert "(5 messages, 0 new, 5 already stored) of 1 user accepted" in capsys.readouterr().out
    assert [(each.messages, each.known) for each in elsewhere] == [(5, 0), (5, 5)]
    assert copied == [each.content for each in before.episodes]


async def test_an_export_adds_only_the_messages_that_a_store_lacks(tmp_path: Path) -> None:
    async with Memory(f"sqlite:{tmp_path}/m.db", embedder="hash", extractor="off") as memory:
        receipts = [await memory.remember(turn, user_id="nadia", session_id="s") for turn in TALK]
        await memory.drain(user_id="nadia", timeout=30)
        read = list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json")))
        whole = sorted(await contents(memory, user_id="nadia"))
        counts = []
        for lost in (receipts[1], receipts[3]):
            await memory.forget(ids=lost.episode_ids, user_id="nadia")
            done = [await ingest.play(memory, read) for _ in range(2)]
            counts.append([(each.messages, each.known) for each in done])
        restored = sorted(await contents(memory, user_id="nadia"))
        await memory.forget(user_id="nadia")
        forgotten = await ingest.play(memory, read)
    assert counts == [[(5, 4), (5, 5)]] * 2
    assert restored == whole
    assert (forgotten.messages, forgotten.known) == (5, 0)


async def test_a_message_that_an_export_added_is_not_added_again_when_the_rest_of_its_turn_is_lost(
    tmp_path: Path,
) -> None:
    async with Memory(f"sqlite:{tmp_path}/m.db", embedder="hash", extractor="off") as memory:
        talk = await memory.remember(TALK[0], user_id="nadia", session_id="s")
        await memory.drain(user_id="nadia", timeout=30)
        path = await exported(memory, "nadia", tmp_path / "nadia.json")
        read = list(importers.read(path))
        counts, there = [], []
        for lost in talk.episode_ids:
            await memory.forget(ids=[lost], user_id="nadia")
            done = [await ingest.play(memory, read) for _ in range(2)]
            counts.append([(each.messages, each.known) for each in done])
            there.append(sorted(await contents(memory, user_id="nadia")))

    assert counts == [[(2, 1), (2, 2)]] * 2
    assert there == [["I live in Oslo.", "Noted."]] * 2


async def test_a_message_of_the_same_id_and_another_content_is_added(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        await memory.remember("I like tea.", user_id="nadia", session_id="s")
        await memory.drain(user_id="nadia", timeout=30)
        path = await exported(memory, "nadia", tmp_path / "nadia.json")
        path.write_bytes(path.read_bytes().replace(b"tea", b"rum"))

        done = await ingest.play(memory, list(importers.read(path)))

        assert (done.messages, done.known) == (1, 0)
        assert await contents(memory, user_id="nadia") == ["I like tea.", "I like rum."]


@pytest.mark.parametrize("store", ["inmemory", "sqlite"])
async def test_exports_of_a_talk_that_grows_and_is_forgotten_in_part_add_each_message_once_elsewhere(
    store: str, tmp_path: Path
) -> None:
    url = store if store == "inmemory" else f"sqlite:{tmp_path}/m.db"
    counts, there = [], []
    async with Memory(url, embedder="hash", extractor="off") as memory:

        async def copy() -> None:
            await memory.drain(user_id="nadia", timeout=30)
            read = list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json")))
            done = [await ingest.play(memory, read, namespace="other") for _ in range(2)]
            counts.append([(each.messages, each.known) for each in done])
            there.append(await contents(memory, user_id="nadia", namespace="other"))

        first = await memory.remember("I live in Oslo.", user_id="nadia", session_id="s")
        await copy()
        for message in (Message.assistant("Noted."), Message.user("I like tea.")):
            await memory.remember([message], user_id="nadia", session_id="s")
        await copy()
        await memory.forget(ids=first.episode_ids, user_id="nadia")
        await copy()

    assert counts == [[(1, 0), (1, 1)], [(3, 1), (3, 3)], [(2, 2), (2, 2)]]
    assert there == [["I live in Oslo."], *[["I live in Oslo.", "Noted.", "I like tea."]] * 2]


@pytest.mark.parametrize("lost", [0, 1])
async def test_a_turn_that_is_forgotten_in_part_after_its_export_is_not_added_again_elsewhere(
    lost: int, tmp_path: Path
) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        talk = await memory.remember(TALK[0], user_id="nadia", session_id="s")
        await memory.drain(user_id="nadia", timeout=30)
        for _ in range(2):
            read = list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json")))
            done = [await ingest.play(memory, read, namespace="other") for _ in range(2)]
            await memory.forget(ids=[talk.episode_ids[lost]], user_id="nadia")
        there = await contents(memory, user_id="nadia", namespace="other")

    assert [(each.messages, each.known) for each in done] == [(1, 1), (1, 1)]
    assert there == ["I live in Oslo.", "Noted."]


async def test_an_export_does_not_bring_back_what_was_forgotten_where_it_was_copied_to(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        await memory.remember(TALK[0], user_id="nadia", session_id="s")
        for turn in (None, [Message.assistant("Where in Oslo?")]):
            if turn is not None:
                [copied, *_] = await memory.history(user_id="nadia", namespace="other")
                await memory.forget(ids=[copied.id], user_id="nadia", namespace="other")
                await memory.remember(turn, user_id="nadia", session_id="s")
            await memory.drain(user_id="nadia", timeout=30)
            read = list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json")))
            await ingest.play(memory, read, namespace="other")
        there = await contents(memory, user_id="nadia", namespace="other")

    assert there == ["Noted.", "Where in Oslo?"]


async def test_facts_of_one_turn_that_is_exported_keep_their_order(tmp_path: Path) -> None:
    said = [Message.user(f"I moved to {city}.") for city in ("Oslo", "Bergen", "Bern", "Basel", "Rome")]
    async with Memory("inmemory", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        await memory.remember(said, user_id="nadia", session_id="s")
        await memory.drain(user_id="nadia", timeout=30)
        read = list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json")))

        await ingest.play(memory, read, namespace="other")

        here, there = (
            await believed(memory, user_id="nadia"),
            await believed(memory, user_id="nadia", namespace="other"),
        )
    assert {each[2] for each in there} == {"Rome"}
    assert here == there


async def test_two_exports_in_one_file_add_each_message_once(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        exports = b""
        for text in ("I like tea.", "I like rain."):
            await memory.remember(text, user_id="nadia", session_id="s")
            await memory.drain(user_id="nadia", timeout=30)
            exports += (await exported(memory, "nadia", tmp_path / "one.json")).read_bytes() + b"\n"
        (tmp_path / "all.jsonl").write_bytes(exports)

        await ingest.play(memory, list(importers.read(tmp_path / "all.jsonl")), namespace="other")

        assert await contents(memory, user_id="nadia", namespace="other") == ["I like tea.", "I like rain."]


async def test_two_exports_of_one_user_add_nothing_to_the_store_that_they_are_of(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        read = []
        for text in ("I like tea.", "I like rain."):
            await memory.remember(text, user_id="nadia", session_id="s")
            await memory.drain(user_id="nadia", timeout=30)
            read += list(importers.read(await exported(memory, "nadia", tmp_path / f"{text}.json")))

        done = await ingest.play(memory, read)

        assert (done.messages, done.known) == (3, 3)
        assert await contents(memory, user_id="nadia") == ["I like tea.", "I like rain."]


@pytest.mark.parametrize("users", [["nadia"], ["nadia", "eva"]])
async def test_two_exports_of_a_turn_that_was_forgotten_in_part_add_each_message_once_elsewhere(
    users: list[str], tmp_path: Path
) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        talks = {user: await memory.remember(TALK[0], user_id=user, session_id="s") for user in users}
        read = []
        for _ in range(2):
            for user, talk in talks.items():
                await memory.drain(user_id=user, timeout=30)
                read += list(importers.read(await exported(memory, user, tmp_path / "one.json")))
                await memory.forget(ids=talk.episode_ids[:1], user_id=user)

        await ingest.play(memory, read, namespace="other")

        for user in users:
            assert await contents(memory, user_id=user, namespace="other") == ["I live in Oslo.", "Noted."]


async def test_the_counts_of_two_exports_add_up_to_their_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first export has a whole turn of two messages, the second one of these messages and another turn."""
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        talk = await memory.remember(TALK[0], user_id="nadia", session_id="s")
        read = []
        for text in ("I like tea.", "I like rain."):
            await memory.remember(text, user_id="nadia", session_id="s")
            await memory.drain(user_id="nadia", timeout=30)
            read += list(importers.read(await exported(memory, "nadia", tmp_path / "one.json")))
            await memory.forget(ids=talk.episode_ids[:1], user_id="nadia")
        for _ in range(2):
            ingest.report(await ingest.play(memory, read, namespace="other"))
        again = await contents(memory, user_id="nadia", namespace="other")
        ingest.report(await ingest.play(memory, [*turns(tmp_path, "a.jsonl", ["I run."])] * 2, namespace="other"))

    assert sum(len(each.messages) for each in read if isinstance(each, importers.FileTurn)) == 6
    assert again == ["I live in Oslo.", "Noted.", "I like tea.", "I like rain."]
    printed = [line.partition(" turns ")[2] for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        "(6 messages, 4 new, 0 already stored, 2 repeated in these files) of 1 user accepted, 0 skipped.",
        "(6 messages, 0 new, 6 already stored) of 1 user accepted, 0 skipped.",
        "(2 messages, 1 new, 0 already stored, 1 repeated in these files) of 1 user accepted, 0 skipped.",
    ]


@pytest.mark.parametrize("undone", [0, 1])
@pytest.mark.parametrize("is_newest_first", [False, True])
async def test_a_message_that_one_of_two_exports_has_as_undone_is_hidden(
    undone: int, is_newest_first: bool, tmp_path: Path
) -> None:
    async with Memory(f"sqlite:{tmp_path}/m.db", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        talk = await memory.remember(TALK[0], user_id="nadia", session_id="s")
        await memory.drain(user_id="nadia", timeout=30)
        both = [list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json")))]
        await memory.undo(talk.episode_ids[undone], user_id="nadia")
        both.append(list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json"))))

        first, second = reversed(both) if is_newest_first else both
        await ingest.play(memory, [*first, *second], namespace="other")
        marks = [each.mark for each in await memory.history(user_id="nadia", namespace="other")]
    assert sorted(marks, key=str) == [None, "undone"]


@pytest.mark.parametrize("undone", [0, 1])
async def test_a_message_that_was_undone_after_it_was_copied_is_hidden_in_the_copy_too(
    undone: int, tmp_path: Path
) -> None:
    async with Memory(f"sqlite:{tmp_path}/m.db", embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        talk = await memory.remember(TALK[0], user_id="nadia", session_id="s")
        await memory.drain(user_id="nadia", timeout=30)
        first = list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json")))
        await ingest.play(memory, first, namespace="other")
        await memory.undo(talk.episode_ids[undone], user_id="nadia")
        second = list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json")))

        done = [await ingest.play(memory, second, namespace="other") for _ in range(2)]
        here = await ingest.play(memory, second)

        marks = [each.mark for each in await memory.history(user_id="nadia", namespace="other")]
        facts = {each.object for each in await memory.facts.query(user_id="nadia", namespace="other")}
    assert [(each.messages, each.known, each.undone) for each in (*done, here)] == [(2, 2, 1)] * 3
    assert marks == ["undone" if place == undone else None for place in range(2)]
    assert facts == (set() if undone == 0 else {"Oslo"})


async def test_a_message_that_was_undone_is_hidden_though_another_one_of_its_turn_was_forgotten_in_the_copy(
    tmp_path: Path,
) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        talk = await memory.remember(TALK[0], user_id="nadia", session_id="s")
        await memory.drain(user_id="nadia", timeout=30)
        for undone in (False, True):
            if undone:
                await memory.undo(*talk.episode_ids, user_id="nadia")
            read = list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json")))
            await ingest.play(memory, read, namespace="other")
            there = await memory.history(user_id="nadia", namespace="other")
            await memory.forget(ids=[each.id for each in there[1:]], user_id="nadia", namespace="other")

    assert [(each.content, each.mark) for each in there] == [("I live in Oslo.", "undone")]


async def test_a_session_that_is_given_is_not_that_of_an_export(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        await memory.remember("I like tea.", user_id="nadia")
        await memory.drain(user_id="nadia", timeout=30)
        path = await exported(memory, "nadia", tmp_path / "nadia.json")

        done = await ingest.play(memory, list(importers.read(path, session="s")))

        assert (done.messages, done.known) == (1, 1)
        assert await contents(memory, user_id="nadia") == ["I like tea."]


async def test_an_export_adds_nothing_to_a_database_that_has_its_messages_stored_or_pending(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    settings = Settings(state_dir=tmp_path, embedder="hash", extractor="rules")
    async with Memory(database.app_url, broker=redis_url, redis=redis_url, settings=settings) as memory:
        for turn in TALK:
            await memory.remember(turn, user_id="nadia", session_id="s")
        read = list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json")))

        pending = await ingest.play(memory, read, wait=False)
        relayed = environment(
            database.relay_url,
            redis_url,
            AFTERMIND_STATE_DIR=str(tmp_path),
            **{f"AFTERMIND_{name.upper()}": str(value) for name, value in AT_ONCE.items()},
        )
        with workers(relayed, tmp_path, on="memory.store,memory.embed,memory.extract"):
            stored = await ingest.play(memory, read)
        owner = {"user_id": "nadia"}
        there, facts = await contents(memory, **owner), await memory.facts.query(**owner)
        await memory.forget(**owner)
        forgotten = await ingest.play(memory, read, wait=False)

    assert [(each.messages, each.known) for each in (pending, stored, forgotten)] == [(5, 5), (5, 5), (5, 0)]
    assert sorted(there) == sorted(message.content for turn in TALK for message in turn)
    assert sorted(fact.object for fact in facts) == ["Magna", "Oslo", "tea"]


async def test_a_database_that_is_away_ends_the_ingest_of_an_export(tmp_path: Path) -> None:
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        await memory.remember("I like tea.", user_id="nadia", session_id="s")
        read = list(importers.read(await exported(memory, "nadia", tmp_path / "nadia.json")))
    settings = Settings(state_dir=tmp_path, db_connect_timeout_seconds=0.5)

    async with Memory("postgresql://nobody@127.0.0.1:1/none", broker="redis://127.0.0.1:1", settings=settings) as away:
        with pytest.raises(errors.StoreUnavailable):
            await ingest.play(away, read)


async def test_messages_without_ids_in_a_file_like_an_export_are_all_stored(tmp_path: Path) -> None:
    episode = {"role": "user", "content": "I like tea.", "scope": {"user_id": "eva"}, "occurred_at": "2026-01-01"}
    path = tmp_path / "eva.json"
    path.write_text(json.dumps({"scope": {"user_id": "eva"}, "episodes": [episode, {**episode, "keep": ["history"]}]}))
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        await ingest.play(memory, list(importers.read(path)))

        assert await contents(memory, user_id="eva") == ["I like tea."] * 2


async def test_a_file_with_exported_ids_and_parts_as_content_is_stored(tmp_path: Path) -> None:
    part = {"role": "user", "content": [{"type": "text", "text": "I like tea."}], "occurred_at": "2026-01-01"}
    (tmp_path / "odd.jsonl").write_text(json.dumps({"messages": [part], "exported_ids": ["x"]}))
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        done = await ingest.play(memory, list(importers.read(tmp_path / "odd.jsonl")))

        assert (done.messages, len(done.bad)) == (1, 0)


def test_a_conversation_whose_exported_ids_are_no_list_is_read(tmp_path: Path) -> None:
    (tmp_path / "odd.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}], "exported_ids": 1}')

    [turn] = importers.read(tmp_path / "odd.jsonl")

    assert isinstance(turn, importers.FileTurn)


def node(
    name: str, role: str, text: object, at: float | None, parent: str | None, **metadata: object
) -> dict[str, Any]:
    content = {"content_type": "text", "parts": [text]}
    message = {"author": {"role": role}, "create_time": at, "content": content, "metadata": metadata}
    return {name: {"id": name, "message": message, "parent": parent, "children": []}}


CHATGPT = [
    {
        "title": "Later",
        "conversation_id": "c2",
        "mapping": {**node("x", "user", "I moved to Bergen.", 1_700_100_000.5, None)},
    },
    {
        "title": "Home",
        "conversation_id": "c1",
        "current_node": "d",
        "mapping": {
            "root": {"id": "root", "message": None, "parent": None, "children": ["s"]},
            **node("s", "system", "Be brief.", None, "root"),
            **node("h", "user", "About me", None, "s", is_visually_hidden_from_conversation=True),
            **node("a", "user", "I live in Oslo.", 1_700_000_000.25, "h"),
            **node("b", "assistant", "An answer that was replaced.", 1_700_000_001.0, "a"),
            **node("t", "tool", "a result", 1_700_000_002.0, "a"),
            **node("d", "assistant", "Noted.", 1_700_000_003.0, "t"),
            **node("p", "user", {"asset_pointer": "a picture"}, 1_700_000_004.0, "d"),
        },
    },
    {"title": "Broken", "mapping": []},
]
CLAUDE = [
    {
        "uuid": "c1",
        "name": "Home",
        "chat_messages": [
            {"sender": "human", "text": "I live in Oslo.", "created_at": "2023-11-14T22:13:20.250000Z"},
            {"sender": "assistant", "text": "Noted.", "created_at": "2023-11-14T22:13:23Z"},
            {"sender": "human", "text": "", "created_at": "2023-11-14T22:13:24Z"},
        ],
    },
]


@pytest.mark.parametrize(("export", "broken"), [(CHATGPT, 1), (CLAUDE, 0)], ids=["ChatGPT", "Claude"])
async def test_the_data_export_of_a_chat_is_read(export: list[Any], broken: int, tmp_path: Path) -> None:
    (tmp_path / "conversations.json").write_text(json.dumps(export))
    found = list(importers.read(tmp_path / "conversations.json", user="ann"))
    async with Memory("inmemory", embedder="hash", extractor="off") as memory:
        await ingest.play(memory, found)
        home = await memory.history(user_id="ann", session_id="c1")
        every = await memory.history(user_id="ann")

    assert [(each.role, each.content) for each in home] == [("user", "I live in Oslo."), ("assistant", "Noted.")]
    assert home[0].occurred_at == datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC)
    assert home[0].metadata == {"title": "Home"}
    assert every[:2] == home, "the oldest chat first"
    assert sum(isinstance(each, BadLine) for each in found) == broken


def test_a_list_of_another_format_names_where_the_formats_are(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"text": "I live in Oslo."}]))

    [bad] = importers.read(tmp_path / "a.json")

    assert isinstance(bad, BadLine)
    assert "`aftermind ingest --help`" in bad.reason


async def test_an_export_of_one_user_is_ingested_for_another_one(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/bot.db"
    async with Memory(store, settings=Settings(**AT_ONCE), embedder="hash", extractor="rules") as memory:
        await memory.remember("I live in Oslo.", user_id="nadia", session_id="s1")
        await memory.facts.add("user", "likes", "tea", user_id="nadia")
        await memory.drain(user_id="nadia")
        one = await exported(memory, "nadia", tmp_path / "nadia.json")
        await memory.remember("I live in Rome.", user_id="eva")
        await memory.drain(user_id="eva")
        other = await exported(memory, "eva", tmp_path / "eva.json")

    env = environment(store, "", AFTERMIND_STATE_DIR=str(tmp_path / "state"))
    env = {name: value for name, value in env.items() if name not in ("AFTERMIND_BROKER_URL", "AFTERMIND_REDIS_URL")}
    done = [
        run_module(["aftermind.cli", "ingest", *map(str, files), "--user", "omar"], env=env)
        for files in ([one], [one], [one, other])
    ]

    async with Memory(store, settings=Settings(**AT_ONCE), embedder="hash", extractor="rules") as memory:
        said = {
            user: [each.content for each in await memory.history(user_id=user)] for user in ("nadia", "omar", "eva")
        }
        facts = {fact.text for fact in await memory.facts.query(user_id="omar")}
    assert said == {"nadia": ["I live in Oslo."], "omar": ["I live in Oslo."], "eva": ["I live in Rome."]}
    assert {"user lives in Oslo", "user likes tea"} <= facts
    assert [each.returncode for each in done] == [0, 0, 2]
    assert "the exports are of 2 users (eva, nadia)" in " ".join(done[2].stderr.split())
