"""The journals that the in-memory store is held to its contracts with."""

from pathlib import Path

import pytest

from aftermind.db.record_store_journals.protocol import Journal
from tests.support.journals import JOURNALS


@pytest.fixture(params=sorted(JOURNALS))
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    """A journal of each kind, empty."""
    return JOURNALS[request.param](tmp_path, lambda: request.getfixturevalue("redis_url"))
