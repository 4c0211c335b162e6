"""What a namespace has sealed is in the database as nobody can read it, and in the memory as it was said."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from aftermind import ItemWrite, Memory, Message, errors
from aftermind.api import erasure_verification
from aftermind.api.address_resolution import resolve
from aftermind.cli import doctor_key_and_audit_checks
from aftermind.db.encryption import cipher, keyring
from aftermind.db.encryption.keyring import FRESH_SECONDS
from aftermind.types import Block, Scope, Summary, Trait
from tests.integration.extraction.test_erasure import places
from tests.support.fork_server import run_module
from tests.support.learning import Learning
from tests.support.servers import Database, psql_async

Opened = Callable[..., AbstractAsyncContextManager[Learning]]
SOON = 0.1  # where nobody searches, or writes, by what was known before
KNOWN = FRESH_SECONDS + 2.0  # each of the vaults of a process knows of a key that late, and then ends its writes
SECRET = "Xyzzyburg"


async def everywhere(learnt: Learning, user: str) -> None:
    """A secret in an episode, a fact, a block, an item, and a trait."""
    await learnt.learn(user, [f"I live in {SECRET}.", "Do you know where that is?"])
    await learnt.memory.blocks.set("human", f"lives in {SECRET}", user_id=user)
    item = ItemWrite(path=("notes",), key="home", value={"text": f"lives in {SECRET}"})
    await learnt.memory.items.write([item], user_id=user)


async def read(memory: Memory, user: str) -> list[str]:
    """Everything that is shown of a user, by every way of looking."""
    block = await memory.recall(f"who lives in {SECRET}?", user_id=user, load=("history", "facts"))
    return [
        *(each.content for each in await memory.history(user_id=user)),
        *(each.object for each in await memory.facts.query(user_id=user)),
        *(each.content for each in await memory.blocks.list(user_id=user)),
        *(str(each.value) for each in await memory.items.search(user_id=user)),
        *sorted({each.content for each in await memory.search(user_id=user)}),
        str(SECRET in block.text),
    ]


@pytest.fixture
async def learnt(opened: Opened) -> AsyncIterator[Learning]:
    async with opened(extractor="rules", profile_quiet_seconds=0.0, summary_quiet_seconds=0.0) as one:
        yield one


@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_is_sealed_is_read_as_it_was_said_and_lies_in_no_table(
    learnt: Learning, user: str, when: str
) -> None:
    if when == "after":
        await everywhere(learnt, user)
        shown = await read(learnt.memory, user)
        there = await places(learnt, SECRET)
    done = await learnt.memory.encryption.encrypt(spread_seconds=SOON)
    if when == "before":
        await everywhere(learnt, user)
        shown, there = await read(learnt.memory, user), {"episodes", "facts", "blocks", "items"}

    assert await read(learnt.memory, user) == shown
    assert there >= {"episodes", "facts", "blocks", "items"}
    assert shown[-1] == "True"
    assert len([each for each in shown if SECRET in each]) >= 5
    # Payloads of jobs that are done have left; those of dead letters and in Redis stay plain, and the docs say so.
    assert await places(learnt, SECRET) == set()
    assert done.key_id == "k1"
    assert await learnt.memory.encryption.key_id() == "k1"


async def test_words_are_found_with_every_key_and_cannot_be_tried_out_without_one(
    learnt: Learning, user: str, database: Database
) -> None:
    await learnt.memory.remember([f"The {SECRET} boat is red.", "It rains."], user_id=user)
    await learnt.settle()
    plain = await psql_async(database.url, "SELECT terms FROM aftermind.episodes ORDER BY position")
    found = []
    for change in (None, learnt.memory.encryption.encrypt, learnt.memory.encryption.rotate):
        if change is not None:
            await change(spread_seconds=KNOWN)
        block = await learnt.memory.recall(f"what is a {SECRET}", user_id=user, mode="lexical")
        found.append([(each.item.content, round(each.score, 6)) for each in block.matches if each.score > 0])

    assert found[0] == found[1] == found[2], "the same hits, scored alike"
    assert SECRET in found[0][0][0]
    sealed = await psql_async(database.url, "SELECT terms FROM aftermind.episodes ORDER BY position")
    assert not set(plain.replace("{", "").replace("}", "").replace("\n", ",").split(",")) & set(
        sealed.replace("{", "").replace("}", "").replace("\n", ",").split(",")
    )


async def test_a_sealed_text_in_another_rows_place_does_not_open(
    learnt: Learning, user: str, database: Database
) -> None:
    await learnt.memory.encryption.encrypt(spread_seconds=SOON)
    await learnt.memory.remember(["One.", "Two."], user_id=user)
    await learnt.settle()
    swap = """
        UPDATE aftermind.episodes AS here SET content = there.content FROM aftermind.episodes AS there
        WHERE here.user_id = there.user_id AND here.id <> there.id
    """
    await psql_async(database.url, swap)

    with pytest.raises(errors.Unreadable, match="copied from another row"):
        await learnt.memory.history(user_id=user)


async def test_one_bit_that_is_changed_is_noticed(learnt: Learning, user: str, database: Database) -> None:
    await learnt.memory.encryption.encrypt(spread_seconds=SOON)
    await learnt.memory.blocks.set("human", "Alice.", user_id=user)
    sealed = await psql_async(database.url, "SELECT content FROM aftermind.blocks")
    changed = f"{sealed[:29]}{'B' if sealed[29] == 'A' else 'A'}{sealed[30:]}"
    await psql_async(database.url, f"UPDATE aftermind.blocks SET content = '{changed}'")

    with pytest.raises(errors.Unreadable):
        await learnt.memory.blocks.list(user_id=user)


OLDER = {"blocks": "content", "summaries": "text", "profile_traits": "value"}  # columns whose texts change in place


async def _write_twice(learnt: Learning, user: str, database: Database, table: str) -> tuple[str, str]:
    """The stored texts of a row after its first write and after its second."""
    owner, column, kept = Scope(user_id=user), OLDER[table], []
    for text in ("first", "second"):
        async with learnt.database.transaction(namespace="default") as tx:
            now = datetime.now(UTC)
            if table == "blocks":
                block = Block(scope=owner, name="human", content=text, version=1, updated_at=now)
                await learnt.store.put_block(tx, block, expected_version=None)
            elif table == "summaries":
                given = Summary(scope=owner, text=text, covers_to=1, messages=1, updated_at=now, summariser="t")
                await learnt.store.put_summary(tx, given)
            else:
                await learnt.store.merge_profile(tx, owner, {"home": Trait(value=text)}, at=now)
        kept.append(await psql_async(database.url, f"SELECT {column} FROM aftermind.{table}"))
    return kept[0], kept[1]


async def _read_one(learnt: Learning, user: str, table: str) -> object:
    owner = Scope(user_id=user)
    async with learnt.database.transaction(namespace="default") as tx:
        if table == "blocks":
            return await learnt.store.block(tx, owner, "human")
        if table == "summaries":
            return await learnt.store.summary(tx, owner, None)
        return await learnt.store.profile(tx, owner)


@pytest.mark.parametrize("table", OLDER)
async def test_an_older_text_of_the_same_row_does_not_open(
    learnt: Learning, user: str, database: Database, table: str
) -> None:
    await learnt.memory.encryption.encrypt(spread_seconds=SOON)
    first, second = await _write_twice(learnt, user, database, table)
    before = await _read_one(learnt, user, table)

    await psql_async(database.url, f"UPDATE aftermind.{table} SET {OLDER[table]} = '{first}'")
    with pytest.raises(errors.Unreadable, match="older version"):
        await _read_one(learnt, user, table)
    await psql_async(database.url, f"UPDATE aftermind.{table} SET {OLDER[table]} = '{second}'")

    assert await _read_one(learnt, user, table) == before
    await learnt.memory.encryption.rotate(spread_seconds=SOON)
    assert await _read_one(learnt, user, table) == before


@pytest.mark.parametrize("table", ["episodes", "facts", "assertions", *OLDER])
async def test_plain_text_in_a_settled_namespace_is_refused_counted_and_shown(
    learnt: Learning, user: str, database: Database, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "FRESH_SECONDS", 0.0)  # each vault of this process sees what encrypt() leaves
    await learnt.memory.encryption.encrypt(spread_seconds=SOON)
    await learnt.learn(user, ["I live in Oslo."])
    if table in OLDER:
        await _write_twice(learnt, user, database, table)
    column = {"episodes": "content", "facts": "object", "assertions": "object", **OLDER}[table]
    planted = "to_jsonb('planted'::text)" if table == "profile_traits" else "'planted'"

    assert await psql_async(database.url, f"UPDATE aftermind.{table} SET {column} = {planted} RETURNING 1")
    with pytest.raises(errors.PlainTextRefused, match=table):
        await learnt.memory.export(user_id=user)
    block = await learnt.memory.recall("Where do I live?", user_id=user)

    assert "planted" not in block.text
    health = await learnt.memory.health()
    shown = next(part for part in health.parts if part.name == "encryption")
    assert shown.state == "degraded"
    assert health.refused_texts >= 1
    with pytest.raises(errors.PlainTextRefused):
        await learnt.memory.encryption.rotate(spread_seconds=SOON)


@pytest.mark.parametrize("key", ["terms", "k1"])
async def test_a_changed_state_of_a_key_does_not_end_encryption(
    learnt: Learning, user: str, database: Database, key: str
) -> None:
    """An administrator of the database marks the namespace as one that still has, or again stores, plain text."""
    await learnt.memory.encryption.encrypt(spread_seconds=SOON)
    assert await learnt.memory.encryption.rewrap() == 2
    state = "settling" if key == "terms" else "old"
    await psql_async(database.url, f"UPDATE aftermind.data_keys SET state = '{state}' WHERE id = '{key}'")

    async with Memory(settings=learnt.memory.settings) as fresh:
        await fresh.blocks.set("human", f"lives in {SECRET}", user_id=user)
        stored = await psql_async(database.url, "SELECT content FROM aftermind.blocks")
        assert cipher.is_sealed(stored)
        assert [each.content for each in await fresh.blocks.list(user_id=user)] == [f"lives in {SECRET}"]
        await psql_async(database.url, "UPDATE aftermind.blocks SET content = 'planted'")
        with pytest.raises(errors.PlainTextRefused):
            await fresh.blocks.list(user_id=user)


async def test_without_the_master_key_nothing_is_shown_and_with_a_new_one_beside_it_all_is(
    learnt: Learning, user: str, tmp_path: Path
) -> None:
    await learnt.memory.encryption.encrypt(spread_seconds=SOON)
    await everywhere(learnt, user)
    shown = await read(learnt.memory, user)
    old, new = (tmp_path / "encryption.key").read_text(), "another master key"
    settings = learnt.memory.settings

    async with Memory(settings=settings.model_copy(update={"encryption_key": SecretStr(new)})) as stranger:
        with pytest.raises(errors.KeyMissing, match="AFTERMIND_ENCRYPTION_KEY"):
            await stranger.history(user_id=user)
    async with Memory(settings=settings.model_copy(update={"encryption_key": SecretStr(f"{new},{old}")})) as both:
        assert await read(both, user) == shown
        assert await both.encryption.rewrap() == 2
    async with Memory(settings=settings.model_copy(update={"encryption_key": SecretStr(new)})) as renewed:
        assert await read(renewed, user) == shown
    assert (tmp_path / "encryption.key").stat().st_mode & 0o077 == 0


async def test_keys_of_all_namespaces_get_the_new_master_key_and_doctor_names_those_with_the_older(
    learnt: Learning, database: Database, redis_url: str, tmp_path: Path
) -> None:
    for namespace in ("acme", "globex"):
        await learnt.memory.encryption.encrypt(namespace=namespace, spread_seconds=SOON)
    old = (tmp_path / "encryption.key").read_text()
    settings = learnt.memory.settings.model_copy(update={"encryption_key": SecretStr(f"a new master key,{old}")})
    before = await doctor_key_and_audit_checks.keys(resolve(settings), settings)

    async with Memory(settings=settings) as memory:
        assert {each.namespace: each.master_key for each in await memory.encryption.list()} == {"acme": 1, "globex": 1}
        env = {
            **os.environ,
            "AFTERMIND_DATABASE_URL": database.app_url,
            "AFTERMIND_RELAY_URL": database.relay_url,
            "AFTERMIND_BROKER_URL": redis_url,
            "AFTERMIND_STATE_DIR": str(tmp_path),
            "AFTERMIND_ENCRYPTION_KEY": f"a new master key,{old}",
        }
        argv = ["aftermind.cli", "rotate-keys", "--master", "--json"]
        done = await asyncio.to_thread(run_module, argv, env=env)
        assert done.returncode == 0, done.stderr
        assert {each.namespace: each.master_key for each in await memory.encryption.list()} == {"acme": 0, "globex": 0}

    after = await doctor_key_and_audit_checks.keys(resolve(settings), settings)
    assert json.loads(done.stdout) == {"acme": 2, "globex": 2}
    assert [each.seen for each in before if each.what == "master key"] == [
        "an older master key opens the keys of acme, globex"
    ]
    assert not [each for each in after if each.what == "master key"]


async def test_an_old_key_goes_when_nothing_is_sealed_with_it_and_not_before(
    learnt: Learning, user: str, database: Database
) -> None:
    await learnt.memory.encryption.encrypt(spread_seconds=SOON)
    await everywhere(learnt, user)
    shown = await read(learnt.memory, user)
    kept = await psql_async(database.url, "SELECT content FROM aftermind.blocks")

    done = await learnt.memory.encryption.rotate(spread_seconds=SOON)
    moved = f"UPDATE aftermind.blocks SET content = '{kept}'"
    await psql_async(database.url, moved)
    held = await learnt.memory.encryption.retire()
    await learnt.memory.encryption.rotate(spread_seconds=SOON)
    retired = await learnt.memory.encryption.retire()

    assert (done.key_id, held.dropped, retired.dropped) == ("k2", (), ("k1", "k2"))
    assert await read(learnt.memory, user) == shown
    async with Memory(settings=learnt.memory.settings) as fresh:
        assert await read(fresh, user) == shown
    listed = [each.detail for each in await learnt.memory.audit.list(action="keys")]
    assert [(each["key"], each["was"]) for each in listed] == [
        ("k1", "added"),
        ("k2", "added"),
        ("k3", "added"),
        ("k1", "dropped"),
        ("k2", "dropped"),
    ]


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_text_that_looks_sealed_is_a_text(learnt: Learning, user: str, encrypted: bool) -> None:
    if encrypted:
        await learnt.memory.encryption.encrypt(spread_seconds=SOON)
    texts = [f"{cipher.SEALED}k1:AAAA", f"{cipher.ESCAPED}x", cipher.MARK]
    await learnt.memory.remember(texts, user_id=user)
    await learnt.settle()
    await learnt.memory.blocks.set("human", texts[0], user_id=user)
    if not encrypted:
        before = [each.content for each in await learnt.memory.history(user_id=user)]
        assert before == texts
        await learnt.memory.encryption.encrypt(spread_seconds=SOON)

    assert [each.content for each in await learnt.memory.history(user_id=user)] == texts
    assert [each.content for each in await learnt.memory.blocks.list(user_id=user)] == texts[:1]


async def test_another_namespace_stays_plain_and_keys_are_the_operators(
    opened: Opened, user: str, database: Database
) -> None:
    async with opened(extractor="off") as learnt:
        await learnt.memory.encryption.encrypt(namespace="acme", spread_seconds=SOON)
        for namespace in ("acme", "globex"):
            await learnt.memory.remember(SECRET, user_id=user, namespace=namespace)
        await learnt.settle()
        lone = learnt.memory.settings.model_copy(update={"relay_url": None})
        async with Memory(settings=lone) as agent:
            assert [each.content for each in await agent.history(user_id=user, namespace="acme")] == [SECRET]
            with pytest.raises(errors.NotAllowed):
                await agent.encryption.rotate(namespace="acme", spread_seconds=SOON)
            with pytest.raises(errors.InvalidSettings, match="not encrypted"):
                await agent.encryption.rotate(namespace="globex", spread_seconds=SOON)

    told = (
        await psql_async(database.url, f"SELECT namespace, content = '{SECRET}' FROM aftermind.episodes ORDER BY 1")
    ).split()
    assert told == ["acme|f", "globex|t"]


async def test_what_is_forgotten_and_what_is_archived_is_the_same_as_ever(
    learnt: Learning, user: str, tmp_path: Path
) -> None:
    await learnt.memory.encryption.encrypt(spread_seconds=SOON)
    await everywhere(learnt, user)
    await learnt.learn(user, ["I like tea."])
    await learnt.memory.retention.set(max_episodes=1, archive=str(tmp_path / "archive"))
    await learnt.memory.retention.run()
    [file] = (tmp_path / "archive").rglob("*.jsonl")

    assert file.read_text().count(SECRET) == 2, "the episode and its fact, readable: the docs say so"
    await learnt.memory.forget(user_id=user)
    assert await learnt.memory.history(user_id=user) == []


async def test_a_forget_without_the_key_removes_the_forgotten_times(learnt: Learning, user: str) -> None:
    await learnt.memory.encryption.encrypt(spread_seconds=SOON)
    days = [datetime(year, 5, 2, tzinfo=UTC) for year in (2023, 2024)]
    messages = [Message.user(f"I live in {SECRET}.", occurred_at=day) for day in days]
    first = await learnt.learn(user, messages[:1])
    await learnt.learn(user, messages[1:])
    [before] = await learnt.memory.facts.query(user_id=user)
    assert before.valid_from == days[0]
    stranger = learnt.memory.settings.model_copy(update={"encryption_key": SecretStr("another master key")})

    async with Memory(settings=stranger) as memory:
        gone = await memory.forget(user_id=user, ids=first.episode_ids)

    assert gone.rows["episodes"] == 1
    [after] = await learnt.memory.facts.query(user_id=user)
    assert (after.id, after.object, after.valid_from, len(after.sources)) == (before.id, SECRET, None, 1)


@pytest.mark.long
async def test_nothing_is_unreadable_while_everything_is_sealed_anew(learnt: Learning, user: str) -> None:
    """The small form of benchmarks/encryption.py: readers, writers, a namespace encrypted and its key changed twice."""
    texts = [f"Line {number} of {SECRET}, said so." for number in range(1_500)]
    for start in range(0, len(texts), 500):
        await learnt.memory.remember(texts[start : start + 500], user_id=user, save={"history"})
    await learnt.settle()
    is_over, reads, writes = False, 0, 0

    async def reading() -> None:
        nonlocal reads
        while not is_over:
            history = await learnt.memory.history(user_id=user, limit=200)
            assert all(each.content.endswith("said so.") for each in history)
            block = await learnt.memory.recall(f"Line {reads % 1500}", user_id=user, mode="lexical")
            assert any(each.item.content.startswith("Line ") for each in block.matches)
            reads += 1

    async def writing() -> None:
        nonlocal writes
        while not is_over:
            await learnt.memory.remember(f"More {writes} was said so.", user_id=user, save={"history"})
            await learnt.settle()
            await learnt.memory.blocks.set("human", f"{writes} said so.", user_id=user)
            writes += 1

    tasks = [asyncio.create_task(each()) for each in (reading, reading, writing)]
    done = [await learnt.memory.encryption.encrypt(spread_seconds=KNOWN)]
    done += [await learnt.memory.encryption.rotate(spread_seconds=spread) for spread in (SOON, KNOWN)]
    is_over = True
    await asyncio.gather(*tasks)

    assert reads > 5
    assert writes > 5
    assert all(each.rows >= 1_500 for each in done)
    left = await places(learnt, SECRET)
    assert left == set()
    prefix = f"SELECT count(*) FROM aftermind.episodes WHERE NOT starts_with(content, '{cipher.key_prefix('k3')}')"
    assert await psql_async(learnt.owner.url, prefix) == "0"


async def test_what_is_sealed_is_opened_to_look_for_what_remains(
    opened: Opened, user: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        erasure_verification, "STORED_SECONDS", 1.0
    )  # nobody works here: the canary is found on its way
    whole = {"migrator_url": database.url, "replica_urls": database.app_replica_urls, "extractor": "rules"}
    async with opened(**whole) as learnt:
        memory = learnt.memory
        await memory.encryption.encrypt(spread_seconds=SOON)
        await everywhere(learnt, user)
        await learnt.settle()
        assert await places(learnt, SECRET) == set(), "no search by SQL sees it"

        left = await memory.verify_erasure(SECRET, user_id="somebody else")
        gone = await memory.forget(user_id=user, prove=True)
        after = await memory.verify_erasure(SECRET, user_id=user)

    found = {place.name for place in left.places if place.found}
    assert {"table episodes", "table facts", "table assertions", "table blocks"} <= found
    assert any(name.startswith("replica ") for name in found)
    assert gone.proof is not None
    assert "table episodes" in {place.name for place in gone.proof.before.places if place.found}
    assert gone.proof.after.is_clean
    assert after.is_clean


async def test_what_cannot_be_opened_is_not_called_clean(
    opened: Opened, user: str, database: Database, tmp_path: Path
) -> None:
    async with opened(migrator_url=database.url, replica_urls=database.app_replica_urls) as learnt:
        await learnt.memory.encryption.encrypt(spread_seconds=SOON)
        await learnt.memory.blocks.set("human", "Alice.", user_id=user)
    keyless = {"encryption_key": SecretStr("not that key at all"), "state_dir": tmp_path / "other"}
    async with opened(migrator_url=database.url, replica_urls=database.app_replica_urls) as learnt:
        settings = learnt.memory._parts.settings.model_copy(update=keyless)
        async with Memory(settings=settings) as memory:
            left = await memory.verify_erasure("nobody ever said this", user_id="somebody else")

    unseen = {place.name.split(" at ")[0].split(":")[0]: place.missing for place in left.places if place.missing}
    assert "1 sealed rows were not opened" in unseen["table blocks"]
    assert any(name.startswith("replica") for name in unseen)
    assert not left.is_clean


async def test_a_process_keeps_the_keys_of_so_many_namespaces_and_loads_others_again(
    opened: Opened, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring, "RINGS_KEPT", 2)
    spaces = [f"tenant-{number}" for number in range(5)]
    async with opened() as learnt:
        for space in spaces:
            await learnt.memory.encryption.encrypt(namespace=space, spread_seconds=SOON)
        for _ in range(2):
            for space in spaces:
                await learnt.memory.blocks.set("human", f"of {space}", user_id=user, namespace=space)
        for space in (*spaces, *reversed(spaces)):
            [block] = await learnt.memory.blocks.list(user_id=user, namespace=space)
            assert block.content == f"of {space}"
        kept = learnt.memory._parts.vault

        assert kept is not None
        assert len(kept._rings) == 2
        assert await places(learnt, "of tenant") == set()
