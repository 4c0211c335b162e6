"""Rows as a journal writes them: a table declares the types of its keys and rows, and both become JSON."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from aftermind import errors

# Any in this module: the module that owns a table defines the types of its keys and rows
Owner = tuple[str, str]  # namespace and `Scope.user_column`
DELETED: Final = object()  # in place of a row
Changes = dict[Owner, dict[tuple[str, Any], Any]]  # by owner, then by table and key: the row, or DELETED

OWNER: TypeAdapter[Owner] = TypeAdapter(Owner)  # reads the name of a partition, see `dump_owner`


@dataclass(frozen=True)
class Table:
    """The types of a table's keys and rows. `to_json` and `from_json` replace a type that pydantic cannot read back."""

    key: Any
    row: Any
    to_json: Callable[[Any], Any] | None = None
    from_json: Callable[[Any], Any] | None = None

    @cached_property
    def keys(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.key)

    @cached_property
    def rows(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.row)

    def dump(self, row: Any) -> bytes:
        """A row as JSON."""
        return self.rows.dump_json(row if self.to_json is None else self.to_json(row))

    def load(self, row: bytes) -> Any:
        """The reverse of `dump`."""
        found = self.rows.validate_json(row)
        return found if self.from_json is None else self.from_json(found)


class RowCodec:
    """Converts the rows of all tables. A table that is not declared is a mistake of the calling code."""

    def __init__(self, *tables: Mapping[str, Table]) -> None:
        self._tables = {name: table for group in tables for name, table in group.items()}

    def dump(self, table: str, key: Any, row: Any) -> tuple[str, bytes | None]:
        """Key and row as JSON; None for a deleted row."""
        known = self._table(table)
        return known.keys.dump_json(key).decode(), None if row is DELETED else known.dump(row)

    def load(self, store: str, table: str, key: str, row: bytes | None) -> tuple[Any, Any]:
        """Key and row; DELETED for None. Raises `StoreDamaged` if they cannot be read."""
        known = self._table(table)
        try:
            return known.keys.validate_json(key), DELETED if row is None else known.load(row)
        except (ValidationError, ValueError, errors.InvalidInput) as exc:
            what = exc.errors()[0]["msg"] if isinstance(exc, ValidationError) else str(exc)
            raise errors.StoreDamaged(store, f"row {key} of {table} cannot be read: {what}") from exc

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            raise errors.Bug(f"the table {name!r} is not declared, so its rows cannot be written.")
        return self._tables[name]


def dump_owner(owner: Owner) -> str:
    """An owner as the name of a partition."""
    return OWNER.dump_json(owner).decode()


SHARED: Owner = ("", "")  # the partition of what belongs to no owner; a namespace is never empty
SHARED_NAME = dump_owner(SHARED)
