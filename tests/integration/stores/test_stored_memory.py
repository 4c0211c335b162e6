"""Stores that outlive their process: what was accepted is there after a restart, and after kill -9."""

import asyncio
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
import redis

from aftermind import Agent, Memory, Message, Settings, errors
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.receipt import StepState
from aftermind.testing import ScriptedChatModel
from aftermind.types import JobKind, JobState
from aftermind.types.replay import JobFilter
from tests.support.fork_server import Process, start_module
from tests.support.journals import sql_url
from tests.support.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[3]
URLS: Mapping[str, Callable[[Path, Callable[[str], Any]], str]] = {
    "sqlite": lambda folder, _: f"sqlite:{folder}/bot.db",
    "json": lambda folder, _: f"json:{folder}/bot",
    "redis": lambda _, fixture: str(fixture("redis_url")),
}
SHARED_URLS: Mapping[str, Callable[[Path, Callable[[str], Any]], str]] = {
    "sqlite": URLS["sqlite"],
    "redis": URLS["redis"],
    "sql": lambda _, fixture: sql_url(fixture("database")),
}
REFUSED = 17  # exit code
STDERR = 2
USERS = [f"user {number}" for number in range(3)]


@pytest.fixture(params=[*sorted(URLS), pytest.param("sql", marks=pytest.mark.long)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {**URLS, **SHARED_URLS}[request.param](tmp_path, request.getfixturevalue)


@pytest.fixture(params=sorted(URLS.keys() - SHARED_URLS.keys()))
def url_of_one(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return URLS[request.param](tmp_path, request.getfixturevalue)


def memory_at(store: Any, folder: Path, **changed: Any) -> Memory:  # Any: what `Memory` takes; settings by name
    named: dict[str, Any] = {"state_dir": folder / "state", "extract_quiet_seconds": 0.1, "embedder": "hash"}
    return Memory(store, settings=Settings(**{**named, **changed}))


async def test_everything_is_there_after_a_restart(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as memory:
        receipt = await memory.remember("I live in Oslo.", user_id="alice", session_id="s1")
        await receipt.stored(timeout=30)
        await receipt.embedded(timeout=30)
        await receipt.extracted(timeout=30)
        await memory.blocks.set("human", "Prefers tea.", user_id="alice")
        facts = [fact.text for fact in await memory.facts.query(user_id="alice")]
        events = await memory.past_events(user_id="alice")
        before = await memory.progress(user_id="alice")

    async with memory_at(url, tmp_path) as memory:
        block = await memory.recall("Where do I live?", user_id="alice")
        assert "Oslo" in block.text
        assert "Prefers tea." in block.text
        assert block.degraded is None
        assert facts
        assert [fact.text for fact in await memory.facts.query(user_id="alice")] == facts
        assert (await memory.past_events(user_id="alice"))[: len(events)] == events
        assert await memory.progress(user_id="alice") == before
        assert [user.user_id for user in await memory.users()] == ["alice"]
        job = await memory.jobs.get(receipt.job_id, user_id="alice")
        assert job is not None
        assert job.state is JobState.DONE


async def test_a_store_that_was_only_opened_is_free_after_its_memory_is_closed(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path):
        pass
    await asyncio.sleep(0)  # what runs on would begin here

    for _ in range(3):
        async with memory_at(url, tmp_path) as memory:
            assert await memory.history(user_id="alice") == []


async def test_the_receipt_of_a_turn_reports_a_forget_by_id_and_a_repetition_does_not_undo_it(
    url: str, tmp_path: Path
) -> None:
    async with memory_at(url, tmp_path) as memory:
        two = [Message.user("I live in Oslo."), Message.assistant("Noted.")]
        receipt = await memory.remember(two, user_id="alice", idempotency_key="k")
        await receipt.stored(timeout=30)
        await memory.forget(user_id="alice", ids=receipt.episode_ids[:1])
        part = (await receipt.status()).stored
        await memory.forget(user_id="alice", ids=receipt.episode_ids[1:])

    async with memory_at(url, tmp_path) as memory:
        again = await memory.remember(two, user_id="alice", idempotency_key="k")

        assert part is StepState.DONE
        assert (await again.status()).stored is StepState.FORGOTTEN
        assert await memory.history(user_id="alice") == []


async def test_what_was_forgotten_is_not_in_the_store_any_more(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as memory:
        await (await memory.remember("My code word is heliotrope.", user_id="alice")).stored(timeout=30)
        await (await memory.remember("My code word is marigold.", user_id="bob")).stored(timeout=30)
        await memory.forget(user_id="alice")

        assert await memory.history(user_id="alice") == []
        assert "heliotrope" not in written_under(tmp_path)
        assert "heliotrope" not in written_to_redis(url)

    async with memory_at(url, tmp_path) as memory:
        assert await memory.history(user_id="alice") == []
        assert "marigold" in (await memory.recall("code word", user_id="bob")).text


async def test_an_erasure_is_proven_by_a_search_of_every_row(url: str, tmp_path: Path) -> None:
    words = 'My code word is "héliotrope"\n.'
    async with memory_at(url, tmp_path) as memory:
        for user in ("alice", "bob"):
            await (await memory.remember(words, user_id=user)).extracted(timeout=PATIENCE_SECONDS)
        forgot = await memory.forget(user_id="alice", prove=True)
        (left,) = (await memory.verify_erasure('"héliotrope"\n', user_id="alice")).places
        with pytest.raises(errors.InvalidQuery):
            await memory.verify_erasure(" ", user_id="alice")

        assert forgot.proof is not None
        assert (forgot.rows["episodes"], forgot.pending_turns) == (1, 0), "without the canary"
        assert forgot.proof.before.places[0].found
        assert forgot.proof.after.is_clean
        assert (left.name, left.owned, left.missing) == (url.partition(":")[0], 0, "")
        assert left.found, "bob has the words, too"
        await memory.forget(user_id="bob")
        assert (await memory.verify_erasure("héliotrope", user_id="bob")).is_clean


async def test_a_key_is_the_same_turn_after_a_restart(url: str, tmp_path: Path) -> None:
    for _ in range(2):
        async with memory_at(url, tmp_path) as memory:
            await (await memory.remember("once", user_id="alice", idempotency_key="k")).stored(timeout=30)

            assert [each.content for each in await memory.history(user_id="alice")] == ["once"]


async def test_nothing_acknowledged_is_lost_or_doubled_by_a_kill(url: str, tmp_path: Path) -> None:
    acknowledged = await asyncio.to_thread(remember_until_killed, url, tmp_path, 40)

    async with memory_at(url, tmp_path) as memory:
        await wait_until(lambda: all_stored(memory), timeout=180, description="every accepted turn is stored")
        said = [each.content for user in USERS for each in await memory.history(user_id=user, limit=10_000)]

    counted = Counter(said)
    assert [text for text in acknowledged if counted[text] != 1] == []
    assert max(counted.values()) == 1


async def test_a_job_whose_process_was_killed_runs_again_after_the_restart(url: str, tmp_path: Path) -> None:
    with stored_agent(url, tmp_path, "I live in Oslo", "--deadly") as agent:
        assert await asyncio.to_thread(agent.process.wait, 60) == -signal.SIGKILL

    async with memory_at(url, tmp_path) as memory:

        async def lives_in() -> list[str]:
            return [fact.object for fact in await memory.facts.query(user_id="user 0")]

        await wait_until(lives_in, timeout=180, description="the fact of the killed job")
        jobs = await memory.jobs.list(user_id="user 0", kinds=[JobKind.EXTRACT])
        lost = await memory.job_admin.list(JobFilter(error="lease_lost", kinds=(JobKind.EXTRACT,)))
        other = await memory.job_admin.list(JobFilter(error="timeout"))

    assert [(job.state, job.lost_leases) for job in jobs] == [(JobState.DONE, 1)]
    assert [job.id for job in lost] == [job.id for job in jobs]
    assert not other


async def test_one_store_serves_one_memory_at_a_time(url_of_one: str, tmp_path: Path) -> None:
    url = url_of_one
    async with memory_at(url, tmp_path) as memory:
        with pytest.raises(errors.StoreInUse, match="Close the other process"):
            await memory_at(url, tmp_path).remember("refused", user_id="alice")
        await (await memory.remember("accepted", user_id="alice")).stored(timeout=30)

    async with memory_at(url, tmp_path) as memory:
        assert [each.content for each in await memory.history(user_id="alice")] == ["accepted"]


async def test_a_second_process_is_refused_until_the_first_one_has_ended(url_of_one: str, tmp_path: Path) -> None:
    url = url_of_one
    with stored_agent(url, tmp_path, "turn") as agent:
        texts = [await asyncio.to_thread(agent.stdout.readline)]
        with pytest.raises(errors.StoreInUse, match="Close the other process"):
            await memory_at(url, tmp_path).remember("refused", user_id="user 0")
        texts += [agent.stdout.readline() for _ in range(10)]  # it was not disturbed
        agent.process.kill()
        texts += agent.stdout.readlines()

    async with memory_at(url, tmp_path) as memory:
        with stored_agent(url, tmp_path, "refused") as second:
            assert await asyncio.to_thread(second.process.wait, PATIENCE_SECONDS) == 1
        await wait_until(lambda: all_stored(memory), description="every accepted turn is stored")
        said = {each.content for user in USERS for each in await memory.history(user_id=user, limit=10_000)}

    assert {text.strip() for text in texts if text.endswith("\n")} <= said
    assert not [text for text in said if text.startswith("refused")]


async def test_a_forked_process_is_refused_and_leaves_the_store_to_its_parent(url_of_one: str, tmp_path: Path) -> None:
    url = url_of_one
    async with memory_at(url, tmp_path, extractor="off") as memory:
        await (await memory.remember("before", user_id="alice")).stored(timeout=30)
        child = multiprocessing.get_context("fork").Process(target=remember_in_child, args=(memory,))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
            child.start()
        await asyncio.to_thread(child.join, 60)
        assert child.exitcode == REFUSED

        await (await memory.remember("after", user_id="alice")).stored(timeout=30)
        copy = tmp_path.with_name(f"{tmp_path.name}-copy")
        if not url.startswith("redis"):
            shutil.copytree(tmp_path, copy)  # what a killed process would leave
            url = url.replace(str(tmp_path), str(copy))

    async with memory_at(url, copy) as memory:
        assert [each.content for each in await memory.history(user_id="alice")] == ["before", "after"]


async def test_vectors_of_another_embedder_are_not_compared(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as memory:
        await (await memory.remember("My dog is called Pixel.", user_id="alice")).stored(timeout=30)

    async with memory_at(url, tmp_path, language="german") as memory:
        block = await memory.recall("What is my dog called?", user_id="alice")

        assert "Pixel" in block.text
        assert "lexical" in (block.degraded or "")


async def test_an_agent_takes_a_store_as_a_dict(tmp_path: Path) -> None:
    store = {"backend": "sqlite", "path": str(tmp_path / "bot.db"), "namespace": "acme", "embedder": "hash"}
    agent = Agent("You are helpful.", model=ScriptedChatModel("Noted."), memory=store)
    await agent.arun("I live in Oslo.", user_id="alice", session_id="s1")
    assert agent.memory is not None
    await agent.memory.close()

    async with memory_at({"type": "sqlite", "url": f"sqlite:{tmp_path}/bot.db"}, tmp_path, namespace="acme") as memory:
        assert "Oslo" in (await memory.history(user_id="alice"))[0].content


class SizedEmbedder(HashEmbedder):
    """An object that is false, as containers without elements are."""

    def __len__(self) -> int:
        return 0


async def test_arguments_have_precedence_over_a_dict_also_if_they_are_empty(tmp_path: Path) -> None:
    options = {"backend": "inmemory", "embedder": "off", "namespace": "acme"}
    settings = Settings(state_dir=tmp_path)
    async with Memory(options, embedder=SizedEmbedder(), save=iter(["history"]), settings=settings) as memory:
        receipt = await memory.remember("I live in Oslo.", user_id="alice")
        await receipt.extracted(timeout=PATIENCE_SECONDS)
        assert (await memory.progress(user_id="alice")).embedded == 1
        assert await memory.facts.query(user_id="alice") == []
        assert "Oslo" in (await memory.recall("Where do I live?", user_id="alice")).text
    async with Memory(options, save=(), settings=settings) as memory:
        receipt = await memory.remember("I live in Oslo.", user_id="alice")
        await receipt.extracted(timeout=PATIENCE_SECONDS)
        assert await memory.facts.query(user_id="alice") == []


async def test_a_memory_that_is_closed_opens_its_store_again(url: str, tmp_path: Path) -> None:
    memory = memory_at(url, tmp_path)
    receipt = await memory.remember("first", user_id="alice")
    await memory.close()
    await memory.remember("second", user_id="alice")
    await memory.close()

    assert (await receipt.status()).stored is StepState.DONE
    assert [each.content for each in await memory.history(user_id="alice")] == ["first", "second"]
    await memory.close()


def written_under(folder: Path) -> str:
    return "".join(path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file())


def written_to_redis(url: str) -> str:
    if not url.startswith("redis"):
        return ""
    with closing(redis.Redis.from_url(url)) as client:
        return "".join(str(client.hgetall(key)) for key in client.scan_iter("*rows:*"))


def remember_in_child(memory: Memory) -> None:
    try:
        asyncio.run(memory.remember("refused", user_id="alice"))
    except errors.StoreInUse:
        del memory
        gc.collect()
        sys.exit(REFUSED)


async def all_stored(memory: Memory) -> bool:
    return not any([(await memory.progress(user_id=user)).pending_turns for user in USERS])


def remember_until_killed(url: str, folder: Path, turns: int) -> list[str]:
    """Texts that were acknowledged before the process was killed, in the middle of a write as a rule."""
    with stored_agent(url, folder, "turn") as agent:
        lines = [agent.stdout.readline() for _ in range(turns)]
        agent.process.kill()
        lines += agent.stdout.readlines()
    texts = [line.strip() for line in lines if line.endswith("\n")]
    assert len(texts) >= turns
    return texts


@dataclass(frozen=True, slots=True)
class StoredAgent:
    """A process of `tests.support.stored_agent`, and what it prints."""

    process: Process
    stdout: IO[str]


@contextmanager
def stored_agent(url: str, folder: Path, *args: str) -> Iterator[StoredAgent]:
    settings = {"AFTERMIND_STATE_DIR": str(folder / "state"), "AFTERMIND_EMBEDDER": "hash"}
    environment = {**os.environ, **settings, "AFTERMIND_EXTRACT_QUIET_SECONDS": "0.1"}
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdout:
        arguments = ["tests.support.stored_agent", url, *args]
        process = start_module(arguments, cwd=ROOT, env=environment, output=writing, errors=STDERR)
        os.close(writing)
        yield StoredAgent(process, stdout)
        process.wait()
