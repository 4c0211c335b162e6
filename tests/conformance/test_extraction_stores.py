"""Every store keeps the promises about what is learned beyond facts."""

from collections.abc import AsyncIterator

import pytest

from aftermind.db.engine import PostgresDatabase
from aftermind.db.inmemory import MemoryDatabase
from aftermind.stores.inmemory import InMemoryStore
from aftermind.stores.postgres import PostgresStore
from tests.conformance.extraction_contract import LearningContract
from tests.conformance.store_fixtures import Rig
from tests.support.servers import Database


class TestInMemoryLearning(LearningContract):
    """The twin."""

    @pytest.fixture
    def rig(self) -> Rig:
        """A store in memory."""
        return Rig(db=MemoryDatabase(), store=InMemoryStore())


class TestPostgresLearning(LearningContract):
    """The real one."""

    @pytest.fixture
    async def rig(self, database: Database) -> AsyncIterator[Rig]:
        """A store in a database of the test's own."""
        opened = PostgresDatabase(database.url)
        yield Rig(db=opened, store=PostgresStore())
        await opened.close()
