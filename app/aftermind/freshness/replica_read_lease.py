"""`ReplicaLease`: guarantees that Redis has the watermark of every committed effect.

A missing watermark cannot be detected in Redis itself. Therefore a replica is read only under a lease of the namespace,
which is given after the primary was asked for undelivered watermarks and these were raised. The lease ends `TRUST_MS`
after the moment *before* the primary was asked, by Redis's clock. An effect that is committed later either raises its
watermark before it returns, or returns after the lease has ended.

Recalls renew the lease in the background while it lasts, so only the first recall after a silence asks the primary
itself.
"""

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from aftermind import errors
from aftermind.db.database_protocol import Database
from aftermind.freshness.watermark_redelivery import WatermarkDelivery
from aftermind.telemetry.logger import get_logger
from aftermind.types import Scope, Watermark
from aftermind.wire.pending_types import PendingRead
from aftermind.wire.redis_keys import TRUST_MS
from aftermind.wire.watermark import Watermarks

if TYPE_CHECKING:
    from aftermind.db.undelivered_watermarks import Owed

log = get_logger(__name__)

MAX_OWNERS = 1_000  # with an undelivered watermark at a time: beyond it the primary serves until they are delivered
PRIMARY_SHARE = 0.25  # of the time left, for asking the primary whether replicas may be read
PAUSE_SECONDS = 1.0  # after the primary did not answer, before it is asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """The positions that a replica must have replayed to be read; `marks` None: no replica may be read.

    `doubt` is the reason why an effect may be missing nevertheless.
    """

    marks: tuple[Watermark, ...] | None
    doubt: str | None = None


class ReplicaLease:
    """The leases of a process. Usable from any number of tasks.

    `has_replicas` False: there is nothing to be certain about, and the primary is never asked.
    """

    def __init__(
        self, primary: Database, watermarks: Watermarks, delivery: WatermarkDelivery, *, has_replicas: bool
    ) -> None:
        self._primary, self._watermarks, self._delivery = primary, watermarks, delivery
        self._has_replicas = has_replicas
        self._renewing: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ask_again_at = 0.0

    async def passed(self, owner: Scope, read: PendingRead, *, deadline: float) -> Passed:
        """What a replica must have replayed to be read after `read`. `deadline` is of the running loop's clock."""
        marks = to_be_passed(read)
        if marks is None or not self._has_replicas:
            return Passed(marks=marks)
        if self._delivery.floor is not None:
            marks = (*marks, self._delivery.floor)
        if read.trusted_ms > 0:
            if read.trusted_ms < TRUST_MS / 2 and self._watermarks.lease_of(owner) not in self._renewing:
                self._start(owner, read.redis_ms)
            return Passed(marks=marks)
        return await self._asked(owner, read, marks, deadline)

    async def close(self) -> None:
        """Stop what runs in the background."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _asked(self, owner: Scope, read: PendingRead, marks: tuple[Watermark, ...], deadline: float) -> Passed:
        left = (deadline - asyncio.get_running_loop().time()) * PRIMARY_SHARE
        try:
            owed = await self._ask(owner.namespace, seconds=left)
        except (errors.Unavailable, errors.Conflict) as exc:
            return Passed(
                marks=marks, doubt=f"may be stale: the primary did not confirm that replicas are up to date ({exc})"
            )
        if owed is None:
            return Passed(marks=None)
        self._start(owner, read.redis_ms, owed)
        return Passed(marks=(*marks, owed.watermark) if owner.owner in owed.owners else marks)

    async def _ask(self, namespace: str, *, seconds: float) -> "Owed | None":
        """Which watermarks of the namespace are undelivered. Raises `StoreUnavailable`."""
        from aftermind.db import undelivered_watermarks

        if monotonic() < self._ask_again_at:
            raise errors.StoreUnavailable("primary", "it did not answer a moment ago")
        try:
            async with (
                asyncio.timeout(max(seconds, 0.0)),
                self._primary.transaction(namespace=namespace, read_only=True, timeout=max(seconds, 0.01)) as tx,
            ):
                return await undelivered_watermarks.list_owed(tx, namespace, limit=MAX_OWNERS)
        except TimeoutError as exc:
            self._ask_again_at = monotonic() + PAUSE_SECONDS
            raise errors.StoreUnavailable("primary", f"no answer within {seconds:.2g} s") from exc
        except errors.Unavailable:
            self._ask_again_at = monotonic() + PAUSE_SECONDS
            raise

    def _start(self, owner: Scope, asked_ms: int, owed: "Owed | None" = None) -> None:
        self._renewing.add(self._watermarks.lease_of(owner))
        renewing = self._renew(owner, asked_ms, owed)
        task = asyncio.get_running_loop().create_task(renewing, name="aftermind replica lease")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew(self, owner: Scope, asked_ms: int, owed: "Owed | None") -> None:
        try:
            owed = owed or await self._ask(owner.namespace, seconds=TRUST_MS / 2000)
            if owed is not None:
                await self._watermarks.trust(owner, asked_ms, owed.watermark, owed.owners)
        except errors.AftermindError as exc:  # the next recall asks for itself
            log.info("replica lease not renewed", extra={"namespace": owner.namespace, "error": str(exc)})
        finally:
            self._renewing.discard(self._watermarks.lease_of(owner))


def to_be_passed(read: PendingRead) -> tuple[Watermark, ...] | None:
    """The owner's last write, and the floor of this run of Redis: the watermarks of the previous run are lost.

    None if no replica may be read, whatever it has replayed.
    """
    if read.epoch is None or not read.epoch.settled:
        return None
    return tuple(mark for mark in (read.watermark, read.epoch.floor) if mark is not None)
