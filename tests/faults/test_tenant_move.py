"""A move of a tenant is killed at each step, and its target goes away: nothing is lost, doubled or stale."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aftermind import Memory, Settings, errors
from tests.fundamentals.conftest import QUICK, as_environment
from tests.support.deployed_service import running
from tests.support.fork_server import start_module
from tests.support.killed_move import STEPS
from tests.support.moving_tenant import USER, copied, talking
from tests.support.servers import Database, Servers, psql_async
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]
ACME = "acme"
TURNS = "SELECT count(*), count(DISTINCT content) FROM aftermind.episodes WHERE namespace = 'acme'"
STATES = "SELECT string_agg(state, ',') FROM aftermind.tenant_moves"


@pytest.fixture
def other(own_servers: Callable[..., Servers]) -> Servers:
    """A second server, which can be stopped."""
    return own_servers(replica=False)


@pytest.fixture
def settings(database: Database, other: Servers, redis_url: str, tmp_path: Path) -> Settings:
    """Two databases on two servers; the tenant is placed in the first one."""
    eu = other.endpoints
    return Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        migrator_url=database.url,
        databases={"eu": {"database_url": eu.app_url, "relay_url": eu.relay_url, "migrator_url": eu.postgres_url}},
        redis_url=redis_url,
        state_dir=tmp_path / "state",
        embedder="hash",
        extractor="rules",
        recall_budget_seconds=10,
        remember_budget_seconds=10,
        **QUICK,
    )


@pytest.fixture
def workers(settings: Settings, tmp_path: Path) -> Iterator[None]:
    """A worker for each database."""
    with running(["worker"], settings, tmp_path / "worker.log", patience=180):
        yield


async def run_move(settings: Settings, log: Path, *step: str) -> int:
    """A move in a process, killed after a step; its exit code."""
    with log.open("ab") as output:
        env = {**os.environ, **as_environment(settings)}
        process = start_module(["tests.support.killed_move", ACME, "eu", *step], env=env, output=output)
    return int(await asyncio.to_thread(process.wait, PATIENCE_SECONDS) or 0)


async def test_a_move_that_is_killed_at_each_step_ends_and_loses_doubles_or_hides_nothing(
    settings: Settings, database: Database, other: Servers, workers: None, tmp_path: Path
) -> None:
    log = tmp_path / "move.log"
    async with talking(settings, ACME) as agents:
        await agents.talk_on("the agents talk")

        for step in STEPS:
            code = await run_move(settings, log, step)
            assert code in (-9, 137), f"{step}: {code}\n{log.read_text()[-3000:]}"
            await agents.talk_on(f"agents talk on after {step}")
        assert await run_move(settings, log) == 0, log.read_text()[-3000:]
        await agents.talk_on("agents talk on in the target")

    assert agents.stale == []
    turns = len(agents.receipts)
    assert await psql_async(other.endpoints.admin_url, TURNS) == f"{turns}|{turns}"
    assert await psql_async(database.admin_url, STATES) == "moved"
    assert await psql_async(other.endpoints.admin_url, STATES) == ""
    left = int((await psql_async(database.admin_url, TURNS)).partition("|")[0])
    assert left < turns, "nothing was written to the source after the switch"


async def test_an_aborted_move_leaves_the_tenant_and_no_copy(
    settings: Settings, database: Database, other: Servers, workers: None, tmp_path: Path
) -> None:
    async with Memory(settings=copied(settings)) as memory:
        receipt = await memory.remember("I live in Oslo.", user_id=USER, namespace=ACME)
        await receipt.extracted(timeout=PATIENCE_SECONDS)
        assert await run_move(settings, tmp_path / "move.log", "TenantRows.stop_writes:1") in (-9, 137)
        waiting = await memory.remember("I play the viola.", user_id=USER, namespace=ACME)
        assert "viola" in (await memory.recall("viola", user_id=USER, namespace=ACME)).text
        with pytest.raises(errors.TenantMoved, match="Its writes are paused"):
            await memory.facts.add("user", "likes", "tea", user_id=USER, namespace=ACME)

        await memory.tenants.abort(ACME, to="eu")

        await waiting.stored(timeout=PATIENCE_SECONDS)
        await memory.facts.add("user", "likes", "tea", user_id=USER, namespace=ACME)
        assert await psql_async(database.admin_url, TURNS) == "2|2"
        assert await psql_async(other.endpoints.admin_url, TURNS) == "0|0"
        assert await psql_async(other.endpoints.admin_url, STATES) == ""
        with pytest.raises(errors.InvalidSettings, match="no move to this database can be aborted"):
            await memory.tenants.abort(ACME, to="eu")


async def test_a_database_that_goes_away_during_a_move_leaves_the_tenant_where_it_was(
    settings: Settings, database: Database, other: Servers, workers: None
) -> None:
    async with Memory(settings=copied(settings)) as memory:
        await (await memory.remember("turn 0", user_id=USER, namespace=ACME)).stored(timeout=PATIENCE_SECONDS)

        def stop(step: str) -> None:
            if step.startswith("writes pause"):
                other.stack.down()

        with pytest.raises(errors.StoreUnavailable, match="database 'eu'"):
            await memory.tenants.move(ACME, to="eu", on_step=stop)

        receipt = await memory.remember("turn 1", user_id=USER, namespace=ACME)
        await receipt.stored(timeout=PATIENCE_SECONDS)
        block = await memory.recall("turn 1", user_id=USER, namespace=ACME)
        assert "turn 1" in block.text
        assert not block.degraded
        with pytest.raises(errors.StoreUnavailable):
            await memory.tenants.move(ACME, to="eu")
        assert await psql_async(database.admin_url, TURNS) == "2|2"
        assert other.stack.up().app_url == other.endpoints.app_url
        assert (await memory.tenants.move(ACME, to="eu")).target == "eu"
        assert await psql_async(other.endpoints.admin_url, TURNS) == "2|2"
        assert "turn 1" in (await memory.recall("turn 1", user_id=USER, namespace=ACME)).text
