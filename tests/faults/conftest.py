"""A Redis of each test's own."""

from collections.abc import Iterator

import pytest

from tests.support.valkey import Valkey, running_valkey


@pytest.fixture(autouse=True)
def impatient_with_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen Redis costs these tests what it costs users."""
    for name in ("AFTERMIND_REMEMBER_BUDGET_SECONDS", "AFTERMIND_REDIS_TIMEOUT_SECONDS"):
        monkeypatch.delenv(name)


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A server to do anything to."""
    with running_valkey() as server:
        yield server
