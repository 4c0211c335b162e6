"""Migrations: what they make is what the tables say, once, whoever runs them and however often."""

import ast
import asyncio
import json
import os
import sys
import warnings
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from aftermind import errors
from aftermind.db import migrate, row_level_security, tables
from aftermind.db.error_mapping import HEAD
from aftermind.types import EmbedderIdentity
from tests.support.releases import next_release
from tests.support.servers import Database, Servers, psql_async
from tests.support.waiting import wait_until

_EPISODE = (
    "INSERT INTO aftermind.episodes "
    "(namespace, user_id, id, role, content, occurred_at, remembered_at, position, terms) VALUES "
    "('default', 'alice', gen_random_uuid(), 'user', 'Hello', now(), now(), 1, '{}')",
)
MIGRATIONS = Path(migrate.SCRIPTS, "versions")
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"  # port 1: refused at once


@pytest.fixture
async def empty(servers: Servers) -> AsyncIterator[str]:
    """A database that nobody has migrated."""
    made = await asyncio.to_thread(servers.create_database)
    await psql_async(made.url, "DROP SCHEMA aftermind CASCADE")
    yield made.url
    await asyncio.to_thread(servers.drop_database, made)


def _differences(connection: Connection) -> list[object]:
    options = {
        "include_schemas": True,
        "include_name": lambda name, kind, _: kind != "schema" or name == tables.SCHEMA,
        "include_object": lambda _object, name, kind, _reflected, _to: kind != "index" and name != tables.VERSION_TABLE,
        "compare_type": True,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of indexes by expression, which are not compared
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), tables.METADATA))


async def test_the_migrated_schema_is_what_the_tables_say(database: Database) -> None:
    # Our role has our schema's name: without a path of its own the schema would count as the default one.
    plain = {"server_settings": {"search_path": "public"}}
    url = database.url.replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url, connect_args=plain, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            differences = await connection.run_sync(_differences)
    finally:
        await engine.dispose()

    assert differences == []


async def test_pending_migrations_are_listed_without_a_change(database: Database, empty: str, tmp_path: Path) -> None:
    coming = next_release(tmp_path / "next")
    unused = "redis://127.0.0.1:1/0"  # a migration without a change needs none
    current = {**os.environ, "AFTERMIND_DATABASE_URL": database.url, "AFTERMIND_BROKER_URL": unused}
    environments = {
        "current": current,
        "next": coming.environment(current),
        "empty": {**current, "AFTERMIND_DATABASE_URL": empty},
        "away": {**current, "AFTERMIND_DATABASE_URL": NOWHERE},
    }

    async def check(env: dict[str, str], *options: str) -> tuple[str, int | None]:
        command = (sys.executable, "-m", "aftermind.cli", "migrate", "--check", *options)
        process = await asyncio.create_subprocess_exec(*command, env=env, stdout=PIPE, stderr=PIPE, cwd=tmp_path)
        return (await process.communicate())[0].decode(), process.returncode

    printed = {name: await check(env) for name, env in environments.items()}
    as_json = await check(environments["next"], "--json")
    none_as_json = await check(environments["current"], "--json")
    again = await check(environments["empty"])

    assert printed["current"] == ("no migration is pending.\n", 0)
    assert (json.loads(as_json[0]), as_json[1]) == (
        {
            "pending": {
                "0002_pre_channel": "Expand: a new column.",
                "0003_pre_mined_by": "Expand: a renamed column. The new name is added; a trigger keeps both "
                "equal while both releases write.",
                "0004_pre_confidence": "Expand: a constraint, at first for new rows only, so that no existing "
                "row is read under the table's lock.",
            }
        },
        1,
    )
    assert (json.loads(none_as_json[0]), none_as_json[1]) == ({"pending": {}}, 0)
    assert "pending: 0002_pre_channel. Expand: a new column.\n" in printed["next"][0]
    assert "writes to the tables that it changes wait" in printed["next"][0]
    assert f"pending: {HEAD}" in printed["empty"][0]
    assert printed["empty"] == again, "nothing was migrated"
    assert printed["away"] == ("", 2)


def test_the_newest_migration_is_the_one_that_this_release_asks_for() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.SCRIPTS))

    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_every_migration_after_the_initial_one_is_named_after_its_number_and_kind() -> None:
    names = sorted(path.name for path in MIGRATIONS.glob("*.py"))

    assert names[0] == "0001_initial.py"
    assert all(name[:4].isdigit() and name[4:].startswith(("_pre_", "_post_")) for name in names[1:])


def test_a_migration_imports_nothing_of_the_application() -> None:
    trees = [ast.parse(path.read_text()) for path in MIGRATIONS.glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}

    assert "alembic" in imported
    assert not [name for name in imported if name.startswith(("aftermind", "None"))]


async def test_migrators_at_one_moment_follow_each_other_and_a_later_one_changes_nothing(empty: str) -> None:
    assert await asyncio.gather(*(migrate.apply(empty, dimension=32) for _ in range(4))) == [HEAD] * 4
    await psql_async(empty, "INSERT INTO aftermind.users (namespace, user_id) VALUES ('default', 'alice')")

    assert await migrate.apply(empty) == HEAD

    await migrate.check(empty)
    assert await _dimension(empty) == "32"
    assert await psql_async(empty, "SELECT count(*) FROM aftermind.users") == "1"


async def test_the_tables_of_a_first_migration_are_never_seen_without_their_rights(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: object) -> None:
        raise errors.RoleMissing("aftermind_relay")

    with monkeypatch.context() as patched:
        patched.setattr(row_level_security, "secure", refuse)
        with pytest.raises(errors.RoleMissing):
            await migrate.apply(empty)

    assert await psql_async(empty, "SELECT to_regnamespace('aftermind') IS NULL") == "t"
    assert await migrate.apply(empty) == HEAD


async def test_a_database_beside_tables_of_the_same_names_is_shared(empty: str) -> None:
    await psql_async(empty, "CREATE TABLE users (mine int)", "CREATE TABLE alembic_version (version_num text)")
    await psql_async(empty, "INSERT INTO alembic_version VALUES ('theirs')")

    await migrate.apply(empty)

    assert await psql_async(empty, "SELECT version_num FROM public.alembic_version") == "theirs"


async def test_while_a_table_is_in_use_nobody_waits_behind_the_migrator_for_long(empty: str) -> None:
    await migrate.apply(empty)
    await psql_async(empty, "DROP POLICY tenant ON aftermind.users")  # to be made again, which needs the table alone
    keeper, reader = await asyncpg.connect(empty), await asyncpg.connect(empty)
    migrating: asyncio.Task[str] | None = None
    waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'aftermind.users'::regclass AND NOT granted)"
    users = "SELECT count(*) FROM aftermind.users"
    try:
        transaction = keeper.transaction()
        await transaction.start()
        await keeper.fetchval(users)

        with pytest.raises(errors.StoreUnavailable, match="pg_stat_activity"):
            await migrate.apply(empty, patience=0.0)
        migrating = asyncio.create_task(migrate.apply(empty))
        await wait_until(lambda: reader.fetchval(waits), description="the migrator waits for the table")
        assert await reader.fetchval(users, timeout=30) == 0
        await transaction.rollback()

        assert await migrating == HEAD
    finally:
        if migrating is not None:
            migrating.cancel()
        await keeper.close()
        await reader.close()
    assert (
        await psql_async(empty, "SELECT count(*) FROM pg_policies WHERE tablename = 'users' AND policyname = 'tenant'")
        == "1"
    )


async def _dimension(url: str) -> str:
    column = "attrelid = 'aftermind.episodes'::regclass AND attname = 'embedding'"
    return await psql_async(url, f"SELECT atttypmod FROM pg_attribute WHERE {column}")


OTHER = EmbedderIdentity(name="openai:other", dimension=64)


async def test_a_database_without_vectors_adopts_another_embedder_of_any_dimension(empty: str) -> None:
    await migrate.apply(empty, dimension=32)
    await psql_async(empty, *_EPISODE)

    await migrate.apply(empty, embedder=OTHER)

    assert await _dimension(empty) == "64"
    assert await psql_async(empty, "SELECT value FROM aftermind.meta WHERE key = 'active_embedder'") == OTHER.key.strip(
        "\n"
    )
    assert await psql_async(empty, "SELECT count(*) FROM aftermind.searchable_episodes") == "0"  # of no tenant, as ever
    assert await psql_async(empty, "SELECT count(*) FROM pg_indexes WHERE indexname = 'episodes_embedding'") == "1"


async def test_stored_vectors_keep_their_embedder_whatever_the_migrator_is_configured_with(empty: str) -> None:
    await migrate.apply(empty, dimension=2)
    await psql_async(empty, *_EPISODE, "UPDATE aftermind.episodes SET embedding = '[1,0]'")

    await migrate.apply(empty, embedder=OTHER)

    assert await _dimension(empty) == "2"
    name = "SELECT split_part(value, E'\\n', 1) FROM aftermind.meta WHERE key = 'active_embedder'"
    assert await psql_async(empty, name) == "hash:2"


async def test_a_database_without_a_schema_is_named_outdated(empty: str) -> None:
    with pytest.raises(errors.SchemaOutdated, match="aftermind migrate"):
        await migrate.check(empty)


async def test_a_schema_that_a_later_release_expanded_is_fine_and_an_older_one_is_not(database: Database) -> None:
    connection = await asyncpg.connect(database.url)
    await connection.execute(f"UPDATE aftermind.{tables.VERSION_TABLE} SET version_num = '9999_pre_later'")
    await migrate.check(database.url)

    await connection.execute(f"UPDATE aftermind.{tables.VERSION_TABLE} SET version_num = '0000_pre_nothing'")
    with pytest.raises(errors.SchemaOutdated, match="0000_pre_nothing"):
        await migrate.check(database.url)
    await connection.close()


async def test_a_database_that_is_not_there_is_unavailable() -> None:
    for asked in (migrate.check(NOWHERE), migrate.apply(NOWHERE)):
        with pytest.raises(errors.StoreUnavailable):
            await asked
