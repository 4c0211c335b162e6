"""Search every key under a prefix for content that must not remain."""

from collections.abc import AsyncIterator, Sequence

from redis import exceptions
from redis.asyncio import Redis

from aftermind import errors
from aftermind.types import Scope
from aftermind.types.erasure_report import SearchedPlace
from aftermind.wire.redis.client import RedisLink, split_shards, unavailable
from aftermind.wire.redis_keys import Keys, owner_part

PAGE_KEYS = 500

_KEPT = "the WAL position of the last write; expires within a day"


async def in_redis(
    link: RedisLink, keys: Keys, owner: Scope, texts: Sequence[str], *, name: str = "redis"
) -> SearchedPlace:
    """One place: all keys of the prefix, queues included, with names and values."""
    part = owner_part(owner).encode()
    spelt = [each.encode() for each in texts]
    examined = found = owned = 0
    only_marks = True
    try:
        with unavailable():
            for shard, names in split_shards(link, keys):
                async for key in _scan_keys(shard.client(), names.start):
                    values = [value async for value in _values(shard.client(), key)]
                    examined += 1
                    found += any(text in value for text in spelt for value in (key, *values))
                    if key.endswith(b":" + part) or part in values:
                        owned += 1
                        only_marks &= key == names.watermark(owner).encode()
    except errors.RedisUnavailable as exc:
        why = "this Redis user may not scan keys: set AFTERMIND_REDIS_URL to one with this right"
        refused = isinstance(exc.__cause__, exceptions.NoPermissionError)
        return SearchedPlace(name=name, missing=why if refused else str(exc))
    return SearchedPlace(
        name=name, examined=f"{examined:,} keys", found=found, owned=owned, kept=_KEPT if only_marks else ""
    )


async def _scan_keys(client: Redis, prefix: str) -> AsyncIterator[bytes]:
    pattern = "".join(f"[{each}]" if each in "*?[" else each for each in prefix.replace("\\", "\\\\")) + "*"
    async for key in client.scan_iter(match=pattern, count=PAGE_KEYS):
        yield key


async def _values(client: Redis, key: bytes) -> AsyncIterator[bytes]:
    kind = _raw(await client.type(key))
    if kind == b"string":
        value = await client.get(key)
        if value is not None:
            yield _raw(value)
    elif kind == b"hash":
        async for field, value in client.hscan_iter(key, count=PAGE_KEYS):
            yield _raw(field)
            yield _raw(value)
    elif kind == b"set":
        async for member in client.sscan_iter(key, count=PAGE_KEYS):
            yield _raw(member)
    elif kind == b"zset":
        async for member, _ in client.zscan_iter(key, count=PAGE_KEYS):
            yield _raw(member)
    elif kind == b"list":
        for start in range(0, await client.llen(key), PAGE_KEYS):  # a queue that changes during the search has ids only
            for value in await client.lrange(key, start, start + PAGE_KEYS - 1):
                yield _raw(value)
    elif kind != b"none":
        raise errors.Bug(f"{key!r} is a {kind.decode()}, and no key of ours is: wire.keys has them all.")


def _raw(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
