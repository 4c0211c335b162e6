"""The publishers of a Redis Cluster, one for each shard: a shard that is away delays the turns of its owners alone."""

import asyncio
from collections.abc import Sequence

from aftermind.outbox.protocol import Sent
from aftermind.outbox.publish_or_spool import Publisher
from aftermind.outbox.turn_positions import Positions
from aftermind.types import JobId, Scope, Turn
from aftermind.types.tombstone import Tombstone
from aftermind.wire.redis_keys import shard_number


class ShardedPublisher:
    """Hands each turn to the publisher of its owner's shard. `positions` are shared by all of them."""

    def __init__(self, positions: Positions, shards: Sequence[Publisher]) -> None:
        self.positions, self._shards = positions, shards

    async def send(self, turn: Turn) -> Sent:
        self.find_orphans()
        return await self._of(turn.scope).send(turn)

    async def pending(self, owner: Scope) -> tuple[Turn, ...]:
        self.find_orphans()
        return await self._of(owner).pending(owner)

    async def forget(self, stone: Tombstone) -> list[JobId]:
        return await self._of(stone.owner).forget(stone)

    async def drained(self) -> None:
        await asyncio.gather(*(each.drained() for each in self._shards))

    def find_orphans(self) -> None:
        """Begin to send what ended processes have spooled for any shard; repeated for as long as the loop runs."""
        for each in self._shards:
            each.find_orphans()

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._shards))

    def _of(self, owner: Scope) -> Publisher:
        return self._shards[shard_number(owner)]
