"""Tenants in databases of two servers: one server is stopped, and the tenants of the other one notice nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from aftermind import Memory, Settings
from aftermind.api.multi_database_calls import away_databases
from tests.fundamentals.conftest import QUICK
from tests.support.deployed_service import running
from tests.support.servers import Database, Servers, psql_async
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]
TURNS = 20
COUNT = "SELECT count(*), count(DISTINCT content) FROM aftermind.episodes WHERE namespace = 'acme'"


async def test_a_database_that_is_away_degrades_its_tenants_alone_and_loses_nothing(
    servers: Servers, database: Database, own_servers: Callable[..., Servers], redis_url: str, tmp_path: Path
) -> None:
    other = own_servers(replica=False)
    away = other.endpoints
    settings = Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        databases={"eu": {"database_url": away.app_url, "relay_url": away.relay_url}},
        placement={"acme": "eu"},
        redis_url=redis_url,
        state_dir=tmp_path / "state",
        embedder="hash",
        extractor="off",
        recall_budget_seconds=10,
        remember_budget_seconds=10,
        **QUICK,
    )
    with running(["worker"], settings, tmp_path / "worker.log", patience=180):
        async with Memory(settings=settings, namespace="home") as memory:
            for namespace in ("home", "acme"):
                await (await memory.remember("turn 0", user_id="alice", namespace=namespace)).stored(
                    timeout=PATIENCE_SECONDS
                )

            async def is_ready_without_it() -> bool:
                health = await memory.health()
                return health.is_ready and {part.name: part.state for part in health.parts}["store (eu)"] == "down"

            other.stack.down()
            receipts = []
            for number in range(1, TURNS):
                receipts.append(await memory.remember(f"turn {number}", user_id="alice", namespace="acme"))
                at_home = await memory.remember(f"turn {number}", user_id="alice", namespace="home")
                await at_home.stored(timeout=PATIENCE_SECONDS)
            degraded = await memory.recall("turn", user_id="alice", namespace="acme")
            whole = await memory.recall("turn", user_id="alice", namespace="home")
            tenants = await memory.job_admin.tenants()

            assert degraded.degraded
            assert f"turn {TURNS - 1}" in degraded.text, "a turn that waits is recalled"
            assert not whole.degraded
            await wait_until(is_ready_without_it, description="ready for the other tenants")
            assert away_databases(tenants) == ("eu",)
            assert not any(receipt.spooled for receipt in receipts)

            again = other.stack.up()
            assert again.app_url == away.app_url
            for receipt in receipts:
                await receipt.stored(timeout=PATIENCE_SECONDS)

            async def is_whole() -> bool:
                return not (await memory.recall("turn", user_id="alice", namespace="acme")).degraded

            await wait_until(is_whole, description="its tenants are recalled from the database again")
            assert away_databases(await memory.job_admin.tenants()) == ()
    assert await psql_async(away.admin_url, COUNT) == f"{TURNS}|{TURNS}"
