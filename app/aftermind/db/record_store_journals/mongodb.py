"""`MongoJournal`: rows in MongoDB for several processes, one document each. Needs the extra `mongodb`.

It needs no transactions, so no replica set. A commit is one update of the document `state`, which holds the changes.
The process then writes them to the rows; if it ends before, the next commit does so first. Readers put the changes of
the last commit over the rows. A row or partition is only replaced by a later version, so a process that continues after
a long time changes nothing. A deleted row stays without its content for as long as such a process is possible.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import wraps
from time import monotonic, sleep
from typing import Any, Concatenate, ParamSpec, TypeVar

import pymongo
from pymongo import errors as mongo_errors
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from aftermind import errors
from aftermind.db.record_store_journals.protocol import Batch, PartitionChange, Snapshot, StoreState
from aftermind.url_redaction import redact

DATABASE = "aftermind"  # unless the URL names one
TIMEOUT_MS = 5_000
ANSWER_TIMEOUT_MS = 30_000  # of a write of many rows
PART_BYTES = 8 * 2**20  # of a document's 16 MiB
KEPT_VERSIONS = 4_096  # for which deleted rows are kept, so that other processes read the deletion
KEPT_AGE = timedelta(days=1)  # and for which a process may be frozen before it writes the rows of its commit
PLACES = 1 << 20  # of a commit
CONFLICT_SECONDS = 0.003  # between two attempts after a conflict
DUPLICATE, CONFLICT = 11_000, 112  # codes of MongoDB
REFUSED = (13, 18, 8000)  # codes: not authorised, wrong credentials, the same from Atlas
SEPARATOR = "\t"  # between partition, table and key; JSON has no tabs

P = ParamSpec("P")
T = TypeVar("T")
Change = tuple[str, str, str, bytes | None]  # partition, table, key and row
Document = Mapping[str, Any]  # Any: values of MongoDB


def _call(method: Callable[Concatenate["MongoJournal", P], T]) -> Callable[Concatenate["MongoJournal", P], T]:
    """A call that is repeated after a conflict with another process, and whose errors are ours."""

    @wraps(method)
    def call(journal: "MongoJournal", /, *args: P.args, **kwargs: P.kwargs) -> T:
        ends_at = monotonic() + TIMEOUT_MS / 1000
        while True:
            try:
                return method(journal, *args, **kwargs)
            except mongo_errors.PyMongoError as exc:
                if CONFLICT not in _codes(exc) or monotonic() > ends_at:
                    raise journal.error_of(exc) from exc
            sleep(CONFLICT_SECONDS)

    return call


def _codes(exc: mongo_errors.PyMongoError) -> set[int | None]:
    if isinstance(exc, mongo_errors.BulkWriteError):
        return {each["code"] for each in exc.details["writeErrors"]}
    return {exc.code} if isinstance(exc, mongo_errors.OperationFailure) else set()


class MongoJournal:
    """See `SharedJournal`. Collections begin with `aftermind_`. To shard them, use `partition` of `aftermind_rows`."""

    def __init__(self, url: str, *, shared: str) -> None:
        try:
            parsed = (
                parse_uri(url, validate=True, warn=False) if not url.startswith("mongodb+srv:") else {"nodelist": ()}
            )
        except (mongo_errors.PyMongoError, ValueError):
            why = "give it as 'mongodb://user:password@host:27017/database'."
            raise errors.InvalidSettings("url", redact(url), why) from None
        hosts = ",".join(f"{host}:{port}" for host, port in parsed["nodelist"])
        self.name = f"mongodb://{hosts or url.rpartition('@')[2].removeprefix('mongodb+srv://').partition('/')[0]}"
        self.shared = shared
        self._url = url
        self._client: pymongo.MongoClient[dict[str, Any]] | None = None  # Any: documents of MongoDB
        self._pid = 0
        self._writing = threading.Lock()  # from a commit until its rows are written
        self._settled = -1  # the version up to which all rows are known to be written

    def open(self) -> None:
        try:
            self._create()
        except errors.AftermindError:
            self.close()
            raise

    @_call
    def state(self) -> StoreState:
        found = self._state.find_one({"_id": "state"}, {"version": 1, "holder": 1, "waiting": 1})
        return StoreState(version=found["version"], holder=found["holder"], waiting=found["waiting"])

    def stamp(self) -> object | None:
        """None: only a command could show it."""
        return None

    @_call
    def read(self, since: int, cached: Container[str], wanted: str | None = None) -> Snapshot:
        if wanted is None and self.state().version == since:
            return Snapshot(version=since)
        names: set[str] = set()
        rows: dict[str, dict[str, Document]] = {}  # by partition and id
        whole: set[str] = set()
        state = self._find_state()
        version = -1 if since > state["version"] else since  # a server that has lost its last commits
        while True:
            due = self._due(state, version)
            names.update(due)
            if wanted is not None and wanted not in rows:
                due[wanted] = True
            for name, is_whole in due.items():
                if is_whole and (name == wanted or name in cached):
                    rows[name] = self._load(name)
                    whole.add(name)
                elif name == wanted or name in cached:
                    rows.setdefault(name, {}).update(self._load(name, since=version))
            for number, change in enumerate(self._read_commit(state)):
                _apply(rows, change, state["changed_at"], number)
            again = self._find_state()
            if again["changed_at"] == state["changed_at"]:
                break
            # Commits since then are in these rows in part, so the next round reads what is later.
            version, state = state["version"], again
        changes = [
            PartitionChange(partition=name, rows=_ordered(found.values(), whole=name in whole), is_whole=name in whole)
            for name, found in rows.items()
        ]
        return Snapshot(version=again["version"], partitions=names, changes=changes)

    @_call
    def commit(
        self, batch: Batch, expected: StoreState, *, holder: str, erased: Collection[str] = ()
    ) -> StoreState | None:
        version = expected.next(batch, holder).version
        changes = [(name, *place, row) for name, rows in batch.items() for place, row in rows.items()]
        with self._writing:
            if self._settled < expected.version:
                found = self._find_state()
                if (found["version"], found["holder"]) != (expected.version, expected.holder):
                    return None
                self._write_commit(found)
            made = self._stage(changes, version, holder, erased) if batch else {}
            before = self._state.find_one_and_update(
                {"_id": "state", "version": expected.version, "holder": expected.holder},
                {"$set": {"version": version, "holder": holder, **made}},
            )
            if before is None:
                return None
            waiting = before["waiting"]
            if waiting == holder:
                self._state.update_one({"_id": "state", "waiting": holder}, {"$set": {"waiting": ""}})
                waiting = ""
            if batch:
                self._write(changes, version, erased)
                if version % KEPT_VERSIONS == 0:
                    old = {"version": {"$lt": version - KEPT_VERSIONS}, "at": {"$lt": datetime.now(UTC) - KEPT_AGE}}
                    self._rows.delete_many({"row": None, **old})
            self._settled = version
        return StoreState(version=version, holder=holder, waiting=waiting)

    @_call
    def ask(self, name: str) -> None:
        self._state.update_one({"_id": "state", "waiting": ""}, {"$set": {"waiting": name}})

    @_call
    def compact(self, partitions: Iterable[str]) -> None:
        """Forget the last commit, which has erased rows. Files of MongoDB lose their content by its own compaction."""
        with self._writing:
            found = self._find_state()
            self._write_commit(found)
            self._state.update_one({"_id": "state", "changed_at": found["changed_at"]}, {"$set": {"changes": []}})
            self._parts.delete_many({"version": {"$lte": found["changed_at"]}})

    @_call
    def _create(self) -> None:
        self._connect()
        self._rows.create_index([("partition", 1), ("version", 1)])
        with suppress(mongo_errors.DuplicateKeyError):
            self._state.insert_one({"_id": "state", "version": 0, "holder": "", "waiting": "", **_no_changes(0)})
        if "version" not in self._find_state():
            why = "an earlier build wrote it for one process. Name another database."
            raise errors.InvalidSettings("url", self.name, why)

    def error_of(self, exc: mongo_errors.PyMongoError) -> errors.AftermindError:
        """Our error for one of the driver."""
        if not _codes(exc).isdisjoint(REFUSED):
            why = f"MongoDB refuses the user ({exc}). Correct user, password and rights."
            return errors.InvalidSettings("url", self.name, why)
        if isinstance(exc, mongo_errors.ConfigurationError):
            return errors.InvalidSettings("url", self.name, f"{exc}.")
        return errors.StoreUnavailable(self.name, str(exc), "Check MongoDB; the next call tries again.")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connect(self) -> None:
        self._pid = os.getpid()
        self._writing, self._settled = threading.Lock(), -1
        self._client = pymongo.MongoClient(
            self._url,
            serverSelectionTimeoutMS=TIMEOUT_MS,
            connectTimeoutMS=TIMEOUT_MS,
            socketTimeoutMS=ANSWER_TIMEOUT_MS,
        )

    @property
    def _database(self) -> Any:
        if self._client is None:
            raise errors.StoreUnavailable(self.name, "it is closed", "Open the memory again.")
        if self._pid != os.getpid():  # the connections are the parent's
            self._connect()
        database = self._client.get_default_database(DATABASE, read_preference=pymongo.ReadPreference.PRIMARY)
        if not self._client.write_concern.is_server_default:  # the URL names one: `w=1`, `journal=false`
            return database
        return database.with_options(
            read_concern=ReadConcern("majority"), write_concern=WriteConcern("majority", j=True)
        )

    @property
    def _rows(self) -> Any:
        return self._database["aftermind_rows"]

    @property
    def _state(self) -> Any:
        return self._database["aftermind_state"]

    @property
    def _parts(self) -> Any:
        return self._database["aftermind_parts"]

    @property
    def _partitions(self) -> Any:
        return self._database["aftermind_partitions"]

    def _find_state(self) -> Document:
        found: Document = self._state.find_one({"_id": "state"})
        return found

    def _due(self, state: Document, since: int) -> dict[str, bool]:
        """Partitions that were changed after a version: whether all of their rows are to be read."""
        erased_at = {each["_id"]: each["erased_at"] for each in self._partitions.find({"version": {"$gt": since}})}
        if state["changed_at"] > since:  # perhaps not written yet
            erased_at |= {name: -1 for name in state["changed"] if name not in erased_at}
            erased_at |= dict.fromkeys(state["erased"], state["changed_at"])
        floor = max(0, state["version"] - KEPT_VERSIONS)
        return {name: since < max(floor, at) for name, at in erased_at.items()}

    def _load(self, partition: str, *, since: int | None = None) -> dict[str, Document]:
        which = {"row": {"$ne": None}} if since is None else {"version": {"$gt": since}}
        return {each["_id"]: each for each in self._rows.find({"partition": partition, **which})}

    def _is_written(self, state: Document) -> bool:
        """Whether the rows of the last commit are written: the versions of its partitions are written after them."""
        marked = {"_id": {"$in": state["changed"]}, "version": {"$gte": state["changed_at"]}}
        return not state["changed"] or self._partitions.count_documents(marked) == len(state["changed"])

    def _write_commit(self, state: Document) -> None:
        """Write the rows of the last commit, unless they are written."""
        if not self._is_written(state):
            self._write(self._read_commit(state), state["changed_at"], state["erased"])

    def _read_commit(self, state: Document) -> list[Change]:
        """The changes of the last commit; none if they were forgotten, after they were written."""
        parts = [state]
        if state["parts"]:
            named = {"by": state["by"], "version": state["changed_at"]}
            parts = list(self._parts.find(named).sort("number", 1))
            if len(parts) != state["parts"]:
                return []
        return [(name, table, key, row and bytes(row)) for part in parts for name, table, key, row in part["changes"]]

    def _stage(self, changes: Sequence[Change], version: int, holder: str, erased: Collection[str]) -> Document:
        """The fields of the state for a commit. Parts of a large one are ignored until the state names them."""
        parts = _split(changes)
        made = {**_no_changes(version), "by": holder, "changed": list({each[0]: None for each in changes})}
        made["erased"] = list(erased)
        if len(parts) == 1:
            return {**made, "changes": parts[0]}
        self._parts.delete_many({"version": {"$lt": version - 1}})
        for number, part in enumerate(parts):
            place = {"_id": f"{holder}.{version}.{number}", "by": holder, "version": version, "number": number}
            self._parts.replace_one({"_id": place["_id"]}, {**place, "changes": part}, upsert=True)
        return {**made, "parts": len(parts)}

    def _write(self, changes: Sequence[Change], version: int, erased: Collection[str]) -> None:
        """Write the rows of a commit and then the versions of its partitions. Repeating it changes nothing."""
        made: list[dict[str, Any]] = []
        writes: list[Any] = []
        for number, (partition, table, key, row) in enumerate(changes):
            new = _document((partition, table, key, row), version, number)
            if row is None:
                gone = {"row": None, "version": version, "at": datetime.now(UTC)}
                writes.append(pymongo.UpdateOne({"_id": new["_id"], "version": {"$lt": version}}, {"$set": gone}))
            else:
                made.append(new)
        known = {each["_id"]: each for each in self._insert(made)}
        deleted = {each["_id"] for each in self._rows.find({"_id": {"$in": list(known)}, "row": None}, {"_id": 1})}
        for row_id, each in known.items():
            kept = ("row", "version") if row_id not in deleted else tuple(each)  # a deleted row comes last again
            changed = {name: each[name] for name in kept if name != "_id"}
            writes.append(pymongo.UpdateOne({"_id": row_id, "version": {"$lt": version}}, {"$set": changed}))
        if writes:
            self._rows.bulk_write(writes)
        for name in erased:
            named = {"partition": name, "row": None, "version": {"$lte": version}}
            self._rows.update_many(named, {"$unset": {"partition": "", "table": "", "key": ""}})
        marks = {name: {"version": version, "erased_at": version if name in erased else -1} for name, *_ in changes}
        if marks:
            raises = [pymongo.UpdateOne({"_id": name}, {"$max": mark}, upsert=True) for name, mark in marks.items()]
            self._insert_marks(raises)

    def _insert(self, made: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Insert new rows; returns those that exist."""
        if made:
            try:
                self._rows.insert_many(made, ordered=False)
            except mongo_errors.BulkWriteError as exc:
                return [made[place] for place in _duplicates(exc)]
        return []

    def _insert_marks(self, raises: Sequence[Any]) -> None:
        """Two processes that insert one partition at the same time: one of them repeats it as an update."""
        try:
            self._partitions.bulk_write(raises, ordered=False)
        except mongo_errors.BulkWriteError as exc:
            self._partitions.bulk_write([raises[place] for place in _duplicates(exc)], ordered=False)


def _document(change: Change, version: int, number: int) -> dict[str, Any]:
    """A row as a document. Rows are in the order of `place`, which a row keeps."""
    partition, table, key, row = change
    named = {"_id": _row_id(partition, table, key), "partition": partition, "table": table, "key": key}
    return {**named, "row": row, "version": version, "place": version * PLACES + number}


def _apply(rows: dict[str, dict[str, Document]], change: Change, version: int, number: int) -> None:
    """Put a change of a commit over rows that were read while its process wrote them."""
    if (of_partition := rows.get(change[0])) is None:
        return
    new = _document(change, version, number)
    old = of_partition.get(new["_id"])
    if old is None or old["version"] < version:
        is_known = old is not None and old["row"] is not None
        of_partition[new["_id"]] = {**new, "place": old["place"]} if old is not None and is_known else new


def _no_changes(version: int) -> dict[str, Any]:
    """The fields of the state for a commit without rows."""
    return {"changed_at": version, "changes": [], "changed": [], "erased": [], "parts": 0, "by": ""}


def _row_id(partition: str, table: str, key: str) -> str:
    """The id of a row. It shows nothing of the key, because it outlives an erasure."""
    return hashlib.sha256(SEPARATOR.join((partition, table, key)).encode()).hexdigest()


def _duplicates(exc: mongo_errors.BulkWriteError) -> list[int]:
    """The places of operations that were refused because their documents exist. Raises it for another reason."""
    failed = exc.details["writeErrors"]
    if any(each["code"] != DUPLICATE for each in failed) or exc.details["writeConcernErrors"]:
        raise exc
    return [each["index"] for each in failed]


def _ordered(found: Iterable[Document], *, whole: bool) -> list[tuple[str, str, bytes | None]]:
    """Table, key and row, in the order of insertion; of a whole partition without deleted rows."""
    return [
        (each["table"], each["key"], None if each["row"] is None else bytes(each["row"]))
        for each in sorted(found, key=lambda each: each["place"])
        if "table" in each and not (whole and each["row"] is None)
    ]


def _split(changes: Sequence[Change]) -> list[list[Change]]:
    """Changes in parts that fit into a document; one part at least."""
    parts: list[list[Change]] = [[]]
    size = 0
    for change in changes:
        length = sum(len(each) for each in change if each is not None) + 64
        if parts[-1] and size + length > PART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(change)
        size += length
    return parts
