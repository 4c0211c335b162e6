"""A separate reconciler waits for Postgres at its start, and doctor reports where no process does its work."""

import asyncio
from pathlib import Path

import pytest

from aftermind import Settings
from aftermind.cli import doctor_checks
from aftermind.cli.doctor_checks import Finding, Verdict
from aftermind_tasks.runtime import open_runtime
from tests.support.fork_server import Process, end, run_module, start_module
from tests.support.proxy import proxy_to
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment


def start_reconciler(env: dict[str, str], log: Path) -> Process:
    with log.open("wb") as out:
        return start_module(["aftermind_workers.reconciler"], env=env, output=out)


async def reconciler_finding(redis_url: str, settings: Settings) -> Finding:
    [found] = await doctor_checks.reconciler(redis_url, settings)
    return found


async def test_a_reconciler_that_starts_before_postgres_waits_for_it(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    log, ready = tmp_path / "reconciler.log", tmp_path / "ready"
    async with proxy_to(database.relay_url) as postgres:
        postgres.reset()
        env = environment(postgres.url(database.relay_url), redis_url, AFTERMIND_READY_FILE=str(ready))
        process = start_reconciler(env, log)
        try:
            await wait_until(lambda: "reconciler waits" in log.read_text(), description="it logs that it waits")
            before = await reconciler_finding(redis_url, Settings())
            postgres.let_pass()
            await wait_until(ready.exists, description="it is ready")

            async def is_running() -> bool:
                return (await reconciler_finding(redis_url, Settings())).seen == "running"

            await wait_until(is_running, description="doctor finds it")
        finally:
            await asyncio.to_thread(end, [process], timeout=30)

    assert process.returncode == 0
    assert before.verdict is Verdict.WARNING
    assert "`aftermind reconciler`" in before.remedy
    assert "Traceback" not in log.read_text()
    assert "Is Postgres running?" in log.read_text()


async def test_a_reconciler_that_waits_for_postgres_can_be_stopped(redis_url: str, tmp_path: Path) -> None:
    log = tmp_path / "reconciler.log"
    process = start_reconciler(environment("postgresql://ann@127.0.0.1:1/nothing", redis_url), log)
    try:
        await wait_until(lambda: "reconciler waits" in log.read_text(), description="it logs that it waits")
    finally:
        left = await asyncio.to_thread(end, [process], timeout=30)

    assert left == []
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()


def test_a_reconciler_with_a_wrong_setting_ends_with_the_error_alone(database: Database, redis_url: str) -> None:
    env = environment(database.relay_url, redis_url, AFTERMIND_EMBEDDER="nonsense")

    done = run_module(["aftermind_workers.reconciler"], env=env)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("AFTERMIND_EMBEDDER='nonsense'")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("queue", "seen", "verdict"),
    [
        ("memory.store", "a store worker does its work", Verdict.GOOD),
        ("memory.extract", "none is running", Verdict.WARNING),
    ],
)
async def test_store_workers_alone_need_no_reconciler(
    database: Database, redis_url: str, tmp_path: Path, queue: str, seen: str, verdict: Verdict
) -> None:
    settings = Settings(database_url=database.relay_url, broker_url=redis_url, state_dir=tmp_path, embedder="off")
    worker = await open_runtime(settings, worker="one", consumed=(queue,))

    async def found() -> Finding | None:
        finding = await reconciler_finding(redis_url, settings)
        return finding if finding.seen == seen else None

    finding = await wait_until(found, description="the worker has announced its queue")
    await worker.close()

    assert finding.verdict is verdict
