"""Lua files as calls: names of keys put in once, sent as a hash, as a whole only where Redis does not know it yet."""

import hashlib
from functools import cache
from importlib import resources

from aftermind.wire.channel import UnknownScriptError
from aftermind.wire.connection import RedisLink
from aftermind.wire.keys import Keys
from aftermind.wire.resp import Answer, Argument, joined, packed

_FIRST = ("_turns", "_watermark")  # local functions that the other files use


class Script:
    """One Lua file of `wire/lua`, bound to a prefix. Its header says arguments and returns.

    Names of keys are text of the script, not `KEYS`: they follow from each other (a job's hash names its owner), and
    leaving them out of each call made it a tenth cheaper. So it needs a Redis that is no cluster; we use one.
    """

    def __init__(self, name: str, keys: Keys) -> None:
        names = "\n".join(f"local {name} = {_literal(value)}" for name, value in keys.in_lua().items())
        self._text = "\n".join([names, *(_source(part) for part in _FIRST), _source(name)]).encode()
        sha = hashlib.sha1(self._text, usedforsecurity=False).hexdigest()
        self._sha, self._head = sha, packed((b"EVALSHA", sha, b"0"))

    def packed(self, count: int, *parts: bytes) -> bytes:
        """The call as bytes for `Channel.send`, of so many arguments in packed parts.

        Raises `UnknownScriptError` there if Redis does not know the file.
        """
        return joined(count + 3, self._head, *parts)

    async def __call__(self, link: RedisLink, *arguments: Argument) -> Answer:
        """Run it. Raises `RedisUnavailable`."""
        try:
            return await link.call(b"EVALSHA", self._sha, b"0", *arguments)
        except UnknownScriptError:
            return await link.call(b"EVAL", self._text, b"0", *arguments)


@cache
def _source(name: str) -> str:
    return resources.files("aftermind.wire").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")


def _literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    return '"' + "".join(f"\\{byte:03d}" for byte in value.encode()) + '"'
