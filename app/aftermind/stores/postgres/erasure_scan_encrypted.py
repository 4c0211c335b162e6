"""Searches encrypted content for texts: a search by SQL compares ciphertext, and finds nothing."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Row, TextClause, text

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption import cipher
from aftermind.db.encryption.keyring import Vault
from aftermind.db.postgres_transaction import pg
from aftermind.stores.postgres import encrypted_columns
from aftermind.stores.postgres.reencrypt import TABLES, Table
from aftermind.types import Scope

PAGE_ROWS = 1_000


class EncryptedRowSearch:
    """Opens the sealed rows of every namespace that the connection sees, with the keys that this process has."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._tables = {table.name: table for table in TABLES}

    async def count_matches(
        self, tx: Transaction, table: str, forms: Sequence[str], *, seen: str, given: Mapping[str, Any]
    ) -> tuple[int, str]:
        """Number of encrypted rows with one of the forms, and the reason if some could not be searched.

        `seen` is a condition on the row `t`, with the parameters `given`, for rows that were found already. Raises
        `StoreUnavailable`.
        """
        if table not in self._tables or not forms:
            return 0, ""
        found, unopened, why = 0, 0, ""
        last: dict[str, str | None] = {"space": None, "whose": None, "last": None}
        statement = _rows(self._tables[table], seen)
        while rows := await pg(tx).rows(statement, **given, **last, sealed=cipher.SEALED, limit=PAGE_ROWS):
            for namespace, group in groupby(rows, lambda row: row.namespace):
                held = list(group)
                said = await self._opened(tx, namespace, table, held)
                found += sum(isinstance(each, str) and any(form in each for form in forms) for each in said)
                refused = [each for each in said if isinstance(each, errors.AftermindError)]
                unopened, why = unopened + len(refused), why or "".join(map(str, refused[:1]))
            last = {"space": rows[-1].namespace, "whose": rows[-1].user_id, "last": rows[-1].row}
        return found, f"{unopened:,} sealed rows were not opened: {why}" if unopened else ""

    async def _opened(
        self, tx: Transaction, namespace: str, table: str, rows: Sequence[Row[Any]]
    ) -> list[str | errors.AftermindError]:  # Any: rows of `_rows`
        """Each row's text, or why it could not be opened."""
        try:
            ring = await self._vault.opening(tx, namespace, [row.said for row in rows])
            if ring is None:
                raise errors.Bug("rows that are sealed were chosen, and none of them is.")
        except errors.KeyMissing as exc:
            return [exc] * len(rows)
        said: list[str | errors.AftermindError] = []
        for row in rows:
            owner = Scope(namespace=namespace, user_id=row.user_id or None)
            place = self._tables[table].sealed_column.place(owner, row.row, row.written_at)
            try:
                said.append(encrypted_columns.opened(ring, row.said, place))
            except errors.Unreadable as exc:
                said.append(exc)
        return said


def _rows(table: Table, seen: str) -> TextClause:
    """Sealed rows after a place, by the primary key."""
    return text(
        f"""
        SELECT namespace, user_id, {table.row}::text AS row, {table.text} AS said, {table.written_at} AS written_at
        FROM aftermind.{table.name} AS t
        WHERE starts_with({table.text}, :sealed) AND NOT ({seen})
          AND (CAST(:space AS text) IS NULL OR (namespace, user_id, {table.row})
               > (CAST(:space AS text), CAST(:whose AS text), CAST(:last AS {table.kind})))
        ORDER BY namespace, user_id, {table.row} LIMIT :limit
        """
    )
