"""A column that a migration adds is nothing to statements that running processes have prepared."""

import importlib
import pkgutil
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from sqlalchemy import TextClause, TextualSelect, text
from sqlalchemy.dialects.postgresql.asyncpg import dialect

import aftermind
from aftermind import errors
from aftermind.db.postgres import PostgresDatabase
from aftermind.stores.postgres.positional import Positional
from tests.support.servers import Database
from tests.support.widened import widen

Told = list[tuple[str, str]]  # names and types of what a statement answers with

_ALL = "SELECT * FROM aftermind.meta"  # what no statement of ours does


@pytest.fixture
async def db(database: Database) -> AsyncIterator[PostgresDatabase]:
    """A database of the test's own, over one connection."""
    opened = PostgresDatabase(database.url, pool_size=1)
    yield opened
    await opened.close()


async def test_no_statement_answers_with_more_once_every_table_and_view_has_a_further_column(
    database: Database,
) -> None:
    """What a statement answers with is what Postgres compares, and refuses where it has changed."""
    statements = dict(_statements())
    connection = await asyncpg.connect(database.url)
    before = {name: await _told(connection, sql) for name, sql in statements.items()}

    widened = widen(database)
    after = {name: await _told(connection, sql) for name, sql in statements.items()}
    star = await _told(connection, _ALL)
    await connection.close()

    assert {"jobs", "facts", "searched", "schema_version"} <= widened
    assert len(statements) > 150, "each is a value of a module"
    assert {name: told for name, told in after.items() if told != before[name]} == {}
    assert [name for name, _ in star] == ["key", "value", "later"], "the connection sees the new column"


async def test_a_statement_that_was_prepared_before_is_an_outage_of_one_call(
    db: PostgresDatabase, database: Database
) -> None:
    """Should one slip through: a job that meets it waits and uses no attempt, and made again the call works."""
    async with db.transaction() as tx:
        await tx.rows(text(_ALL))
        await tx.record(_ALL)
    widen(database)

    with pytest.raises(errors.StoreUnavailable, match="cached statement plan is invalid") as told:
        async with db.transaction() as tx:
            await tx.rows(text(_ALL))
    with pytest.raises(errors.StoreUnavailable, match="cached statement plan is invalid") as record:
        async with db.transaction() as tx:
            await tx.record(_ALL)

    assert told.value.args == record.value.args
    async with db.transaction() as tx:
        assert (await tx.rows(text(_ALL)))[0].later is None
        found = await tx.record(_ALL)
        assert found is not None
        assert found["later"] is None


def _statements() -> Iterator[tuple[str, str]]:
    """Every statement that is a value of a module, by where it is."""
    for module in pkgutil.walk_packages(aftermind.__path__, "aftermind."):
        if ".migrations" in module.name or module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            values = value.items() if isinstance(value, dict) else [("", value)]
            for key, statement in values:
                sql = _sql(statement)
                if sql is not None:
                    yield f"{module.name}.{name} {key}".strip(), sql


def _sql(statement: object) -> str | None:
    if isinstance(statement, Positional):
        return statement.sql
    if isinstance(statement, TextClause | TextualSelect):
        return str(statement.compile(dialect=dialect()))
    return None


async def _told(connection: "asyncpg.Connection[asyncpg.Record]", sql: str) -> Told:
    prepared = await connection.prepare(sql)
    return [(each.name, each.type.name) for each in prepared.get_attributes()]
