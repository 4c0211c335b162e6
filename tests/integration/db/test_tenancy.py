"""Row-level security: on every table, for every role that serves, with nothing left over in a pooled connection."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import asyncpg
import pytest
import redis
from pydantic import SecretStr
from sqlalchemy import text

from aftermind import Memory, Settings, errors
from aftermind.db import migrate, row_level_security
from aftermind.db.engine import PostgresDatabase
from aftermind.db.row_level_security import ENTERING
from aftermind_tasks.runtime import open_runtime
from tests.support.resource_cleanup import closing
from tests.support.servers import Database, Servers, psql, psql_async

ADD = text("INSERT INTO aftermind.users (namespace, user_id) VALUES (:namespace, 'alice')")
HOLD = """
    INSERT INTO aftermind.hold_history (namespace, kind, reason, created_at, ended_by)
    VALUES ('{namespace}', '', 'a reason', now(), 'ops')
"""
SEEN = text("SELECT namespace FROM aftermind.users ORDER BY 1")


@pytest.fixture
async def app(database: Database) -> AsyncIterator[PostgresDatabase]:
    """As agents connect, with one connection, so that every transaction meets what the one before has left."""
    opened = PostgresDatabase(database.app_url, pool_size=1, allow_owner=False)
    yield opened
    await opened.close()


@pytest.fixture
def two_tenants(database: Database) -> Database:
    """A row of each of two tenants in every table that has a namespace."""
    for namespace in ("acme", "globex"):
        job = uuid4()
        psql(
            database.url,
            f"INSERT INTO aftermind.users (namespace, user_id) VALUES ('{namespace}', 'alice')",
            "INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key) "
            f"VALUES ('{job}', '{namespace}', 'alice', 'store', 'dead', '{job}')",
            "INSERT INTO aftermind.job_attempts (namespace, job_id, number, worker, started_at) "
            f"VALUES ('{namespace}', '{job}', 1, 'w', now())",
            "INSERT INTO aftermind.blocks (namespace, user_id, name, content, version, updated_at) "
            f"VALUES ('{namespace}', 'alice', 'human', 'secret of {namespace}', 1, now())",
            "INSERT INTO aftermind.events (namespace, user_id, seq, id, event) "
            f"VALUES ('{namespace}', 'alice', 1, 'e', '{{}}')",
            HOLD.format(namespace=namespace),
        )
    psql(database.url, HOLD.format(namespace=""))  # a pause of all namespaces
    return database


def test_every_table_is_under_forced_row_level_security_with_both_clauses(database: Database) -> None:
    bare = psql(
        database.url,
        """
        SELECT string_agg(c.relname, ', ') FROM pg_class c
        WHERE c.relnamespace = 'aftermind'::regnamespace AND c.relkind IN ('r', 'p')
          AND c.relname NOT IN ('meta', 'schema_version') AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
        """,
    )
    lax = psql(
        database.url,
        """
        SELECT string_agg(c.relname, ', ') FROM pg_class c
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'namespace'
        WHERE c.relnamespace = 'aftermind'::regnamespace AND c.relkind IN ('r', 'p') AND NOT EXISTS (
            SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'tenant' AND p.polroles = '{0}'
              AND p.polcmd = '*' AND pg_get_expr(p.polqual, c.oid) LIKE '%aftermind.namespace%'
              AND pg_get_expr(p.polwithcheck, c.oid) LIKE '%aftermind.namespace%')
        """,
    )

    assert not bare, "tables without FORCEd row-level security"
    assert not lax, "tables with a namespace and no policy of USING and WITH CHECK for it"


def test_nothing_runs_with_its_owners_rights_but_what_asks_for_one_tenant_or_one_key(database: Database) -> None:
    """The views ask for the tenant. A key is shown before its tenant is known: its door gives the row of one id."""
    definers = psql(
        database.url,
        "SELECT proname, CASE WHEN proname IN "
        "('next_generation', 'generation_floor', 'adopt_embedder', 'is_key_used') THEN '' ELSE prosrc END, proconfig "
        "FROM pg_proc "
        "WHERE prosecdef AND pronamespace = 'aftermind'::regnamespace ORDER BY proname",
    )
    views = psql(
        database.url,
        "SELECT viewname, definition LIKE '%current_setting(''aftermind.namespace''%' FROM pg_views "
        "WHERE schemaname = 'aftermind' ORDER BY viewname",
    )

    assert definers.splitlines() == [
        # The identity of an embedder is of the whole database: it names no tenant's row.
        'adopt_embedder||{"search_path=pg_catalog, pg_temp"}',
        'api_key|SELECT * FROM aftermind.api_keys WHERE id = wanted|{"search_path=pg_catalog, pg_temp"}',
        # Names of tenants, for the relay alone, which reads them from `users` too.
        "expired_namespaces|SELECT DISTINCT namespace FROM aftermind.episodes WHERE expires_at <= now()"
        '|{"search_path=pg_catalog, pg_temp"}',
        # A number below every erasure that Redis has not got: it names no tenant.
        'generation_floor||{"search_path=pg_catalog, pg_temp"}',
        'has_api_keys|SELECT EXISTS (SELECT FROM aftermind.api_keys)|{"search_path=pg_catalog, pg_temp"}',
        # Whether any tenant has rows made with a key: a process that lost its file makes no other one.
        'is_key_used||{"search_path=pg_catalog, pg_temp"}',
        # It counts erasures, and nobody can set that back.
        'next_generation||{"search_path=pg_catalog, pg_temp"}',
    ]
    assert views.splitlines() == ["searchable_episodes|t", "searchable_facts|t"]
    may = "SELECT has_function_privilege('aftermind_{}', 'aftermind.expired_namespaces()', 'EXECUTE')"
    assert [psql(database.url, may.format(role)) for role in ("app", "relay")] == ["f", "t"]


def test_no_foreign_key_can_cross_tenants(database: Database) -> None:
    crossing = psql(
        database.url,
        """
        SELECT string_agg(conname, ', ') FROM pg_constraint k
        JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attname = 'namespace'
        WHERE k.contype = 'f' AND k.connamespace = 'aftermind'::regnamespace AND a.attnum <> ALL (k.conkey)
        """,
    )

    assert not crossing


async def test_where_no_tenant_is_set_there_is_no_row_and_none_can_be_added(
    two_tenants: Database, app: PostgresDatabase
) -> None:
    tables = (
        await psql_async(
            two_tenants.url,
            "SELECT relname FROM pg_class WHERE relnamespace = 'aftermind'::regnamespace AND relkind = 'r' "
            "AND relname NOT IN ('meta', 'schema_version')",
        )
    ).split()
    async with app.statements() as run:
        counts = {name: (await run.rows(text(f"SELECT count(*) AS n FROM aftermind.{name}")))[0].n for name in tables}

    assert len(tables) > 15
    assert set(counts.values()) == {0}
    with pytest.raises(errors.NotAllowed):
        async with app.transaction() as tx:
            await tx.execute(ADD, {"namespace": "acme"})


async def test_a_transaction_sees_and_writes_its_own_tenant_alone(two_tenants: Database, app: PostgresDatabase) -> None:
    async with app.transaction(namespace="acme") as tx:
        seen = [row.namespace for row in await tx.rows(SEEN)]
        changed = await tx.count(text("UPDATE aftermind.blocks SET content = 'mine' WHERE namespace = 'globex'"))
        gone = await tx.count(text("DELETE FROM aftermind.jobs WHERE namespace = 'globex'"))
        holds = [row.namespace for row in await tx.rows(text("SELECT namespace FROM aftermind.hold_history"))]
        freed = await tx.count(text("DELETE FROM aftermind.hold_history WHERE namespace IN ('', 'globex')"))

    assert (seen, changed, gone) == (["acme"], 0, 0)
    assert (holds, freed) == (["acme"], 0)
    for statement in (
        "INSERT INTO aftermind.users (namespace, user_id) VALUES ('globex', 'mallory')",
        "UPDATE aftermind.blocks SET namespace = 'globex'",
        HOLD.format(namespace="globex"),
    ):
        with pytest.raises(errors.NotAllowed):
            async with app.transaction(namespace="acme") as tx:
                await tx.execute(text(statement))


async def test_a_pooled_connection_keeps_no_tenant(two_tenants: Database, app: PostgresDatabase) -> None:
    class Stop(Exception):
        pass

    async with app.transaction(namespace="acme") as tx:
        await tx.rows(SEEN)
    with pytest.raises(Stop):
        async with app.transaction(namespace="acme") as tx:
            raise Stop
    with pytest.raises(errors.NotAllowed):
        await _write_as_another(app)

    async with app.statements() as run:
        left = await run.rows(SEEN)
    async with app.transaction() as tx:
        left_too = await tx.rows(SEEN)
    async with app.transaction(namespace="globex", read_only=True) as tx:
        other = [row.namespace for row in await tx.rows(SEEN)]

    assert (list(left), list(left_too), other) == ([], [], ["globex"])


async def test_a_read_that_stands_alone_sees_its_own_tenant_and_leaves_none_behind(
    two_tenants: Database, app: PostgresDatabase
) -> None:
    seen = ENTERING.format(asked="SELECT array_agg(content ORDER BY 1) AS seen FROM aftermind.blocks").replace(
        ":tenant", "$1"
    )

    async def left() -> str | None:
        async with app.statements() as run:
            row = await run.row(text("SELECT current_setting('aftermind.namespace', true) AS named"))
            assert row is not None
            return str(row.named or "") or None

    for namespace in ("acme", "globex", "nobody", "acme"):
        async with app.transaction(namespace=namespace, read_only=True) as tx:
            row = await tx.alone(seen, tx.namespace)
            assert row is not None
            assert row["seen"] == ([f"secret of {namespace}"] if namespace != "nobody" else None)
            named = await tx.alone("SELECT NULLIF(current_setting('aftermind.namespace', true), '') AS named")
            assert named is not None
            assert named["named"] is None  # it ended with the statement: nothing has begun
            listed = [each.namespace for each in await tx.rows(SEEN)]  # begins now, with the tenant
            assert listed == ([namespace] if namespace != "nobody" else [])
        assert await left() is None
    async with app.transaction(read_only=True) as tx:
        row = await tx.alone(seen, tx.namespace)
        assert row is not None
        assert row["seen"] is None


@pytest.mark.parametrize("namespace", ["a'b", "\\", "$$", "☃ 雪", "x'; DROP TABLE aftermind.users; --", "%s:n"])
async def test_a_tenant_may_have_any_name(database: Database, app: PostgresDatabase, namespace: str) -> None:
    async with app.transaction(namespace=namespace) as tx:
        await tx.execute(ADD, {"namespace": namespace})

    async with app.transaction(namespace=namespace) as tx:
        assert [row.namespace for row in await tx.rows(SEEN)] == [namespace]


async def test_the_relay_sees_every_tenants_work_and_nobodys_memory(two_tenants: Database) -> None:
    async with closing(PostgresDatabase(two_tenants.relay_url, allow_owner=False)) as relay:
        async with relay.statements() as run:
            jobs = await run.rows(text("SELECT namespace FROM aftermind.jobs ORDER BY 1"))
            blocks = await run.rows(text("SELECT namespace FROM aftermind.blocks"))
        async with relay.transaction(namespace="acme") as tx:
            mine = await tx.rows(text("SELECT content FROM aftermind.blocks"))

    assert [row.namespace for row in jobs] == ["acme", "globex"]
    assert list(blocks) == []
    assert [row.content for row in mine] == ["secret of acme"]


async def test_a_put_off_transaction_begins_with_the_first_statement_that_needs_it(
    two_tenants: Database, app: PostgresDatabase
) -> None:
    xact = "SELECT pg_current_xact_id_if_assigned() IS NULL AS reads, now() = statement_timestamp() AS first"
    async with app.transaction(namespace="acme", read_only=True) as tx:
        await tx.rows(SEEN)
        row = await tx.row(text(xact))
        assert row is not None
        assert not row.first  # a second statement of one transaction
        with pytest.raises(errors.StoreUnavailable, match="read-only"):
            await tx.execute(ADD, {"namespace": "acme"})
        await tx.rollback()


async def test_search_walks_its_indexes_under_row_level_security(database: Database) -> None:
    connection = await asyncpg.connect(database.app_url)
    async with connection.transaction():
        await connection.execute("SET LOCAL enable_seqscan = off; SET LOCAL aftermind.namespace = 'acme'")
        said = await connection.fetch(
            "EXPLAIN SELECT id FROM aftermind.searchable_episodes WHERE terms @> ARRAY[7::bigint]"
        )
        near = await connection.fetch(
            "EXPLAIN SELECT id FROM aftermind.searchable_episodes "
            "WHERE indexed ORDER BY embedding <=> $1::text::halfvec LIMIT 5",
            str([1.0] * 384),
        )
    await connection.close()

    assert "episodes_terms" in str(said)
    assert "episodes_embedding" in str(near)


@pytest.fixture
def bypassing(servers: Servers, database: Database) -> Iterator[str]:
    """A login that is neither superuser nor owner, and bypasses row-level security all the same."""
    name = f"bypass_{secrets.token_hex(4)}"
    admin = servers.endpoints.admin_url
    psql(admin, f"CREATE ROLE {name} LOGIN PASSWORD 'p' BYPASSRLS IN ROLE {row_level_security.APP}")
    _, _, place = database.app_url.rpartition("@")
    yield f"postgresql://{name}:p@{place}"
    psql(admin, f"DROP ROLE {name}")


async def test_a_role_that_policies_do_not_bind_is_refused(database: Database, bypassing: str, redis_url: str) -> None:
    bound = Settings(allow_owner=False, embedder="off")
    for url, why in ((database.admin_url, "bypasses"), (bypassing, "bypasses"), (database.url, "owns")):
        async with Memory(url, broker=redis_url, settings=bound) as memory:
            with pytest.raises(errors.UnboundRole, match=why) as refused:
                await memory.history(user_id="alice")
            assert "AFTERMIND_ALLOW_OWNER" in str(refused.value)
            assert not (await memory.health()).is_ready
        worker = bound.model_copy(update={"relay_url": SecretStr(url), "database_url": SecretStr(url)})
        worker = worker.model_copy(update={"broker_url": SecretStr(redis_url)})
        with pytest.raises(errors.UnboundRole):
            await open_runtime(worker, worker="w")


async def test_the_owner_is_taken_by_who_says_so(database: Database, redis_url: str) -> None:
    lax = Settings(allow_owner=True, embedder="off")
    async with Memory(database.url, broker=redis_url, settings=lax) as memory:
        assert await memory.history(user_id="alice") == []


async def test_migrating_again_changes_no_policy_and_waits_for_nobody(database: Database) -> None:
    reader = await asyncpg.connect(database.url)
    async with reader.transaction():
        await reader.execute("LOCK TABLE aftermind.episodes IN ROW EXCLUSIVE MODE")  # as a store job does
        await asyncio.wait_for(migrate.apply(database.url), 180)
    await reader.close()


async def test_no_role_can_exhaust_the_numbers_of_erasures(database: Database, redis_url: str) -> None:
    largest = 2**63 - 2
    async with Memory(database.app_url, broker=redis_url, settings=Settings(embedder="off")) as memory:
        await memory.remember("I like tea.", user_id="ann")
        connection = await asyncpg.connect(database.app_url)
        with pytest.raises(asyncpg.PostgresError, match="was never given"):
            await connection.fetchval("SELECT aftermind.next_generation($1)", largest)
        last = await connection.fetchval("SELECT aftermind.next_generation(1)")
        await connection.close()
        with redis.Redis.from_url(redis_url) as client:
            client.hset("aftermind:generation", "last", 10**18 - 1)  # more digits are read as no number
        with pytest.raises(errors.GenerationOutOfRange, match="`generation`"):
            await memory.forget(user_id="ann")
        with redis.Redis.from_url(redis_url) as client:
            client.delete("aftermind:generation")

    assert last < 100
    async with Memory(database.app_url, broker=redis_url, settings=Settings(embedder="off")) as memory:
        assert (await memory.forget(user_id="ann")).pending_turns == 1


async def _write_as_another(app: PostgresDatabase) -> None:
    async with app.transaction(namespace="acme") as tx:
        await tx.enter("globex")
        await tx.execute(ADD, {"namespace": "acme"})
