"""Search every column of every table, and every replica, for content that must not remain."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import TextClause, text

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.engine import PostgresDatabase
from aftermind.db.postgres_transaction import PgTransaction
from aftermind.db.tables import JOBS, SCHEMA
from aftermind.types import Scope, Watermark
from aftermind.types.erasure_report import SearchedPlace

CATCH_UP_SECONDS = 10.0  # a replica that is further behind is reported, not waited for
POLL_INTERVAL_SECONDS = 0.05

# Data of a forgotten user that remains on purpose: ids, times and counts, no content.
KEPT_TABLES = {
    "jobs": "ids and times of forgotten jobs, without payload, answer and error",
    "users": "that there was such a user, and how often it was forgotten",
    "tombstones": "they keep out what arrives late",
    "spending": "what models have cost",
    "audit_log": "the audit trail, which has ids only",
    "undelivered_watermarks": "ids alone, until Redis has been informed",
    "event_counters": "numbers of events are not given twice",
}

# Everything that can hold text. A vector or a number cannot; rows that hold those are counted by their owner.
_COLUMNS = text(
    """
    SELECT c.relname AS table, a.attname AS column, format_type(a.atttypid, NULL) AS type,
           c.relrowsecurity AND NOT pg_has_role(c.relowner, 'MEMBER') AS is_bound
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = CAST(:schema AS regnamespace) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    ORDER BY c.relname, a.attnum
    """
)
_TEXTUAL = re.compile(r"(text|character varying|character|jsonb?|uuid|tsvector|xml)(\[\])?$")
_REPLAYED = text("SELECT (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint >= :lsn AS is_there")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    name: str
    columns: Sequence[tuple[str, str]]  # name and type
    is_bound: bool  # by row-level security: only rows of the tenant are seen

    def has(self, *names: str) -> bool:
        return set(names) <= {name for name, _ in self.columns}


class Opener(Protocol):
    """Decrypts content that a search by SQL cannot read."""

    async def count_matches(
        self, tx: Transaction, table: str, forms: Sequence[str], *, seen: str, given: Mapping[str, Any]
    ) -> tuple[int, str]:
        """How many sealed rows hold one of the forms, but for those `seen` already; and why some were not opened."""


async def in_tables(
    database: PostgresDatabase, owner: Scope, texts: Sequence[str], *, opener: Opener
) -> list[SearchedPlace]:
    """A place for each table. Raises `StoreUnavailable`."""
    async with database.transaction(namespace=owner.namespace, read_only=True) as tx:
        return [await _scan_table(tx, table, owner, texts, opener) for table in await _tables(tx)]


async def on_replica(
    database: PostgresDatabase, owner: Scope, texts: Sequence[str], *, after: Watermark | None, opener: Opener
) -> SearchedPlace:
    """One place for the whole replica, once it has passed the mark."""
    name = f"replica {database.name}"
    try:
        if after is not None and not await _caught_up(database, after):
            return SearchedPlace(name=name, missing=f"it is more than {CATCH_UP_SECONDS:g} s behind the primary")
        tables = await in_tables(database, owner, texts, opener=opener)
    except errors.StoreUnavailable as exc:
        return SearchedPlace(name=name, missing=str(exc))
    return SearchedPlace(
        name=name,
        examined=f"{sum(not table.missing for table in tables)} tables",
        found=sum(table.found for table in tables),
        owned=sum(table.owned for table in tables),
        kept="" if any(table.owned and not table.kept for table in tables) else "as on the primary",
        # Without tables that only the owner can read: those are searched on the primary, and replicas are read as
        # tenants read them.
        missing=next((table.missing for table in tables if table.examined and table.missing), ""),
    )


async def _tables(tx: PgTransaction) -> list[_Table]:
    found: dict[str, list[tuple[str, str]]] = {}
    bound: dict[str, bool] = {}
    for row in await tx.rows(_COLUMNS, schema=SCHEMA):
        found.setdefault(row.table, []).append((row.column, row.type))
        bound[row.table] = row.is_bound
    return [_Table(name=name, columns=columns, is_bound=bound[name]) for name, columns in found.items()]


async def _scan_table(
    tx: PgTransaction, table: _Table, owner: Scope, texts: Sequence[str], opener: Opener
) -> SearchedPlace:
    name = f"table {table.name}"
    if table.is_bound and not table.has("namespace"):
        return SearchedPlace(name=name, missing="only the owner of the tables sees it: set AFTERMIND_MIGRATOR_URL")
    forms = _forms(texts)
    patterns = _patterns(forms)
    row = await tx.row(_statement(table), **patterns, namespace=owner.namespace, user=owner.user_column)
    if row is None:
        raise errors.Bug(f"a count of {table.name} gave no row.")
    rows = f"{row.rows:,} {'rows of the tenant' if table.is_bound else 'rows'}"
    sealed, missing = await opener.count_matches(tx, table.name, forms, seen=_holds(table), given=patterns)
    kept = "" if row.unforgotten else KEPT_TABLES.get(table.name, "")
    return SearchedPlace(
        name=name, examined=rows, found=row.found + sealed, owned=row.owned, kept=kept, missing=missing
    )


def _holds(table: _Table) -> str:
    """Whether the row `t` holds one of `:patterns`, or of `:digits` in its bytes. Names come from the catalogue."""
    textual = [f"t.{_quoted(name)}::text" for name, kind in table.columns if _TEXTUAL.match(kind)]
    binary = [f"encode(t.{_quoted(name)}, 'hex')" for name, kind in table.columns if kind == "bytea"]
    conditions = [
        f"concat_ws(' ', {', '.join(columns)}) LIKE ANY(CAST(:{given} AS text[]))"
        for given, columns in (("patterns", textual), ("digits", binary))
        if columns
    ]
    given = "CAST(:patterns AS text[]) IS NOT NULL AND CAST(:digits AS text[]) IS NOT NULL"  # both are always named
    return f"coalesce(({' OR '.join(conditions) or 'false'}) AND {given}, false)"


def _statement(table: _Table) -> TextClause:
    """One pass over the table."""
    owned = "t.namespace = :namespace AND t.user_id = :user" if table.has("namespace", "user_id") else "false"
    unforgotten = f"{owned} AND t.state <> 'forgotten'" if table.name == JOBS.name else "false"
    return text(
        f"""
        SELECT count(*) AS rows, count(*) FILTER (WHERE {_holds(table)}) AS found,
               count(*) FILTER (WHERE {owned}) AS owned, count(*) FILTER (WHERE {unforgotten}) AS unforgotten
        FROM {SCHEMA}.{_quoted(table.name)} AS t
        WHERE CAST(:namespace AS text) IS NOT NULL AND CAST(:user AS text) IS NOT NULL
        """
    )


def _forms(texts: Sequence[str]) -> list[str]:
    return sorted({form for each in texts for form in (each, json.dumps(each, ensure_ascii=False)[1:-1])})  # as in JSON


def _patterns(forms: Sequence[str]) -> dict[str, Any]:  # Any: parameters
    return {
        "patterns": ["%" + re.sub(r"([\\%_])", r"\\\1", form) + "%" for form in forms],
        "digits": [f"%{form.encode().hex()}%" for form in forms],
    }


async def _caught_up(replica: PostgresDatabase, mark: Watermark) -> bool:
    try:
        async with asyncio.timeout(CATCH_UP_SECONDS):
            while True:
                async with replica.transaction(read_only=True) as tx:
                    row = await tx.row(_REPLAYED, lsn=mark.lsn)
                if row is not None and row.is_there:
                    return True
                await asyncio.sleep(POLL_INTERVAL_SECONDS)
    except TimeoutError:
        return False


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
