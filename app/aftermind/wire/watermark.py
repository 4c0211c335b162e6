"""Raising and reading the watermark of an owner outside of a store: after embedding, facts, blocks, forget."""

from collections.abc import Iterable, Sequence

from aftermind.types import Scope, Watermark
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis.script import Script
from aftermind.wire.redis_keys import Keys, namespace_part, owner_part

SCRIPT_OWNERS = 200  # watermarks per script, 2 us each: Redis is blocked for this time


class Watermarks:
    """The watermarks of one Redis. Raises `RedisUnavailable`."""

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link, self._keys = link, keys
        self._raise, self._trust = Script("watermark_raise", keys), Script("watermark_trust", keys)

    async def raise_to(self, watermark: Watermark | None, owners: Iterable[Scope]) -> None:
        """After a COMMIT (never before), for those whose rows it changed. None (no replica can lag) does nothing."""
        parts = sorted({owner_part(owner) for owner in owners})
        if watermark is not None and parts:
            await self._raise(self._link, watermark.system, watermark.timeline, watermark.lsn, *parts)

    async def trust(self, namespace: str, asked_ms: int, watermark: Watermark, owners: Sequence[Scope]) -> bool:
        """Raise what was undelivered in a namespace, then let its replicas be read; whether they may be now.

        `asked_ms` is Redis's clock before the primary was asked for `owners`, `watermark` a place taken since.
        """
        *first, last = [owners[at : at + SCRIPT_OWNERS] for at in range(0, max(len(owners), 1), SCRIPT_OWNERS)]
        for some in first:
            await self.raise_to(watermark, some)
        place = (watermark.system, watermark.timeline, watermark.lsn)
        parts = map(owner_part, last)
        return bool(await self._trust(self._link, namespace_part(namespace), asked_ms, *place, *parts))

    async def get(self, owner: Scope) -> Watermark | None:
        """The owner's watermark, or None where nothing was written for a day."""
        text = await self._link.call("GET", self._keys.watermark(owner))
        return None if text is None else Watermark.decode(text.decode())
