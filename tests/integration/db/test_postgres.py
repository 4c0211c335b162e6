"""The database underneath: transactions, loops, deadlines, outages, and where the log stands."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import text

from aftermind import errors
from aftermind.db.database_protocol import Watermark
from aftermind.db.engine import PostgresDatabase
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.stores.postgres import PostgresStore
from aftermind.types import Scope
from tests.support.faults import frozen
from tests.support.loop_clock import loop_clock
from tests.support.resource_cleanup import closing
from tests.support.servers import Database, Servers, psql, psql_async, wait_for_output
from tests.support.waiting import wait_until

_USERS = "SELECT coalesce(string_agg(user_id, ',' ORDER BY user_id), '') FROM aftermind.users"
_ADD = text("INSERT INTO aftermind.users (namespace, user_id) VALUES ('default', :user)")
_NAMESPACE = text("SELECT current_setting('aftermind.namespace', true) AS namespace")
_SLEEP = text("SELECT pg_sleep(30)")
_ONE = text("SELECT 1 AS one")
_ELSE = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
_CLOSE_ALL, _OTHERS = f"SELECT pg_terminate_backend(pid) {_ELSE}", f"SELECT count(*) {_ELSE}"


@pytest.fixture
async def db(database: Database) -> AsyncIterator[PostgresDatabase]:
    """A database of the test's own."""
    opened = PostgresDatabase(database.url, timeout_seconds=2.0)
    yield opened
    await opened.close()


async def _users(database: Database) -> str:
    return await psql_async(database.url, _USERS)


async def test_what_waits_for_the_commit_runs_after_it_in_order(db: PostgresDatabase, database: Database) -> None:
    seen: list[str] = []

    def look() -> None:
        with ThreadPoolExecutor(1) as elsewhere:
            seen.append(f"first, with {elsewhere.submit(psql, database.url, _USERS).result()}")

    async with db.transaction() as tx:
        tx.after_commit.append(look)
        tx.after_commit.append(lambda: seen.append("second"))
        await tx.execute(_ADD, {"user": "alice"})
        assert seen == []

    assert seen == ["first, with alice", "second"]


async def test_what_waits_for_a_commit_that_does_not_come_never_runs(db: PostgresDatabase, database: Database) -> None:
    seen: list[str] = []

    async def fail() -> None:
        async with db.transaction() as tx:
            tx.after_commit.append(lambda: seen.append("ran"))
            await tx.execute(_ADD, {"user": "alice"})
            raise KeyError("on purpose")

    with pytest.raises(KeyError):
        await fail()

    assert seen == []
    assert await _users(database) == ""


async def test_a_namespace_is_named_for_one_transaction_alone(database: Database) -> None:
    async with closing(PostgresDatabase(database.url, pool_size=1)) as db:
        async with db.transaction(namespace="tenant") as tx:
            named = await tx.row(_NAMESPACE)

        async with db.transaction() as tx:
            later = await tx.row(_NAMESPACE)

    assert named is not None
    assert named.namespace == "tenant"
    assert later is not None
    assert later.namespace in (None, "")


async def test_several_loops_in_several_threads_use_one_database_at_once(database: Database) -> None:
    db = PostgresDatabase(database.url)
    all_done = threading.Barrier(5)

    async def work(name: str) -> None:
        for turn in range(5):
            async with db.transaction() as tx:
                await tx.execute(_ADD, {"user": f"{name}-{turn}"})
        await asyncio.to_thread(all_done.wait, 30)
        await db.close()

    threads = [threading.Thread(target=lambda n=n: asyncio.run(work(f"t{n}"))) for n in range(4)]
    for thread in threads:
        thread.start()
    await work("here")
    for thread in threads:
        await asyncio.to_thread(thread.join)

    assert await psql_async(database.url, "SELECT count(*) FROM aftermind.users") == "25"


async def test_a_statement_that_takes_too_long_is_cut_off_and_the_pool_stays_whole(db: PostgresDatabase) -> None:
    async def sleep() -> None:
        async with db.transaction(timeout=0.2) as tx:
            await tx.execute(_SLEEP)

    async with loop_clock() as clock:
        for _ in range(12):
            with pytest.raises(errors.StoreUnavailable, match=r"timeout|in time"):
                await sleep()

    assert clock.seconds < 12 * 0.6
    async with db.transaction() as tx:
        assert await tx.row(_ONE) is not None


async def test_a_cancelled_task_leaves_no_half_effect_and_no_broken_connection(
    db: PostgresDatabase, database: Database
) -> None:
    async def work() -> None:
        async with db.transaction() as tx:
            await tx.execute(_ADD, {"user": "alice"})
            await tx.execute(_SLEEP)

    task = asyncio.create_task(work())

    async def is_running() -> bool:
        return "pg_sleep" in await _running(database)

    await wait_until(is_running, description="the statement runs")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async with db.transaction() as tx:
        assert await tx.row(_ONE) is not None
    assert await _users(database) == ""


async def test_a_pool_whose_connections_are_all_in_use_says_so(database: Database) -> None:
    async with closing(PostgresDatabase(database.url, pool_size=1, timeout_seconds=0.3)) as db, db.transaction() as tx:
        await tx.execute(_ONE)
        with pytest.raises(errors.StoreUnavailable, match="in use"):
            async with db.transaction():
                pass


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://nobody@127.0.0.1:1/nothing", "127.0.0.1:1/nothing"),
        ("postgresql://nobody@no-such-host.invalid/nothing", "no-such-host"),
    ],
)
async def test_a_server_that_is_not_there_is_unavailable_at_once(url: str, why: str) -> None:
    async with closing(PostgresDatabase(url)) as db, loop_clock() as clock:
        with pytest.raises(errors.StoreUnavailable, match=why):
            async with db.transaction():
                pass

        assert clock.seconds < 3


async def test_a_wrong_password_and_an_unknown_database_are_named(database: Database, servers: Servers) -> None:
    for url, why in (
        (
            servers.endpoints.postgres_url.replace("aftermind:", "aftermind:x"),
            "password.*Correct the user or.*until it is restarted",
        ),
        (database.url + "_not", "does not exist.*Create the database, or"),
    ):
        async with closing(PostgresDatabase(url)) as db:
            with pytest.raises(errors.StoreUnavailable, match=why) as refused:
                await db.watermark()
            assert "secret" not in str(refused.value)
            assert "Is Postgres running?" not in str(refused.value)


@pytest.mark.parametrize("url", ["mysql://x/y", "nothing", ""])
def test_an_address_of_something_else_is_refused_when_it_is_given(url: str) -> None:
    with pytest.raises(errors.InvalidSettings, match="postgresql://"):
        PostgresDatabase(url)


async def test_no_address_is_shown_with_its_password(database: Database) -> None:
    shown = repr(PostgresDatabase("postgresql://alice:secret@example.org:6000/app"))

    assert "secret" not in shown
    assert "example.org:6000/app" in shown


async def test_a_frozen_server_costs_a_deadline_and_a_thawed_one_serves(
    own_servers: Callable[..., Servers],
) -> None:
    servers = own_servers(replica=False)
    async with closing(
        PostgresDatabase(servers.endpoints.postgres_url, timeout_seconds=0.5, connect_timeout_seconds=0.5)
    ) as db:
        async with db.transaction(read_only=True) as tx:
            await tx.execute(_ONE)

        async def ask() -> None:
            async with db.transaction(read_only=True) as tx:
                await tx.execute(_ONE)

        with frozen(servers.pid("postgres")):
            async with loop_clock() as clock:
                for _ in range(3):
                    with pytest.raises(errors.StoreUnavailable):
                        await ask()
            assert clock.seconds < 6

        await ask()


async def test_connections_that_the_server_closed_fail_nothing_that_begins_after_it(
    db: PostgresDatabase, database: Database
) -> None:
    await asyncio.gather(*(db.watermark() for _ in range(5)))

    await psql_async(database.admin_url, _CLOSE_ALL)
    await wait_until(partial(_is_alone, database), description="the server closed them")
    marks = await asyncio.gather(*(db.watermark() for _ in range(5)))

    assert len(marks) == 5


async def test_a_watermark_grows_with_commits_and_the_replica_reaches_it(
    db: PostgresDatabase, database: Database
) -> None:
    before = await db.watermark()
    async with db.transaction() as tx:
        await tx.execute(_ADD, {"user": "alice"})
    after = await db.watermark()

    assert (after.system, after.timeline) == (before.system, before.timeline)
    assert after.lsn > before.lsn
    assert Watermark.decode(after.encode()) == after
    await wait_for_output(
        database.replica_urls[0],
        f"SELECT pg_last_wal_replay_lsn() - '0/0' >= {after.lsn}",
        "t",
        description="the idle replica has replayed up to the watermark",
    )
    assert await psql_async(database.replica_urls[0], "SELECT user_id FROM aftermind.users") == "alice"


async def test_a_replica_has_no_watermark_and_takes_no_writes(database: Database) -> None:
    async with closing(PostgresDatabase(database.replica_urls[0])) as replica:
        with pytest.raises(errors.StoreUnavailable, match="recovery"):
            await replica.watermark()
        with pytest.raises(errors.StoreUnavailable, match="read-only"):
            async with replica.transaction() as tx:
                await tx.execute(_ADD, {"user": "alice"})


async def test_a_store_given_a_transaction_of_another_database_says_so() -> None:
    async with MemoryDatabase().transaction() as tx:
        with pytest.raises(errors.Bug, match="another database"):
            await PostgresStore().tombstones(tx, [Scope(user_id="alice")])


async def _is_alone(database: Database) -> bool:
    return await psql_async(database.admin_url, _OTHERS) == "0"


async def _running(database: Database) -> str:
    return await psql_async(
        database.url,
        "SELECT coalesce(string_agg(query, ' '), '') FROM pg_stat_activity "
        "WHERE state = 'active' AND pid <> pg_backend_pid()",
    )
