"""`aftermind worker` on stores of several processes, by itself or with Celery: agents leave jobs to it, and nothing is
lost when it is killed.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from aftermind import Memory, Settings, errors
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.types import JobKind
from aftermind.types.replay import JobFilter, PlanState, ReplayMode
from tests.integration.stores.test_stored_memory import ROOT, SHARED_URLS, memory_at
from tests.support.fork_server import Process, run_module, start_module
from tests.support.waiting import PATIENCE_SECONDS, wait_until, wait_until_sync


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return SHARED_URLS[request.param](tmp_path, request.getfixturevalue)


@pytest.fixture(params=["alone", "celery"])
def broker(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("redis_url") if request.param == "celery" else None


@contextmanager
def worker(url: str, folder: Path, broker: str | None = None, *options: str, **changed: str) -> Iterator[Process]:
    named = {
        "DATABASE_URL": url,
        "STATE_DIR": str(folder / "state"),
        "EMBEDDER": "hash",
        "EXTRACT_QUIET_SECONDS": "0.1",
        **({} if broker is None else {"BROKER_URL": broker}),
        **changed,
    }
    environment = {**os.environ, **{f"AFTERMIND_{name}": value for name, value in named.items()}}
    with (folder / "worker.log").open("ab") as log:
        process = start_module(["aftermind.cli", "worker", *options], cwd=ROOT, env=environment, output=log)
        try:
            yield process
        finally:
            with suppress(psutil.NoSuchProcess):
                process.kill()
            process.wait()


def agent(url: str, folder: Path, broker: str | None) -> Memory:
    """A memory that runs no jobs."""
    settings = Settings(
        state_dir=folder / "state", extract_quiet_seconds=0.1, embedder="hash", run_jobs=broker is not None
    )
    return Memory(url, broker=broker, settings=settings)


async def test_agents_leave_jobs_to_a_worker(url: str, broker: str | None, tmp_path: Path) -> None:
    async with agent(url, tmp_path, broker) as memory:
        receipt = await memory.remember("I live in Oslo.", user_id="alice")
        assert "Oslo" in (await memory.recall("Where do I live?", user_id="alice")).text
        assert (await memory.progress(user_id="alice")).pending_turns == 1

        with worker(url, tmp_path, broker) as process:
            await receipt.extracted(timeout=PATIENCE_SECONDS)
            assert [fact.object for fact in await memory.facts.query(user_id="alice")] == ["Oslo"]
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, PATIENCE_SECONDS) == 0


async def test_nothing_is_lost_or_doubled_when_workers_are_killed(url: str, broker: str | None, tmp_path: Path) -> None:
    texts = [f"turn {number}" for number in range(30)]
    async with agent(url, tmp_path, broker) as memory:
        receipts = []
        for start in range(0, len(texts), 10):
            with worker(url, tmp_path, broker):
                receipts += [
                    await memory.remember(text, user_id="alice", session_id="s") for text in texts[start : start + 10]
                ]
                await receipts[start].stored(timeout=PATIENCE_SECONDS)  # it is killed in its work, as a rule
        with worker(url, tmp_path, broker):
            for receipt in receipts:
                await receipt.stored(timeout=PATIENCE_SECONDS)
        stored = [each.content for each in await memory.history(user_id="alice", limit=100)]

    assert stored == texts
    assert max(Counter(stored).values()) == 1


def test_a_store_of_one_process_keeps_its_jobs(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidSettings, match="only stores of several processes"):
        asyncio.run(memory_at(f"json:{tmp_path}/bot", tmp_path, run_jobs=False).remember("x", user_id="alice"))


async def test_celery_workers_divide_the_queues_of_a_store(url: str, redis_url: str, tmp_path: Path) -> None:
    async with agent(url, tmp_path, redis_url) as memory:
        stores = worker(url, tmp_path, redis_url, "--queues", "memory.store,memory.embed")
        extracts = worker(url, tmp_path, redis_url, "--queues", "memory.extract")
        with stores as storing, extracts as extracting:
            receipt = await memory.remember("I live in Oslo.", user_id="alice")
            await receipt.stored(timeout=PATIENCE_SECONDS)
            await receipt.embedded(timeout=PATIENCE_SECONDS)
            await receipt.extracted(timeout=PATIENCE_SECONDS)
            timeline = await memory.job_admin.timeline(receipt.job_id)
            for process in (storing, extracting):
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, PATIENCE_SECONDS) == 0
    assert timeline is not None
    done_by = {step.name: str(step.detail) for step in timeline.steps if "attempt" in step.name}
    assert f":{storing.pid}" in done_by["store attempt 1"]
    assert f":{extracting.pid}" in done_by["extract attempt 1"]


def test_doctor_probes_the_celery_workers_of_a_store(url: str, redis_url: str, tmp_path: Path) -> None:
    named = {"AFTERMIND_DATABASE_URL": url, "AFTERMIND_BROKER_URL": redis_url, "AFTERMIND_EMBEDDER": "hash"}
    named |= {"AFTERMIND_STATE_DIR": str(tmp_path / "state")}

    def examine() -> str:
        return run_module(["aftermind.cli", "doctor"], env={**os.environ, **named}).stdout

    def found() -> str | None:
        seen = examine()
        return seen if "queue memory.store: a worker consumed the probe" in seen else None

    with worker(url, tmp_path, redis_url, "--queues", "memory.store,memory.embed"):
        seen = wait_until_sync(found, description="the worker consumes the probe of its queue")

    assert "ok       store: " in seen
    assert "queue memory.extract: no worker consumed the probe" in seen


async def test_celery_workers_keep_to_the_pauses_of_a_store(url: str, redis_url: str, tmp_path: Path) -> None:
    async with agent(url, tmp_path, redis_url) as memory:
        await memory.job_admin.pause(kind="extract", reason="cost", actor="ann")
        with worker(url, tmp_path, redis_url):
            receipt = await memory.remember("I live in Oslo.", user_id="alice")
            await receipt.embedded(timeout=PATIENCE_SECONDS)
            with pytest.raises(errors.AftermindError):
                await receipt.extracted(timeout=2)
            status = await memory.jobs.status(receipt.job_id, user_id="alice")
            assert status is not None
            assert str(status.why).startswith("extract jobs are paused by an operator since")
            await memory.job_admin.resume(kind="extract", actor="ann")
            await receipt.extracted(timeout=PATIENCE_SECONDS)


async def test_a_replay_plan_runs_in_celery_workers(url: str, redis_url: str, tmp_path: Path) -> None:
    async with agent(url, tmp_path, redis_url) as memory:
        with worker(url, tmp_path, redis_url, EXTRACTOR="rules"):
            receipt = await memory.remember("I live in Oslo.", user_id="alice")
            await receipt.extracted(timeout=PATIENCE_SECONDS)
            new = NewPlan(name="again", reason="r", actor="ann", mode=ReplayMode.REEXTRACT, overrides={}, rate=100)
            plan = await memory.replays.create(JobFilter(kinds=(JobKind.EXTRACT,)), new)
            await memory.replays.start(plan.id)

            async def ended() -> bool:
                found = await memory.replays.get(plan.id)
                return found is not None and found.state is PlanState.DONE

            await wait_until(ended, description="the plan is done")


@pytest.mark.parametrize("store", ["json:./bot", "inmemory"])
def test_a_store_of_one_process_refuses_a_broker(store: str, redis_url: str) -> None:
    with pytest.raises(errors.InvalidSettings, match="run in this process, without workers"):
        Memory(store, broker=redis_url)


def test_a_shared_store_refuses_a_broker_that_is_none() -> None:
    with pytest.raises(errors.InvalidSettings, match="a broker is a redis://"):
        Memory("sqlite:./bot.db", broker="kafka://localhost")
