"""Lua files as functions of Redis: one library per prefix and release, loaded once and called by name.

Functions, not `EVAL`: they survive a restart of Redis, and a user without `EVAL` and `FUNCTION LOAD` (an agent's, see
`wire.redis.acl`) can run these functions but no other Lua.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from aftermind import errors
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis.connection import UnknownScriptError
from aftermind.wire.redis.resp import Answer, Argument, joined, packed
from aftermind.wire.redis_keys import Keys

SHARED = ("_pending", "_watermark")  # local functions that the other files use
# Redis runs no function while it is out of memory, except those that write nothing or free what they can. Others must
# not: a turn that is refused then is spooled.
_FLAGS: Mapping[str, str] = {
    **dict.fromkeys(("pending_lost_leases", "pending_read"), "no-writes"),
    **dict.fromkeys(
        (
            "pending_backlog",
            "pending_claim",
            "pending_erase",
            "erasure_generation_raise",
            "pending_renew_leases",
            "watermark_raise",
            "pending_release_leases",
            "pending_undo_claim",
            "pending_settle",
            "watermark_allow_replica_reads",
        ),
        "allow-oom",
    ),
}


class Script:
    """One Lua file of `wire/lua`, bound to a prefix. Its header documents arguments and returns.

    Names of keys are text of the library, not `KEYS`: they depend on each other (a job's hash names its owner), and
    omitting them made each call 10 % cheaper. In a Redis Cluster each shard has its own library, and a call names one
    key, by which the node checks that it has the shard.
    """

    def __init__(self, name: str, keys: Keys) -> None:
        self._keys, self._name = keys, library(keys).function(name)
        named = () if keys.shard is None else (keys.route(),)
        self._call: tuple[Argument, ...] = (b"FCALL", self._name, len(named), *named)
        self._head = packed(self._call)

    def packed(self, count: int, *parts: bytes) -> bytes:
        """The call as bytes for `RedisConnection.send`, with the given number of arguments in packed parts.

        Raises `UnknownScriptError` there if Redis does not have the library.
        """
        return joined(count + len(self._call), self._head, *parts)

    async def __call__(self, link: RedisLink, *arguments: Argument) -> Answer:
        """Run it; load the library first where Redis does not have it. Raises `RedisUnavailable`."""
        call = (*self._call, *arguments)
        try:
            return await link.call(*call)
        except UnknownScriptError:
            await load(link, self._keys)
            return await link.call(*call)


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of one release under one prefix. Releases have different names, so two can run side by side."""

    name: str
    code: str

    def function(self, script: str) -> str:
        """The name of a Lua file's function, unique over all libraries."""
        return f"{self.name}_{script}"


async def load(link: RedisLink, keys: Keys) -> None:
    """Load the library, as a user with the right to do so. Raises `RedisUnavailable`."""
    try:
        await link.call("FUNCTION", "LOAD", "REPLACE", library(keys).code)
    except errors.RedisUnavailable as exc:
        if not exc.why.startswith("NOPERM"):
            raise
        why = "this Redis does not have the functions of this release, and this user may not load them"
        raise errors.RedisUnavailable(f"{why}: run `aftermind migrate`, or start a worker") from exc


@cache
def library(keys: Keys) -> Library:
    """Every Lua file as a function, behind the names of the keys and the local functions that they share."""
    head = "\n".join(
        [
            *(f"local {name} = {_literal(value)}" for name, value in keys.in_lua().items()),
            *(source(part) for part in SHARED),
        ]
    )
    scripts = {name: source(name) for name in script_names()}
    digest = hashlib.sha256(repr((head, scripts, sorted(_FLAGS.items()))).encode()).hexdigest()[:12]
    made = Library(f"aftermind_{digest}", "")
    functions = [_registered(made.function(name), _FLAGS.get(name), body) for name, body in scripts.items()]
    return Library(made.name, "\n".join([f"#!lua name={made.name}", head, *functions]))


@cache
def script_names() -> tuple[str, ...]:
    """The Lua files that are called."""
    found = (path.name for path in resources.files("aftermind.wire").joinpath("lua").iterdir())
    return tuple(sorted(name[:-4] for name in found if name.endswith(".lua") and not name.startswith("_")))


@cache
def source(name: str) -> str:
    """The text of a Lua file."""
    return resources.files("aftermind.wire").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def _registered(function: str, flag: str | None, body: str) -> str:
    flags = f"flags = {{'{flag}'}}, " if flag else ""
    return (
        f"redis.register_function{{function_name = '{function}', {flags}callback = function(KEYS, ARGV)\n{body}\nend}}"
    )


def _literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    return '"' + "".join(f"\\{byte:03d}" for byte in value.encode()) + '"'
