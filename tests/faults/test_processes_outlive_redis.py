"""The service, a separate reconciler and a separate replayer go on after Redis refused what they ask."""

import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from aftermind import Memory, Settings
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.stack.ports import choose
from aftermind.types.replay import JobFilter
from aftermind.wire.queues import STORE
from aftermind.wire.redis_keys import Keys
from tests.faults.test_workers_outlive_redis import OUTAGES
from tests.support.fork_server import Process, end, start_module
from tests.support.servers import Database, psql_async, wait_for_output
from tests.support.service import local_token
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment

pytestmark = [pytest.mark.asyncio, pytest.mark.long]
REFUSALS = ("readonly", "full", "master_down", "no_login")
REFUSED_LINES = 3  # of the log: the process has met the refusal


@contextmanager
def process(env: Mapping[str, str], folder: Path, *arguments: str) -> Iterator[Process]:
    """`python -m …` for the block, then SIGTERM, which it has to obey."""
    with (folder / "process.log").open("wb") as log:
        started = start_module(arguments, env=env, cwd=folder, output=log)
    try:
        yield started
        assert started.is_running()
        assert started.status() != psutil.STATUS_ZOMBIE, (folder / "process.log").read_text()[-3000:]
    finally:
        end([started], timeout=30)
    assert started.returncode in (0, -signal.SIGTERM)  # the service's server raises the signal again once it has ended


def settings_of(database: Database, valkey: Valkey, folder: Path) -> Settings:
    return Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        broker_url=valkey.url,
        embedder="hash",
        state_dir=folder / "agent",
    )


async def refused(valkey: Valkey, folder: Path, how: str, during: Callable[[], Awaitable[object]]) -> None:
    """Let Redis refuse until the process has met it, if it says so, and at least for `during`."""

    def met() -> bool:
        return (folder / "process.log").read_text(errors="replace").count("\n") >= before + REFUSED_LINES

    before = (folder / "process.log").read_text(errors="replace").count("\n")
    with valkey.client() as admin:
        end = OUTAGES[how](valkey, admin)
        try:
            await during()
            await wait_until(met, description="the process has met the refusal")
        finally:
            end()


@pytest.mark.parametrize("how", REFUSALS)
async def test_a_separate_reconciler_rings_again_afterwards(
    valkey: Valkey, database: Database, tmp_path: Path, how: str
) -> None:
    env = environment(database.relay_url, valkey.url, AFTERMIND_RECONCILE_SECONDS="0.3")
    async with Memory(settings=settings_of(database, valkey, tmp_path)) as memory:
        with process(env, tmp_path, "aftermind.cli", "reconciler"):
            await memory.remember("I live in Oslo.", user_id="ann")
            await wait_until(lambda: bells(valkey) > 0, description="the first bell")

            async def nothing() -> None:
                return None

            await refused(valkey, tmp_path, how, nothing)
            with valkey.client() as client:
                client.delete(Keys().queue(STORE))

            await wait_until(lambda: bells(valkey) > 0, description="the reconciler rings again")


@pytest.mark.parametrize("how", REFUSALS)
async def test_a_separate_replayer_replays_meanwhile_and_afterwards(
    valkey: Valkey, database: Database, tmp_path: Path, how: str
) -> None:
    env = environment(database.relay_url, valkey.url)
    async with Memory(settings=settings_of(database, valkey, tmp_path)) as memory:

        async def replay() -> None:
            receipt = await memory.remember("I live in Oslo.", user_id="ann", accept="postgres")
            await psql_async(
                database.url,
                f"UPDATE aftermind.jobs SET state = 'dead', reason_code = 'x' WHERE id = '{receipt.job_id}'",
            )
            new = NewPlan(name="again", reason="a test", actor="a test")
            plan = await memory.replays.create(JobFilter(ids=(receipt.job_id,)), new)
            await memory.replays.start(plan.id)
            query = (
                f"SELECT count(*) FROM aftermind.replay_items WHERE plan_id = '{plan.id}' AND new_job_id IS NOT NULL"
            )
            await wait_for_output(database.url, query, "1", description="the job is replayed")

        with process(env, tmp_path, "aftermind_workers.replay_scheduler") as replayer:
            await replay()
            with valkey.client() as admin:
                end = OUTAGES[how](valkey, admin)
                try:
                    await replay()
                finally:
                    end()
            await replay()
            assert replayer.is_running()


@pytest.mark.parametrize("how", REFUSALS)
async def test_the_service_takes_turns_meanwhile_and_hands_them_over_afterwards(
    valkey: Valkey, database: Database, tmp_path: Path, how: str
) -> None:
    port = choose(1)[0]
    env = environment(
        database.app_url,
        valkey.url,
        AFTERMIND_STATE_DIR=str(tmp_path / "state"),
        AFTERMIND_RELAY_URL=database.relay_url,
    )
    with process(env, tmp_path, "aftermind.cli", "web", "--port", str(port)):
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as api:

            async def answers() -> bool:
                try:
                    return (await api.get("/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

            async def refuses() -> bool:
                redis = (await api.get("/readyz")).json()["parts"]["redis"]
                answering = how in ("readonly", "full")
                return redis["state"] == ("degraded" if answering else "down")

            async def tell(text: str) -> None:
                taken = await api.post("/v1/users/ann/turns", json={"messages": [text]}, headers=login)
                assert taken.status_code == 202, taken.text

            await wait_until(answers, description="the service answers")
            login = {"Authorization": f"Bearer {local_token(tmp_path / 'state')}"}
            await tell("before")
            with valkey.client() as admin:
                end = OUTAGES[how](valkey, admin)
                try:
                    for number in range(5):
                        await tell(f"meanwhile {number}")
                    await wait_until(refuses, description="/readyz reports it")
                finally:
                    end()
            await tell("afterwards")

            def arrived() -> bool:
                with valkey.client() as client:
                    return int(client.zcard(Keys().index())) == 7

            await wait_until(arrived, timeout=180, description="every turn is in Redis")
            await wait_until(answers, description="the service is ready")


async def test_a_full_redis_is_a_place_of_memory_while_the_database_is_away(valkey: Valkey, tmp_path: Path) -> None:
    away = "postgresql://nobody@127.0.0.1:1/none"
    async with Memory(away, redis=valkey.url, settings=Settings(state_dir=tmp_path, embedder="hash")) as memory:
        await memory.remember("I like tea.", user_id="bob")
        with valkey.client() as admin:
            admin.config_set("maxmemory", 1)
            spooled = await memory.remember("I like coffee.", user_id="bob")
            health = await memory.health()
            block = await memory.recall("What do I like?", user_id="bob")
            admin.config_set("maxmemory", 0)

    assert {part.name: part.state for part in health.parts}["redis"] == "degraded"
    assert (spooled.spooled, health.can_serve) == (True, True)
    assert "tea" in block.text
    assert "coffee" in block.text


def bells(valkey: Valkey) -> int:
    """How many bells of store work there are."""
    with valkey.client() as client:
        return int(client.llen(Keys().queue(STORE)))
