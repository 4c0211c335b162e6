"""A Redis of each test's own."""

from collections.abc import Iterator

import pytest

from tests.support.valkey import Valkey, running_valkey


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """A server to do anything to."""
    with running_valkey() as server:
        yield server
