"""Memory that users share, on every store: only members reach it, and what a member wrote goes with the member."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aftermind import Memory, Message, Settings, errors
from tests.integration.stores.test_stored_memory import memory_at
from tests.support.learning import learning
from tests.support.servers import Database, psql_async
from tests.support.waiting import PATIENCE_SECONDS


def reads(memory: Memory, user_id: str | None) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every call that reads a group, for a user, by name."""
    named = {"user_id": user_id, "group": "team"}
    return {
        "recall": lambda: memory.recall("heliotrope", **named),  # type: ignore[arg-type]
        "recall_scored": lambda: memory.recall_scored("heliotrope", **named),  # type: ignore[arg-type]
        "explain": lambda: memory.explain("heliotrope", **named),  # type: ignore[arg-type]
        "history": lambda: memory.history(**named),  # type: ignore[arg-type]
        "context_window": lambda: memory.context_window(100, **named),  # type: ignore[arg-type]
        "search": lambda: memory.search("heliotrope", **named),  # type: ignore[arg-type]
        "sessions": lambda: memory.sessions(**named),  # type: ignore[arg-type]
        "session_metadata": lambda: memory.session_metadata(**named),
        "summary": lambda: memory.summary(**named),
        "facts": lambda: memory.facts.query(**named),  # type: ignore[arg-type]
        "facts.history": lambda: memory.facts.history(**named),  # type: ignore[arg-type]
        "profile": lambda: memory.profile(**named),
        "drain": lambda: memory.drain(**named),  # type: ignore[arg-type]
    }


async def test_members_share_and_others_see_nothing(memory: Memory) -> None:
    await memory.groups.add("team", "alice")
    await memory.groups.add("team", "bob", role="reader")
    receipt = await memory.remember("The code word is heliotrope.", user_id="alice", group="team", session_id="s1")
    await memory.remember("Mine is marigold.", user_id="alice")

    assert "heliotrope" in (await memory.recall("What is the code word?", user_id="bob", group="team")).text
    (shared,) = await memory.history(user_id="bob", group="team")
    assert (shared.name, shared.metadata["member"]) == ("alice", "alice")
    assert [each.content for each in await memory.history(user_id="alice")] == ["Mine is marigold."]
    with pytest.raises(errors.GroupReadOnly, match="Add the user to the group again, with the role 'writer'"):
        await memory.remember("I write.", user_id="bob", group="team")
    with pytest.raises(errors.GroupReadOnly):
        await memory.update_session_metadata({"a": 1}, user_id="bob", group="team")

    for user_id in ("carol", None, "alice "):
        for read in reads(memory, user_id).values():
            with pytest.raises(errors.NotThere):
                await read()
        with pytest.raises(errors.NotThere):
            await memory.remember("I write.", user_id=user_id, group="team")
        with pytest.raises(errors.NotThere):
            await memory.get(receipt.episode_ids[0], user_id=user_id, group="team")
        assert await memory.history(user_id=user_id) == []
    for call in (memory.history, memory.facts.query, memory.blocks.list, memory.items.search, memory.forget):
        with pytest.raises(errors.InvalidScope, match="group="):
            await call(user_id="group:team")  # type: ignore[operator]
    with pytest.raises(errors.NotThere):
        await memory.history(user_id="alice", group="team", namespace="other")

    assert await memory.groups.remove("team", "bob")
    for read in reads(memory, "bob").values():
        with pytest.raises(errors.NotThere):
            await read()
    assert [(each.user_id, each.role) for each in await memory.groups.members("team")] == [("alice", "writer")]
    assert (await memory.groups.list("bob"), len(await memory.groups.list("alice"))) == ([], 1)

    await memory.groups.delete("team")
    await memory.groups.add("team", "carol")
    assert await memory.history(user_id="carol", group="team") == []
    for wrong in ("", "a\nb", "x" * 600, 3):
        with pytest.raises(errors.InvalidScope):
            await memory.groups.add(wrong, "alice")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidScope, match="role"):
        await memory.groups.add("team", "alice", role="king")  # type: ignore[arg-type]


async def test_a_member_is_erased_from_every_group_also_after_leaving_it(memory: Memory) -> None:
    for group in ("one", "two"):
        await memory.groups.add(group, "alice")
        await memory.groups.add(group, "bob")
        await memory.remember(["I am alice.", Message.assistant("Hello alice.")], user_id="alice", group=group)
        await memory.remember("I am bob.", user_id="bob", group=group, idempotency_key="1")
        await memory.remember("I am alice once more.", user_id="alice", group=group, idempotency_key="1")
    await memory.groups.remove("two", "alice")
    assert len([each for each in (await memory.export(user_id="alice")).episodes if each.name == "alice"]) == 4

    assert {each.user_id for each in await memory.users()} <= {"alice", "bob"}
    listed = {each.user_id for each in await memory.users(groups=True)}
    assert {"group:one", "group:two"} <= listed

    gone = await memory.forget(user_id="alice")

    assert gone.pending_turns + gone.rows["episodes"] >= 4, "turns that are stored or pending"
    for group in ("one", "two"):
        assert [each.content for each in await memory.history(user_id="bob", group=group)] == ["I am bob."]
        assert [each.user_id for each in await memory.groups.members(group)] == ["bob"]
        with pytest.raises(errors.InvalidQuery, match="prove"):
            await memory.forget(user_id="bob", group=group, prove=True)
        await memory.forget(user_id="bob", group=group)
        assert await memory.history(user_id="bob", group=group) == []
    assert (await memory.export(user_id="alice")).items == ()


async def test_a_forget_by_ids_is_not_narrowed_by_a_session_or_a_time(memory: Memory) -> None:
    receipt = await memory.remember("A note.", user_id="alice", session_id="s")
    with pytest.raises(errors.InvalidQuery, match="ids name the messages alone"):
        await memory.forget(user_id="alice", ids=receipt.episode_ids, session_id="other")
    with pytest.raises(errors.InvalidQuery, match="ids name the messages alone"):
        await memory.forget(user_id="alice", ids=receipt.episode_ids, before=datetime(2020, 1, 1, tzinfo=UTC))
    assert len(await memory.history(user_id="alice")) == 1


async def test_an_export_is_plain_json(memory: Memory) -> None:
    await memory.remember("I live in Oslo.", user_id="alice", session_id="s")

    exported = (await memory.export(user_id="alice", vectors=True)).to_json()

    assert json.loads(json.dumps(exported))["episodes"][0]["content"] == "I live in Oslo."


async def test_facts_of_an_erased_member_go_and_those_that_others_said_stay(tmp_path: Path) -> None:
    async with memory_at("inmemory", tmp_path) as memory:
        for member in ("alice", "bob"):
            await memory.groups.add("team", member)
            said = [f"I live in {'Oslo' if member == 'alice' else 'Bergen'}.", "I like tea."]
            receipt = await memory.remember(said, user_id=member, group="team", session_id=member)
            await receipt.extracted(timeout=PATIENCE_SECONDS)
        before = {fact.text for fact in await memory.facts.query(user_id="bob", group="team")}

        await memory.forget(user_id="alice")

        after = {fact.text for fact in await memory.facts.query(user_id="bob", group="team")}
        assert {fact for fact in before if "Oslo" in fact}, "one belief of each member, not one of both"
        assert after == {fact for fact in before if "alice" not in fact.lower()}
        assert {fact for fact in after if "Bergen" in fact}


async def test_row_level_security_holds_for_groups(database: Database, redis_url: str, tmp_path: Path) -> None:
    async with learning(database, redis_url, tmp_path) as learnt:
        memory = learnt.memory
        await memory.groups.add("team", "alice")
        await memory.remember("The code word is heliotrope.", user_id="alice", group="team")
        await learnt.settle()
        assert not (await memory.history(user_id="alice", group="team"))[0].pending

        for table in ("episodes", "items"):
            count = f"SELECT count(*) FROM aftermind.{table} WHERE user_id = 'group:team'"
            for namespace, is_shown in (("default", True), ("other", False), ("", False)):
                tenant = f"SET aftermind.namespace = '{namespace}'; {count}"
                found = (await psql_async(database.app_url, tenant)).split()[-1]
                assert (found != "0") is is_shown, (table, namespace)

        await memory.forget(user_id="alice")
        whole = "SELECT count(*) FROM aftermind.episodes WHERE user_id = 'group:team'"
        assert await psql_async(database.url, whole) == "0"


async def test_a_member_that_was_removed_sees_nothing_while_the_replica_lags(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    settings = Settings(
        database_url=database.app_url,
        replica_urls=database.app_replica_urls,
        broker_url=redis_url,
        state_dir=tmp_path,
        embedder="off",
    )
    async with Memory(settings=settings) as memory:
        await memory.groups.add("team", "alice")
        await memory.remember("The code word is heliotrope.", user_id="alice", group="team")
        await psql_async(database.replica_admin_urls[0], "SELECT pg_wal_replay_pause()")
        try:
            await memory.groups.remove("team", "alice")
            with pytest.raises(errors.NotThere):
                await memory.recall("heliotrope", user_id="alice", group="team")
        finally:
            await psql_async(database.replica_admin_urls[0], "SELECT pg_wal_replay_resume()")


async def test_a_writer_retracts_a_fact_and_undoes_a_message_of_the_group(tmp_path: Path) -> None:
    async with memory_at(f"sqlite:{tmp_path}/bot.db", tmp_path) as memory:
        await memory.groups.add("team", "alice")
        await memory.groups.add("team", "bob", role="reader")
        receipt = await memory.remember("I live in Oslo.", user_id="alice", group="team")
        await receipt.extracted(timeout=PATIENCE_SECONDS)
        await memory.drain(user_id="bob", group="team")
        (fact,) = await memory.facts.query(user_id="bob", group="team")

        why = await memory.facts.why(fact, user_id="bob", group="team")
        assert why is not None
        assert [each.content for each in why.episodes] == ["I live in Oslo."]
        with pytest.raises(errors.GroupReadOnly):
            await memory.facts.retract(fact, user_id="bob", group="team")
        with pytest.raises(errors.GroupReadOnly):
            await memory.undo(*receipt.episode_ids, user_id="bob", group="team")

        assert await memory.facts.retract(fact, user_id="alice", group="team")
        assert await memory.facts.query(user_id="bob", group="team") == []
        assert [each.id for each in await memory.facts.history(user_id="bob", group="team")] == [fact.id]
        await memory.undo(*receipt.episode_ids, user_id="alice", group="team")
        assert "Oslo" not in (await memory.recall("Where do you live?", user_id="bob", group="team")).text
