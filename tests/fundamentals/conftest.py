"""A deployment as users have it: Postgres with a replica, Redis, and real workers. Every test has a user of its own."""

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from pydantic import SecretStr

from aftermind import Memory, Settings
from tests.support.fork_server import start_module
from tests.support.servers import Database, Servers

# As users have it, but for waits that are tuned to people: a session is mined 0.3 s after its last turn, not 8.
QUICK = {"extract_quiet_seconds": 0.3, "extract_max_wait_seconds": 1.0, "reconcile_seconds": 0.5}


@pytest.fixture(scope="module")
def databases(servers: Servers) -> Iterator[dict[str, Database]]:
    """Two databases of one server, by their names in the map."""
    made = {"default": servers.create_database(), "eu": servers.create_database()}
    yield made
    for each in made.values():
        servers.drop_database(each)


@pytest.fixture(scope="module")
def settings(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Where the deployment of this module is; the database and the keys are its own."""
    database = servers.create_database()
    yield Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        replica_urls=database.app_replica_urls,
        broker_url=servers.redis_url,
        redis_prefix=f"fundamentals-{uuid4().hex[:8]}:",
        state_dir=tmp_path_factory.mktemp("state"),
        **QUICK,
    )
    servers.drop_database(database)


@pytest.fixture(scope="module")
def workers(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A worker on all queues, as `aftermind worker` starts it. It is its own reconciler."""
    log = tmp_path_factory.mktemp("workers") / "worker.log"
    with log.open("wb") as output:
        argv = ["aftermind.cli", "worker", "--queues", "all"]
        env = {**os.environ, **as_environment(settings)}
        worker = start_module(argv, env=env, output=output, start_new_session=True)
    yield
    worker.terminate()
    try:
        worker.wait(180)
    except psutil.TimeoutExpired:
        worker.kill()
        worker.wait()
        pytest.fail(f"the worker did not stop on SIGTERM; its log:\n{_tail(log)}")


@pytest.fixture
async def memory(settings: Settings, workers: None) -> AsyncIterator[Memory]:
    """A memory with workers behind it."""
    async with Memory(settings=settings) as opened:
        yield opened


@pytest.fixture
def user() -> str:
    """Somebody whom nobody has met before."""
    return f"user-{uuid4().hex[:12]}"


def as_environment(settings: Settings) -> dict[str, str]:
    """Settings as processes are told of them."""
    given = settings.model_dump(include=settings.model_fields_set)
    return {f"AFTERMIND_{name.upper()}": _text(value) for name, value in given.items()}


def _text(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple | dict):
        return json.dumps(value, default=SecretStr.get_secret_value)
    return str(value)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])
