"""A probe message that verifies that workers consume a queue, whatever processes are running."""

import asyncio
import time
from uuid import uuid4

from aftermind.outbox.doorbell_message import Doorbell
from aftermind.types import JobId
from aftermind.wire import queues
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys

LONGEST_SECONDS = 3.0  # an idle worker takes a bell within milliseconds
POLL_SECONDS = 0.05


async def sing(link: RedisLink, keys: Keys) -> dict[str, float | None]:
    """Send a probe to each queue; seconds until a worker consumed it, None if none did in time.

    Raises `RedisUnavailable`. A probe that was not consumed is removed again; a consumed one makes the worker check for
    jobs.
    """
    bell = Doorbell("redis://")  # only to word messages: it never connects
    waits = await asyncio.gather(*(_sing(link, keys, bell, name) for name in queues.QUEUES))
    return dict(zip(queues.QUEUES, waits, strict=True))


async def _sing(link: RedisLink, keys: Keys, bell: Doorbell, queue: str) -> float | None:
    name, message = keys.queue(queue), bell.message(JobId(uuid4()), queue)
    began = time.monotonic()
    await link.call("LPUSH", name, message)
    while time.monotonic() - began < LONGEST_SECONDS:
        if await link.call("LPOS", name, message) is None:
            return time.monotonic() - began
        await asyncio.sleep(POLL_SECONDS)
    removed = await link.call("LREM", name, 0, message)
    return None if removed else LONGEST_SECONDS
