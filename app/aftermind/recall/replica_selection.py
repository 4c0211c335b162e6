"""Selects the node for a recall: a replica that has replayed the scope's last write, else the primary.

Replicas take turns, those that lag after the others: they serve a user with new writes last.

A replica's position is read on the same connection that is used afterwards: a position read elsewhere, or later, has no
relation to the snapshot of a statement. A position stays valid for later reads of the connection, since WAL is never
replayed backwards: so it is not read at every recall. A replica that fails, lags or was promoted is not used, and
checked in the background every `check` until it serves again, so that no recall waits for it a second time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from time import monotonic

from aftermind import errors
from aftermind.db.database_protocol import Database, Transaction
from aftermind.stores.search import EpisodeSearch, NodeState
from aftermind.telemetry.logger import get_logger
from aftermind.types import ServedBy, Watermark

log = get_logger(__name__)

LAGGING_SECONDS = 1.0  # from which a replica is read after the others
REPLICA_SHARE = 0.4  # of the time that is left: what a frozen replica may cost a recall once, before it is left


@dataclass(slots=True)
class ReadNode:
    """A database that recall may read, and its state. `known` None: it was never checked."""

    name: str
    database: Database
    known: NodeState | None = None
    out: str | None = None  # why it is left
    looked_at: float = field(default=-1e9)

    @property
    def is_lagging(self) -> bool:
        """Whether it was far behind when its state was last read."""
        return self.known is not None and self.known.lag_seconds > LAGGING_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The connection to read from, and whose it is."""

    tx: Transaction
    served_by: ServedBy
    node: str


class Routing:
    """One primary and any number of replicas. Constructing it connects nothing."""

    def __init__(
        self,
        primary: Database,
        replicas: Sequence[ReadNode],
        search: EpisodeSearch,
        *,
        max_lag: timedelta = timedelta(seconds=30),
        check: timedelta = timedelta(seconds=2),
        served_by: ServedBy = ServedBy.PRIMARY,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._primary, self._replicas, self._search = primary, list(replicas), search
        self._max_lag, self._check = max_lag.total_seconds(), check.total_seconds()
        self._served_by, self._clock = served_by, clock
        self._probe: asyncio.Task[None] | None = None
        self._turns = count()

    @asynccontextmanager
    async def replica(
        self, passed: Iterable[Watermark], *, deadline: float, namespace: str | None = None
    ) -> AsyncIterator[Route | None]:
        """A connection to a replica whose snapshots include everything up to `passed`, or None if there is none.

        `deadline` is of the running loop's clock, `namespace` the tenant of the rows. A replica that fails inside the
        block is not used any more, and the error is raised; for a slow one the caller calls `leave`.
        """
        marks = tuple(passed)
        async with AsyncExitStack() as stack:
            found = await self._first(stack, marks, deadline, namespace)
            if found is None:
                yield None
                return
            node, route = found
            try:
                yield route
            except errors.Unavailable as exc:
                self._leave(node, str(exc), is_known=False)
                raise

    @asynccontextmanager
    async def primary(self, *, deadline: float, namespace: str | None = None) -> AsyncIterator[Route]:
        """A connection to the primary. Raises `StoreUnavailable`."""
        async with self._reading(self._primary, deadline, namespace) as tx:
            yield Route(tx=tx, served_by=self._served_by, node="primary")

    def leave(self, name: str, why: str) -> None:
        """Stop using this replica until a background check finds it healthy."""
        for node in self._replicas:
            if node.name == name:
                self._leave(node, why, is_known=False)

    def states(self) -> dict[str, str]:
        """State of each replica, for metrics and doctor: `serving`, or the reason why it is not used."""
        return {node.name: node.out or "serving" for node in self._replicas}

    def lags(self) -> dict[str, float]:
        """Lag in seconds of each replica at its last check; replicas that do not answer are left out."""
        return {node.name: node.known.lag_seconds for node in self._replicas if node.known is not None}

    async def probe(self, nodes: Sequence[ReadNode] | None = None) -> None:
        """Check these replicas now, or all. Takes at most the interval between two checks, and raises nothing."""
        async with asyncio.TaskGroup() as group:
            for node in self._replicas if nodes is None else nodes:
                group.create_task(self._probe_node(node))

    async def close(self) -> None:
        """Stop checking replicas."""
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
            self._probe = None

    async def _first(
        self, stack: AsyncExitStack, marks: tuple[Watermark, ...], deadline: float, namespace: str | None
    ) -> tuple[ReadNode, Route] | None:
        self._refresh_later()
        first = next(self._turns) % max(len(self._replicas), 1)
        in_turn = (*self._replicas[first:], *self._replicas[:first])
        serving = [node for node in in_turn if node.out is None]
        for node in sorted(serving, key=lambda each: each.is_lagging):
            left = deadline - asyncio.get_running_loop().time()
            try:
                async with AsyncExitStack() as attempt:  # left with its error, so that the connection is not kept
                    async with asyncio.timeout(max(left * REPLICA_SHARE, 0.0)):
                        tx = await attempt.enter_async_context(self._reading(node.database, deadline, namespace))
                        state = await self._search.node_state(tx, passed=marks)
                    if node.out is None:  # else another recall has excluded it already
                        self._note(node, state)
                    if node.out is None and state.has_passed(marks):
                        stack.push_async_exit(attempt.pop_all())
                        return node, Route(tx=tx, served_by=ServedBy.REPLICA, node=node.name)
            except (errors.Unavailable, errors.Conflict, TimeoutError) as exc:
                self._leave(node, "no answer in time" if isinstance(exc, TimeoutError) else str(exc), is_known=False)
        return None

    def _reading(
        self, database: Database, deadline: float, namespace: str | None
    ) -> AbstractAsyncContextManager[Transaction]:
        left = max(deadline - asyncio.get_running_loop().time(), 0.01)
        return database.transaction(namespace=namespace, read_only=True, timeout=left)

    def _note(self, node: ReadNode, state: NodeState) -> None:
        node.known, node.looked_at = state, self._clock()
        if not state.replica:
            self._leave(node, "it was promoted: it is no replica any more")
        elif state.lag_seconds > self._max_lag:
            self._leave(node, f"it is {state.lag_seconds:.0f} s behind")
        elif node.out is not None:
            log.info("replica serves again", extra={"replica": node.name})
            node.out = None

    def _leave(self, node: ReadNode, why: str, *, is_known: bool = True) -> None:
        node.looked_at = self._clock()
        if not is_known:  # it does not answer, so how far it is behind is unknown
            node.known = None
        if node.out is None:
            log.warning("replica is not used", extra={"replica": node.name, "reason": why})
        node.out = why

    def _refresh_later(self) -> None:
        """Check replicas that are excluded or lag, in the background and one round at a time."""
        now = self._clock()
        doubtful = [node for node in self._replicas if node.out is not None or node.is_lagging]
        due = [node for node in doubtful if now - node.looked_at >= self._check]
        if due and (self._probe is None or self._probe.done()):
            self._probe = asyncio.get_running_loop().create_task(self.probe(due), name="aftermind replicas")

    async def _probe_node(self, node: ReadNode) -> None:
        try:
            async with asyncio.timeout(self._check), node.database.transaction(read_only=True) as tx:
                state = await self._search.node_state(tx)
        except (errors.AftermindError, TimeoutError) as exc:
            self._leave(node, "no answer in time" if isinstance(exc, TimeoutError) else str(exc), is_known=False)
        else:
            self._note(node, state)
