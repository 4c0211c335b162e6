"""Messages that are no doorbells: dropped and counted before Celery parses them; no worker ends or puts them back."""

import json
import re
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # JSON
from uuid import uuid4

import redis
from kombu import Exchange, Queue
from kombu.connection import Connection

from aftermind import Memory, Settings
from aftermind.outbox.doorbell_message import Doorbell
from aftermind.stack.ports import choose
from aftermind.types import JobId
from aftermind.wire import queues
from aftermind.wire.redis_keys import Keys
from aftermind_workers.celery_config import celery_config
from aftermind_workers.doorbell_check import check_redis_item
from aftermind_workers.redis_transport import DoorbellTransport
from tests.integration.wire.test_acl import PREFIX, client_of, guarded, url_of
from tests.support.servers import Database
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

__all__ = ["guarded"]  # the fixture: a server with the three least-privileged users
QUEUE = Keys(PREFIX).queue(queues.STORE)


def doorbell() -> dict[str, Any]:
    rendered: dict[str, Any] = json.loads(Doorbell("redis://").message(JobId(uuid4()), queues.STORE))
    return rendered


def with_headers(**changed: object) -> bytes:
    bell = doorbell()
    return json.dumps({**bell, "headers": {**bell["headers"], **changed}}).encode()


def without_header(name: str) -> bytes:
    bell = doorbell()
    del bell["headers"][name]
    return json.dumps(bell).encode()


def with_properties(**changed: object) -> bytes:
    bell = doorbell()
    return json.dumps({**bell, "properties": {**bell["properties"], **changed}}).encode()


def with_part(name: str, value: object) -> bytes:
    return json.dumps({**doorbell(), name: value}).encode()


def with_body(body: object) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return with_part("body", b64encode(data).decode())


def with_options(**changed: object) -> bytes:
    args, kwargs, options = json.loads(b64decode(doorbell()["body"]))
    return with_body([args, kwargs, {**options, **changed}])


SIGNATURE = {"task": "aftermind.run", "args": [str(uuid4())], "kwargs": {}, "options": {}, "subtask_type": None}
MALFORMED: Mapping[str, bytes] = {
    "a number": b"5",
    "nothing": b"",
    "no JSON": b"\x80\x04\x95garbage",
    "not UTF-8": b'{"body": "\xff\xfe"}',
    "null": b"null",
    "a list": b"[1, 2]",
    "an empty object": b"{}",
    "deep nesting": b"[" * 100_000,
    "deep nesting in an object": b'{"properties":' * 400 + b"1" + b"}" * 400,
    "a huge text": json.dumps({"body": "x" * 8_000_000}).encode(),
    "headers that are a list": with_part("headers", []),
    "no headers": json.dumps({k: v for k, v in doorbell().items() if k != "headers"}).encode(),
    "properties that are null": with_part("properties", None),
    "no delivery tag": with_properties(delivery_tag=None),
    "an unknown encoding of the body": with_properties(body_encoding="rot13"),
    "another queue": with_properties(delivery_info={"exchange": "", "routing_key": queues.EXTRACT}),
    "a queue that does not exist": with_properties(delivery_info={"exchange": "", "routing_key": "x"}),
    "no delivery info": with_properties(delivery_info=7),
    "reply_to": with_properties(reply_to="victim"),
    "a number as body": with_body(5),
    "a body that is a number, not encoded": with_part("body", 5),
    "a body of the first protocol": with_body({"task": "aftermind.run", "id": "x", "args": [], "kwargs": {}}),
    "a body without an id": with_body([[], {}, {}]),
    "a body with two ids": with_body([[str(uuid4()), str(uuid4())], {}, {}]),
    "keyword arguments": with_body([[str(uuid4())], {"job": "x"}, {}]),
    "a huge body": with_body([["x" * 2_000], {}, {}]),
    "deep nesting in the body": with_body(b"[" * 400 + b"]" * 400),
    "another content type": with_part("content-type", "application/x-python-serialize"),
    "yaml": with_part("content-type", "application/x-yaml"),
    "an unknown content encoding": with_part("content-encoding", "utf-99"),
    "another task": with_headers(task="aftermind.bad"),
    "Celery's own task": with_headers(task="celery.chord_unlock"),
    "a task that is a list": with_headers(task=["aftermind.run"]),
    "no task": without_header("task"),
    "no id": without_header("id"),
    "an id that is a number": with_headers(id=5),
    "an id that is no id": with_headers(id="x" * 100),
    "eta": with_headers(eta="2099-01-01T00:00:00+00:00"),
    "eta that is no time": with_headers(eta="tomorrow"),
    "expires": with_headers(expires="2001-01-01T00:00:00+00:00"),
    "expires that is no time": with_headers(expires={"a": 1}),
    "time limits": with_headers(timelimit=[1, 1]),
    "time limits that are a number": with_headers(timelimit=5),
    "retries": with_headers(retries="many"),
    "group": with_headers(group=str(uuid4())),
    "stamps": with_headers(stamped_headers=["x"], stamps={"x": 1}),
    "a shadow": with_headers(shadow="memory.store"),
    "an unknown header": with_headers(compression="application/x-bz2"),
    "shown arguments that are a list": with_headers(argsrepr=["x"]),
    "chain": with_options(chain=[SIGNATURE]),
    "callbacks": with_options(callbacks=[SIGNATURE]),
    "errbacks": with_options(errbacks=[SIGNATURE]),
    "chord": with_options(chord=SIGNATURE),
}


def garbage_counted(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r'^aftermind_bells_total\{outcome="garbage",queue="[^"]*"\} (\S+)$', text, re.MULTILINE)
    return sum(map(float, found))


async def test_what_is_no_doorbell_is_dropped_and_counted_and_the_worker_goes_on(
    guarded: Valkey, database: Database, tmp_path: Path
) -> None:
    settings = Settings(redis_prefix=PREFIX, state_dir=tmp_path)
    [port] = choose(1)
    env = environment(
        database.relay_url,
        url_of(guarded, "worker"),
        AFTERMIND_REDIS_PREFIX=PREFIX,
        AFTERMIND_METRICS_PORT=str(port),
        AFTERMIND_RECONCILE_SECONDS="60",  # whatever is stored here, a doorbell woke the worker for it
    )
    async with Memory(database.app_url, broker=url_of(guarded, "agent"), settings=settings) as memory:
        with workers(env, tmp_path) as (worker,), client_of(guarded, "agent") as attacker:
            await (await memory.remember("before", user_id="ann")).stored(timeout=180)

            for number, message in enumerate(MALFORMED.values(), start=1):
                attacker.lpush(QUEUE, message)
                if number % 10 == 0:  # doorbells in between are answered
                    await (await memory.remember(f"turn {number}", user_id="ann")).stored(timeout=180)
            await wait_until(lambda: garbage_counted(port) == len(MALFORMED), description="all are counted")
            await (await memory.remember("after", user_id="ann")).stored(timeout=180)

            assert worker.is_running()
            assert garbage_counted(port) == len(MALFORMED)
        stored = [episode.content for episode in await memory.history(user_id="ann")]
        with guarded.client() as operator:  # the worker that ended may have put a doorbell back, but nothing else
            assert {check_redis_item(item, QUEUE) for item in operator.lrange(QUEUE, 0, -1)} <= {None}
    assert (stored[0], stored[-1]) == ("before", "after")
    log = (tmp_path / "worker-0.log").read_text()
    assert "message refused" in log
    assert "Traceback" not in log


def test_a_doorbell_that_a_worker_put_back_is_delivered_again(redis_url: str) -> None:
    config = celery_config(Settings(), broker=redis_url)
    queue = next(each for each in config["task_queues"] if each.name == queues.STORE)
    job_id = JobId(uuid4())
    with redis.Redis.from_url(redis_url) as client:
        client.lpush(Keys().queue(queues.STORE), Doorbell(redis_url).message(job_id, queues.STORE))

    delivered: list[str] = []
    for _ in range(3):  # each takes it, and ends before it has acknowledged it
        with Connection(
            redis_url, transport=DoorbellTransport, transport_options=config["broker_transport_options"]
        ) as connection:
            connection.Consumer(queue, callbacks=[lambda body, message: delivered.append(body[0][0])]).consume()
            connection.drain_events(timeout=30)

    assert delivered == [str(job_id)] * 3


def test_an_answer_of_a_worker_that_cannot_be_parsed_is_dropped(redis_url: str) -> None:
    name, delivered = f"{uuid4()}.reply.celery.pidbox", list[Any]()
    with Connection(redis_url, transport=DoorbellTransport) as connection, redis.Redis.from_url(redis_url) as client:
        queue = Queue(name, Exchange("reply.celery.pidbox", type="direct"), routing_key=name, auto_delete=True)
        connection.Consumer(queue, callbacks=[lambda body, message: delivered.append(body)]).consume()
        for garbage in (b"no JSON", b"{}", b"[1]", b"x" * 2_000_000, b'{"content-type": "application/json"}'):
            client.lpush(name, garbage)
        connection.Producer().publish({"ok": "pong"}, exchange=queue.exchange, routing_key=name)
        while not delivered:
            connection.drain_events(timeout=30)

    assert delivered == [{"ok": "pong"}]


async def test_a_queue_whose_key_is_no_list_is_repaired(guarded: Valkey, database: Database, tmp_path: Path) -> None:
    settings = Settings(redis_prefix=PREFIX, state_dir=tmp_path)
    env = environment(
        database.relay_url,
        url_of(guarded, "worker"),
        AFTERMIND_REDIS_PREFIX=PREFIX,
        AFTERMIND_RECONCILE_SECONDS="0.5",
    )
    async with Memory(database.app_url, broker=url_of(guarded, "agent"), settings=settings) as memory:
        with workers(env, tmp_path) as (worker,), guarded.client() as operator:
            await (await memory.remember("before", user_id="ann")).stored(timeout=180)
            operator.delete(QUEUE)  # an agent's user may neither delete it nor make another type of it
            operator.sadd(QUEUE, "x")

            receipt = await memory.remember("after", user_id="ann")

            await receipt.stored(timeout=180)
            assert worker.is_running()


async def test_malformed_broadcasts_of_remote_control_end_no_worker(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    env = environment(database.relay_url, redis_url, AFTERMIND_RECONCILE_SECONDS="60")
    channel = f"{Keys().prefix}/0.celery.pidbox"
    async with Memory(database.app_url, broker=redis_url) as memory:
        with workers(env, tmp_path) as (worker,), redis.Redis.from_url(redis_url) as client:
            await (await memory.remember("before", user_id="ann")).stored(timeout=180)
            for message in MALFORMED.values():
                assert client.publish(channel, message) == 1  # the worker listens
            await (await memory.remember("after", user_id="ann")).stored(timeout=180)
            assert worker.is_running()
            assert client.publish(channel, b"5") == 1
            assert b"Traceback" not in (tmp_path / "worker-0.log").read_bytes()
