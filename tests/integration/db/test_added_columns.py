"""A column that a migration adds is nothing to statements that running processes have prepared."""

import asyncio
import importlib
import json
import os
import pkgutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from pydantic import SecretStr
from sqlalchemy import TextClause, TextualSelect, text
from sqlalchemy.dialects.postgresql.asyncpg import dialect

import aftermind
from aftermind import Memory, Settings, errors
from aftermind.db.engine import PostgresDatabase
from aftermind.db.positional_parameters import Positional
from aftermind.wire import queues
from tests.fundamentals.conftest import as_environment
from tests.support.expanded_schema import widen
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database, psql_async
from tests.support.tour import QUICK, Tour
from tests.support.webhook_receiver import receiver
from tests.support.workers import TOUCHY, workers

ColumnTypes = list[tuple[str, str]]  # names and types of what a statement answers with

_CONNECTIONS = """
SELECT pid, application_name FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'aftermind%' ORDER BY pid
"""
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

    widened = await asyncio.to_thread(widen, database)
    after = {name: await _told(connection, sql) for name, sql in statements.items()}
    star = await _told(connection, _ALL)
    await connection.close()

    assert {"jobs", "facts", "searchable_episodes", "schema_version"} <= widened
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
    await asyncio.to_thread(widen, database)

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


async def test_who_meets_a_statement_of_before_is_told_to_call_again(database: Database, tmp_path: Path) -> None:
    """No migration of ours changes the type of a column, but one that did would be met so."""
    given = Settings(
        database_url=SecretStr(database.app_url),
        broker_url=SecretStr("redis://127.0.0.1:1/0"),
        db_pool_size=1,
        state_dir=tmp_path,
    )
    async with Memory(settings=given) as memory:
        await memory.blocks.set("persona", "Dry.", user_id="alice")
        assert [block.content for block in await memory.blocks.list(user_id="alice")] == ["Dry."]
        await psql_async(database.url, "ALTER TABLE aftermind.blocks ALTER COLUMN description TYPE varchar")

        with pytest.raises(errors.StoreUnavailable, match="Repeat the call") as told:
            await memory.blocks.list(user_id="alice")
        again = await memory.blocks.list(user_id="alice")

    assert "a migration changed a table" in str(told.value)
    assert "Is Postgres running" not in str(told.value)
    assert [block.content for block in again] == ["Dry."]


@pytest.mark.long
async def test_what_runs_while_every_table_gets_a_column_answers_as_before(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    """An agent and workers on the connections that they had, through the whole public face."""
    with scripted_openai() as model:
        key = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": model.url}
        settings = Settings(
            database_url=SecretStr(database.app_url),
            relay_url=SecretStr(database.relay_url),
            broker_url=SecretStr(redis_url),
            state_dir=tmp_path,
            webhook_allow_private=True,
            embedder="openai:text-embedding-3-small",
            embedding_dimension=384,
            extractor="openai:scripted",
            recall_budget_seconds=30.0,  # a busy machine is not what is tested here
            query_embedding_budget_seconds=30.0,
            **key,  # type: ignore[arg-type]  # by their own names
        )
        env = {**os.environ, **as_environment(settings), **key, **QUICK}
        async with receiver() as hook, Memory(settings=settings) as memory:
            tour = Tour(memory=memory, model=model, hook=hook.url, archive=tmp_path / "archive")
            with workers(env, tmp_path, on=",".join(queues.QUEUES), app=TOUCHY):
                lived, seen = await tour.lives("first"), await tour.reads("first")
                connected = await _connections(database)

                await asyncio.to_thread(widen, database)

                assert await tour.reads("first") == seen
                assert await tour.lives("second") == lived
                assert await tour.reads("second") == seen
                kept = connected & await _connections(database)
    assert {"aftermind-agent", "aftermind-worker"} <= {each.split("|")[1] for each in kept}
    assert _warnings(tmp_path / "worker-0.log") == {
        "job failed",
        "job dead-lettered",
        "turn not stored",
        "turn dead-lettered",
    }


def _warnings(log: Path) -> set[str]:
    """What our own loggers said; the tour lets a job die, and a turn."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return {line["message"] for line in lines if line["logger"].startswith("aftermind")}


async def _connections(database: Database) -> set[str]:
    """Those of agents and workers, by process and name. A call that is cut off takes its connection with it."""
    return set((await psql_async(database.admin_url, _CONNECTIONS)).splitlines())


def _statements() -> Iterator[tuple[str, str]]:
    """Every statement that is a value of a module, by where it is."""
    left_out = (".migrations", ".integrations.", ".indexes.", "journals.mongodb", "__main__")
    for module in pkgutil.walk_packages(aftermind.__path__, "aftermind."):
        if any(each in module.name for each in left_out):
            continue  # those of other products need libraries that are not installed here, and have no statements
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


async def _told(connection: "asyncpg.Connection[asyncpg.Record]", sql: str) -> ColumnTypes:
    prepared = await connection.prepare(sql)
    return [(each.name, each.type.name) for each in prepared.get_attributes()]
