"""The epoch of a Redis: identifies a run of the server, and the position from which its watermarks are valid.

A Redis that came back empty, or with older data, has lost watermarks: a replica behind them would appear up to date.
Therefore each run has an id and a *floor*: a watermark taken from the primary after the run was detected. Every commit
with a lost watermark is below the floor, every later one sets its own. Readers require that a replica has passed both;
while there is no floor, they ask the primary.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

from aftermind import errors
from aftermind.types import Watermark
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis.script import Script
from aftermind.wire.redis_keys import Keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One run of a Redis. `run` is the server's run id ("" if it is not reported).

    `settled` False: a process is taking the floor now, so no watermark is valid yet. A settled epoch without a `floor`
    belongs to a store whose readers cannot lag.
    """

    id: str
    run: str = ""
    settled: bool = False
    floor: Watermark | None = None

    def encode(self) -> str:
        """As text: `id run settled floor`, blank-separated, `-` for nothing."""
        floor = "-" if self.floor is None else self.floor.encode()
        return f"{self.id} {self.run or '-'} {int(self.settled)} {floor}"

    @classmethod
    def decode(cls, text: str) -> Self:
        """The reverse of `encode`."""
        id_, run, settled, floor = text.split(" ")
        mark = None if floor == "-" else Watermark.decode(floor)
        return cls(id=id_, run="" if run == "-" else run, settled=settled == "1", floor=mark)


async def ensure_epoch(
    link: RedisLink,
    keys: Keys,
    take_watermark: Callable[[], Awaitable[Watermark | None]],
    take_generation: Callable[[], Awaitable[int]] | None = None,
) -> Epoch:
    """The epoch of the current run of Redis, created if there is none. Workers and the reconciler call it periodically.

    Two steps, each a compare-and-set: claim the epoch, take the floor, settle it. So a floor is always younger than its
    key, even if Redis is wiped in between. A restarted server counts as a new run: under `appendfsync everysec` its
    last second is lost, and with it the latest erasures. It gets the generation too, before its epoch is settled.
    Raises `RedisUnavailable` and the errors of `take_watermark`.
    """
    swap = Script("epoch_compare_and_set", keys)
    run = await _run_id(link)
    found = await link.call("GET", keys.epoch())
    if found is not None:
        with suppress(ValueError):  # written by hand: replaced, as one that was lost
            epoch = Epoch.decode(found.decode())
            if epoch.settled and epoch.run == run:
                return epoch
    claimed = Epoch(id=uuid4().hex, run=run)
    if not await swap(link, found or b"", claimed.encode()):
        return await ensure_epoch(link, keys, take_watermark, take_generation)
    if take_generation is not None:
        await Script("erasure_generation_raise", keys)(link, await take_generation())
    settled = Epoch(id=claimed.id, run=run, settled=True, floor=await take_watermark())
    if not await swap(link, claimed.encode(), settled.encode()):
        return await ensure_epoch(link, keys, take_watermark, take_generation)
    return settled


async def _run_id(link: RedisLink) -> str:
    try:
        info = await link.call("INFO", "server")
    except errors.RedisUnavailable as exc:
        if not exc.why.startswith("NOPERM"):
            raise
        return ""  # a managed Redis may not report it; then only an empty one is detected
    lines = (line.partition(b":") for line in info.splitlines())
    return next((value.decode() for name, _, value in lines if name == b"run_id"), "")
