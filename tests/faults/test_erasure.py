"""After a forget nothing is found anywhere, also where a worker was frozen over it or a spool was drained late."""

import asyncio
import fcntl
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import asyncpg
import pytest
import redis
from pydantic import SecretStr

from aftermind import Memory, Message, Settings, errors
from aftermind.types.erasure_report import ErasureReport
from aftermind.types.replay import JobFilter
from aftermind.wire import queues
from aftermind.wire.redis_keys import Keys
from tests.support.faults import frozen
from tests.support.proxy import proxy_to
from tests.support.servers import Database
from tests.support.stored_turns import keep, said
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until
from tests.support.workers import HOPELESS, SLOWLY, TOUCHY, environment, workers

pytestmark = pytest.mark.usefixtures("impatient_with_redis")

KEY = "one audit key on every host"
BRISK = {
    "AFTERMIND_LEASE_SECONDS": "3",
    "AFTERMIND_HEARTBEAT_SECONDS": "1",
    "AFTERMIND_RECONCILE_SECONDS": "0.5",
}


def opened(
    database: Database,
    redis_url: str,
    state_dir: Path,
    *,
    as_owner: bool = True,
    audit_key: str | None = None,
    **more: Any,  # settings
) -> Memory:
    """A memory as an operator has it: with the owner's URL to search with, unless it is an agent's."""
    return Memory(
        settings=Settings(
            database_url=database.app_url,
            relay_url=database.relay_url,
            migrator_url=database.url if as_owner else None,
            replica_urls=list(database.app_replica_urls),
            redis_url=redis_url,
            broker_url=redis_url,
            state_dir=state_dir,
            embedder="hash",
            extractor="rules",
            audit_key=None if audit_key is None else SecretStr(audit_key),
            **more,
        )
    )


def word() -> str:
    return f"canary{uuid4().hex}"


def where(found: ErasureReport) -> set[str]:
    return {place.name for place in found.places if place.found}


async def nothing_pending(url: str) -> None:
    def gone() -> bool:
        with redis.Redis.from_url(url) as client:
            return not client.exists(Keys().index()) and not client.exists(Keys().leased())

    await wait_until(gone, description="nothing is pending")


async def held_turns(url: str) -> None:
    def held() -> bool:
        with redis.Redis.from_url(url) as client:
            return bool(client.zcard(Keys().leased()))

    await wait_until(held, description="the worker holds the turn")


async def test_a_proof_finds_the_canary_before_and_nothing_after(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    async with opened(database, redis_url, tmp_path) as memory:
        with workers(environment(database.relay_url, redis_url, **BRISK), tmp_path):
            for user in ("ann", "bob"):
                receipt = await memory.remember("I live in Oslo.", user_id=user, session_id="s")
                await receipt.stored(timeout=180)
            gone = await memory.forget(user_id="ann", prove=True, note="REQ-7")

        proof = gone.proof
        assert proof is not None
        assert (gone.rows["episodes"], gone.pending_turns) == (1, 0), "without the canary"
        found = where(proof.before)
        assert "table episodes" in found
        assert any(name.startswith("replica") for name in found)
        assert proof.after.is_clean, [place for place in proof.after.places if not place.is_clean]
        assert {"redis", "spool", "logs", "table jobs", "table events"} <= {place.name for place in proof.after.places}
        (jobs,) = [place for place in proof.after.places if place.name == "table jobs"]
        assert jobs.owned == len(await memory.jobs.list(user_id="ann")) > 0
        assert "without payload" in jobs.kept
        assert len(proof.ids) == 1
        erased, proved = (await memory.audit.list(user_id="ann"))[-2:]
        assert (erased.action, erased.detail) == ("erase", {"everything": True, "note": "REQ-7"})
        assert (proved.action, proved.detail) == (
            "read",
            {"by": "proof", "is_erased": True, "places_not_searched": 0, "note": "REQ-7"},
        )
        assert len(await memory.history(user_id="bob")) == 1
        assert not (await memory.verify_erasure(user_id="bob")).is_clean, (
            "rows of somebody who was not forgotten are seen"
        )


async def test_each_place_that_holds_a_text_is_named(database: Database, redis_url: str, tmp_path: Path) -> None:
    logged, spoken, queued = word(), word(), word()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker.log").write_text(f"it said {logged}\n")
    async with opened(database, redis_url, tmp_path) as memory:
        await memory.blocks.set("human", f'says "{spoken}" \\ and so on', user_id="ann")
        await memory.remember(f"On its way: {queued}", user_id="ann")
        await memory.remember(f'accepted "{spoken}"', user_id="ann", accept="postgres")

        assert where(await memory.verify_erasure(logged, user_id="ann")) == {"logs"}
        assert where(await memory.verify_erasure(queued, user_id="ann")) == {"redis"}
        assert where(await memory.verify_erasure(spoken, user_id="ann")) >= {"table blocks", "table jobs"}
        assert "table blocks" in where(await memory.verify_erasure(f'"{spoken}" \\', user_id="ann")), (
            "as JSON or as text"
        )
        assert "table jobs" in where(await memory.verify_erasure(f'"{spoken}"', user_id="ann")), "escaped, within bytes"
        with pytest.raises(errors.InvalidQuery):
            await memory.verify_erasure("", user_id="ann")
        with pytest.raises(errors.InvalidQuery):
            await memory.forget(user_id="ann", session_id="s", prove=True)


async def test_what_a_login_cannot_see_is_no_proof(database: Database, redis_url: str, tmp_path: Path) -> None:
    async with opened(database, redis_url, tmp_path, as_owner=False) as memory:
        found = await memory.verify_erasure(user_id="ann")
        await memory.forget(user_id="ann", prove=True)
        entries = await memory.audit.list(user_id="ann", action="read")

    assert entries[-1].detail == {"by": "proof", "is_erased": None, "places_not_searched": 3}
    unseen = {place.name for place in found.places if place.missing}
    assert unseen == {"table replay_plans", "table replay_items", "table metric_history"}
    assert not found.is_clean


async def test_a_frozen_worker_that_wakes_after_the_forget_brings_nothing_back(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    canary = word()
    async with opened(database, redis_url, tmp_path) as memory:
        with workers(environment(database.relay_url, redis_url, **BRISK), tmp_path, app=TOUCHY) as (worker,):
            await memory.remember(f"{SLOWLY}: {canary}", user_id="ann")
            await held_turns(redis_url)
            with frozen(worker.pid):
                assert where(await memory.verify_erasure(canary, user_id="ann")) == {"redis"}
                await memory.forget(user_id="ann")
                assert (await memory.verify_erasure(canary, user_id="ann")).is_clean
            # A turn of somebody else's that the woken worker stores tells that it is through with the first.
            await (await memory.remember("After that.", user_id="bob")).stored(timeout=180)
            await nothing_pending(redis_url)

        left = await memory.verify_erasure(canary, user_id="ann")
        assert left.is_clean, [place for place in left.places if not place.is_clean]
        assert await memory.history(user_id="ann") == []


async def test_a_turn_that_fails_for_good_after_the_forget_leaves_no_dead_letter(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    canary = word()
    # It fails before its next heartbeat could tell it that the turn is not its own any more.
    late = {"AFTERMIND_LEASE_SECONDS": "30", "AFTERMIND_HEARTBEAT_SECONDS": "10", "AFTERMIND_MAX_ATTEMPTS": "1"}
    env = environment(database.relay_url, redis_url, **{**BRISK, **late})
    async with opened(database, redis_url, tmp_path) as memory:
        with workers(env, tmp_path, app=TOUCHY):
            await memory.remember(f"{SLOWLY}: {HOPELESS}: {canary}", user_id="ann")
            await held_turns(redis_url)
            await memory.forget(user_id="ann")
            kept = await memory.remember(f"{HOPELESS}, and nobody forgets it", user_id="bob")
            with pytest.raises(errors.JobDead):
                await kept.stored(timeout=180)
            await nothing_pending(redis_url)

        assert where(await memory.verify_erasure(canary, user_id="ann")) == set()
        assert [each.scope.user_id for each in await memory.dead_letters.list(JobFilter())] == ["bob"]


async def test_a_spool_that_is_drained_after_the_forget_brings_nothing_back(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    canary = word()
    env = environment(database.relay_url, valkey.url, **BRISK)
    async with (
        opened(database, valkey.url, tmp_path / "agent") as agent,
        opened(database, valkey.url, tmp_path / "operator") as operator,
    ):
        await agent.remember("Before.", user_id="ann")
        with valkey.frozen():
            receipt = await agent.remember(f"Into the spool: {canary}", user_id="ann")
            assert receipt.spooled
            await operator.forget(user_id="ann")  # on another host, with Redis away: the tombstone alone is written

        with workers(env, tmp_path, on=queues.STORE):

            async def drained() -> bool:
                return not list((tmp_path / "agent" / "spool").glob("*.spool"))

            await wait_until(drained, description="the spool is drained")
            await nothing_pending(valkey.url)

            async def names_nobody() -> bool:
                left = await agent.verify_erasure(canary, user_id="ann")
                return next(place for place in left.places if place.name == "redis").is_clean

            await wait_until(names_nobody, description="no key of Redis has the user's name")

        left = await agent.verify_erasure(canary, user_id="ann")
        assert where(left) == {place.name for place in left.places if place.missing} == set()
        told = {place.name for place in left.places if place.name.startswith("table") and not place.is_clean}
        assert told <= {"table events", "table jobs"}, "that it came, and no more"
        assert await operator.history(user_id="ann") == []


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("ends", [False, True])
async def test_spool_files_are_deleted_after_another_process_of_the_host_forgot(
    database: Database, valkey: Valkey, tmp_path: Path, ends: bool
) -> None:
    """`ends`: the process that forgets ends before Redis is back, and a third one takes over its file."""
    canary, state = word(), tmp_path / "state"

    def files() -> list[Path]:
        return sorted((state / "spool").glob("*.spool"))

    async with (
        proxy_to(valkey.url) as proxy,
        opened(database, proxy.url(valkey.url), state) as app,
        opened(database, valkey.url, state, remember_budget_seconds=2.0, redis_timeout_seconds=2.0) as operator,
        opened(database, valkey.url, state) as third,
    ):
        await app.remember("Before.", user_id="ann")
        proxy.reset()
        with valkey.frozen():
            assert (await app.remember(f"Into the spool: {canary}", user_id="ann")).spooled
            (of_app,) = files()
            await operator.forget(user_id="ann")
            assert (await app.remember("After the forget.", user_id="ann")).spooled
            if ends:
                await operator.close()
        (of_operator,) = (path for path in files() if path != of_app)
        if ends:
            await third.remember("Of the third process.", user_id="cem")
            await wait_until(lambda: is_locked(of_operator), description="the file is taken over")
        assert (await app.remember("Of another user.", user_id="bob")).spooled
        proxy.let_pass()

        await wait_until(lambda: not files(), description="the files of the spool are deleted")
        with workers(environment(database.relay_url, valkey.url, **BRISK), tmp_path):
            await nothing_pending(valkey.url)
        stored = {user: [each.content for each in await app.history(user_id=user)] for user in ("ann", "bob")}
        left = await third.verify_erasure(canary, user_id="ann")

    assert stored == {"ann": ["After the forget."], "bob": ["Of another user."]}
    assert not {"spool", "redis"} & where(left)


async def test_a_turn_that_postgres_accepts_after_the_forget_is_not_recalled(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    """Spooled before, committed after, and no worker has dropped it yet."""
    canary = word()
    async with (
        proxy_to(database.app_url) as proxy,
        opened(replace(database, app_url=proxy.url(database.app_url)), redis_url, tmp_path / "agent") as agent,
        opened(database, redis_url, tmp_path / "operator") as operator,
    ):
        await agent.remember("I play the flute.", user_id="ann", session_id="s", accept="postgres")
        proxy.reset()
        late = await agent.remember(f"I play the cello {canary}.", user_id="ann", session_id="s", accept="postgres")
        assert late.spooled
        await operator.forget(user_id="ann")
        proxy.let_pass()

        def drained() -> bool:
            return not list((tmp_path / "agent" / "spool").glob("*.spool"))

        await wait_until(drained, description="the spool is drained")
        assert "table jobs" in where(await operator.verify_erasure(canary, user_id="ann")), "the row is there"
        await agent.remember("I play the tuba.", user_id="ann", session_id="s", accept="postgres")
        await wait_until(drained, description="so is what a slow machine has spooled since")
        blocks = [
            (await memory.recall("Which instrument do I play?", user_id="ann", mode=mode)).text
            for memory in (agent, operator)
            for mode in ("hybrid", "recency")
        ]

    assert all("tuba" in text for text in blocks)
    assert not [text for text in blocks if canary in text or "flute" in text]


async def test_a_recall_during_an_erasure_is_before_it_while_redis_is_away(database: Database, tmp_path: Path) -> None:
    nothing_there = "redis://127.0.0.1:1/0"
    async with (
        opened(database, nothing_there, tmp_path / "forgets") as forgets,
        opened(database, nothing_there, tmp_path / "recalls") as recalls,
    ):
        await keep(database.url, [said("My PIN is 4711.")])
        connection = await asyncpg.connect(database.admin_url)
        async with connection.transaction():
            await connection.execute("SELECT FROM aftermind.episodes WHERE user_id = 'alice' FOR UPDATE")
            forgetting = asyncio.create_task(forgets.forget(user_id="alice"))
            await wait_until(partial(_is_numbered, connection), description="the erasure has its number")
            assert (await recalls.remember("I like tea.", user_id="bob")).spooled, "it asks the primary for the number"
            block = await recalls.recall("What is my PIN?", user_id="alice")
        await connection.close()
        await forgetting
        await recalls.remember([Message.assistant("It is 4711.")], user_id="alice", recalled=block)

        assert "4711" in block.text
        assert await recalls.history(user_id="alice") == []


async def _is_numbered(connection: "asyncpg.Connection[asyncpg.Record]") -> bool:
    return bool(await connection.fetchval("SELECT last_value > 1 FROM aftermind.generation"))


@pytest.mark.parametrize("ends", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("accept", ["redis", "postgres"])
async def test_a_forget_while_redis_is_frozen_covers_pending_turns(
    database: Database, valkey: Valkey, tmp_path: Path, accept: Literal["redis", "postgres"], ends: bool
) -> None:
    """No process ever had the number of an erasure. `ends`: the process that forgets ends before Redis is back."""
    canary = word()
    async with (
        opened(database, valkey.url, tmp_path / "agent") as agent,
        opened(database, valkey.url, tmp_path / "operator", audit_key=KEY) as operator,
    ):
        await agent.remember(f"I play the cello {canary}.", user_id="ann", session_id="s", accept=accept)
        assert canary in (await agent.recall("Which cello do I play?", user_id="ann")).text
        with valkey.frozen():
            await operator.forget(user_id="ann")
            blocks = [(await operator.recall("Which cello do I play?", user_id="ann")).text]
            if ends:
                await operator.close()
        async with opened(database, valkey.url, tmp_path / "bystander", audit_key=KEY) as bystander:
            await bystander.forget(user_id="bob")  # its number is higher, and may reach Redis first
        blocks += [(await agent.recall("Which cello do I play?", user_id="ann")).text for _ in range(5)]

        with workers(environment(database.relay_url, valkey.url, **BRISK), tmp_path):
            await nothing_pending(valkey.url)
            blocks.append((await agent.recall("Which cello do I play?", user_id="ann")).text)
            after = await agent.remember("Afterwards.", user_id="ann", session_id="s", accept=accept)
            await after.stored(timeout=180)

        assert not [text for text in blocks if canary in text]
        assert [each.content for each in await agent.history(user_id="ann")] == ["Afterwards."]


async def test_a_recall_without_a_store_shows_no_forgotten_part_of_a_pending_turn(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    """The rest of the turn stays pending, with what was forgotten in it: only the store has the tombstone."""
    async with proxy_to(database.app_url) as proxy:
        settings = Settings(
            database_url=proxy.url(database.app_url),
            replica_urls=[],
            redis_url=redis_url,
            broker_url=redis_url,
            state_dir=tmp_path / "other",
            embedder="hash",
            db_connect_timeout_seconds=30.0,
            recall_budget_seconds=30.0,
        )
        async with opened(database, redis_url, tmp_path) as forgetting, Memory(settings=settings) as other:
            secret = word()
            receipt = await forgetting.remember([f"The code is {secret}.", "Noted."], user_id="ann")
            before = await other.recall("What is the code?", user_id="ann")
            await forgetting.forget(user_id="ann", ids=receipt.episode_ids[:1])
            proxy.reset()
            hidden = await other.recall("What is the code?", user_id="ann")
            await other.remember("The code has changed.", user_id="ann")
            later = await other.recall("What is the code?", user_id="ann")

    assert secret in before.text
    assert secret not in hidden.text
    assert "1 pending turns are not shown" in (hidden.degraded or "")
    assert secret not in later.text
    assert "The code has changed." in later.text


@pytest.mark.parametrize("group", [None, "team"])
async def test_a_forgotten_user_is_gone_from_groups_wherever_the_turns_wait(
    database: Database, valkey: Valkey, tmp_path: Path, group: str | None
) -> None:
    """One is pending in a Redis that does not answer, one in the spool of another host, and one is a dead letter.

    Forgotten in one group, the user is a member still, and what is said afterwards stays.
    """
    later = ["Ann plays the harp."] if group else []
    env = environment(database.relay_url, valkey.url, **BRISK, AFTERMIND_MAX_ATTEMPTS="1")
    async with (
        opened(database, valkey.url, tmp_path / "agent", audit_key=KEY) as agent,
        opened(database, valkey.url, tmp_path / "operator", audit_key=KEY) as operator,
    ):
        for member in ("ann", "bob"):
            await agent.groups.add("team", member)
        with workers(env, tmp_path, app=TOUCHY) as (worker,):
            dead = await agent.remember(f"{HOPELESS}: ann's.", user_id="ann", group="team")
            with pytest.raises(errors.JobDead):
                await dead.stored(timeout=180)
            with frozen(worker.pid):
                await agent.remember("Ann plays the cello.", user_id="ann", group="team", session_id="s")
                await agent.remember("Bob plays the tuba.", user_id="bob", group="team", session_id="s")
                with valkey.frozen():
                    spooled = await agent.remember("Ann plays the flute.", user_id="ann", group="team", session_id="s")
                    await operator.forget(user_id="ann", group=group)
                for said in later:
                    await operator.remember(said, user_id="ann", group="team", session_id="s")
                read = [each.content for each in await operator.history(user_id="bob", group="team")]
                block = await operator.recall("Which instruments are played?", user_id="bob", group="team")
            with pytest.raises(errors.Forgotten):
                await spooled.stored(timeout=180)
            await nothing_pending(valkey.url)
        stored = [each.content for each in await agent.history(user_id="bob", group="team")]
        letters = await agent.dead_letters.list(JobFilter())

    assert spooled.spooled
    assert read == stored == ["Bob plays the tuba.", *later]
    assert "tuba" in block.text
    assert "cello" not in block.text
    assert "flute" not in block.text
    assert letters == []
