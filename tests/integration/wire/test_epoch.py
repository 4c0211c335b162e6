"""Which life of Redis it is: noticed when it came back empty, with a floor taken afterwards."""

import asyncio
from itertools import count

import pytest

from aftermind import errors
from aftermind.types import Scope, Watermark
from aftermind.wire.pending import Pending
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_epoch import Epoch, ensure_epoch
from aftermind.wire.redis_keys import Keys
from aftermind.wire.watermark import Watermarks
from tests.support.valkey import Valkey

pytestmark = pytest.mark.asyncio
ALICE = Scope(user_id="alice")


class Primary:
    """A log that moves on each time it is asked."""

    def __init__(self) -> None:
        self._lsn = count(100)

    async def watermark(self) -> Watermark:
        return mark(next(self._lsn))


def mark(lsn: int, timeline: int = 1, system: int = 7) -> Watermark:
    return Watermark(system=system, timeline=timeline, lsn=lsn)


async def test_an_epoch_is_made_once_and_stays(link: RedisLink, keys: Keys, pending: Pending) -> None:
    assert (await pending.read(ALICE, limit=1)).epoch is None
    primary = Primary()

    first = await ensure_epoch(link, keys, primary.watermark)
    again = await ensure_epoch(link, keys, primary.watermark)

    assert first == again == (await pending.read(ALICE, limit=1)).epoch
    assert first.settled
    assert first.floor == mark(100)


async def test_a_redis_that_came_back_empty_gets_a_new_one_with_a_later_floor(
    valkey: Valkey, link: RedisLink, keys: Keys, pending: Pending
) -> None:
    primary = Primary()
    before = await ensure_epoch(link, keys, primary.watermark)
    valkey.wipe()
    with pytest.raises(errors.RedisUnavailable):
        await link.call("PING")  # the old connection is gone

    assert (await pending.read(ALICE, limit=1)).epoch is None
    after = await ensure_epoch(link, keys, primary.watermark)

    assert after.id != before.id
    assert after.floor == mark(101)


async def test_a_restart_counts_as_another_life(valkey: Valkey, link: RedisLink, keys: Keys) -> None:
    primary = Primary()
    before = await ensure_epoch(link, keys, primary.watermark)
    valkey.kill()
    valkey.start()
    with pytest.raises(errors.RedisUnavailable):
        await link.call("PING")

    assert (await ensure_epoch(link, keys, primary.watermark)).id != before.id


async def test_while_the_floor_is_being_taken_nothing_can_be_trusted(
    link: RedisLink, keys: Keys, pending: Pending
) -> None:
    seen: list[Epoch | None] = []

    async def slow() -> Watermark:
        seen.append((await pending.read(ALICE, limit=1)).epoch)
        return mark(5)

    await ensure_epoch(link, keys, slow)

    assert seen[0] is not None
    assert not seen[0].settled


async def test_a_floor_taken_before_another_wipe_is_not_written_to_the_new_life(link: RedisLink, keys: Keys) -> None:
    floors = iter([mark(1), mark(2)])

    async def wiped_meanwhile() -> Watermark:
        floor = next(floors)
        if floor == mark(1):
            await link.call("FLUSHALL")
        return floor

    assert (await ensure_epoch(link, keys, wiped_meanwhile)).floor == mark(2)


async def test_many_who_find_none_agree_on_one(link: RedisLink, keys: Keys) -> None:
    primary = Primary()

    await asyncio.gather(*(ensure_epoch(link, keys, primary.watermark) for _ in range(8)))

    one = await ensure_epoch(link, keys, primary.watermark)
    assert one == await ensure_epoch(link, keys, primary.watermark)


async def test_a_store_without_replicas_has_an_epoch_without_a_floor(link: RedisLink, keys: Keys) -> None:
    async def nothing() -> None:
        return None

    epoch = await ensure_epoch(link, keys, nothing)

    assert epoch.settled
    assert epoch.floor is None
    assert Epoch.decode(epoch.encode()) == epoch


@pytest.mark.parametrize(
    ("then", "kept"),
    [
        (mark(2**63 + 2), mark(2**63 + 2)),
        (mark(2**63), mark(2**63 + 1)),
        (mark(99), mark(2**63 + 1)),
        (mark(5, timeline=2), mark(5, timeline=2)),
        (mark(2**64 - 1, timeline=0), mark(2**63 + 1)),
        (mark(5, system=8), mark(5, system=8)),
    ],
)
async def test_a_watermark_is_only_raised_within_a_timeline_and_replaced_beyond(
    link: RedisLink, keys: Keys, then: Watermark, kept: Watermark
) -> None:
    marks = Watermarks(link, keys)
    await marks.raise_to(mark(2**63 + 1), [ALICE])

    await marks.raise_to(then, [ALICE, Scope(user_id="bob")])

    assert await marks.get(ALICE) == kept
    assert await marks.get(Scope(user_id="bob")) == then
