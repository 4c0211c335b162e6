"""`SqlJournal`: rows in a SQL database, for several processes: SQLite, and those with Postgres' `ON CONFLICT`.

Two tables, both with `partition` as the distribution key. The row of the shared partition in `aftermind_versions` is
the state of the store, which each commit compares and replaces. A deleted row has no value until it is purged; `floor`
of a partition is the version of the last purge, so a process that has read an older one reads the partition again.
"""

import os
import sqlite3
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.schema import CreateIndex, CreateTable

from aftermind import errors
from aftermind.db.record_store_journals.protocol import Batch, PartitionChange, Snapshot, StoreState
from aftermind.db.record_store_journals.sql_connections import Connection, Mode, Server, SqliteFile

T = TypeVar("T")
DIALECTS = ("postgresql", "cockroachdb")
KEPT_VERSIONS = 4_096  # for which deleted keys are kept
PLACES = 1 << 20  # rows of a commit

_METADATA = sa.MetaData()
_ROWS = sa.Table(
    "aftermind_rows",
    _METADATA,
    sa.Column("partition", sa.Text, primary_key=True),
    sa.Column("table_name", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.LargeBinary),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("place", sa.BigInteger, nullable=False),  # of its insertion: the order in which rows are loaded
    sa.Index("aftermind_rows_changed", "partition", "version"),
)
_VERSIONS = sa.Table(
    "aftermind_versions",
    _METADATA,
    sa.Column("partition", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("floor", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("holder", sa.Text, nullable=False, server_default=""),
    sa.Column("waiting", sa.Text, nullable=False, server_default=""),
    sa.Index("aftermind_versions_changed", "version"),
)
_R, _V, _IN = _ROWS.c, _VERSIONS.c, sa.bindparam
_EMPTY: sa.ColumnElement[str] = sa.literal_column("''")
_STATE = sa.select(_V.version, _V.holder, _V.waiting, _V.floor).where(_V.partition == _IN("p"))
_SWAP = (
    sa.update(_VERSIONS)
    .where(_V.partition == _IN("p"), _V.version == _IN("was"), _V.holder == _IN("former"))
    .values(
        version=_IN("now"),
        holder=_IN("next"),
        waiting=sa.case((_V.waiting == _IN("next"), _EMPTY), else_=_V.waiting),
    )
    .returning(_V.waiting)
)
_ASK = sa.update(_VERSIONS).where(_V.partition == _IN("p"), _V.waiting == _EMPTY).values(waiting=_IN("name"))
_CHANGED = sa.select(_V.partition, _V.floor).where(_V.version > _IN("since"))
_CHANGES = (
    sa.select(_R.table_name, _R.key, _R.value)
    .where(_R.partition == _IN("p"), _R.version > _IN("since"))
    .order_by(_R.place)
)
_LOAD = (
    sa.select(_R.table_name, _R.key, _R.value).where(_R.partition == _IN("p"), _R.value.is_not(None)).order_by(_R.place)
)
_PURGE = sa.delete(_ROWS).where(_R.partition == _IN("p"), _R.value.is_(None), _R.version <= _IN("until"))
_RAISE_FLOOR = sa.update(_VERSIONS).where(_V.partition == _IN("p")).values(floor=_IN("until"))


_NEW: Any = insert(_ROWS).values(
    {each.name: _IN(each.name) for each in _R}
)  # Any: types of a dialect. SQLite has the same clause
_PUT = _NEW.on_conflict_do_update(
    index_elements=[_R.partition, _R.table_name, _R.key],
    set_={
        "value": _NEW.excluded.value,
        "version": _NEW.excluded.version,
        "place": sa.case((_R.value.is_(None), _NEW.excluded.place), else_=_R.place),  # a deleted row comes last again
    },
)
_NEW_VERSION: Any = insert(_VERSIONS).values(partition=_IN("partition"), version=_IN("version"))
_MARK = _NEW_VERSION.on_conflict_do_update(
    index_elements=[_V.partition], set_={"version": _NEW_VERSION.excluded.version}
)
_BEGIN = _NEW_VERSION.on_conflict_do_nothing()
_TABLES = [CreateTable(each, if_not_exists=True) for each in _METADATA.sorted_tables]
_INDEXES = [CreateIndex(index, if_not_exists=True) for each in _METADATA.sorted_tables for index in each.indexes]


class SqlJournal:
    """See `SharedJournal`. `url` is one of SQLAlchemy; `path` instead is a file of SQLite, which is created."""

    def __init__(self, url: str = "", *, path: Path | None = None, shared: str) -> None:
        self.shared = shared
        self._at: SqliteFile | Server
        if path is not None:
            self.name = f"sqlite:{path}"
            self._at = SqliteFile(self.name, path)
        else:
            parsed = _parse(url)
            self.name = f"sql+{parsed.set(username=None, password=None, query={}).render_as_string()}"
            self._at = Server(self.name, parsed, _METADATA.sorted_tables)
        _journals.add(self)

    def open(self) -> None:
        try:
            with self._errors():
                self._at.open()
                self._create()
        except errors.AftermindError:
            self.close()
            raise

    def state(self) -> StoreState:
        with self._errors():
            version, holder, waiting, _ = self._at.run(self._state, Mode.READ)
        return StoreState(version=version, holder=holder, waiting=waiting)

    def stamp(self) -> object | None:
        with self._errors():
            return self._at.stamp()

    def read(self, since: int, cached: Container[str], wanted: str | None = None) -> Snapshot:
        def work(on: Connection) -> Snapshot:
            version, _, _, floor = self._state(on)
            floors: dict[str, int] = {}
            if version != since:
                floors = dict(tuple(row) for row in on.execute(_CHANGED, {"since": since})) | {self.shared: floor}
            changes = [_changes(on, name, since, at) for name, at in floors.items() if name in cached]
            if wanted is not None:
                changes.append(_changes(on, wanted, -1, 0))
            return Snapshot(version=version, partitions=floors, changes=changes)

        with self._errors():
            return self._at.run(work, Mode.READ)

    def commit(
        self, batch: Batch, expected: StoreState, *, holder: str, erased: Collection[str] = ()
    ) -> StoreState | None:
        version = expected.next(batch, holder).version
        swap = {"p": self.shared, "was": expected.version, "former": expected.holder, "now": version, "next": holder}
        changed = [(name, *place, value) for name, rows in batch.items() for place, value in rows.items()]
        names = ("partition", "table_name", "key", "value", "version", "place")
        rows = [
            dict(zip(names, (*change, version, version * PLACES + number), strict=True))
            for number, change in enumerate(changed)
        ]
        marks = [{"partition": name, "version": version} for name in batch if name != self.shared]

        def work(on: Connection) -> StoreState | None:
            found = on.execute(_SWAP, swap).fetchone()
            if found is None:
                return None
            if rows:
                on.execute(_PUT, rows)
            if marks:
                on.execute(_MARK, marks)
            _purge(on, batch, version, erased)
            return StoreState(version=version, holder=holder, waiting=found[0])

        with self._errors():
            return self._at.run(work, Mode.SYNCED if rows else Mode.UNSYNCED)

    def ask(self, name: str) -> None:
        with self._errors():
            self._at.run(lambda on: on.execute(_ASK, {"p": self.shared, "name": name}), Mode.UNSYNCED)

    def compact(self, partitions: Iterable[str]) -> None:
        with self._errors():
            self._at.compact()

    def close(self) -> None:
        self._at.close()

    def abandon(self) -> None:
        self._at.abandon()

    def _state(self, on: Connection) -> tuple[int, str, str, int]:
        version, holder, waiting, floor = on.execute(_STATE, {"p": self.shared}).fetchone()
        return version, holder, waiting, floor

    def _create(self) -> None:
        def begin(on: Connection) -> bool:
            self._at.check(on)
            for table in _TABLES:
                on.execute(table)
            return on.execute(_STATE, {"p": self.shared}).fetchone() is not None

        def create(work: Callable[[Connection], T]) -> T:
            try:
                return self._at.run(work, Mode.SYNCED)
            except (sa.exc.IntegrityError, sa.exc.ProgrammingError):  # another process creates it at the same time
                return self._at.run(work, Mode.SYNCED)

        if create(begin):
            return
        # One transaction each: an index that exists locks its table, too, and a process that already writes locks both
        # tables in the other order. The row is last: it shows that all is there.
        for index in _INDEXES:
            create(methodcaller("execute", index))
        self._at.run(methodcaller("execute", _BEGIN, {"partition": self.shared, "version": 0}), Mode.SYNCED)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.DBAPIError, sqlite3.Error) as exc:
            error = getattr(exc, "orig", None) or exc
            raise self._translated(error) from exc
        except sa.exc.NoSuchModuleError as exc:
            raise errors.InvalidSettings("url", self.name, f"{exc} Install this driver.") from exc
        except (sa.exc.SQLAlchemyError, OSError, TimeoutError) as exc:
            why = str(exc) or "it does not answer"
            raise errors.StoreUnavailable(self.name, why, "Check the database; the next call tries again.") from exc

    def _translated(self, error: BaseException) -> errors.AftermindError:
        code = getattr(error, "sqlite_errorcode", None)
        primary = None if code is None else code & 0xFF
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return errors.StoreInUse(self.name)
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return errors.StoreDamaged(self.name, str(error))
        if str(getattr(error, "sqlstate", "")).startswith(("28", "3D", "42501")):  # user, database, right
            why = f"the database refuses the user ({error}). Correct user, password, database and rights."
            return errors.InvalidSettings("url", self.name, why)
        hint = _HINTS.get(primary or 0, "Check the database; the next call tries again.")
        return errors.StoreUnavailable(self.name, str(error), hint)


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
        parsed.get_dialect()
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ImportError) as exc:
        why = f"write 'sql+' and a URL of SQLAlchemy: 'sql+postgresql+asyncpg://user:password@host/database' ({exc})."
        raise errors.InvalidSettings("url", f"sql+{url.partition(':')[0]}", why) from exc
    if parsed.get_backend_name() not in DIALECTS:
        why = f"the dialects are {', '.join(DIALECTS)}: it needs their INSERT … ON CONFLICT. SQLite is 'sqlite:FILE'."
        raise errors.InvalidSettings("url", f"sql+{parsed.drivername}", why)
    return parsed


def _changes(on: Connection, name: str, since: int, floor: int) -> PartitionChange:
    is_whole = since < floor or since < 0
    named = {"p": name} if is_whole else {"p": name, "since": since}
    rows = [tuple(row) for row in on.execute(_LOAD if is_whole else _CHANGES, named)]
    return PartitionChange(partition=name, rows=rows, is_whole=is_whole)


def _purge(on: Connection, batch: Batch, version: int, erased: Collection[str]) -> None:
    due = batch if version % KEPT_VERSIONS == 0 else ()
    for name in {*due, *erased}:
        until = {"p": name, "until": version if name in erased else version - KEPT_VERSIONS}
        on.execute(_PURGE, until)
        on.execute(_RAISE_FLOOR, until)


def _abandon_all() -> None:
    for journal in list(_journals):
        journal.abandon()


_journals: WeakSet[SqlJournal] = WeakSet()
os.register_at_fork(after_in_child=_abandon_all)

_HINTS = {
    sqlite3.SQLITE_FULL: "Free space on the disk; the next call tries again.",
    sqlite3.SQLITE_READONLY: "Make the file and its folder writable for this user.",
    sqlite3.SQLITE_CANTOPEN: "Make the file and its folder readable and writable for this user.",
}
