"""Sends doorbells for jobs in the ledger or in pending, without accumulating them."""

from collections.abc import Sequence

from aftermind.wire.pending import BELLS
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis.script import Script
from aftermind.wire.redis_keys import Keys


class DoorbellQueues:
    """The lists of waiting Celery messages in Redis. Raises `RedisUnavailable`."""

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link, self._keys = link, keys
        self._ring = Script("doorbell_push", keys)

    async def ring(self, queue: str, messages: Sequence[bytes], *, most: int = BELLS) -> int:
        """Push Celery messages (outbox.doorbell makes them) while fewer than `most` wait; how many were pushed."""
        if not messages:
            return 0
        return int(await self._ring(self._link, self._keys.queue(queue), most, *messages))

    async def waiting(self, queue: str) -> int:
        """Bells that no worker has taken yet."""
        return int(await self._link.call("LLEN", self._keys.queue(queue)))
