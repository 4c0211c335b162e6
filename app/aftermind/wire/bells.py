"""Ringing for work that lies in the ledger or in pending, without piling up bells."""

from collections.abc import Sequence

from aftermind.wire.connection import RedisLink
from aftermind.wire.keys import Keys
from aftermind.wire.pending import BELLS
from aftermind.wire.script import Script


class Bells:
    """The lists of waiting Celery messages in Redis. Raises `RedisUnavailable`."""

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link, self._keys = link, keys
        self._ring = Script("ring", keys)

    async def ring(self, queue: str, messages: Sequence[bytes], *, most: int = BELLS) -> int:
        """Push Celery messages (outbox.doorbell makes them) while fewer than `most` wait; how many were pushed."""
        if not messages:
            return 0
        return int(await self._ring(self._link, self._keys.queue(queue), most, *messages))

    async def waiting(self, queue: str) -> int:
        """Bells that no worker has taken yet."""
        return int(await self._link.call("LLEN", self._keys.queue(queue)))
