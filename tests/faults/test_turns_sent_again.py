"""A turn that is sent again, because the first answer never came or the key was repeated, is the first one."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aftermind import Memory, Settings, errors
from aftermind.types import Scope
from aftermind.wire import queues
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys, owner_part
from aftermind_workers import claim_and_run_loop
from tests.support.local_worker import worker_without_celery
from tests.support.proxy import Proxy, Side, StepCounter, proxy_to
from tests.support.servers import Database
from tests.support.turns import agent_on, turn_of
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

SAID = ["I lived in Rome.", "I moved to Oslo.", "I like it here."]
FOREVER = 10**9


@dataclass
class World:
    """An agent, whose connection to Redis can be cut after a step; and what a worker needs, which cannot."""

    memory: Memory
    steps: StepCounter
    proxy: Proxy
    worker: Settings
    spool: Path

    async def store(self) -> None:
        """What a worker does with all that is pending."""
        async with worker_without_celery(self.worker) as worker:
            await asyncio.wrap_future(worker.loop.submit(claim_and_run_loop.serve(worker, queues.STORE)))

    async def remember_unanswered(self, text: str, key: str | None) -> None:
        """Redis takes the turn, and its answer never arrives."""
        self.steps.arm(1, Side.AFTER)
        receipt = await self.memory.remember(text, user_id="ann", session_id="s", idempotency_key=key)
        assert receipt.spooled

    async def send_again(self) -> None:
        """Redis can be reached again, and the spool is sent."""
        self.steps.arm(FOREVER, Side.AFTER)
        self.proxy.let_pass()
        await wait_until(lambda: not list(self.spool.iterdir()), description="the spool is sent")


@pytest.fixture
async def world(database: Database, valkey: Valkey, tmp_path: Path) -> AsyncIterator[World]:
    steps = StepCounter()
    async with proxy_to(valkey.url, steps=steps) as proxy:
        named = {"database_url": database.app_url, "embedder": "hash", "extractor": "off"}
        redis = proxy.url(valkey.url)
        agent = Settings(
            **named, redis_url=redis, broker_url=redis, state_dir=tmp_path / "agent", remember_budget_seconds=10.0
        )
        worker = Settings(
            **{**named, "database_url": database.relay_url},
            redis_url=valkey.url,
            broker_url=valkey.url,
            state_dir=tmp_path / "worker",
        )
        async with Memory(settings=agent) as memory:
            yield World(memory, steps, proxy, worker, tmp_path / "agent" / "spool")


@pytest.mark.parametrize("is_stored", [False, True], ids=["pending", "stored"])
@pytest.mark.parametrize("key", [None, "a key"])
async def test_a_turn_that_redis_took_without_an_answer_is_one_turn_in_its_place(
    world: World, key: str | None, is_stored: bool
) -> None:
    await world.memory.remember(SAID[0], user_id="ann", session_id="s")
    await world.remember_unanswered(SAID[1], key)
    if is_stored:
        await world.store()
    await world.send_again()
    third = await world.memory.remember(SAID[2], user_id="ann", session_id="s")
    if key is not None:
        await world.memory.remember(SAID[1], user_id="ann", session_id="s", idempotency_key=key)
    recalled = await world.memory.recall("Where did I move?", user_id="ann")
    await world.store()

    assert recalled.text.count(SAID[1]) == 1
    assert (await third.status()).stored.value == "done"
    assert [episode.content for episode in await world.memory.history(user_id="ann")] == SAID
    if key is not None:
        with pytest.raises(errors.IdempotencyConflict):
            await world.memory.remember(SAID[0], user_id="ann", session_id="s", idempotency_key=key)


async def test_a_key_that_is_repeated_while_redis_is_away_leaves_its_session_as_it_was(
    valkey: Valkey, tmp_path: Path
) -> None:
    async with agent_on(valkey.url, tmp_path) as agent:
        keyed = turn_of("ann", base=agent.publisher.positions.take(1))
        valkey.stop()
        for _ in range(3):
            assert (await agent.publisher.send(keyed)).spooled
        valkey.start()
        await agent.publisher.drained()

        assert await agent.seen("ann") == ["I like tea."]
        assert not (await agent.publisher.send(turn_of("ann", base=agent.publisher.positions.take(1)))).spooled


async def test_what_a_tenant_wrote_into_its_keys_stops_no_turn_of_another(valkey: Valkey, tmp_path: Path) -> None:
    broken = Scope(namespace="acme", user_id="eve")
    async with agent_on(valkey.url, tmp_path) as agent:
        with valkey.client() as client:
            client.set(Keys().pending(owner_part(broken)), "no sorted set")

        async def remember(namespace: str, user: str) -> None:
            base = agent.publisher.positions.take(1)
            await agent.publisher.send(turn_of(user, base=base, namespace=namespace))

        names = [f"user-{n}" for n in range(8)]
        await asyncio.gather(*(remember(*each) for each in (("acme", "eve"), *(("globex", name) for name in names))))
        await remember("acme", "eve")

        async def is_seen() -> bool:
            reads = [await agent.pending.read(Scope(namespace="globex", user_id=name), limit=9) for name in names]
            return [read.total for read in reads] == [1] * len(names)

        await wait_until(is_seen, description="the turns of others are accepted")
        later = turn_of("zoe", base=agent.publisher.positions.take(1), namespace="globex")
        assert not (await agent.publisher.send(later)).spooled

        with valkey.client() as client:
            client.delete(Keys().pending(owner_part(broken)))
        await agent.publisher.drained()
        assert (await agent.pending.read(broken, limit=9)).total == 2


async def test_a_command_that_was_given_up_is_not_carried_out_later() -> None:
    """The server reads nothing until the client has given up: what was not acknowledged is gone then."""
    may_read, received = asyncio.Event(), asyncio.get_running_loop().create_future()
    greeting = b"+OK\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"aftermind\r\n")  # the end of CLIENT SETNAME
        writer.write(greeting)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await may_read.wait()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        count = 0
        try:
            while chunk := await reader.read(2**20):
                count += len(chunk)
        except ConnectionResetError:
            pass
        received.set_result(count)

    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**14)  # less than the command: it is not acknowledged
    server = await asyncio.start_server(serve, sock=listening, limit=2**12)
    port = listening.getsockname()[1]
    link = RedisLink(f"redis://127.0.0.1:{port}/0", timeout=0.5)
    size = 2**18
    with pytest.raises(errors.RedisUnavailable, match="no answer"):
        await link.call("SET", "key", b"x" * size)
    may_read.set()

    assert await received < size
    server.close()
    await link.close()
