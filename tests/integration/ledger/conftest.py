"""Dead letters and replay plans of one database."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from aftermind.db.postgres import PostgresDatabase
from aftermind.ledger.overrides import OverrideRules
from aftermind.ledger.postgres_dead import PostgresDeadLetters
from aftermind.ledger.postgres_replays import PostgresReplays
from tests.support.dead import Letters
from tests.support.servers import Database


@pytest.fixture
async def postgres(database: Database) -> AsyncIterator[PostgresDatabase]:
    """The database as the ledger sees it."""
    opened = PostgresDatabase(database.url)
    yield opened
    await opened.close()


@pytest.fixture
async def letters(database: Database) -> AsyncIterator[Letters]:
    """A hand on the rows."""
    connection = await asyncpg.connect(database.url)
    yield Letters(connection)
    await connection.close()


@pytest.fixture
def dead(postgres: PostgresDatabase) -> PostgresDeadLetters:
    """The dead letters."""
    return PostgresDeadLetters(postgres)


@pytest.fixture
def replays(postgres: PostgresDatabase) -> PostgresReplays:
    """The plans."""
    return PostgresReplays(postgres, rules=OverrideRules(extractors=frozenset({"openai:gpt-5"})))
