"""Agents on uvloop, which `uvicorn[standard]` runs applications on: its transports are not subclasses of asyncio's."""

import asyncio

import pytest
import uvloop

from aftermind import errors
from aftermind.wire.redis.client import RedisLink
from tests.support.valkey import Valkey


def test_calls_are_answered_and_a_frozen_server_ends_in_an_error_on_uvloop(valkey: Valkey) -> None:
    async def call() -> list[bytes]:
        link = RedisLink(valkey.url, timeout=0.3)
        try:
            answers = await asyncio.gather(*(link.call("ECHO", f"e{i}") for i in range(50)))
            with valkey.frozen(), pytest.raises(errors.RedisUnavailable, match="no answer within"):
                await link.call("ECHO", "frozen")
            return answers
        finally:
            await link.close()

    assert uvloop.run(call()) == [f"e{i}".encode() for i in range(50)]
