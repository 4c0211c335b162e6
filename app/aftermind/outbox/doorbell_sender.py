"""Bells that are not rung by the accepting call itself: after a commit, or at a broker other than its Redis."""

import asyncio
from collections.abc import Sequence

from aftermind import errors
from aftermind.outbox.doorbell_message import Doorbell
from aftermind.outbox.single_background_task import OneTask
from aftermind.outbox.spool_deployment import redis_address
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId
from aftermind.wire.pending import BELLS
from aftermind.wire.queues import STORE
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys

log = get_logger(__name__)

AGENT_SECONDS = 0.5  # for connecting to the broker, and for each answer
WORKER_SECONDS = 2.0  # a worker may wait longer than an agent: no answer depends on it


class BrokerBells:
    """Notifies the workers of a queue: in the lists of a Redis broker, through kombu at any other.

    `link` is used if it leads to the broker; any other Redis broker gets a separate connection. Best effort, and not
    piled up: no bell is added to a list where enough wait already.
    """

    def __init__(self, broker: str, link: RedisLink | None, *, prefix: str, timeout_seconds: float) -> None:
        self._broker, self._doorbell = broker, Doorbell(broker, timeout=timeout_seconds)
        self.is_on_link = link is not None and link.given_url == broker
        is_other_redis = not self.is_on_link and not broker.startswith("amqp")
        self._own = RedisLink(broker, timeout=timeout_seconds, name="aftermind-doorbells") if is_other_redis else None
        self._redis, self._keys = link if self.is_on_link else self._own, Keys(prefix)

    def messages(self, queue: str, ids: Sequence[JobId]) -> list[bytes]:
        """Celery messages for these jobs."""
        return [self._doorbell.message(job_id, queue) for job_id in ids]

    async def ring(self, queue: str, ids: Sequence[JobId]) -> int:
        """Ring for these jobs; how many bells were rung. Raises `RedisUnavailable` of `link`, `BrokerUnavailable`."""
        if not ids:
            return 0
        if self._redis is None:
            await asyncio.to_thread(self._doorbell.ring, queue, ids)
            return len(ids)
        try:
            return await self._push(self._redis, queue, ids)
        except errors.RedisUnavailable as exc:
            if self._own is None:
                raise
            raise broker_unavailable(self._broker, exc) from exc

    async def close(self) -> None:
        """Close the broker connections that were made."""
        await asyncio.to_thread(self._doorbell.close)
        if self._own is not None:
            await self._own.close()

    async def _push(self, redis: RedisLink, queue: str, ids: Sequence[JobId]) -> int:
        # Plain commands: a Redis that is only the broker needs no functions, so it may be older than 7. Processes that
        # ring at the same moment may exceed the maximum, by `BELLS` each.
        queue_key = self._keys.queue(queue)
        missing = max(0, BELLS - int(await redis.call("LLEN", queue_key)))
        messages = self.messages(queue, ids[:missing])
        if messages:
            await redis.call("LPUSH", queue_key, *messages)
        return len(messages)


def broker_unavailable(broker: str, exc: errors.RedisUnavailable) -> errors.BrokerUnavailable:
    """The error of a Redis that is only the broker, with its address and without credentials."""
    address = redis_address(broker, "").rstrip("/")
    return errors.BrokerUnavailable(f"the Redis {address} takes no doorbell: {exc.why.removesuffix('.')}")


class DoorbellSender:
    """Sends doorbells for turns, in the accepting call if possible, else soon after it, best effort.

    If a doorbell is lost, the reconciler sends another one.
    """

    def __init__(self, bells: BrokerBells) -> None:
        self._bells = bells
        self._due: list[JobId] = []
        self._task = OneTask()

    def messages(self, ids: Sequence[JobId]) -> list[bytes]:
        """Celery messages for the accepting call to push; none if its Redis is not the broker."""
        return self._bells.messages(STORE, ids) if self._bells.is_on_link else []

    def ring_soon(self, ids: Sequence[JobId]) -> None:
        """Ring from a task of the running loop; a few bells are enough for any number of turns."""
        self._due = [*self._due, *ids][-BELLS:]
        self._task.start(self._ring)

    async def close(self) -> None:
        """Finish what `ring_soon` began, and close the broker connection that it made."""
        await self._task.wait()
        await self._bells.close()

    async def _ring(self) -> None:
        try:
            while self._due:
                ids, self._due = self._due, []
                await self._bells.ring(STORE, ids)
        except (errors.Unavailable, errors.ExtraMissing) as exc:
            log.warning("doorbell not sent; the reconciler sends it again", extra={"reason": str(exc)})
        except Exception:  # the edge of a background task: a bell that cannot be made must not be silent
            log.exception("doorbell not sent; the reconciler sends it again")
