"""The pending turns of a Redis Cluster: those of each shard, and what concerns all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import timedelta
from typing import TypeVar

from aftermind import errors
from aftermind.types import JobId, Scope, Turn, Watermark
from aftermind.types.job_admin import PendingTurn
from aftermind.types.tombstone import Generation, Tombstone
from aftermind.wire.pending import Pending
from aftermind.wire.pending_types import PendingBacklog, PendingRead, Settled
from aftermind.wire.redis.client import RedisLink, run_all, split_shards
from aftermind.wire.redis_keys import Keys, shard_number

T = TypeVar("T")


def open_pending(link: RedisLink, keys: Keys, generation: Generation | None = None) -> Pending:
    """The pending turns of a server or a cluster. `generation` is shared by all of the process."""
    return Pending(link, keys, generation) if len(link.shards) == 1 else PendingShards(link, keys, generation)


class PendingShards(Pending):
    """The shards of one Redis Cluster. Turns are claimed and returned by shard: see `shards`, `shard_of`."""

    def __init__(self, link: RedisLink, keys: Keys, generation: Generation | None = None) -> None:
        super().__init__(link, keys, generation)
        self.shards = tuple(Pending(*shard, self.generation) for shard in split_shards(link, keys))

    def shard_of(self, owner: Scope) -> Pending:
        return self.shards[shard_number(owner)]

    @property
    def malformed(self) -> int:
        return sum(each.malformed for each in self.shards)

    async def reserve(self, turns: Sequence[Turn]) -> tuple[list[Turn], frozenset[JobId]]:
        groups: dict[int, list[int]] = {}
        for place, turn in enumerate(turns):
            groups.setdefault(shard_number(turn.scope), []).append(place)
        placed, conflicts = list(turns), frozenset[JobId]()
        parts = await asyncio.gather(
            *(self.shards[shard].reserve([turns[place] for place in places]) for shard, places in groups.items())
        )
        for places, (some, refused) in zip(groups.values(), parts, strict=True):
            conflicts |= refused
            for place, turn in zip(places, some, strict=True):
                placed[place] = turn
        return placed, conflicts

    async def read(self, owner: Scope, *, limit: int, skip: int = 0) -> PendingRead:
        return await self.shard_of(owner).read(owner, limit=limit, skip=skip)

    async def forget(self, stone: Tombstone) -> list[JobId]:
        return await self.shard_of(stone.owner).forget(stone)

    async def settle(
        self, ids: Sequence[JobId], *, watermark: Watermark | None, owners: Iterable[Scope] = ()
    ) -> Settled:
        """The turns of one batch, which are of one shard, or of the owners' shards: elsewhere the ids are unknown."""
        groups: dict[int, set[Scope]] = {}
        for owner in owners:
            groups.setdefault(shard_number(owner), set()).add(owner)
        done = await run_all(
            self.shards[shard].settle(ids, watermark=watermark, owners=some) for shard, some in groups.items()
        )
        return Settled(removed=sum(each.removed for each in done), runnable=sum(each.runnable for each in done))

    async def list_oldest(self, limit: int) -> list[PendingTurn]:
        """Raises `RedisUnavailable` if a shard is away: without its turns, an empty list would be a wrong answer."""
        found = await run_all(shard.list_oldest(limit) for shard in self.shards)
        return sorted((turn for some in found for turn in some), key=lambda turn: turn.accepted_at)[:limit]

    async def find(self, job_id: JobId) -> PendingTurn | None:
        found = await self._of_reachable(lambda shard: shard.find(job_id))
        return next((turn for turn in found if turn is not None), None)

    async def backlog(self, *, name: int = 0, except_namespaces: Collection[str] = ()) -> PendingBacklog:
        """Of the shards that answer."""
        found = await self._of_reachable(lambda shard: shard.backlog(name=name, except_namespaces=except_namespaces))
        return PendingBacklog(
            turns=sum(each.turns for each in found),
            runnable=sum(each.runnable for each in found),
            size_bytes=sum(each.size_bytes for each in found),
            oldest_age=max((each.oldest_age for each in found), default=timedelta(0)),
            namespaces_waiting=max(each.namespaces_waiting for each in found),
            next_jobs=tuple(job for each in found for job in each.next_jobs)[:name],
            claimable_age=max((each.claimable_age for each in found), default=timedelta(0)),
            handed_back=sum(each.handed_back for each in found),
        )

    async def _of_reachable(self, ask: Callable[[Pending], Awaitable[T]]) -> list[T]:
        """The answers of the shards that answer. Raises `RedisUnavailable` if none does."""
        answers = await asyncio.gather(*map(ask, self.shards), return_exceptions=True)
        found: list[T] = []
        failure: errors.RedisUnavailable | None = None
        for answer in answers:
            if isinstance(answer, errors.RedisUnavailable):
                failure = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        if failure is not None and not found:
            raise failure
        return found
