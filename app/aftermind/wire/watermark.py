"""Raising and reading the watermark of an owner outside of a store: after embedding, facts, blocks, forget."""

from collections.abc import Iterable, Sequence

from aftermind.types import Scope, Watermark
from aftermind.wire.redis.client import RedisLink, run_all, split_shards
from aftermind.wire.redis.script import Script
from aftermind.wire.redis_keys import Keys, namespace_part, owner_part, shard_number

SCRIPT_OWNERS = 200  # watermarks per script, 2 us each: Redis is blocked for this time


class Watermarks:
    """The watermarks of one Redis, or of all shards of a cluster. Raises `RedisUnavailable`."""

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        shards = list(split_shards(link, keys))
        self._links, self._keys = [each for each, _ in shards], [each for _, each in shards]
        self._raise = [Script("watermark_raise", each) for each in self._keys]
        self._allow_replica_reads = [Script("watermark_allow_replica_reads", each) for each in self._keys]

    async def raise_to(self, watermark: Watermark | None, owners: Iterable[Scope]) -> None:
        """After a COMMIT (never before), for those whose rows it changed. None (no replica can lag) does nothing.

        A shard that does not answer keeps none of the others from being raised.
        """
        parts = sorted({owner_part(owner) for owner in owners})
        if watermark is None or not parts:
            return
        groups: dict[int, list[str]] = {}
        for part in parts:
            groups.setdefault(self._shard(part), []).append(part)
        place = (watermark.system, watermark.timeline, watermark.lsn)
        await run_all(self._raise[shard](self._links[shard], *place, *some) for shard, some in groups.items())

    async def trust(self, owner: Scope, asked_ms: int, watermark: Watermark, owners: Sequence[Scope]) -> bool:
        """Raise what was undelivered in a namespace, then let its replicas be read; whether they may be now.

        In a cluster this is for the shard of `owner`. `asked_ms` is Redis's clock before the primary was asked for
        `owners`, `watermark` a place taken since.
        """
        shard = self._shard(owner)
        owners = [each for each in owners if self._shard(each) == shard]
        *first, last = [owners[at : at + SCRIPT_OWNERS] for at in range(0, max(len(owners), 1), SCRIPT_OWNERS)]
        for some in first:
            await self.raise_to(watermark, some)
        place = (watermark.system, watermark.timeline, watermark.lsn)
        head = (namespace_part(owner.namespace), asked_ms, *place)
        return bool(await self._allow_replica_reads[shard](self._links[shard], *head, *map(owner_part, last)))

    def lease_of(self, owner: Scope) -> tuple[str, int]:
        """What `trust` covers: the namespace, and the shard of a cluster."""
        return owner.namespace, self._shard(owner)

    async def get(self, owner: Scope) -> Watermark | None:
        """The owner's watermark, or None where nothing was written for a day."""
        shard = self._shard(owner)
        text = await self._links[shard].call("GET", self._keys[shard].watermark(owner))
        return None if text is None else Watermark.decode(text.decode())

    def _shard(self, owner: Scope | str) -> int:
        return 0 if len(self._links) == 1 else shard_number(owner)
