"""A Redis of each test's own."""

from collections.abc import Iterator

import pytest

from tests.support.servers import Servers, start
from tests.support.valkey import Valkey, running_valkey


@pytest.fixture
def impatient_with_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short deadlines for Redis, for tests that freeze it and wait for each."""
    for name in ("AFTERMIND_REMEMBER_BUDGET_SECONDS", "AFTERMIND_REDIS_TIMEOUT_SECONDS"):
        monkeypatch.setenv(name, "1.0")


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A server to do anything to."""
    with running_valkey() as server:
        yield server


@pytest.fixture(scope="module")
def module_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Servers of one module alone, whose tests kill and freeze them."""
    running = start(tmp_path_factory.mktemp("nodes") / "stack")
    try:
        running.make_template()
        yield running
    finally:
        running.destroy()
