"""Which life of Redis it is, and from where on its watermarks can be trusted.

A Redis that came back empty, or older than it was, has lost watermarks: a replica behind them would look good enough.
So each life has an id and a *floor*: a watermark taken from the primary after the life was noticed. Every commit whose
watermark was lost lies below the floor, every later one sets its own. Readers ask of a replica to have passed both;
while there is no floor yet, they ask the primary.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self
from uuid import uuid4

from aftermind import errors
from aftermind.types import Watermark
from aftermind.wire.connection import RedisLink
from aftermind.wire.keys import Keys
from aftermind.wire.script import Script


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One life of a Redis. `run` is the server's own run id ("" where it does not tell).

    `settled` False: somebody is taking the floor right now, so nothing can be trusted yet. A settled epoch without a
    `floor` belongs to a store whose readers cannot lag.
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
    """The epoch of this life of Redis, made where there is none. Workers and the reconciler call it now and then.

    Two steps, each a compare-and-set: claim the epoch, take the floor, settle it. So a floor is always younger than
    the key it is written to, also where Redis is wiped in between. A server that was restarted counts as a new life:
    under `appendfsync everysec` its last second is gone, and with it the last erasures that it heard of: it is told the
    generation too, before its epoch is settled. Raises `RedisUnavailable` and what `take_watermark` raises.
    """
    swap = Script("swap", keys)
    run = await _run_id(link)
    found = await link.call("GET", keys.epoch())
    if found is not None:
        epoch = Epoch.decode(found.decode())
        if epoch.settled and epoch.run == run:
            return epoch
    claimed = Epoch(id=uuid4().hex, run=run)
    if not await swap(link, found or b"", claimed.encode()):
        return await ensure_epoch(link, keys, take_watermark, take_generation)
    if take_generation is not None:
        await Script("generation", keys)(link, await take_generation())
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
        return ""  # a managed Redis may not tell; then only an empty one is noticed
    lines = (line.partition(b":") for line in info.splitlines())
    return next((value.decode() for name, _, value in lines if name == b"run_id"), "")
