"""RabbitMQ as the broker: it rings, Redis keeps the turn."""

import asyncio
import json
import zlib
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kombu.connection import Connection

from aftermind import Memory
from aftermind.outbox.doorbell_message import Doorbell
from aftermind.stack.ports import choose
from aftermind.types import Scope
from aftermind.types.message import new_ids
from aftermind.wire.queues import EMBED, MAX_QUEUED_DOORBELLS, STORE, TASK, queue_arguments
from tests.integration.stores.test_workers_of_shared_stores import agent, worker
from tests.integration.workers.test_malformed_doorbells import SIGNATURE, doorbell, garbage_counted
from tests.support.loop_clock import loop_clock
from tests.support.rabbitmq import refused_port, running_rabbitmq
from tests.support.servers import Database
from tests.support.turns import agent_on
from tests.support.valkey import Valkey
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import environment, workers

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    """RabbitMQ."""
    with running_rabbitmq() as url:
        yield url


@pytest.fixture
def rabbitmq(node: str) -> str:
    """RabbitMQ with the queue, empty, as workers declare it: on a busy host that takes longer than a doorbell may."""
    with Connection(node) as connection:  # type: ignore[no-untyped-call]
        queue = connection.SimpleQueue(STORE, queue_args=dict(queue_arguments(node)))
        queue.clear()
        queue.close()
    return node


def popped(url: str, timeout: float = PATIENCE_SECONDS) -> Any:  # Any: kombu's message
    """The next bell, taken as a worker takes it."""
    with Connection(url) as connection:  # type: ignore[no-untyped-call]
        queue = connection.SimpleQueue(STORE, queue_args=dict(queue_arguments(url)))
        try:
            message = queue.get(timeout=timeout)
            message.ack()
            return message
        finally:
            queue.close()


async def test_a_turn_is_kept_in_redis_and_rung_for_by_rabbitmq(valkey: Valkey, rabbitmq: str, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path, broker=rabbitmq) as agent:
        turn = await agent.remember("secret-user", "secret words")

        message = await asyncio.to_thread(popped, rabbitmq)

        assert await agent.seen("secret-user") == ["secret words"]
        assert message.headers["task"] == TASK
        assert message.headers["id"] == str(turn.job_id)
        assert message.payload[0] == [str(turn.job_id)]
        assert "secret" not in f"{message.headers}{message.properties}{message.body}"


async def test_the_bell_lies_in_a_quorum_queue(valkey: Valkey, rabbitmq: str, tmp_path: Path) -> None:
    async with agent_on(valkey.url, tmp_path, broker=rabbitmq) as agent:
        await agent.remember()
        await asyncio.to_thread(popped, rabbitmq)

    def redeclared_as_another_kind() -> None:
        with Connection(rabbitmq) as connection:  # type: ignore[no-untyped-call]
            arguments = {**queue_arguments(rabbitmq), "x-queue-type": "classic"}
            connection.default_channel.queue_declare(STORE, durable=True, auto_delete=False, arguments=arguments)

    with pytest.raises(Exception, match="inequivalent arg 'x-queue-type'"):
        await asyncio.to_thread(redeclared_as_another_kind)


async def test_a_queue_that_nothing_consumes_stops_growing(rabbitmq: str) -> None:
    doorbell = Doorbell(rabbitmq, timeout=60.0)

    def count() -> int:
        with Connection(rabbitmq) as connection:  # type: ignore[no-untyped-call]
            return int(connection.default_channel.queue_declare(EMBED, passive=True).message_count)

    try:
        await asyncio.to_thread(doorbell.ring, EMBED, [new_ids(0)[0] for _ in range(MAX_QUEUED_DOORBELLS + 10)])
        await wait_until(lambda: asyncio.to_thread(lambda: count() == MAX_QUEUED_DOORBELLS), description="the cap")
    finally:
        await asyncio.to_thread(doorbell.close)


async def test_without_rabbitmq_the_answer_is_not_delayed_and_the_turn_is_safe(
    valkey: Valkey, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = f"amqp://guest:guest@127.0.0.1:{refused_port()}//"
    async with agent_on(valkey.url, tmp_path, broker=nowhere) as agent:
        async with loop_clock() as clock:
            await agent.remember("alice", "safe")

        assert (await agent.pending.read(Scope(user_id="alice"), limit=1)).total == 1

    assert clock.seconds < 0.3
    assert "doorbell not sent" in caplog.text


async def test_doorbells_of_a_store_without_servers_come_through_rabbitmq_too(rabbitmq: str, tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with agent(url, tmp_path, rabbitmq) as memory:
        with worker(url, tmp_path, rabbitmq):
            receipt = await memory.remember("I live in Oslo.", user_id="alice")
            await receipt.extracted(timeout=PATIENCE_SECONDS)
            assert [fact.object for fact in await memory.facts.query(user_id="alice")] == ["Oslo"]


def malformed() -> Mapping[str, dict[str, Any]]:  # Any: arguments of `publish`
    """What differs from a doorbell."""
    return {
        "a number": {"body": b"5"},
        "nothing": {"body": b""},
        "no JSON": {"body": b"\x80\x04\x95garbage"},
        "deep nesting": {"body": b"[" * 100_000},
        "a huge body": {"body": b"x" * 8_000_000},
        "a body of the first protocol": {
            "body": json.dumps({"task": "aftermind.run", "id": "x"}).encode(),
            "headers": {},
        },
        "a chain": {"body": json.dumps([[str(uuid4())], {}, {"chain": [SIGNATURE]}]).encode()},
        "no headers": {"headers": {}},
        "another task": {"headers": {**doorbell()["headers"], "task": "aftermind.bad"}},
        "a task that is a table": {"headers": {**doorbell()["headers"], "task": {"a": "b"}}},
        "no id": {"headers": {"task": "aftermind.run"}},
        "eta": {"headers": {**doorbell()["headers"], "eta": "2099-01-01T00:00:00+00:00"}},
        "time limits": {"headers": {**doorbell()["headers"], "timelimit": 5}},
        "compression": {"headers": {**doorbell()["headers"], "compression": "application/x-bz2"}},
        "a compressed body": {
            "headers": {**doorbell()["headers"], "compression": "application/x-gzip"},
            "body": zlib.compress(b"0" * 50_000_000),
        },
        "reply_to": {"reply_to": "victim"},
        "pickle": {"content_type": "application/x-python-serialize"},
        "an unknown encoding": {"content_encoding": "utf-99"},
    }


async def test_no_malformed_doorbell_is_delivered_to_celery(
    database: Database, redis_url: str, rabbitmq: str, tmp_path: Path
) -> None:
    [port], messages = choose(1), malformed()
    env = environment(
        database.relay_url,
        redis_url,
        AFTERMIND_BROKER_URL=rabbitmq,
        AFTERMIND_METRICS_PORT=str(port),
        AFTERMIND_RECONCILE_SECONDS="60",
    )
    whole = {
        "body": b64decode(doorbell()["body"]),
        "headers": doorbell()["headers"],
        "content_type": "application/json",
        "content_encoding": "utf-8",
    }
    memory = Memory(database.app_url, broker=rabbitmq, redis=redis_url)
    with workers(env, tmp_path) as (process,), Connection(rabbitmq) as connection:  # type: ignore[no-untyped-call]
        await (await memory.remember("before", user_id="ann")).stored(timeout=180)
        producer = connection.Producer(auto_declare=False)
        for changed in messages.values():
            producer.publish(routing_key=STORE, **{**whole, **changed})
        await (await memory.remember("after", user_id="ann")).stored(timeout=180)
        await wait_until(lambda: garbage_counted(port) == len(messages), description="all are counted")
        assert process.is_running()
    assert "Traceback" not in (tmp_path / "worker-0.log").read_text()
    await memory.close()
