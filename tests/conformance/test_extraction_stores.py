"""Every store keeps the promises about what is learned beyond facts."""

from collections.abc import AsyncIterator

import pytest

from aftermind.db.engine import PostgresDatabase
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.db.record_store_journals.protocol import AnyJournal
from aftermind.stores.inmemory import InMemoryStore
from aftermind.stores.postgres import PostgresStore
from tests.conformance.extraction_contract import LearningContract
from tests.conformance.store_fixtures import Rig
from tests.support.journals import reading_each_time
from tests.support.servers import Database


class TestInMemoryLearning(LearningContract):
    """The twin."""

    @pytest.fixture
    def rig(self) -> Rig:
        """A store in memory."""
        return Rig(db=MemoryDatabase(), store=InMemoryStore())


class TestJournaledLearning(LearningContract):
    """The in-memory store, written by each journal."""

    @pytest.fixture
    async def rig(self, journal: AnyJournal) -> AsyncIterator[Rig]:
        """A store that reads its rows back each time."""
        database = reading_each_time(journal)
        yield Rig(db=database, store=InMemoryStore())
        await database.close()


class TestPostgresLearning(LearningContract):
    """The real one."""

    @pytest.fixture
    async def rig(self, database: Database) -> AsyncIterator[Rig]:
        """A store in a database of the test's own."""
        opened = PostgresDatabase(database.url)
        yield Rig(db=opened, store=PostgresStore())
        await opened.close()
