"""Stores that several processes have open: each sees the others' commits, and no fault of one costs another's."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from aftermind import Memory, Settings
from aftermind.llm.offline.rule_extractor import RuleExtractor
from aftermind.llm.protocols import Extraction, ExtractionRequest
from aftermind.outbox.inmemory import InProcessQueue
from aftermind.types import JobKind
from tests.integration.stores.test_stored_memory import (
    SHARED_URLS,
    USERS,
    StoredAgent,
    all_stored,
    memory_at,
    stored_agent,
)
from tests.support.citus import citus_store
from tests.support.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture(params=["sqlite", "redis", *(pytest.param(each, marks=pytest.mark.long) for each in ("sql", "citus"))])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "citus":
        return citus_store()
    return SHARED_URLS[request.param](tmp_path, request.getfixturevalue)


async def test_each_process_sees_a_commit_of_another_in_its_next_transaction(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as here, memory_at(url, tmp_path) as there:
        for number in range(3):
            for one, other in ((here, there), (there, here)):
                text = f"turn {number} of {'here' if one is here else 'there'}"
                receipt = await one.remember(text, user_id="alice", session_id="s")
                assert text in (await other.recall(text, user_id="alice")).text, "a turn that is pending"
                await receipt.stored(timeout=PATIENCE_SECONDS)
                assert (await other.history(user_id="alice"))[-1].content == text
        await here.blocks.set("human", "Prefers tea.", user_id="alice")
        (block,) = await there.blocks.list(user_id="alice")
        assert block.content == "Prefers tea."

        positions = [each.position for each in await here.history(user_id="alice")]
        assert positions == sorted(set(positions))
        assert len(positions) == 6


async def test_what_one_process_forgets_is_gone_in_the_others(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as here, memory_at(url, tmp_path) as there:
        for user in ("alice", "bob"):
            await (await here.remember("My code word is heliotrope.", user_id=user)).extracted(timeout=PATIENCE_SECONDS)
            assert "heliotrope" in (await there.recall("code word", user_id=user)).text

        await here.forget(user_id="alice")

        assert await there.history(user_id="alice") == []
        assert "heliotrope" not in (await there.recall("code word", user_id="alice")).text
        assert (await there.verify_erasure("heliotrope", user_id="alice")).places[0].owned == 0
        assert "heliotrope" in (await there.recall("code word", user_id="bob")).text


async def test_processes_open_a_store_while_others_create_it_and_write_to_it(url: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as opened:

        async def remember(number: int) -> None:
            await asyncio.sleep(number * 0.03)
            memory = await opened.enter_async_context(memory_at(url, tmp_path))
            for turn in range(2):
                receipt = await memory.remember(f"turn {turn}", user_id=f"u{number}")
                await receipt.stored(timeout=PATIENCE_SECONDS)

        await asyncio.gather(*(remember(number) for number in range(6)))


async def test_a_subscriber_hears_events_of_another_process(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as here, memory_at(url, tmp_path) as there:
        heard: list[str] = []

        async def listen() -> None:
            async for event in there.events(user_id="alice"):
                heard.append(type(event).__name__)  # noqa: PERF401  # they come one by one

        async with asyncio.TaskGroup() as group:
            listening = group.create_task(listen())
            await (await here.remember("I live in Oslo.", user_id="alice")).stored(timeout=PATIENCE_SECONDS)
            await wait_until(lambda: bool(heard), description="an event of the other process")
            listening.cancel()


async def test_turns_of_a_session_are_in_the_order_in_which_processes_accepted_them(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = InProcessQueue._step

    async def find_nothing(queue: InProcessQueue) -> bool:
        return False

    monkeypatch.setattr(InProcessQueue, "_step", find_nothing)  # before a step could begin that claims the first turn
    async with memory_at(url, tmp_path) as here, memory_at(url, tmp_path) as there:
        ledger = here._parts.ledger
        first = await here.remember("first", user_id="alice", session_id="s")
        (slow,) = await ledger.claim(JobKind.STORE, worker="slow", for_=timedelta(seconds=PATIENCE_SECONDS))
        monkeypatch.setattr(InProcessQueue, "_step", step)
        second = await there.remember("second", user_id="alice", session_id="s")
        await second.stored(timeout=PATIENCE_SECONDS)

        await ledger.snooze(slow, after=timedelta(0), why="slow")
        await first.stored(timeout=PATIENCE_SECONDS)

        assert [each.content for each in await there.history(user_id="alice")] == ["first", "second"]


@pytest.mark.long
async def test_nothing_is_lost_or_doubled_while_processes_are_frozen_and_killed(url: str, tmp_path: Path) -> None:
    acknowledged: list[str] = []
    with agents(url, tmp_path, "one", "two", "three") as (frozen, killed, free):
        for agent in (frozen, killed, free):
            acknowledged += await read(agent, 5)
        async with memory_at(url, tmp_path) as memory:
            for _ in range(3):
                frozen.process.send_signal(signal.SIGSTOP)
                seen = acknowledged[-1]
                user = USERS[int(seen.split()[1]) % 3]
                assert seen in (await memory.recall(seen, user_id=user)).text, "a recall waits for no frozen process"
                frozen.process.send_signal(signal.SIGCONT)
                acknowledged += await read(free, 3)
            killed.process.kill()
            acknowledged += await read(free, 5)
            acknowledged += await read(frozen, 5)
        for agent in (free, frozen):
            agent.process.kill()
        for agent in (killed, free, frozen):
            acknowledged += [line.strip() for line in agent.stdout.readlines() if line.endswith("\n")]

    async with memory_at(url, tmp_path) as memory:
        await wait_until(lambda: all_stored(memory), timeout=180, description="every accepted turn is stored")
        histories = [await memory.history(user_id=user, limit=10_000) for user in USERS]

    counted = Counter(each.content for history in histories for each in history)
    assert [text for text in acknowledged if counted[text] != 1] == []
    assert max(counted.values()) == 1
    for history in histories:
        positions = [each.position for each in history]
        assert positions == sorted(set(positions))
        for name in ("one", "two", "three"):
            numbers = [int(each.content.split()[1]) for each in history if each.content.startswith(f"{name} ")]
            assert numbers == sorted(numbers), "turns of a process are in their order"


@pytest.mark.long
async def test_a_process_that_is_frozen_in_a_transaction_stops_no_other(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as memory:
        await (await memory.remember("The ferry leaves.", user_id="alice")).stored(timeout=PATIENCE_SECONDS)
        with agents(url, tmp_path, "x:--freezes") as (frozen,):
            assert await read(frozen, 1) == ["frozen"]
            assert "ferry" in (await memory.recall("ferry", user_id="alice")).text

            await (await memory.remember("meanwhile", user_id="alice")).stored(timeout=PATIENCE_SECONDS)

            frozen.process.send_signal(signal.SIGCONT)
            assert await read(frozen, 1) == ["refused"]
            await asyncio.to_thread(frozen.process.wait, PATIENCE_SECONDS)
        assert [each.content for each in await memory.history(user_id="alice")] == ["The ferry leaves.", "meanwhile"]
        assert await memory._parts.db.generation() == 0


async def test_jobs_of_a_killed_process_are_done_by_one_that_is_idle(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as memory:
        assert await memory.history(user_id="user 0") == []
        with agents(url, tmp_path, "I live in Oslo:--deadly") as (agent,):
            await asyncio.to_thread(agent.process.wait, PATIENCE_SECONDS)

        async def lives_in() -> list[str]:
            return [fact.object for fact in await memory.facts.query(user_id="user 0")]

        await wait_until(lives_in, timeout=180, description="the fact of the killed job")


async def test_jobs_of_a_frozen_process_are_done_by_another(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFTERMIND_LEASE_SECONDS", "2")  # of the process
    monkeypatch.setenv("AFTERMIND_HEARTBEAT_SECONDS", "0.5")
    async with memory_at(url, tmp_path) as memory:
        with agents(url, tmp_path, "I live in Oslo:--stops"):

            async def lives_in() -> list[str]:
                return [fact.object for fact in await memory.facts.query(user_id="user 0")]

            await wait_until(lives_in, timeout=180, description="the fact of the frozen job")


async def test_a_job_that_outlasts_its_lease_runs_once(url: str, tmp_path: Path) -> None:
    extractor = SlowExtractor()  # of both: either may run the job
    settings = Settings(
        state_dir=tmp_path, embedder="hash", extract_quiet_seconds=0.1, lease_seconds=1.0, heartbeat_seconds=0.2
    )
    async with (
        Memory(url, extractor=extractor, settings=settings) as here,
        Memory(url, extractor=extractor, settings=settings) as there,
    ):
        assert await there.history(user_id="alice") == []
        await (await here.remember("I live in Oslo.", user_id="alice")).extracted(timeout=PATIENCE_SECONDS)
        assert [fact.object for fact in await there.facts.query(user_id="alice")] == ["Oslo"]

    assert extractor.calls == 1


LIVES_ON = """
import sys, time
from pathlib import Path

from aftermind import sync
from aftermind.outbox.inmemory import IDLE_CHECK_SECONDS

file = Path(sys.argv[1])
with sync.Memory(f"sqlite:{file}") as memory:
    for _ in range(5):
        memory.forget(user_id="alice")  # wakes the queue
        time.sleep(0.1)  # then it is idle, and waits for its next check
file.unlink()
time.sleep(2 * IDLE_CHECK_SECONDS)
print(file.exists())
"""


def test_a_closed_store_is_not_opened_for_another_check(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LIVES_ON, str(tmp_path / "memory.db")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)

    assert (done.stdout, done.stderr) == ("False\n", "")


class SlowExtractor(RuleExtractor):
    """Takes several times as long as a lease lasts."""

    calls = 0

    async def extract(self, request: ExtractionRequest) -> Extraction:
        self.calls += 1
        await asyncio.sleep(5.0)  # longer than an idle process waits, and two of its checks
        return await super().extract(request)


@contextmanager
def agents(url: str, folder: Path, *names: str) -> Iterator[list[StoredAgent]]:
    with ExitStack() as stack:
        started = [stack.enter_context(stored_agent(url, folder, *name.split(":"))) for name in names]
        try:
            yield started
        finally:
            for each in started:
                each.process.kill()


async def read(agent: StoredAgent, lines: int) -> list[str]:
    found = [await asyncio.to_thread(agent.stdout.readline) for _ in range(lines)]
    assert all(found), "the process has ended"
    return [line.strip() for line in found]
