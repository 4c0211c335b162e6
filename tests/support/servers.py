"""The servers of the test suite: a primary, a streaming replica and a Valkey, run by the embedded stack's own code.

Every xdist worker has its own (they start in 1.5 s; sharing them would need locks and share their faults too).
A test gets its own database, copied from a migrated template or emptied after another test, and an emptied Redis.
"""

import asyncio
import os
import secrets
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
import redis

from aftermind.db import migrate as schema
from aftermind.errors import StackError
from aftermind.stack import Endpoints, Stack, binaries
from tests.support import database_reuse
from tests.support.psql_session import PsqlSession
from tests.support.waiting import PATIENCE_SECONDS, wait_until

TEMPLATE = "aftermind_template"
# What is committed need not survive a power cut of the test machine, and the hash of a password need not resist
# attacks: 4096 iterations take each psql 8 ms of CPU time. Everything else is as users have it.
FAST: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "scram_iterations": "1",
    "shared_buffers": "64MB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A migrated, empty database of one test, on the primary and its replica."""

    name: str
    url: str = field(repr=False)  # as the owner
    app_url: str = field(repr=False)  # as agents connect
    relay_url: str = field(repr=False)  # as workers connect
    replica_urls: tuple[str, ...] = field(repr=False)  # as the owner
    app_replica_urls: tuple[str, ...] = field(repr=False)
    admin_url: str = field(repr=False)  # as superuser
    replica_admin_urls: tuple[str, ...] = field(repr=False)


class Servers:
    """A running stack with what tests need of it."""

    def __init__(self, stack: Stack, endpoints: Endpoints) -> None:
        self.stack = stack
        self.endpoints = endpoints
        self._emptied: list[Database] = []
        self._sessions: dict[str, PsqlSession] = {}

    @property
    def redis_url(self) -> str:
        """The Redis, database 0."""
        return self.endpoints.redis_url

    def make_template(self) -> None:
        """Migrate a database once, for every test's own to be copied from."""
        psql(self.endpoints.admin_url, f"CREATE DATABASE {TEMPLATE} OWNER aftermind")
        template = self._database(TEMPLATE)
        migrate(template.url)
        psql(template.admin_url, *database_reuse.REMEMBER)

    def create_database(self) -> Database:
        """A migrated, empty database, there on the replica too."""
        if self._emptied:
            return self._emptied.pop()
        name = f"test_{secrets.token_hex(6)}"
        create = f"CREATE DATABASE {name} TEMPLATE {TEMPLATE} OWNER aftermind"
        lsn = self._psql(self.endpoints.admin_url, create, "SELECT pg_current_wal_flush_lsn()")
        for url in self.endpoints.replica_urls:
            self._psql(url, database_reuse.FOLLOW.format(lsn=lsn))
        return self._database(name)

    def drop_database(self, database: Database) -> None:
        """Take a test's database back, whoever is still connected: emptied for the next, if its schema is as it was."""
        try:
            is_pristine, lsn = database_reuse.answer_of(self._psql(database.admin_url, *database_reuse.EMPTY))
            for url in database.replica_admin_urls:
                self._psql(url, database_reuse.DISCONNECT, database_reuse.FOLLOW.format(lsn=lsn))
        except AssertionError:  # the schema is not even there
            is_pristine = False
        if is_pristine:
            self._emptied.append(database)
        else:
            for url in (database.admin_url, *database.replica_admin_urls):
                self._sessions.pop(url, PsqlSession(url)).end()
            self._psql(self.endpoints.admin_url, f"DROP DATABASE IF EXISTS {database.name} WITH (FORCE)")

    def empty_redis(self) -> None:
        """Forget every key of every Redis database."""
        with redis.Redis.from_url(self.redis_url) as client:
            client.flushall()

    def destroy(self) -> None:
        """End everything and delete its folder."""
        for session in self._sessions.values():
            session.end()
        self.stack.destroy()

    def pid(self, component: str) -> int:
        """The process of a component: `postgres`, `postgres-replica`, `redis`, or a command by its name."""
        found = next(each.pid for each in self.stack.status() if each.name == component)
        assert found is not None, f"{component} does not run"
        return found

    def _psql(self, url: str, *statements: str) -> str:
        return self._sessions.setdefault(url, PsqlSession(url)).run(*statements)

    def _database(self, name: str) -> Database:
        at = self.endpoints
        return Database(
            name=name,
            url=_with_database(at.postgres_url, name),
            app_url=_with_database(at.app_url, name),
            relay_url=_with_database(at.relay_url, name),
            replica_urls=tuple(_as(at.postgres_url, _with_database(url, name)) for url in at.replica_urls),
            app_replica_urls=tuple(_with_database(url, name) for url in at.replica_urls),
            admin_url=_with_database(at.admin_url, name),
            replica_admin_urls=tuple(_with_database(url, name) for url in at.replica_admin_urls),
        )


def start(state_dir: Path, *, replica: bool = True, settings: Mapping[str, str] = FAST) -> Servers:
    """Bring servers up in a folder. Where they cannot run: an error under CI, a skip with the reason elsewhere."""
    stack = Stack(state_dir, replica=replica, postgres_settings=settings)
    try:
        servers = Servers(stack, stack.up())
    except StackError as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the servers do not start here: {exc}")
    superuser = urlsplit(servers.endpoints.admin_url)
    rehash = f"ALTER ROLE {superuser.username} PASSWORD '{superuser.password}'"  # initdb had no setting
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(psql, superuser.geturl(), rehash).result()
    return servers


def migrate(url: str) -> None:
    """Bring a database to the current schema; also from within a running event loop."""
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(lambda: asyncio.run(schema.apply(url))).result()


def psql(url: str, *statements: str) -> str:
    """Run statements by the wheel's psql, each in its own transaction; returns the bare output.

    Refused on an event loop, where a task that is suspended in a transaction could hold the row that this waits for.
    """
    assert asyncio._get_running_loop() is None, "on an event loop: await psql_async(...)"
    argv = [str(binaries.postgres_bin() / "psql"), url, "-XAtq", "-v", "ON_ERROR_STOP=1"]
    commands = chain.from_iterable(("-c", statement) for statement in statements)
    done = subprocess.run([*argv, *commands], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def psql_async(url: str, *statements: str) -> str:
    """The same in a thread, while the event loop runs on."""
    return await asyncio.to_thread(psql, url, *statements)


async def wait_for_output(
    url: str, query: str, expected: str, *, timeout: float = PATIENCE_SECONDS, description: str
) -> None:
    """Wait until a query of the wheel's psql returns this."""

    async def is_there() -> bool:
        return await psql_async(url, query) == expected

    await wait_until(is_there, timeout=timeout, description=description)


def _as(one: str, other: str) -> str:
    """The place of `other`, with the login of `one`."""
    login, _, _ = urlsplit(one).netloc.rpartition("@")
    _, _, place = urlsplit(other).netloc.rpartition("@")
    return urlunsplit(urlsplit(other)._replace(netloc=f"{login}@{place}"))


def _with_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
