"""`MongoJournal`: rows in MongoDB, one document each. Needs the extra `mongodb`; no transactions, so no replica set.

A commit is one update of the document `state`, which holds the changes; the rows are written after it, and again by the
next opening if the process ends in between. One process at a time: the update names the opening, so a process whose
store another one has opened since cannot commit. Rows that it writes late are recognised: the next opening takes the
last commit over as its own, and voids what the former one writes under its number.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import pymongo
from pymongo import errors as mongo_errors
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from aftermind import errors
from aftermind.db.record_store_journals.protocol import Batch
from aftermind.telemetry.logger import get_logger

log = get_logger(__name__)

DATABASE = "aftermind"  # unless the URL names one
TIMEOUT_MS = 5_000
ANSWER_TIMEOUT_MS = 30_000  # of a write of many rows
PART_BYTES = 8 * 2**20  # of a document's 16 MiB
COMMITS_OF_AN_OPENING = 1 << 40
VOIDED_OPENINGS = 1_000  # remembered: an older process is not there any more
DUPLICATE = 11_000  # a code of MongoDB
REFUSED = (13, 18, 8000)  # codes: not authorised, wrong credentials, the same from Atlas
SEPARATOR = "\t"  # between partition, table and key; JSON has no tabs

Change = tuple[str, str, str, bytes | None]  # partition, table, key and row


class MongoJournal:
    """See `Journal`. Collections begin with `aftermind_`. To shard them, use `partition` of `aftermind_rows`."""

    def __init__(self, url: str) -> None:
        try:
            parsed = (
                parse_uri(url, validate=True, warn=False) if not url.startswith("mongodb+srv:") else {"nodelist": ()}
            )
        except (mongo_errors.PyMongoError, ValueError) as exc:
            why = "give it as 'mongodb://user:password@host:27017/database'."
            raise errors.InvalidSettings("url", url.rpartition("@")[2], why) from exc
        hosts = ",".join(f"{host}:{port}" for host, port in parsed["nodelist"])
        self.name = f"mongodb://{hosts or url.rpartition('@')[2].removeprefix('mongodb+srv://').partition('/')[0]}"
        self._url = url
        self._client: pymongo.MongoClient[dict[str, Any]] | None = None  # Any: documents of MongoDB
        self._opener = ""
        self._commit, self._is_written = 0, True
        self._voided: Mapping[str, int] = {}

    def open(self) -> None:
        self._opener = f"aftermind-store-{uuid4().hex}"
        try:
            with self._errors():
                self._client = pymongo.MongoClient(
                    self._url,
                    appname=self._opener,
                    serverSelectionTimeoutMS=TIMEOUT_MS,
                    connectTimeoutMS=TIMEOUT_MS,
                    socketTimeoutMS=ANSWER_TIMEOUT_MS,
                )
                self._rows.create_index([("partition", 1), ("since", 1), ("number", 1)])
                self._take()
        except errors.AftermindError:
            self._disconnect()
            raise

    def partitions(self) -> Iterable[str]:
        with self._errors():
            return list(self._rows.distinct("partition"))

    def load(self, partition: str) -> Iterable[tuple[str, str, bytes]]:
        with self._errors():
            self._write_commit()
            found = list(self._rows.find({"partition": partition}).sort([("since", 1), ("number", 1)]))
            late = [each["_id"] for each in found if each["commit"] >= self._voided.get(each["opener"], 1 << 62)]
            if late:
                self._rows.delete_many({"_id": {"$in": late}})
            return [(each["table"], each["key"], bytes(each["row"])) for each in found if each["_id"] not in late]

    def commit(self, batch: Batch) -> None:
        changes = [(name, *place, row) for name, rows in batch.items() for place, row in rows.items()]
        with self._errors():
            self._write_commit()
            self._put(changes, self._opener, {})
            self._write(changes)

    def compact(self, partitions: Iterable[str]) -> None:
        """Forget the last commit, which has erased rows. Files of MongoDB lose their content by its own compaction."""
        with self._errors():
            self._write_commit()
            self._put([], self._opener, {})
            self._is_written = True
            self._database["aftermind_parts"].delete_many({})

    def close(self) -> None:
        if self._client is None:
            return
        try:
            with self._errors():
                self._write_commit()
                self._put([], self._opener, {"opener": None})
        except errors.AftermindError as exc:  # the next opening writes the last commit
            log.warning("a store was closed without its database", extra={"store": self.name, "error": str(exc)})
        finally:
            self._disconnect()

    @property
    def _database(self) -> Any:
        if self._client is None:
            raise errors.StoreUnavailable(self.name, "it is closed", "Open the memory again.")
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

    def _take(self) -> None:
        """Become the opening of the store, and make the last commit of one that was not closed this opening's own."""
        with suppress(mongo_errors.DuplicateKeyError):
            self._state.insert_one(
                {"_id": "state", "opener": None, "opening": 0, "commit": 0, "parts": 0, "voided": {}}
            )
        found = self._state.find_one({"_id": "state"})
        former = found["opener"]
        if former is not None and self._is_connected(former):
            raise errors.StoreInUse(self.name)
        changes = self._read_commit(found)
        voided = dict(list(found["voided"].items())[-VOIDED_OPENINGS:])
        if former is not None:
            voided[former] = found["commit"]
        opening = found["opening"] + 1
        self._commit = opening * COMMITS_OF_AN_OPENING
        self._put(changes, former, {"opener": self._opener, "opening": opening, "voided": voided}, found["commit"])
        self._voided = voided
        self._write(changes)

    def _is_connected(self, opener: str) -> bool:
        """Whether the process of an opening has a connection. A user without the right to list them sees its own."""
        command = [{"$currentOp": {"idleConnections": True}}, {"$match": {"appName": opener}}]
        try:
            assert self._client is not None
            return any(True for _ in self._client["admin"].aggregate(command))
        except mongo_errors.OperationFailure as exc:
            log.info("connections are not listed", extra={"store": self.name, "error": str(exc)})
            return False

    def _put(
        self, changes: Sequence[Change], opener: str | None, more: Mapping[str, Any], former: int | None = None
    ) -> None:
        """Make changes durable, in one step: all parts but the last are ignored until `state` names them."""
        before, self._commit = (self._commit, self._commit + 1) if former is None else (former, self._commit)
        parts = _split(changes)
        if len(parts) > 1:
            parted = self._database["aftermind_parts"]
            parted.delete_many({"commit": {"$lt": before}})
            for number, part in enumerate(parts):
                place = f"{self._opener}.{self._commit}.{number}"
                parted.replace_one({"_id": place}, {"_id": place, "commit": self._commit, "changes": part}, upsert=True)
        self._is_written = False
        done = self._state.update_one(
            {"_id": "state", "opener": opener, "commit": before},
            {
                "$set": {
                    **more,
                    "commit": self._commit,
                    "parts": len(parts) if len(parts) > 1 else 0,
                    "by": self._opener,
                    "changes": parts[0] if len(parts) == 1 else [],
                }
            },
        )
        if done.matched_count == 0:
            raise errors.StoreInUse(self.name)

    def _write_commit(self) -> None:
        """After a failure: write the rows of the last commit, which may have been made."""
        if self._is_written:
            return
        found = self._state.find_one({"_id": "state"})
        if found["opener"] != self._opener:
            raise errors.StoreInUse(self.name)
        self._commit = found["commit"]
        self._write(self._read_commit(found))

    def _read_commit(self, state: Mapping[str, Any]) -> list[Change]:
        parts = [state["changes"]] if "changes" in state else []
        for number in range(state["parts"]):
            place = f"{state['by']}.{state['commit']}.{number}"
            parts.append(self._database["aftermind_parts"].find_one({"_id": place})["changes"])
        return [
            (partition, table, key, None if row is None else bytes(row))
            for part in parts
            for partition, table, key, row in part
        ]

    def _write(self, changes: Sequence[Change]) -> None:
        """Write rows. Repeating it changes nothing; a row keeps the place of its first commit.

        A row of a later commit is not touched: then another process has the store.
        """
        rows: list[dict[str, Any]] = []
        writes: list[Any] = []
        for number, (partition, table, key, row) in enumerate(changes):
            place = {"_id": SEPARATOR.join((partition, table, key)), "partition": partition}
            older = {**place, "commit": {"$lte": self._commit}}
            if row is None:
                writes.append(pymongo.DeleteOne(older))
                continue
            made = {"row": row, "commit": self._commit, "opener": self._opener}
            rows.append({**place, "table": table, "key": key, "since": self._commit, "number": number, **made})
            writes.append(pymongo.UpdateOne(older, {"$set": made}))
        try:
            if rows:
                self._rows.insert_many(rows, ordered=False)
        except mongo_errors.BulkWriteError as exc:
            if any(each["code"] != DUPLICATE for each in exc.details["writeErrors"]):
                raise
        if writes:
            self._rows.bulk_write(writes, ordered=False)
        self._is_written = True

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except mongo_errors.OperationFailure as exc:
            if exc.code in REFUSED:
                why = f"MongoDB refuses the user ({exc}). Correct user, password and rights."
                raise errors.InvalidSettings("url", self.name, why) from exc
            raise errors.StoreUnavailable(self.name, str(exc), "Check MongoDB; the next call tries again.") from exc
        except mongo_errors.ConfigurationError as exc:
            raise errors.InvalidSettings("url", self.name, f"{exc}.") from exc
        except mongo_errors.PyMongoError as exc:
            raise errors.StoreUnavailable(self.name, str(exc), "Check MongoDB; the next call tries again.") from exc


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
