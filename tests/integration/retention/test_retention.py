"""What a policy lets go is archived first, goes as by forget, and nothing that must stay goes with it."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from sqlalchemy import text

from aftermind import Message, Role, errors
from aftermind.api.retention import archives
from aftermind.db.postgres_transaction import pg
from aftermind.types import JobKind
from tests.support.learning import Learning
from tests.support.servers import Database, psql, psql_async
from tests.support.stored_turns import keep, said

Opened = Callable[..., AbstractAsyncContextManager[Learning]]
DAY = timedelta(days=1)
NAMES = ("Amsterdam", "Berlin", "Cairo", "Dublin", "Essen")


async def grow_old(learnt: Learning, user: str, *, days: int) -> None:
    """Everything of a user was remembered so many days earlier."""
    aged = text(
        "UPDATE aftermind.episodes SET stored_at = stored_at - make_interval(days => CAST(:days AS integer)), "
        "remembered_at = remembered_at - make_interval(days => CAST(:days AS integer)) WHERE user_id = :user"
    )
    async with learnt.owner.transaction() as tx:
        await pg(tx).execute(aged, {"user": user, "days": days})


async def contents(learnt: Learning, user: str) -> list[str]:
    return [each.content for each in await learnt.memory.history(user_id=user)]


async def test_what_is_too_old_goes_with_what_was_derived_from_it_alone(opened: Opened, user: str) -> None:
    async with opened(extractor="rules") as learnt:
        await learnt.learn(user, ["I live in Oslo."], session="old")
        await grow_old(learnt, user, days=100)
        await learnt.learn(user, ["I like tea."], session="new")
        await learnt.memory.retention.set(max_age=90 * DAY)

        foreseen = await learnt.memory.retention.run(dry_run=True)
        before = await contents(learnt, user)
        done = await learnt.memory.retention.run()
        facts = [fact.text for fact in await learnt.memory.facts.history(user_id=user)]

        assert (foreseen.episodes, foreseen.users, foreseen.dry_run) == (1, 1, True)
        assert before == ["I live in Oslo.", "I like tea."]
        assert (done.episodes, done.users, done.rows["facts"], done.is_done) == (1, 1, 1, True)
        assert await contents(learnt, user) == ["I like tea."]
        assert "Oslo" not in " ".join(facts)
        assert "tea" in " ".join(facts)


async def test_of_each_user_the_newest_are_kept(opened: Opened) -> None:
    async with opened(extractor="off") as learnt:
        for user in ("many", "few"):
            for name in NAMES[: 5 if user == "many" else 2]:
                await learnt.learn(user, [f"{name} it was."])
        await learnt.memory.retention.set(max_episodes=3)

        done = await learnt.memory.retention.run()

        assert (done.episodes, done.users) == (2, 1)
        assert await contents(learnt, "many") == [f"{name} it was." for name in NAMES[2:]]
        assert len(await contents(learnt, "few")) == 2


async def test_a_run_that_was_stopped_goes_on_behind_whom_it_had_come_to(opened: Opened, database: Database) -> None:
    """Those who come first and always have something new that is old must not keep the others waiting."""
    old = datetime.now(UTC) - 100 * DAY
    users = ("ann", "bob", "cid")
    await keep(database.url, [said(f"{name} was here.", user=name, at=old) for name in users])
    async with opened(extractor="off") as learnt:
        retention = learnt.memory.retention
        await retention.set(max_age=90 * DAY)

        first = await retention.run(seconds=0.0)
        await keep(database.url, [said("ann again.", user="ann", at=old)])
        second = await retention.run(seconds=0.0, after=first.stopped_after)
        third = await retention.run(after=second.stopped_after)
        left = {name: await contents(learnt, name) for name in users}
        anew = await retention.run()

    assert [(each.users, each.is_done, each.stopped_after) for each in (first, second, third)] == [
        (1, False, "ann"),
        (1, False, "bob"),
        (1, True, None),
    ]
    assert left == {"ann": ["ann again."], "bob": [], "cid": []}
    assert (anew.episodes, anew.is_done) == (1, True)


async def test_what_is_important_stays_however_old_it_is(opened: Opened, user: str) -> None:
    async with opened(extractor="rules") as learnt:
        await learnt.learn(user, ["I live in Oslo.", "Well, the weather today.", "Hm."])
        await learnt.learn(
            user, [Message(role=Role.USER, content="The contract ends in May.", metadata={"important": True})]
        )
        await grow_old(learnt, user, days=100)
        await learnt.memory.retention.set(max_age=90 * DAY, keep_important=True)

        await learnt.memory.retention.run()

        assert await contents(learnt, user) == ["I live in Oslo.", "The contract ends in May."]
        assert [fact.object for fact in await learnt.memory.facts.query(user_id=user)] == ["Oslo"]


async def test_a_namespace_without_a_policy_and_other_namespaces_keep_everything(opened: Opened, user: str) -> None:
    async with opened(extractor="off") as learnt:
        for namespace in ("short", "long"):
            await learnt.memory.remember("Once.", user_id=user, namespace=namespace)
        await learnt.settle()
        await grow_old(learnt, user, days=100)
        await learnt.memory.retention.set(max_age=90 * DAY, namespace="short")

        untouched = await learnt.memory.retention.run(namespace="long")
        done = await learnt.memory.retention.run(namespace="short")

        assert (untouched.episodes, done.episodes) == (0, 1)
        assert len(await learnt.memory.history(user_id=user, namespace="long")) == 1
        assert await learnt.memory.retention.clear(namespace="short")
        assert await learnt.memory.retention.get(namespace="short") is None


async def test_what_goes_lies_in_the_archive_line_by_line(opened: Opened, user: str, tmp_path: Path) -> None:
    async with opened(extractor="rules") as learnt:
        await learnt.learn(user, ["I live in Oslo.", "Zürich ☃ was nicer."])
        before = await learnt.memory.history(user_id=user)
        [fact] = await learnt.memory.facts.query(user_id=user)
        await grow_old(learnt, user, days=100)
        await learnt.memory.retention.set(max_age=90 * DAY, archive=str(tmp_path / "archive"))

        done = await learnt.memory.retention.run()

        [file] = (tmp_path / "archive" / "default").rglob("*.jsonl")
        lines = [orjson.loads(line) for line in file.read_bytes().splitlines()]
        assert done.archived == len(lines) == 3
        assert [(line["id"], line["content"]) for line in lines[:2]] == [(str(e.id), e.content) for e in before]
        assert (lines[2]["kind"], lines[2]["id"], lines[2]["object"]) == ("fact", str(fact.id), "Oslo")
        assert file.stat().st_mode & 0o077 == 0
        assert await contents(learnt, user) == []


async def test_an_archive_is_on_disk_before_anything_is_deleted(
    opened: Opened, user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read at the moment of the fsync by another connection: the rows are still there; and the folders follow."""
    synced: list[tuple[str, int]] = []
    async with opened(extractor="off") as learnt:
        await learnt.learn(user, ["Once."])
        await grow_old(learnt, user, days=100)
        await learnt.memory.retention.set(max_age=90 * DAY, archive=str(tmp_path / "archive"))
        real, url = os.fsync, learnt.owner.url

        def fsync(handle: int) -> None:
            path = Path(f"/proc/self/fd/{handle}").readlink()
            if path.is_relative_to(tmp_path / "archive"):  # the audit trail's witness is synced as well, afterwards
                left = int(psql(url, f"SELECT count(*) FROM aftermind.episodes WHERE user_id = '{user}'"))
                synced.append((path.suffix, left))
            real(handle)

        monkeypatch.setattr(archives.os, "fsync", fsync)
        await learnt.memory.retention.run()

        assert synced[0] == (".part", 1)
        assert len(synced) > 1
        assert {count for _, count in synced} == {1}
        assert await contents(learnt, user) == []


async def test_where_the_archive_does_not_take_it_nothing_goes(opened: Opened, user: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("in the way")
    async with opened(extractor="off") as learnt:
        await learnt.learn(user, ["Once."])
        await grow_old(learnt, user, days=100)
        await learnt.memory.retention.set(max_age=90 * DAY, archive=str(tmp_path / "a-file" / "archive"))

        with pytest.raises(errors.ArchiveUnavailable, match="Nothing was deleted"):
            await learnt.memory.retention.run()

        assert await contents(learnt, user) == ["Once."]
        policy = await learnt.memory.retention.get()
        assert policy is not None
        assert policy.ran_at is None


async def test_an_extraction_on_its_way_for_what_is_let_go_writes_nothing(opened: Opened, user: str) -> None:
    async with opened(extractor="rules", extract_quiet_seconds=60.0, extract_max_wait_seconds=60.0) as learnt:
        await learnt.learn(user, ["I live in Oslo."])
        await grow_old(learnt, user, days=100)
        [job] = await learnt.ledger.jobs(kinds=[JobKind.EXTRACT])
        await learnt.memory.retention.set(max_age=90 * DAY)
        await learnt.memory.retention.run()

        await learnt.due(job.id)
        await learnt.settle()

        assert await learnt.memory.facts.history(user_id=user) == []
        stones = await psql_async(learnt.owner.url, "SELECT by_policy, cardinality(ids) FROM aftermind.tombstones")
        assert stones == "t|1"


async def test_a_turn_that_comes_again_after_it_was_let_go_stays_gone(opened: Opened, user: str) -> None:
    async with opened(extractor="off") as learnt:
        for _ in range(2):
            await learnt.memory.remember("Once.", user_id=user, idempotency_key="once")
            await learnt.settle()
            await grow_old(learnt, user, days=100)
            await learnt.memory.retention.set(max_age=90 * DAY)
            await learnt.memory.retention.run()

        assert await contents(learnt, user) == []


async def test_ten_thousand_go_in_short_transactions_while_the_user_goes_on(
    opened: Opened, database: Database, user: str
) -> None:
    old = datetime.now(UTC) - 100 * DAY
    await keep(
        database.url,
        [said(f"Line {number}.", user=user, at=old, session=f"s{number % 50}") for number in range(10_000)],
        [None] * 10_000,
    )
    waits: list[float] = []
    async with opened(extractor="off") as learnt:
        await learnt.memory.retention.set(max_age=90 * DAY)
        running = asyncio.create_task(learnt.memory.retention.run())
        loop, number = asyncio.get_running_loop(), 0
        while not running.done():
            began = loop.time()
            await learnt.learn(user, [f"New {number}."], session="new")
            waits.append(loop.time() - began)
            number += 1
        done = await running

        assert done.episodes == 10_000
        assert len(await learnt.memory.history(user_id=user, limit=10_000)) == number
        assert number > 3
        assert max(waits) < 2.0, "no store waits for the whole of it"


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({}, "retention"),
        ({"max_age": timedelta(seconds=1)}, "max_age"),
        ({"max_episodes": 0}, "max_episodes"),
        ({"max_episodes": 5, "archive": "ftp://host"}, "archive"),
        ({"max_episodes": 5, "archive": "s3:///prefix"}, "archive"),
    ],
)
async def test_a_policy_that_cannot_work_is_refused(opened: Opened, wrong: dict[str, object], name: str) -> None:
    async with opened(extractor="off") as learnt:
        with pytest.raises(errors.InvalidSettings) as refused:
            await learnt.memory.retention.set(**wrong)  # type: ignore[arg-type]
        assert refused.value.field == name
        assert await learnt.memory.retention.get() is None


async def set_agent_clock(learnt: Learning, content: str, *, days: int) -> None:
    """The agent that remembered this had a clock that was wrong by so many days."""
    wrong = text(
        "UPDATE aftermind.episodes SET remembered_at = remembered_at + CAST(:off AS interval), "
        "position = position + CAST(extract(epoch FROM CAST(:off AS interval)) * 1000000 AS bigint) "
        "WHERE content = :content"
    )
    async with learnt.owner.transaction() as tx:
        await pg(tx).execute(wrong, {"off": days * DAY, "content": content})


async def test_the_clock_of_the_database_decides_what_is_too_old(opened: Opened, user: str) -> None:
    ahead, behind, last = "Old, from a host ahead.", "New, from a host behind.", "Newest, from a host far behind."
    async with opened(extractor="off") as learnt:
        await learnt.learn(user, [ahead], session="s1")
        await grow_old(learnt, user, days=100)
        await set_agent_clock(learnt, ahead, days=200)
        await learnt.learn(user, [behind], session="s2")
        await set_agent_clock(learnt, behind, days=-200)

        await learnt.memory.retention.set(max_age=90 * DAY)
        await learnt.memory.retention.run()
        kept_by_age = await contents(learnt, user)
        await learnt.learn(user, [last], session="s3")
        await set_agent_clock(learnt, last, days=-400)
        await learnt.memory.retention.set(max_episodes=1)
        await learnt.memory.retention.run()

        assert kept_by_age == [behind]
        assert await contents(learnt, user) == [last]
