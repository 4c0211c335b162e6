"""Bells that are not rung by the accepting call itself: after a commit, over RabbitMQ."""

import asyncio
from collections.abc import Sequence

from aftermind import errors
from aftermind.outbox.doorbell_message import Doorbell
from aftermind.outbox.single_background_task import OneTask
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId
from aftermind.wire.doorbell_queues import DoorbellQueues
from aftermind.wire.pending import BELLS
from aftermind.wire.queues import STORE
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys

log = get_logger(__name__)

BROKER_SECONDS = 2.0  # a worker may wait longer than an agent: no answer depends on it


def queues_through(link: RedisLink | None, broker: str, prefix: str) -> DoorbellQueues | None:
    """The broker's lists, if `link` leads to it."""
    return DoorbellQueues(link, Keys(prefix)) if link is not None and link.given_url == broker else None


class DoorbellSender:
    """Sends doorbells for turns, in the accepting call if possible, else soon after it, best effort.

    `bells` are the lists of a Redis broker; None for other brokers, whose doorbells kombu sends in a thread. If a
    doorbell is lost, the reconciler sends another one.
    """

    def __init__(self, doorbell: Doorbell, bells: DoorbellQueues | None) -> None:
        self._doorbell, self._bells = doorbell, bells
        self._due: list[JobId] = []
        self._task = OneTask()

    def messages(self, ids: Sequence[JobId]) -> list[bytes]:
        """Celery messages for the accepting call to push; none for brokers other than Redis."""
        if self._bells is None:
            return []
        return [self._doorbell.message(job_id, STORE) for job_id in ids]

    def ring_soon(self, ids: Sequence[JobId]) -> None:
        """Ring from a task of the running loop; a few bells are enough for any number of turns."""
        self._due = [*self._due, *ids][-BELLS:]
        self._task.start(self._ring)

    async def close(self) -> None:
        """Finish what `ring_soon` began, and close the broker connection that it made."""
        await self._task.wait()
        await asyncio.to_thread(self._doorbell.close)

    async def _ring(self) -> None:
        try:
            while self._due:
                ids, self._due = self._due, []
                if self._bells is None:
                    await asyncio.to_thread(self._doorbell.ring, STORE, ids)
                else:
                    await self._bells.ring(STORE, self.messages(ids))
        except errors.Unavailable as exc:
            log.warning("doorbell not sent; the reconciler sends it again", extra={"reason": str(exc)})
        except Exception:  # the edge of a background task: a bell that cannot be made must not be silent
            log.exception("doorbell not sent; the reconciler sends it again")


class WorkerBells:
    """Notifies the workers of a queue: over `link` where it leads to the broker, else by kombu.

    Best effort, and not piled up: no bell is added where enough wait already.
    """

    def __init__(self, broker: str, link: RedisLink | None, *, prefix: str) -> None:
        self._doorbell = Doorbell(broker, prefix=prefix, timeout=BROKER_SECONDS)
        self._bells = queues_through(link, broker, prefix)

    async def ring(self, queue: str, ids: Sequence[JobId]) -> int:
        """Ring for these jobs; how many bells were rung. Raises `RedisUnavailable` or `BrokerUnavailable`."""
        if not ids:
            return 0
        if self._bells is None:
            await asyncio.to_thread(self._doorbell.ring, queue, ids)
            return len(ids)
        return await self._bells.ring(queue, [self._doorbell.message(job_id, queue) for job_id in ids])

    async def close(self) -> None:
        """Close the broker connections that were made."""
        await asyncio.to_thread(self._doorbell.close)
