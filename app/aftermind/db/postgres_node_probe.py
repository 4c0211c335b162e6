"""Probes of a Postgres node: its role, its position, and whether its clock agrees with this host's."""

import time
from dataclasses import dataclass

from aftermind.db import row_level_security
from aftermind.db.error_mapping import translated
from aftermind.db.postgres_url import redact
from aftermind.db.primary_connection import connect, connect_to_host

CONNECT_SECONDS = 5.0

# How late a replica is, in seconds: 0 while it streams and has replayed all it received, however long ago the last
# commit was. NULL if it has replayed none, and on a primary.
LAG_SECONDS = """
CASE WHEN EXISTS (SELECT FROM pg_stat_wal_receiver WHERE pid IS NOT NULL)
      AND pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn() THEN 0
     ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END::float8
"""

# Every role may execute pg_control_system.
_LOOK = f"""
SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS in_recovery,
       (SELECT system_identifier FROM pg_control_system()) AS system,
       (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END
        - '0/0'::pg_lsn)::bigint AS lsn,
       coalesce({LAG_SECONDS}, CASE WHEN pg_is_in_recovery() THEN 'infinity'::float8 ELSE 0 END) AS lag_seconds,
       extract(epoch FROM clock_timestamp())::float8 AS clock,
       current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') AS synchronous_standby_names,
       current_setting('wal_compression') AS wal_compression
"""


_OPEN_TABLES = """
SELECT relname AS name FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname = 'aftermind' AND relkind IN ('r', 'p') AND NOT (relrowsecurity AND relforcerowsecurity)
  AND relname <> ALL($1::text[]) ORDER BY 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """State of a node. `lsn` is in bytes: written on a primary, replayed on a replica. `timeline` is set for the
    primary among several hosts.
    """

    name: str
    version: str
    in_recovery: bool
    system: int
    timeline: int | None
    lsn: int
    lag_seconds: float
    clock_ahead_seconds: float
    round_trip_ms: float
    fsync: str
    synchronous_commit: str
    synchronous_standby_names: str
    wal_compression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """Row-level security as it applies to a role. `open_tables`: tables of tenants without forced row-level
    security.
    """

    role: str
    is_unbound: bool
    open_tables: tuple[str, ...]


async def isolation(url: str) -> Isolation:
    """Ask how tenants are kept apart from this role. Raises `StoreUnavailable`."""
    with translated("Postgres"):
        connection = await connect(url, timeout=CONNECT_SECONDS, command_timeout=CONNECT_SECONDS)
        try:
            standing = await connection.fetchrow(row_level_security.STANDING)
            tables = await connection.fetch(_OPEN_TABLES, list(row_level_security.SHARED))
        finally:
            await connection.close()
    assert standing is not None
    return Isolation(
        role=standing["role"],
        is_unbound=standing["bypasses"] or standing["owns"],
        open_tables=tuple(row["name"] for row in tables),
    )


async def node(url: str) -> NodeStatus:
    """Connect to the primary of a URL or to its only host, ask once, and leave. Raises `StoreUnavailable`."""
    name = redact(url).partition("/")[0]
    with translated(name):
        connection = await connect(url, timeout=CONNECT_SECONDS, command_timeout=CONNECT_SECONDS)
        try:
            await connection.fetchval("SELECT 1")  # the first statement pays for the connection's warming up
            asked = time.time()
            row = await connection.fetchrow(_LOOK)
            answered = time.time()
        finally:
            await connection.close()
    assert row is not None
    return NodeStatus(
        name=name,
        version=row["version"].split(" ")[0],
        in_recovery=row["in_recovery"],
        system=row["system"],
        timeline=connection.timeline,
        lsn=row["lsn"] or 0,
        lag_seconds=row["lag_seconds"],
        clock_ahead_seconds=row["clock"] - (asked + answered) / 2,
        round_trip_ms=(answered - asked) * 1000,
        fsync=row["fsync"],
        synchronous_commit=row["synchronous_commit"],
        synchronous_standby_names=row["synchronous_standby_names"],
        wal_compression=row["wal_compression"],
    )


async def timeline(url: str, host: str, port: int) -> int | None:
    """The timeline of one host of a URL, None if it is a replica. Raises `StoreUnavailable`."""
    with translated(f"{host}:{port}"):
        connection = await connect_to_host(url, host, port, timeout=CONNECT_SECONDS, command_timeout=CONNECT_SECONDS)
        await connection.close()
    return connection.timeline
