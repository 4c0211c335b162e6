"""`JournalWriter`: encodes changes, and writes them in groups from one thread.

Of the processes that share a journal one writes at a time: it holds the *turn*. Each commit compares and replaces the
holder and the version of the store, so what a process writes after its turn was taken from it is refused. The turn is
held while transactions run or wait, and is handed over between two groups when another process asks for it. A process
that is killed, frozen or cut off loses it: see `_take`.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from aftermind import errors
from aftermind.db.record_store_journals import process_liveness
from aftermind.db.record_store_journals.protocol import AnyJournal, Batch, Journal, SharedJournal, StoreState, is_shared
from aftermind.db.record_store_journals.row_codec import OWNER, Changes, Owner, RowCodec, dump_owner
from aftermind.telemetry.logger import get_logger

log = get_logger(__name__)

T = TypeVar("T")
TURN_SECONDS = 0.02  # that a turn lasts while another process waits: taking over its rows costs about a millisecond
LOST_SECONDS = 3.0  # without a commit, after which a turn is taken away; a long transaction renews it
RENEW_SECONDS = 0.5
GRACE_SECONDS = 0.1  # that a free turn is left to the process that asked for it
ASK_SECONDS = 0.002  # between two attempts to get the turn
IDLE_SECONDS = 0.1  # that an unused turn is kept, unless another process asks: most transactions follow another
IDLE_CHECK_SECONDS = 0.01
DELAYED_WRITE_SECONDS = 0.05  # after which changes are written that no transaction waits for; less than a lease by far

# Any: see `rows`
Loaded = dict[str, dict[Any, Any]]  # by table and key
Row = tuple[str, Any, Any]  # table, key and row


@dataclass(slots=True)
class Refresh:
    """What other processes have committed: the owners with changes, and the rows of those that are in memory."""

    owners: Sequence[Owner] = ()
    changes: Sequence[tuple[Owner, bool, Sequence[Row]]] = ()  # True: these are all rows


class Group:
    """Changes of several transactions that are written together."""

    def __init__(self) -> None:
        self.changes: Changes = {}
        self.erased: set[Owner] = set()
        self.is_begun = False  # whether a thread writes them, or will soon
        self.written: Future[None] = Future()
        self._of_loops: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}

    async def wait(self) -> None:
        """Until they are durable. Raises what the write raised. A loop is woken once for all that wait in it."""
        loop = asyncio.get_running_loop()
        if loop not in self._of_loops:
            self._of_loops[loop] = asyncio.wrap_future(self.written, loop=loop)
        await asyncio.shield(self._of_loops[loop])


class JournalWriter:
    """A journal behind one thread, and a second one that reads if it is shared. `failures` counts failed writes.

    After one, memory holds changes that the journal lacks: read the partitions again. Changes that were made on top of
    them are refused. `opening` names this process in the journal from `open` to `close`.
    """

    def __init__(self, journal: AnyJournal, codec: RowCodec) -> None:
        self._name, self._codec = journal.name, codec
        self._own: Journal | None = None
        self._shared: SharedJournal | None = None
        if is_shared(journal):
            self._shared = journal
        else:
            self._own = journal
        self.opening = ""
        self.reset()

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write."""
        return self._shared is not None

    def reset(self) -> None:
        """Begin again in a forked process, without touching what belongs to the parent."""
        self.failures = 0
        self._lock = threading.Lock()
        self._next: Group | None = None
        self._latest: Group | None = None
        self._is_writing = False
        self._thread: ThreadPoolExecutor | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._wanted = 0  # transactions that run or wait
        self._is_idle_submitted = False
        self._is_needed = threading.Event()  # set when the thread must not wait for idle time to pass
        self._observed: tuple[StoreState | None, float] = (None, 0.0)  # what others left, and since when
        self._lose_turn()

    def _lose_turn(self) -> None:
        self._state: StoreState | None = None  # while this process holds the turn
        self._taken_at = self._renewed_at = 0.0
        self._is_running = False  # whether a transaction uses the turn
        self._is_ending = False  # whether the turn is handed over as soon as no transaction uses it
        self._seen = -1  # the version that memory shows, once its groups are written
        self._is_current = False  # whether memory shows all, since no other process can commit
        self._stamp: object | None = None

    async def open(self) -> list[Owner]:
        """Open the journal; the owners of its partitions."""

        def work() -> list[Owner]:
            if self._own is not None:
                self._own.open()
                return [OWNER.validate_json(name) for name in self._own.partitions()]
            shared = self._required
            shared.open()
            found = shared.read(-1, ())
            self._lose_turn()
            self._seen = found.version
            return [OWNER.validate_json(name) for name in found.partitions]

        found = await self._run(work)
        self.opening = process_liveness.begin()
        return found

    async def load(self, owner: Owner, cached: Container[Owner]) -> tuple[Loaded, Refresh]:
        """The rows of an owner, by table; and what else other processes have committed since the last call."""
        own, name = self._own, dump_owner(owner)
        if self._next is not None:  # it may have rows of this partition, and no transaction waits for it
            self._begin_write(self._next)
        if own is not None:
            return await self._run(lambda: self._by_table(self._decode(own.load(name)))), Refresh()
        with self._lock:  # behind the writes of this process, which may be of this very partition
            is_busy = self._is_writing or self._next is not None
        found = await self._run(lambda: self._read(cached, name), self._executor() if is_busy else self._readers())
        *others, (_, _, rows) = found.changes
        return self._by_table(rows), Refresh(owners=found.owners, changes=others)

    async def refresh(self, cached: Container[Owner]) -> Refresh | None:
        """What other processes have committed since the last call; None: nothing. Waits for no write."""
        if self._shared is None or self._is_current:
            return None
        stamp = self._shared.stamp()
        if stamp is not None and stamp == self._stamp:
            return None
        found = await self._run(lambda: self._read(cached), self._readers())
        self._stamp = stamp
        with self._lock:
            self._is_current = self._state is not None and self._state.version == self._seen
        return found

    def want(self) -> None:
        """Announce a transaction that writes: the turn is kept for it. `submit` or `end_turn` is its end."""
        with self._lock:
            self._wanted += 1
        self._is_needed.set()

    async def take_turn(self, timeout: float) -> None:
        """Wait until no other process can commit. One transaction at a time. Raises `StoreUnavailable`."""
        if self._shared is None:
            return
        deadline = monotonic() + timeout
        while not self._enter():
            if not await self._run(self._take):
                if monotonic() > deadline:
                    why = f"other processes wrote for {timeout:g} s"
                    raise errors.StoreUnavailable(self._name, why, "Repeat the call.")
                await asyncio.sleep(ASK_SECONDS)

    def end_turn(self) -> None:
        """The transaction has no changes."""
        with self._lock:
            is_idle = self._leave() and self._next is None
        if is_idle and self._shared is not None:
            self._submit_idle()

    def renew(self) -> None:
        """Keep the turn during a long transaction."""
        self._executor().submit(self._renew)

    def submit(self, changes: Changes, *, failures: int, is_erasure: bool, is_awaited: bool = True) -> Group:
        """Add changes to the next write, and end the turn. Without `is_awaited` they are written with what comes next.

        `failures` is the count when the transaction began. Raises `StoreUnavailable` if a write has failed since; then
        the turn has not ended.
        """
        with self._lock:
            if failures != self.failures:
                raise errors.StoreUnavailable(self._name, "an earlier write failed", "Repeat the call.")
            self._leave()
            if self._next is None:
                self._next = Group()
                self._seen += 1
            group = self._next
            if is_awaited:
                self._begin_write(group)
            else:
                asyncio.get_running_loop().call_later(DELAYED_WRITE_SECONDS, self._begin_write, group)
            self._latest = group
            for owner, rows in changes.items():
                group.changes.setdefault(owner, {}).update(rows)
            if is_erasure:
                group.erased.update(changes)
            return group

    def _begin_write(self, group: Group) -> None:
        if not group.is_begun:
            group.is_begun = True
            self._executor().submit(self._write)

    async def flush(self) -> None:
        """Wait until the changes that were added have been written, or a write has failed (`failures`)."""
        latest = self._latest
        if latest is not None and not latest.written.done():
            self._begin_write(latest)
            with suppress(Exception):  # its transactions raise it
                await latest.wait()

    async def close(self) -> None:
        """Close the journal after the last write."""
        if self._thread is not None:
            await self.flush()
            self._is_needed.set()
            if self._shared is not None:
                await self._run(self._give_back)
            await self._run((self._own or self._required).close)
            for thread in (self._thread, self._reader):
                if thread is not None:
                    thread.shutdown(wait=False)
            self._thread = self._reader = None
        process_liveness.end(self.opening)

    # In the thread that writes, or under the lock.

    def _enter(self) -> bool:
        with self._lock:
            self._is_running = self._state is not None and not self._is_ending
            return self._is_running

    def _leave(self) -> bool:
        """Whether no other transaction is to use the turn."""
        self._wanted -= 1
        self._is_running = False
        return self._is_ending or not self._wanted

    def _is_used(self) -> bool:
        return self._is_running or self._next is not None or (self._wanted > 0 and not self._is_ending)

    def _take(self) -> bool:
        """Become the holder if the turn is free, or its holder has ended, or has not committed for some seconds.

        The seconds are of this process's clock, from when it saw the state first: no two clocks are compared.
        """
        if self._state is not None:
            if not self._is_ending:
                return True
            self._give_back()
            return False
        shared, now = self._required, monotonic()
        state = shared.state()
        if state != self._observed[0]:
            self._observed = state, now
        waited = now - self._observed[1]
        is_free = not state.holder and (state.waiting in ("", self.opening) or waited > GRACE_SECONDS)
        is_lost = bool(state.holder) and (waited > LOST_SECONDS or process_liveness.has_ended(state.holder))
        if is_free or is_lost or state.holder == self.opening:
            found = self._swap({}, state, self.opening)
            if found is None:
                return False
            with self._lock:
                self._state, self._is_ending = found, False
                self._taken_at = self._renewed_at = now
                self._is_current = self._seen == found.version
            return True
        if not state.waiting:
            shared.ask(self.opening)
        return False

    def _submit_idle(self) -> None:
        with self._lock:
            is_submitted, self._is_idle_submitted = self._is_idle_submitted, True
        if not is_submitted:
            self._executor().submit(self._wait_idle)

    def _wait_idle(self) -> None:
        """Give the turn back when it has not been used for a while, or another process asks for it."""
        self._is_idle_submitted = False
        shared, ends_at, stamp = self._required, monotonic() + IDLE_SECONDS, None
        self._is_needed.clear()
        while not self._is_ending and monotonic() < ends_at:
            with self._lock:
                if self._state is None or self._is_used():
                    return
            self._is_ending, stamp = self._is_asked(shared, stamp)
            if self._is_needed.wait(IDLE_CHECK_SECONDS):
                self._submit_idle()  # after what is needed now
                return
        self._give_back()

    def _is_asked(self, shared: SharedJournal, stamp: object | None) -> tuple[bool, object | None]:
        found = shared.stamp()
        if found is not None and found == stamp:
            return False, found
        try:
            return bool(shared.state().waiting), found
        except errors.AftermindError:  # the next commit shows what it is
            return False, None

    def _give_back(self) -> None:
        with self._lock:
            state = self._state
            if state is None or self._is_used():
                return
            self._state, self._is_current = None, False
        self._hand_over(state)

    def _hand_over(self, state: StoreState) -> None:
        try:
            self._swap({}, state, self._next_holder(state))
        except errors.AftermindError as exc:  # it is taken from this process after a while
            log.warning("the turn is not given back", extra={"store": self._name, "error": str(exc)})

    def _next_holder(self, state: StoreState) -> str:
        return state.waiting if self._is_ending else ""

    def _renew(self) -> None:
        with self._lock:
            state = self._state
        if state is None or monotonic() - self._renewed_at < RENEW_SECONDS:
            return
        try:
            found = self._swap({}, state, self.opening)
        except errors.AftermindError as exc:  # the next commit shows whether it matters
            log.warning("the turn is not renewed", extra={"store": self._name, "error": str(exc)})
            return
        with self._lock:
            if found is not None:
                self._state, self._renewed_at = found, monotonic()
                self._seen += int(self._is_current)

    def _write(self) -> None:
        with self._lock:
            group, self._next = self._next, None
            self._is_writing = group is not None
        if group is None:  # it failed with the one before
            return
        try:
            batch = {dump_owner(owner): self._dump(rows) for owner, rows in group.changes.items()}
            erased = [dump_owner(owner) for owner in group.erased]
            if self._own is None:
                self._commit(batch, erased)
            else:
                self._own.commit(batch)
            if erased:
                (self._own or self._required).compact(erased)
        except BaseException as exc:  # each transaction of the group raises it
            self._fail(group, exc)
        else:
            self._is_writing = False
            group.written.set_result(None)
            if self._state is not None and not self._is_used():
                self._submit_idle()

    def _commit(self, batch: Batch, erased: Sequence[str]) -> None:
        shared = self._required
        with self._lock:
            state, is_kept = self._state, self._is_used() or not self._is_ending
            if not is_kept:  # others may commit before this thread continues
                self._state, self._is_current = None, False
        only = [name for name in erased if name != shared.shared]  # its keys are of no user
        found = None if state is None else self._swap(batch, state, self.opening, erased=only)
        if found is None:
            raise errors.StoreUnavailable(self._name, "another process has taken over writing", "Repeat the call.")
        if not is_kept:
            self._hand_over(found)  # apart: a repeated commit is recognised by the name of this process alone
            return
        now = monotonic()
        with self._lock:
            self._state, self._renewed_at = found, now
            self._is_ending = bool(found.waiting) and now - self._taken_at > TURN_SECONDS

    def _swap(self, batch: Batch, expected: StoreState, holder: str, erased: Collection[str] = ()) -> StoreState | None:
        """Commit, unless another process has; None then.

        A client repeats a commit whose answer was lost, and then its own state is the unexpected one. The process that
        holds the turn recognises it: no other one writes its name.
        """
        found = self._required.commit(batch, expected, holder=holder, erased=erased)
        if found is not None or holder != self.opening:
            return found
        wanted, now = expected.next(batch, holder), self._required.state()
        return now if (now.version, now.holder) == (wanted.version, wanted.holder) else None

    def _read(self, cached: Container[Owner], wanted: str | None = None) -> Refresh:
        found = self._required.read(self._seen, _Names(cached), wanted)
        with self._lock:
            self._seen = max(self._seen, found.version)
        changes = [
            (OWNER.validate_json(each.partition), each.is_whole, self._decode(each.rows)) for each in found.changes
        ]
        return Refresh(owners=[OWNER.validate_json(name) for name in found.partitions], changes=changes)

    @property
    def _required(self) -> SharedJournal:
        if self._shared is None:
            raise errors.Bug("a journal of one process has no turns.")
        return self._shared

    def _decode(self, rows: Iterable[tuple[str, str, bytes | None]]) -> list[Row]:
        return [(table, *self._codec.load(self._name, table, key, row)) for table, key, row in rows]

    def _by_table(self, rows: Iterable[Row]) -> Loaded:
        tables: Loaded = {}
        for table, key, row in rows:
            tables.setdefault(table, {})[key] = row
        return tables

    def _dump(self, rows: Mapping[tuple[str, Any], Any]) -> dict[tuple[str, str], bytes | None]:
        made = {}
        for (table, key), row in rows.items():
            dumped_key, dumped = self._codec.dump(table, key, row)
            made[table, dumped_key] = dumped
        return made

    def _fail(self, group: Group, exc: BaseException) -> None:
        with self._lock:
            self.failures += 1
            waiting, self._next = self._next, None
            self._is_writing = False
            self._lose_turn()
        for each in (group, waiting):
            if each is not None:
                each.written.set_exception(exc)

    def _executor(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="aftermind-journal")
        return self._thread

    def _readers(self) -> ThreadPoolExecutor:
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="aftermind-journal-read")
        return self._reader

    async def _run(self, work: Callable[[], T], thread: ThreadPoolExecutor | None = None) -> T:
        if thread is not self._reader or thread is None:
            self._is_needed.set()
        return await asyncio.get_running_loop().run_in_executor(thread or self._executor(), work)


class _Names:
    """Owners by the names of their partitions."""

    def __init__(self, owners: Container[Owner]) -> None:
        self._owners = owners

    def __contains__(self, name: object) -> bool:
        return OWNER.validate_json(str(name)) in self._owners
