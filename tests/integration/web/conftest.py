"""The service with real servers and a worker behind it."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from aftermind import Settings
from aftermind.sync import Memory
from tests.fundamentals.conftest import QUICK
from tests.support.deployed_service import Service, running, serving
from tests.support.servers import Database, Servers

RIGHTS = ("read", "write", "operate")


@pytest.fixture(scope="module")
def deployed(servers: Servers) -> Iterator[Database]:
    """The database of this module."""
    database = servers.create_database()
    yield database
    servers.drop_database(database)


@pytest.fixture(scope="module")
def owner_url(deployed: Database) -> str:
    """It, as the owner of its tables."""
    return deployed.url


@pytest.fixture(scope="module")
def settings(servers: Servers, deployed: Database, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Where the deployment of this module is; the database and the keys are its own."""
    return _settings(servers, deployed, tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def fresh_settings(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """Another deployment, in which nobody has made anything yet."""
    database = servers.create_database()
    yield _settings(servers, database, tmp_path_factory.mktemp("state"))
    servers.drop_database(database)


def _settings(servers: Servers, database: Database, state_dir: Path) -> Settings:
    return Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        replica_urls=database.app_replica_urls,
        broker_url=servers.redis_url,
        redis_prefix=f"web-{uuid4().hex[:8]}:",
        state_dir=state_dir,
        **QUICK,
    )


@pytest.fixture(scope="module")
def worker(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A worker on all queues, its own reconciler."""
    with running(["worker", "--queues", "all"], settings, tmp_path_factory.mktemp("worker") / "log"):
        yield


@pytest.fixture(scope="module")
def service(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Keys of namespace `ours`: `all`, and one for each right, named by it. Of namespace `theirs`: `other`."""
    with Memory(settings=settings) as memory:
        keys = {"all": memory.api_keys.create("all", namespace="ours")[1]}
        keys["other"] = memory.api_keys.create("other", namespace="theirs")[1]
        for right in RIGHTS:
            keys[right] = memory.api_keys.create(right, rights=[right], namespace="ours")[1]
    with serving(settings, tmp_path_factory.mktemp("service") / "log") as url:
        yield Service(url=url, settings=settings, keys=keys)


@pytest.fixture
def user() -> str:
    """Somebody whom nobody has met before."""
    return f"user-{uuid4().hex[:12]}"
