"""Dead letters and replay plans of one database."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres.dead_letters import DeadLetters
from aftermind.ledger.replay_overrides import OverrideRules
from tests.support.dead_letters import Letters
from tests.support.replay_engine import SteppedReplays as Replays
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
def dead(postgres: PostgresDatabase) -> DeadLetters:
    """The dead letters."""
    return DeadLetters(postgres)


@pytest.fixture
def replays(postgres: PostgresDatabase) -> Replays:
    """The plans."""
    return Replays(postgres, rules=OverrideRules(extractors=frozenset({"openai:gpt-5"})))
