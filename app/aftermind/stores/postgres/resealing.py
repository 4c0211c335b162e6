"""Seals what is stored, row by row, while it is read and written: for a namespace's first key and for each new one.

No row is locked: a row is written where it is still what was read. One that somebody else has written meanwhile is
sealed by whoever wrote it, with the key that seals now, or by the next pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Row, TextClause, text

from aftermind.db import sealing
from aftermind.db.base import Transaction
from aftermind.db.transaction import pg
from aftermind.db.vault import Vault
from aftermind.stores.postgres import sealed
from aftermind.stores.postgres.terms import term_keys
from aftermind.types import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with a sealed column. `row` is what names a row of an owner, and its type."""

    name: str
    row: str
    kind: str
    column: str
    json: bool = False

    @property
    def about(self) -> str:
        """What stands before the text where words are looked for."""
        return "subject || ' ' || replace(predicate, '_', ' ') || ' '" if self.name == "facts" else "''"

    @property
    def text(self) -> str:
        """The column as text; a JSON value that is no text is one that is not sealed."""
        return f"{self.column} #>> '{{}}'" if self.json else self.column


TABLES = (
    Table(name="episodes", row="id", kind="uuid", column="content"),
    Table(name="facts", row="id", kind="uuid", column="object"),
    Table(name="claims", row="id", kind="uuid", column="object"),
    Table(name="blocks", row="name", kind="text", column="content"),
    Table(name="summaries", row="session_id", kind="text", column="text"),
    Table(name="profile_traits", row="name", kind="text", column="value", json=True),
)
PLACES = {  # what a text of each table is bound to
    "episodes": sealed.place_of_episode,
    "facts": sealed.place_of_fact,
    "claims": sealed.place_of_claim,
    "blocks": sealed.place_of_block,
    "summaries": sealed.place_of_summary,
    "profile_traits": sealed.place_of_trait,
}
Cursor = tuple[str, str] | None  # user and row that were looked at last


def _next(table: Table) -> TextClause:
    """Rows after a place, by the primary key, which holds the namespace's rows together; those not sealed so yet."""
    raw = f"{table.column}::text" if table.json else table.column
    return text(
        f"""
        SELECT user_id, {table.row}::text AS row, {table.about} AS about, {raw} AS stored, {table.text} AS said,
               NOT starts_with({table.text}, :prefix) AS stale
        FROM aftermind.{table.name}
        WHERE namespace = :namespace
          AND (CAST(:user AS text) IS NULL
               OR (user_id, {table.row}) > (CAST(:user AS text), CAST(:row AS {table.kind})))
        ORDER BY user_id, {table.row} LIMIT :limit
        """
    )


def _write(table: Table) -> TextClause:
    value, there = "given.fresh", f"rows.{table.column}"
    more = ""
    if table.json:
        value, there = "CAST(given.fresh AS jsonb)", f"{there}::text"
    if table.name == "episodes":
        more = ", terms = CAST(given.terms AS bigint[])"
    if table.name == "facts":
        more = ", terms = CAST(given.terms AS bigint[]), lexemes = ''"
    return text(
        f"""
        UPDATE aftermind.{table.name} AS rows SET {table.column} = {value}{more}
        FROM unnest(CAST(:users AS text[]), CAST(:rows AS {table.kind}[]), CAST(:stored AS text[]),
                    CAST(:fresh AS text[]), CAST(:terms AS text[])) AS given (user_id, row, stored, fresh, terms)
        WHERE rows.namespace = :namespace AND rows.user_id = given.user_id AND rows.{table.row} = given.row
          AND {there} = given.stored
        """
    )


def _left(table: Table) -> TextClause:
    return text(
        f"""
        SELECT count(*) AS rows FROM aftermind.{table.name}
        WHERE namespace = :namespace AND starts_with({table.text}, :prefix)
        """
    )


_NEXT: Mapping[str, TextClause] = {table.name: _next(table) for table in TABLES}
_WRITE: Mapping[str, TextClause] = {table.name: _write(table) for table in TABLES}
_LEFT: Mapping[str, TextClause] = {table.name: _left(table) for table in TABLES}


async def step(
    tx: Transaction, vault: Vault, namespace: str, table: Table, after: Cursor, *, language: str, limit: int
) -> tuple[int, int, Cursor]:
    """Seal the next rows with the key that seals now: how many were stale, how many were written, where to go on.

    The last is None at the end of the table.
    """
    ring = await vault.ring(tx, namespace)
    prefix = sealing.prefix_of(ring.current or "")
    user, row = after or (None, None)
    given = {"namespace": namespace, "prefix": prefix, "user": user, "row": row, "limit": limit}
    rows = await pg(tx).rows(_NEXT[table.name], **given)
    stale = [each for each in rows if each.stale is not False]  # a JSON value that is no text: neither true nor false
    written = 0
    if stale:
        ring = await vault.opening(tx, namespace, [each.said or "" for each in stale]) or ring
        fresh = [_fresh(vault, ring, namespace, table, each, language) for each in stale]
        written = await pg(tx).count(
            _WRITE[table.name],
            namespace=namespace,
            users=[each.user_id for each in stale],
            rows=[each.row for each in stale],
            stored=[each.stored for each in stale],
            fresh=[text_ for text_, _ in fresh],
            terms=[terms for _, terms in fresh],
        )
    last = (rows[-1].user_id, rows[-1].row) if len(rows) == limit else None
    return len(stale), written, last


async def sealed_with(tx: Transaction, namespace: str, key_id: str) -> int:
    """How many rows are sealed with a key."""
    count = 0
    for table in TABLES:
        row = await pg(tx).row(_LEFT[table.name], namespace=namespace, prefix=sealing.prefix_of(key_id))
        count += 0 if row is None else int(row.rows)
    return count


def _fresh(
    vault: Vault, ring: Any, namespace: str, table: Table, row: Row[Any], language: str
) -> tuple[str, str | None]:  # Any: `Ring`, and a row of `_NEXT`
    owner = Scope(namespace=namespace, user_id=row.user_id or None)
    where = PLACES[table.name](owner, row.row)
    if table.json:
        is_sealed = row.said is not None and sealing.is_sealed(row.said)
        is_escaped = row.said is not None and row.said.startswith(sealing.ESCAPED)
        if is_sealed:
            said = sealed.opened(ring, row.said, where)
        else:
            said = orjson.dumps(sealing.unsealed(row.said)).decode() if is_escaped else row.stored
        return orjson.dumps(sealed.sealed(ring, said, where)).decode(), None
    said = sealed.opened(ring, row.said, where)
    terms = None
    if table.name in ("episodes", "facts"):
        keys = term_keys(owner, row.about + said, language, key=ring.terms or b"")
        terms = "{" + ",".join(map(str, keys)) + "}"
    return sealed.sealed(ring, said, where), terms
