"""Encrypts stored rows during operation: for a namespace's first key and for each new one.

No row is locked: a row is written only if it is unchanged since it was read. A row that another process has written in
between is encrypted by that process with the current key, or by the next pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Row, TextClause, text

from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption import cipher
from aftermind.db.encryption.keyring import Vault
from aftermind.db.postgres_transaction import pg
from aftermind.stores.postgres import encrypted_columns
from aftermind.stores.postgres.owner_term_keys import passage_keys, term_keys
from aftermind.types import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with a sealed column. `row` is what names a row of an owner, and its type. `versioned`: texts change."""

    sealed_column: encrypted_columns.Column
    row: str
    kind: str
    json: bool = False
    versioned: bool = False

    @property
    def name(self) -> str:
        """The table's name."""
        return self.sealed_column.table

    @property
    def column(self) -> str:
        """The sealed column's name."""
        return self.sealed_column.name

    @property
    def written_at(self) -> str:
        """What a text is bound to besides its row: the time of the last write."""
        return "updated_at" if self.versioned else "CAST(NULL AS timestamptz)"

    @property
    def about(self) -> str:
        """The text before the encrypted part, used for search terms."""
        return "subject || ' ' || replace(predicate, '_', ' ') || ' '" if self.name == "facts" else "''"

    @property
    def text(self) -> str:
        """The column as text; a JSON value that is no text is one that is not sealed."""
        return f"{self.column} #>> '{{}}'" if self.json else self.column


TABLES = (
    Table(sealed_column=encrypted_columns.EPISODE_TEXT, row="id", kind="uuid"),
    Table(sealed_column=encrypted_columns.FACT_OBJECT, row="id", kind="uuid"),
    Table(sealed_column=encrypted_columns.CLAIM_OBJECT, row="id", kind="uuid"),
    Table(sealed_column=encrypted_columns.BLOCK_TEXT, row="name", kind="text", versioned=True),
    Table(sealed_column=encrypted_columns.ITEM_CONTENT, row="name", kind="text", versioned=True),
    Table(sealed_column=encrypted_columns.SUMMARY_TEXT, row="session_id", kind="text", versioned=True),
    Table(sealed_column=encrypted_columns.TRAIT_VALUE, row="name", kind="text", json=True, versioned=True),
)


class _Fresh(NamedTuple):
    """A row as it is to be stored; terms of tables that are searched by words."""

    text: str
    terms: str | None = None
    passage_terms: str | None = None


Cursor = tuple[str, str] | None  # user and row that were processed last


def _next(table: Table) -> TextClause:
    """Rows after a place, by the primary key, which holds the namespace's rows together; those not sealed so yet."""
    raw = f"{table.column}::text" if table.json else table.column
    return text(
        f"""
        SELECT user_id, {table.row}::text AS row, {table.about} AS about, {raw} AS stored, {table.text} AS said,
               {table.written_at} AS written_at,
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
    more, same = "", ""
    if table.versioned:  # the text is bound to it: a write of the same text in between counts, too
        same = " AND rows.updated_at = given.written_at"
    if table.json:
        value, there = "CAST(given.fresh AS jsonb)", f"{there}::text"
    if table.name in ("episodes", "facts"):
        more = ", terms = CAST(given.terms AS bigint[])"
    if table.name == "episodes":
        more += ", passage_terms = CAST(given.passage_terms AS bigint[])"
    return text(
        f"""
        UPDATE aftermind.{table.name} AS rows SET {table.column} = {value}{more}
        FROM unnest(CAST(:users AS text[]), CAST(:rows AS {table.kind}[]), CAST(:stored AS text[]),
                    CAST(:fresh AS text[]), CAST(:terms AS text[]), CAST(:passage_terms AS text[]),
                    CAST(:written_at AS timestamptz[]))
             AS given (user_id, row, stored, fresh, terms, passage_terms, written_at)
        WHERE rows.namespace = :namespace AND rows.user_id = given.user_id AND rows.{table.row} = given.row
          AND {there} = given.stored{same}
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
    """Encrypt the next rows with the current key: number of stale rows, number of written rows, next position.

    The last is None at the end of the table.
    """
    ring = await vault.ring(tx, namespace)
    prefix = cipher.key_prefix(ring.current or "")
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
            fresh=[each.text for each in fresh],
            terms=[each.terms for each in fresh],
            passage_terms=[each.passage_terms for each in fresh],
            written_at=[each.written_at for each in stale],
        )
    last = (rows[-1].user_id, rows[-1].row) if len(rows) == limit else None
    return len(stale), written, last


async def sealed_with(tx: Transaction, namespace: str, key_id: str) -> int:
    """How many rows are sealed with a key."""
    count = 0
    for table in TABLES:
        row = await pg(tx).row(_LEFT[table.name], namespace=namespace, prefix=cipher.key_prefix(key_id))
        count += 0 if row is None else int(row.rows)
    return count


def _fresh(
    vault: Vault, ring: Any, namespace: str, table: Table, row: Row[Any], language: str
) -> _Fresh:  # Any: `Ring`, and a row of `_NEXT`
    owner = Scope(namespace=namespace, user_id=row.user_id or None)
    where = table.sealed_column.place(owner, row.row, row.written_at)
    if table.json:
        is_sealed = row.said is not None and cipher.is_sealed(row.said)
        is_escaped = row.said is not None and row.said.startswith(cipher.ESCAPED)
        if is_sealed or ring.is_settled:
            said = encrypted_columns.opened(ring, row.said or "", where)
        else:
            said = orjson.dumps(cipher.unsealed(row.said)).decode() if is_escaped else row.stored
        return _Fresh(orjson.dumps(encrypted_columns.sealed(ring, said, where)).decode())
    said = encrypted_columns.opened(ring, row.said, where)
    terms = passages = None
    if table.name in ("episodes", "facts"):
        keys = term_keys(owner, row.about + said, language, key=ring.terms or b"")
        terms = "{" + ",".join(map(str, keys)) + "}"
    if table.name == "episodes":
        passages = passage_keys(owner, said, language, key=ring.terms or b"")
    return _Fresh(encrypted_columns.sealed(ring, said, where), terms, passages)
