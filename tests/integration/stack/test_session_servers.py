"""What the rest of the suite builds on: servers, databases and an empty Redis."""

import socket
from collections.abc import Callable

import pytest
import redis

from tests.support import faults
from tests.support.servers import Database, Servers, psql, psql_async
from tests.support.waiting import wait_until_sync


def test_a_row_written_to_the_primary_arrives_on_the_replica(database: Database) -> None:
    psql(database.url, "CREATE TABLE note (text text)", "INSERT INTO note VALUES ('kept')")

    wait_until_sync(
        lambda: psql(database.replica_urls[0], "SELECT to_regclass('note') IS NOT NULL") == "t",
        description="the table is on the replica",
    )
    assert psql(database.replica_urls[0], "SELECT text FROM note") == "kept"


def test_every_new_database_has_pgvector(database: Database) -> None:
    assert psql(database.url, "SELECT '[1,2]'::halfvec(2) <=> '[1,2]'::halfvec(2)") == "0"


def test_the_replica_refuses_writes(database: Database) -> None:
    assert psql(database.replica_urls[0], "SELECT pg_is_in_recovery()") == "t"
    assert psql(database.url, "SELECT pg_is_in_recovery()") == "f"


def test_redis_is_empty_and_keeps_what_it_takes(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        assert client.dbsize() == 0
        settings = client.config_get("append*", "maxmemory-policy")

    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["maxmemory-policy"] == "noeviction"


def test_nobody_gets_in_without_the_password(servers: Servers) -> None:
    with socket.create_connection(("127.0.0.1", _port(servers, "redis"))) as stranger:
        stranger.sendall(b"PING\r\n")
        answer = stranger.recv(100)

    assert answer.startswith(b"-NOAUTH")


def test_a_test_can_have_migrated_servers_of_its_own_to_kill(own_servers: Callable[..., Servers]) -> None:
    own = own_servers(replica=False)
    before = own.pid("redis")

    faults.kill(before)

    wait_until_sync(
        lambda: (
            [each.state for each in own.stack.status() if each.name == "redis" and each.pid != before] == ["running"]
        ),
        description="its Redis was started again",
    )
    assert psql(own.endpoints.postgres_url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'aftermind'") == "1"


def _port(servers: Servers, component: str) -> int:
    port = next(each.port for each in servers.stack.status() if each.name == component)
    assert port is not None
    return port


async def test_a_statement_that_would_block_an_event_loop_is_refused(database: Database) -> None:
    with pytest.raises(AssertionError, match="psql_async"):
        psql(database.url, "SELECT 1")

    assert await psql_async(database.url, "SELECT 1") == "1"
