"""Memories of a database of the test's own, whose jobs the test itself runs."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.learning import Learning, learning
from tests.support.servers import Database, Servers


@pytest.fixture
def opened(
    database: Database, servers: Servers, tmp_path: Path
) -> Callable[..., AbstractAsyncContextManager[Learning]]:
    """`opened(namespace="acme")`: agents and workers connect in their roles, facts are drawn by rules."""
    return partial(learning, database, servers.redis_url, tmp_path)


@pytest.fixture
def user() -> str:
    """Somebody whom nobody has met before."""
    return f"user-{uuid4().hex[:12]}"
