"""The spool: turns on local disk while Redis is down, written and synced in a thread, read by recall, sent in order.

Each process writes separate files, under a lock that ends with the process; the next process that drains the spool
takes over files without a lock. So no turn waits for a crashed process, and no two processes send the same turn.
Files for another deployment are neither read nor sent: see `spool_deployment`.
"""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

import orjson

from aftermind import errors
from aftermind.outbox.spool_deployment import Deployment, describe_target
from aftermind.outbox.spool_segment import DAMAGED, Segment, SpoolEntry, is_locked
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId, Scope, Turn
from aftermind.types.tombstone import Tombstone
from aftermind.wire.redis_keys import owner_part
from aftermind.wire.turn_encoding import decode_turn

FIRST_WRITE_SECONDS = 0.05  # until a write was measured; the first one also makes folder and file, each synced
WRITE_MARGIN = 1.5  # the next write may take longer than the last ones
WRITE_DECAY = 0.95  # of the slowest write, at each one since: a slow minute is forgotten after some 50
SEGMENT_BYTES = 4 * 2**20  # small enough that space comes back while a long spool drains

T = TypeVar("T")
log = get_logger(__name__)


class Spool:
    """The spool of one state folder. Constructing it touches no disk. Safe across threads, loops and forks.

    `max_bytes` bounds the files of its deployment, of all processes together; 0 refuses every turn. Without a
    `deployment` its files are for any, and it takes over every file.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        deployment: Deployment | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self._max_bytes, self._deployment, self._clock = folder, max_bytes, deployment, clock
        self._reported: set[Path] = set()
        self._write_seconds = FIRST_WRITE_SECONDS / WRITE_MARGIN
        self._reset()
        _SPOOLS.add(self)

    async def append(self, turn: Turn, payload: bytes) -> None:
        """Store the turn: it is on disk when this returns. Concurrent calls share a sync.

        Raises `SpoolFull`, and `SpoolUnavailable` if the disk fails. If the caller is cancelled, its turn stays in the
        spool: it is complete, and will be sent.
        """
        future: Future[None] = Future()
        started = self._clock()
        self._queued.append((turn, payload, future))
        self._thread.submit(self._write_queued)
        await asyncio.wrap_future(future)
        took = self._clock() - started
        self._write_seconds = max(took, WRITE_DECAY * self._write_seconds)

    @property
    def write_allowance_seconds(self) -> float:
        """What the next `append` is expected to take at most, its sync included; measured."""
        return WRITE_MARGIN * self._write_seconds

    def holds(self, owner: str, session: str) -> bool:
        """Whether this process has unsent turns of the session; the owner as in keys. Answers from memory."""
        return bool(self._sessions) and self._sessions[owner, session] > 0

    def content_hash(self, job_id: JobId) -> str | None:
        """The hash of an unsent turn of this process that has an idempotency key. Answers from memory.

        Each acceptor of a process has its own spool in the folder; the turn may be in any of them.
        """
        for spool in list(_SPOOLS):
            is_same = (spool.folder, spool._deployment) == (self.folder, self._deployment)
            held = spool._unsent.get(job_id) if is_same else None
            if held is not None:
                return held[0].content_hash
        return None

    def has_files(self) -> bool:
        """Whether the folder has files of any process: to be sent, taken over or deleted; reads the folder."""
        return bool(self._paths())

    def report_foreign_files(self) -> None:
        """Warn once of each file for another deployment that no running process writes; reads the folder."""
        for path in stranded_files(self.folder, self._deployment):
            if path not in self._reported:
                self._reported.add(path)
                evidence = {"path": str(path), "deployment": describe_target(path)}
                log.warning("spooled turns are for another deployment; see `aftermind doctor`", extra=evidence)

    @property
    def unsent(self) -> int:
        """Turns that this process holds and has not sent."""
        return len(self._unsent)

    async def pending(self, owner: Scope) -> tuple[Turn, ...]:
        """The owner's unsent turns in every process's files of this host, oldest first. Free while there are none."""
        if not self._paths():
            return ()
        return await self._run(lambda: self._pending(owner_part(owner)))

    async def take_over(self) -> int:
        """Take over files of ended processes, and delete what is not needed any more; returns the unsent turns."""
        return await self._run(self._adopt)

    async def next(self, limit: int, *, passing: frozenset[str] = frozenset()) -> list[Turn]:
        """Unsent turns of this process in the order in which they came, but for those of the owners in `passing`."""
        return await self._run(lambda: self._oldest(limit, passing))

    async def sent(self, ids: Iterable[JobId]) -> None:
        """They are where they belong; a file with nothing unsent is deleted."""
        listed = list(ids)
        await self._run(lambda: self._drop(listed))

    async def forget(self, stone: Tombstone) -> list[JobId]:
        """Drop the turns that the tombstone covers whole, in every process's files; which.

        Damaged bytes are deleted if they name the owner, or if they name no user at all.
        """
        if not self._paths() and not self._own(damaged_files(self.folder)):
            return []
        return await self._run(lambda: self._forget(stone))

    def close(self) -> None:
        """Finish running writes and close the files; unsent turns wait for the next process."""
        self._thread.shutdown(wait=True)
        self._release_segments()

    def _release_segments(self) -> None:
        for segment in (*self._ours.values(), *self._others.values()):
            segment.close()
        self._reset()

    def _reset(self) -> None:
        # One thread does all that touches files, so none of it needs a lock, and a slow disk stops no loop.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="aftermind-spool")
        self._queued: deque[tuple[Turn, bytes, Future[None]]] = deque()
        self._ours: dict[Path, Segment] = {}
        self._others: dict[Path, Segment] = {}
        self._current: Segment | None = None
        self._unsent: dict[JobId, tuple[SpoolEntry, Segment]] = {}
        self._sessions: Counter[tuple[str, str]] = Counter()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(work))

    # in the spool's thread

    def _write_queued(self) -> None:
        queued = [self._queued.popleft() for _ in range(len(self._queued))]
        try:
            if any(turn.content_hash is not None for turn, _, _ in queued):
                with suppress(OSError):  # a file that cannot be read must not stop what is written
                    self._drop_erased()
            # One that is on disk already was given once more, by its idempotency key.
            new = {turn.job_id: (turn, payload) for turn, payload, _ in queued if turn.job_id not in self._unsent}
            if new:
                self._check_capacity(sum(len(payload) for _, payload in new.values()))
                segment = self._open()
                forgotten = set[JobId]().union(*(each.forgotten for each in self._segments())) - segment.forgotten
                if again := new.keys() & forgotten:  # remembered after the erasure: the order in the file records that
                    segment.mark(again, forgotten=True)
                self._hold(segment, segment.append(list(new.values())))
        except errors.AftermindError as exc:
            _fail(queued, exc)
        except OSError as exc:
            _fail(queued, errors.SpoolUnavailable(str(self.folder), str(exc)))
        else:
            for _, _, future in queued:
                if future.set_running_or_notify_cancel():
                    future.set_result(None)

    def _check_capacity(self, wanted: int) -> None:
        held = sum(_size(path) for path in self._paths())
        if held + wanted > self._max_bytes:
            raise errors.SpoolFull(str(self.folder), held, self._max_bytes)

    def _open(self) -> Segment:
        if self._current is None or self._current.size_bytes >= SEGMENT_BYTES:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            suffix = self._deployment.file_suffix if self._deployment else ""
            self._current = Segment.create(self.folder, suffix=suffix)
            self._ours[self._current.path] = self._current
        return self._current

    def _hold(self, segment: Segment, entries: Iterable[SpoolEntry]) -> None:
        for entry in entries:
            self._unsent[entry.job_id] = entry, segment
            self._sessions[entry.owner, entry.session] += 1

    def _let_off(self, job_id: JobId) -> None:
        entry, _ = self._unsent.pop(job_id)
        self._sessions[entry.owner, entry.session] -= 1
        if not self._sessions[entry.owner, entry.session]:
            del self._sessions[entry.owner, entry.session]

    def _adopt(self) -> int:
        adopted: dict[JobId, tuple[SpoolEntry, Segment]] = {}
        for path in self._paths():
            segment = None if path in self._ours else Segment.adopt(path)
            if segment is not None:
                self._ours[path] = segment
                ours, self._unsent = self._unsent, {}
                self._hold(segment, [entry for entry in segment.turns.values() if entry.job_id not in segment.gone])
                adopted.update(self._unsent)
                self._unsent = ours
        # Turns of ended processes are older than the turns that this process appends.
        self._unsent = adopted | {job_id: held for job_id, held in self._unsent.items() if job_id not in adopted}
        self._drop_erased()
        return self.unsent

    def _oldest(self, limit: int, passing: frozenset[str]) -> list[Turn]:
        self._drop_erased()
        waiting = [held for held in self._unsent.values() if held[0].owner not in passing]
        found = []
        for entry, segment in waiting[:limit]:
            spooled = _read(entry, segment)
            if spooled is None:  # damaged since it was written: a copy is kept, and the others are sent
                self._let_off(entry.job_id)
                self._tidy(segment)
            else:
                found.append(spooled)
        return found

    def _drop(self, ids: list[JobId]) -> None:
        held = [job_id for job_id in ids if job_id in self._unsent]
        touched = {self._unsent[job_id][1] for job_id in held}
        for segment in touched:
            with suppress(OSError):  # a full disk: at worst they are sent once more, which changes nothing
                segment.mark([job_id for job_id in held if job_id in segment.turns])
        for job_id in held:
            self._let_off(job_id)
        for segment in touched:
            self._tidy(segment)

    def _tidy(self, segment: Segment) -> None:
        """Delete a file of this process that is not needed any more."""
        if segment.unreadable or not segment.gone >= segment.turns.keys():
            return
        if segment.forgotten and any(self._erased_in(other) & segment.forgotten for other in self._segments()):
            return  # the process of that file has not read it yet
        segment.remove()
        del self._ours[segment.path]
        if self._current is segment:
            self._current = None

    def _pending(self, owner: str) -> tuple[Turn, ...]:
        self._list_segments()
        gone = {segment: segment.gone | self._erased_in(segment) for segment in self._segments()}
        found = [
            _read(entry, segment)
            for segment in gone
            for entry in list(segment.turns.values())
            if entry.owner == owner and entry.job_id not in gone[segment]
        ]
        return tuple(sorted((each for each in found if each is not None), key=lambda turn: turn.base))

    def _forget(self, stone: Tombstone) -> list[JobId]:
        for path in self._own(damaged_files(self.folder)):
            if _may_hold(path, stone.owner):
                path.unlink(missing_ok=True)
        gone = [turn.job_id for turn in self._pending(owner_part(stone.owner)) if stone.covers_all(turn)]
        if not gone:
            return []
        try:
            self._open().mark(gone, forgotten=True)
        except OSError as exc:
            raise errors.SpoolUnavailable(str(self.folder), str(exc)) from exc
        self._drop_erased()
        return gone

    def _drop_erased(self) -> None:
        """Record in the files of this process what any process has forgotten, and delete files not needed any more."""
        self._list_segments()
        for segment in list(self._ours.values()):
            gone = self._erased_in(segment)
            if gone:
                with suppress(OSError):  # a full disk: noted in memory; after a crash the tombstone covers the turn
                    segment.mark(gone, forgotten=True)
            for job_id in segment.gone & self._unsent.keys():
                if self._unsent[job_id][1] is segment:
                    self._let_off(job_id)
        for segment in list(self._ours.values()):
            self._tidy(segment)

    def _erased_in(self, segment: Segment) -> set[JobId]:
        """Its unsent turns that a record of another file has forgotten.

        If the file has such a record itself, the order in it decides: a turn may be remembered again with its key.
        """
        others = (other.forgotten for other in self._segments() if other is not segment)
        erased = set[JobId]().union(*others) - segment.forgotten - segment.gone
        return erased & segment.turns.keys()

    def _segments(self) -> tuple[Segment, ...]:
        return (*self._ours.values(), *self._others.values())

    def _list_segments(self) -> None:
        paths = set(self._paths())
        for path in [path for path in self._others if path not in paths or path in self._ours]:
            self._others.pop(path).close()
        for path in paths - self._ours.keys() - self._others.keys():
            segment = Segment.open_read_only(path)
            if segment is not None:
                self._others[path] = segment
        for segment in self._others.values():
            segment.refresh()

    def _paths(self) -> list[Path]:
        return self._own(_spool_files(self.folder))

    def _own(self, paths: list[Path]) -> list[Path]:
        return [path for path in paths if self._deployment is None or self._deployment.owns(path)]


def foreign_files(folder: Path, deployment: Deployment | None) -> list[Path]:
    """Files in the folder, and in those of a Redis Cluster's shards, whose turns are for another deployment."""
    if deployment is None:
        return []
    return sorted(path for path in folder.rglob("*.spool") if not deployment.owns(path))


def stranded_files(folder: Path, deployment: Deployment | None) -> list[Path]:
    """Of the files for another deployment, those with turns that no running process holds, or that are not readable."""
    return [path for path in foreign_files(folder, deployment) if _size(path) and not is_locked(path)]


def damaged_files(folder: Path) -> list[Path]:
    """Copies of damaged bytes, one for each damaged place; [] where the folder does not exist or cannot be read."""
    return sorted(folder.rglob(f"*{DAMAGED}"))  # with the folders of a Redis Cluster's shards


def _spool_files(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith(".spool"))
    except OSError:  # not created yet; or not readable, and then writing reports the reason
        return []


def _may_hold(path: Path, owner: Scope) -> bool:
    try:
        data = path.read_bytes() if path.stat().st_size <= SEGMENT_BYTES else b""
    except FileNotFoundError:
        return False
    is_named = b'"user":' in data
    return not is_named or (owner.user_id is not None and orjson.dumps(owner.user_id) in data)


def _read(entry: SpoolEntry, segment: Segment) -> Turn | None:
    """The turn; None if it was damaged since it was written."""
    payload = segment.payload(entry)
    return None if payload is None else decode_turn(payload)


def _fail(queued: Iterable[tuple[Turn, bytes, Future[None]]], exc: Exception) -> None:
    for _, _, future in queued:
        if future.set_running_or_notify_cancel():
            future.set_exception(exc)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


_SPOOLS: WeakSet[Spool] = WeakSet()


def _after_fork() -> None:
    # The child has copies of the locked files: closing them keeps the parent's locks, keeping them would hold the locks
    # after the parent has ended.
    for spool in list(_SPOOLS):
        spool._release_segments()


os.register_at_fork(after_in_child=_after_fork)
