"""Recall over HTTP while database nodes are frozen: API keys are checked elsewhere, and no request waits."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from aftermind import Memory, Settings
from aftermind.cli.terminal import FAILED
from aftermind.web.auth import KEPT_SECONDS
from tests.fundamentals.conftest import as_environment
from tests.support import faults
from tests.support.deployed_service import running, serving
from tests.support.fork_server import run_module
from tests.support.servers import Servers
from tests.support.stored_turns import keep, said
from tests.support.waiting import wait_until_sync

pytestmark = pytest.mark.long
LONGER_THAN_A_CLIENT_WAITS = 60.0  # of the database: a request that waited for it would fail here


@dataclass(frozen=True)
class Deployment:
    """A deployment in which alice has a memory, and a key for it."""

    servers: Servers
    settings: Settings
    key: str

    def client(self, url: str, key: str | None = None) -> httpx.Client:
        login = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.Client(base_url=url, headers=login, timeout=20, trust_env=False)


@pytest.fixture
async def deployment(module_servers: Servers, tmp_path: Path) -> AsyncIterator[Deployment]:
    database = await asyncio.to_thread(module_servers.create_database)
    await keep(database.url, [said("The bees live behind the barn")])
    settings = Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        replica_urls=database.app_replica_urls,
        broker_url=module_servers.redis_url,
        state_dir=tmp_path,
        db_timeout_seconds=LONGER_THAN_A_CLIENT_WAITS,
        db_connect_timeout_seconds=LONGER_THAN_A_CLIENT_WAITS,
        recall_budget_seconds=8.0,  # a recall waits for the primary for a part of it
        embedder="hash",
    )
    async with Memory(settings=settings) as memory:
        _, key = await memory.api_keys.create("web shop")
    with running(["worker", "--queues", "all"], hasty(settings), tmp_path / "worker.log"):  # settles the run of Redis
        yield Deployment(module_servers, settings, key)


def hasty(settings: Settings) -> Settings:
    """The same for a process that is not to wait that long."""
    return settings.model_copy(update={"db_timeout_seconds": 2.0, "db_connect_timeout_seconds": 2.0})


def recalled(client: httpx.Client) -> dict[str, Any]:
    answer = client.post("/v1/users/alice/recall", json={"query": "Where do the bees live?"})
    assert answer.status_code == 200, answer.text
    block: dict[str, Any] = answer.json()
    return block


def test_a_service_admits_keys_and_recalls_from_the_replica(deployment: Deployment, tmp_path: Path) -> None:
    with serving(deployment.settings, tmp_path / "one.log") as url, deployment.client(url) as client:
        wait_until_sync(lambda: recalled(client)["served_by"] == "replica", description="the replica serves")
        with faults.frozen(deployment.servers.pid("postgres")):
            until = time.monotonic() + 2 * KEPT_SECONDS
            while time.monotonic() < until:
                block = recalled(client)
                assert "behind the barn" in block["text"]
                assert block["served_by"] == "replica"
            answer = client.post("/v1/users/alice/turns", json={"messages": "The bees moved."})
            assert answer.status_code == 202

            with serving(hasty(deployment.settings), tmp_path / "two.log") as other, deployment.client(other) as fresh:
                assert "behind the barn" in recalled(fresh)["text"]


def test_without_any_node_a_key_that_was_valid_is_admitted_and_an_unknown_one_is_not(
    deployment: Deployment, tmp_path: Path
) -> None:
    with serving(hasty(deployment.settings), tmp_path / "log") as url, deployment.client(url) as client:
        recalled(client)
        with (
            faults.frozen(deployment.servers.pid("postgres")),
            faults.frozen(deployment.servers.pid("postgres-replica")),
        ):
            until = time.monotonic() + 2 * KEPT_SECONDS
            while time.monotonic() < until:
                assert "the store does not answer" in recalled(client)["degraded"]
            with deployment.client(url, f"{deployment.key}x") as stranger:
                assert stranger.get("/v1/whoami").status_code == 503
            assert client.get("/readyz").status_code == 200, "turns are accepted and recalled"
            with faults.frozen(deployment.servers.pid("redis")):
                wait_until_sync(lambda: client.get("/readyz").status_code == 503, description="nothing is left")
        wait_until_sync(lambda: recalled(client)["degraded"] is None, description="the database serves again")
        with deployment.client(url, f"{deployment.key}x") as stranger:
            assert stranger.get("/v1/whoami").status_code == 401


def test_a_command_says_that_its_read_cannot_be_recorded(deployment: Deployment, tmp_path: Path) -> None:
    env = {**os.environ, **as_environment(hasty(deployment.settings))}
    with faults.frozen(deployment.servers.pid("postgres")):
        done = run_module(["aftermind.cli", "recall", "Where do the bees live?", "-u", "alice"], env=env, cwd=tmp_path)

    assert done.returncode == FAILED
    assert "audit trail: this read cannot be recorded" in done.stderr
    assert "barn" not in done.stdout
