"""The registry of running processes in Redis: fingerprints of their keys, queues, memory and settings."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import orjson

from aftermind import errors
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis.script import Script
from aftermind.wire.redis_keys import PROCESS_SECONDS, SILENT_PROCESS_SECONDS, Keys

ANNOUNCE_SECONDS = PROCESS_SECONDS / 3

ABOUT = "about"  # the name of what describes the process among its fingerprints: `name=value` each
AT = "at"  # added to what is listed: Unix time of the announcement, by Redis's clock

Fingerprints = Mapping[str, Sequence[str]]  # setting → fingerprints of its keys, the newest first


async def announce(link: RedisLink, keys: Keys, process: str, fingerprints: Fingerprints) -> None:
    """Record the fingerprints of a process. Raises `RedisUnavailable`."""
    await Script("process_announce", keys)(link, process, orjson.dumps(fingerprints), SILENT_PROCESS_SECONDS * 1000)


async def keep_announcing(
    link: RedisLink, keys: Keys, process: str, fingerprints: Fingerprints, about: Callable[[], Sequence[str]]
) -> None:
    """Announce now and then, until cancelled; the process is removed then. An outage of Redis is passed over.

    `about` is called each time.
    """
    try:
        while True:
            with suppress(errors.RedisUnavailable):
                await announce(link, keys, process, {**fingerprints, ABOUT: about()})
            await asyncio.sleep(ANNOUNCE_SECONDS)
    finally:
        with suppress(errors.RedisUnavailable):
            await link.call("HDEL", keys.processes(), process)


async def list_announced(
    link: RedisLink, keys: Keys, *, seconds: float = PROCESS_SECONDS
) -> Mapping[str, Fingerprints]:
    """Processes that announced their keys in the last `seconds`, but malformed entries. Raises `RedisUnavailable`."""
    now, _ = await link.call("TIME")
    flat = await link.call("HGETALL", keys.processes())
    found: dict[str, dict[str, list[str]]] = {}
    for process, value in zip(flat[::2], flat[1::2], strict=True):
        at, _, text = value.partition(b" ")
        with suppress(ValueError, AttributeError, TypeError):  # an entry that no process of ours wrote
            if int(at) / 1000 >= int(now) - seconds:
                given = orjson.loads(text)
                name = process.decode("utf-8", "replace")
                found[name] = {str(setting): list(map(str, each)) for setting, each in given.items()}
                found[name][ABOUT] = [*found[name].get(ABOUT, ()), f"{AT}={int(at) / 1000}"]
    return found
