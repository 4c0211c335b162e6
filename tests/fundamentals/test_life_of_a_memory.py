"""Where a memory may be used: in several loops, threads and processes, after it was closed, while servers are away."""

import asyncio
import multiprocessing
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import aftermind.sync
from aftermind import Memory, Message, Settings, errors
from tests.support.loop_clock import loop_clock
from tests.support.servers import Servers


def test_constructing_a_memory_connects_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(socket.socket, "__init__", lambda *given, **named: opened.append(given))

    Memory("postgresql://nobody@192.0.2.1/none", broker="redis://192.0.2.1/0", settings=Settings(state_dir=tmp_path))

    assert opened == []


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"store": "mysql://db/a"}, "postgresql"),
        ({"store": "postgresql://db/a", "broker": "amqp://q"}, "redis="),
        ({"store": "inmemory", "save": {"gossip"}}, "gossip"),
        ({"store": "inmemory", "embedder": "nonsense"}, "AFTERMIND_EMBEDDER"),
        ({"store": None}, "aftermind up"),
    ],
)
def test_what_cannot_work_is_said_at_once(given: dict[str, object], what: str, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match=what):
        Memory(**given, settings=Settings(state_dir=tmp_path))  # type: ignore[arg-type]


def test_a_memory_serves_several_loops_of_several_threads(settings: Settings, workers: None, user: str) -> None:
    memory = Memory(settings=settings)
    seen: list[str] = []
    all_have_seen, one_closes = threading.Barrier(4), threading.Lock()

    def one_loop(number: int) -> None:
        async def work() -> None:
            await memory.remember(f"Note {number}.", user_id=user, session_id=f"s{number}")
            (episode,) = await memory.history(user_id=user, session_id=f"s{number}")
            seen.append(episode.content)
            await asyncio.to_thread(all_have_seen.wait, 20)
            await asyncio.to_thread(one_closes.acquire)
            await memory.close()
            one_closes.release()

        asyncio.run(work())

    threads = [threading.Thread(target=one_loop, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(seen) == [f"Note {number}." for number in range(4)]


async def test_a_memory_can_be_used_again_after_it_was_closed(settings: Settings, workers: None, user: str) -> None:
    async with Memory(settings=settings) as memory:
        await memory.remember("One.", user_id=user)
        await memory.close()

        await memory.remember("Two.", user_id=user)

        assert [each.content for each in await memory.history(user_id=user)] == ["One.", "Two."]


def test_a_memory_made_before_a_fork_works_on_both_sides(settings: Settings, workers: None, user: str) -> None:
    with aftermind.sync.Memory(settings=settings) as memory:
        # Once it is stored, nothing is being imported any more: there is no import lock for the fork to inherit.
        memory.remember("Before.", user_id=user).stored(timeout=180)
        said = _in_a_fork(lambda: memory.remember("In the child.", user_id=user))

        memory.remember("After.", user_id=user)

        assert said == 0
        assert {each.content for each in memory.history(user_id=user)} == {"Before.", "In the child.", "After."}


def test_without_await_it_is_the_same(settings: Settings, workers: None, user: str) -> None:
    with aftermind.sync.Memory(settings=settings) as memory:
        receipt = memory.remember([Message.user("I prefer dark mode.")], user_id=user)
        receipt.stored(timeout=180)

        assert repr(receipt) == f"Receipt(job_id={receipt.job_id}, episodes=1, spooled=False)"
        assert "dark mode" in memory.recall("Which mode do I prefer?", user_id=user).text
        assert memory.facts.add("user", "likes", "jazz", user_id=user).object == "jazz"
        first = next(memory.events(user_id=user, after="0"))
        assert first.job_id == str(receipt.job_id)


async def test_a_turn_is_seen_at_once_with_every_worker_down(settings: Settings, servers: Servers, user: str) -> None:
    alone = settings.model_copy(update={"redis_prefix": f"{user}:"})  # nobody works on these queues
    async with Memory(settings=alone) as memory:
        for number in range(5):
            await memory.remember(f"Note {number}.", user_id=user, session_id="s1")

        assert "Note 3." in (await memory.recall("note 3", user_id=user)).text
        assert [each.content for each in await memory.history(user_id=user)] == [f"Note {n}." for n in range(5)]
        assert all(each.pending for each in await memory.context_window(100, user_id=user))
        assert (await memory.progress(user_id=user)).pending_turns == 5


async def test_with_redis_away_a_turn_is_spooled_and_still_recalled(
    settings: Settings, user: str, tmp_path: Path
) -> None:
    away = settings.model_copy(update={"state_dir": tmp_path})
    store = settings.database_url
    assert store is not None
    async with Memory(store.get_secret_value(), broker="redis://127.0.0.1:1/0", settings=away) as memory:
        receipt = await memory.remember("I prefer dark mode.", user_id=user)
        block = await memory.recall("Which mode do I prefer?", user_id=user)

    assert receipt.spooled
    assert "dark mode" in block.text
    assert block.degraded == "pending unknown"


async def test_with_postgres_away_recall_answers_in_bounded_time_and_shows_what_is_pending(
    settings: Settings, servers: Servers, user: str
) -> None:
    prefix = f"{user}:"
    away = settings.model_copy(update={"redis_prefix": prefix})
    async with Memory("postgresql://nobody@127.0.0.1:1/none", broker=servers.redis_url, settings=away) as memory:
        await memory.remember("I prefer dark mode.", user_id=user)

        async with loop_clock() as clock:
            block = await memory.recall("Which mode do I prefer?", user_id=user)

        assert clock.seconds < settings.recall_budget_seconds + 1.0
        assert "dark mode" in block.text
        assert block.degraded
        with pytest.raises(errors.StoreUnavailable):
            await memory.history(user_id=user)
        assert not (await memory.health()).is_ready


async def test_a_turn_that_postgres_accepted_is_stored_all_the_same(memory: Memory, user: str) -> None:
    receipt = await memory.remember("I prefer dark mode.", user_id=user, accept="postgres")

    await receipt.stored(timeout=180)

    assert [each.content for each in await memory.history(user_id=user)] == ["I prefer dark mode."]


def _in_a_fork(work: Callable[[], object]) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(30)
    if process.exitcode is None:
        os.kill(process.pid or 0, 9)
    return process.exitcode


async def test_forgetting_a_message_counts_it_once_wherever_it_is(memory: Memory, user: str) -> None:
    """The store worker may store it, or drop it because of the erasure, at any moment of the call."""
    for number in range(30):
        owner = f"{user}-{number}"
        receipt = await memory.remember(
            ["I live in Oslo.", Message.assistant("Noted.")][: 1 + number % 2], user_id=owner, session_id="s1"
        )
        await asyncio.sleep(number * 0.0005)

        gone = await memory.forget(user_id=owner, ids=receipt.episode_ids[:1])

        assert gone.rows.get("episodes", 0) + gone.pending_turns == 1
