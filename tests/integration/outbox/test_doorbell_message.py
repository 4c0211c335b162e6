"""Our messages are Celery's own, whoever makes them."""

import asyncio
import json
import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from aftermind import Memory, Settings
from aftermind.outbox.doorbell_message import Doorbell
from aftermind.outbox.doorbell_sender import BrokerBells
from aftermind.types import JobId
from aftermind.wire.pending import BELLS
from aftermind.wire.queues import EMBED, STORE, TASK
from aftermind.wire.redis import acl
from aftermind.wire.redis_keys import Keys
from tests.support.rabbitmq import refused_port
from tests.support.servers import Database
from tests.support.valkey import Valkey, running_valkey
from tests.support.waiting import wait_until, wait_until_sync
from tests.support.workers import environment, workers


def lying_in(valkey: Valkey, queue: str) -> bytes:
    with valkey.client() as client:
        found = client.lindex(Keys().queue(queue), 0)
    assert isinstance(found, bytes)
    return found


def without_tag(raw: bytes) -> Any:  # Any: a kombu message as JSON
    message = json.loads(raw)
    assert message["properties"].pop("delivery_tag")
    assert message["headers"].pop("origin")
    message["properties"].pop("reply_to")  # nobody waits for a result
    return message


@pytest.fixture
def app(valkey: Valkey) -> Celery:
    app = Celery("theirs", broker=valkey.url, set_as_current=False)
    app.conf.update(broker_transport_options={"global_keyprefix": Keys().prefix})
    return app


def test_it_is_what_send_task_would_have_pushed(valkey: Valkey, app: Celery) -> None:
    job_id = JobId(uuid4())
    app.send_task(TASK, args=[str(job_id)], task_id=str(job_id), queue=STORE, ignore_result=True)

    ours = Doorbell(valkey.url).message(job_id, STORE)

    theirs = without_tag(lying_in(valkey, STORE))
    assert without_tag(ours) | {"headers": None} == theirs | {"headers": None}
    expected = theirs["headers"] | {"argsrepr": f"('{job_id}',)"}  # Celery shows our tuple as a list
    assert without_tag(ours)["headers"] == expected


def test_each_bell_has_a_tag_of_its_own_and_its_queues_address(valkey: Valkey) -> None:
    doorbell, job_id = Doorbell(valkey.url), JobId(uuid4())

    bells = [json.loads(doorbell.message(job_id, queue)) for queue in (STORE, STORE, EMBED)]

    assert len({bell["properties"]["delivery_tag"] for bell in bells}) == 3
    assert [bell["properties"]["delivery_info"]["routing_key"] for bell in bells] == [STORE, STORE, EMBED]


@pytest.fixture
def separate_broker() -> Iterator[Valkey]:
    """A second Redis, without functions, as before Redis 7."""
    without_functions = ("--rename-command", "FCALL", "", "--rename-command", "FUNCTION", "")
    with (
        tempfile.TemporaryDirectory() as folder,
        running_valkey(*without_functions, "--unixsocket", f"{folder}/redis.sock") as server,
    ):
        yield server


def _spelled(server: Valkey, spelling: str) -> str:
    [_, path] = server.options[-2:]
    return {
        "redis": server.url,
        "redis, db": f"redis://:{server.password}@127.0.0.1:{server.port}?db=0",
        "unix": f"unix://:{server.password}@{path}?db=0",
        "as Celery": f"redis+socket://:{server.password}@{path}?virtual_host=0",
    }[spelling]


SPELLINGS = ["redis", "redis, db", "unix", "as Celery"]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("accept", ["redis", "postgres"])
async def test_a_redis_that_is_only_the_broker_gets_the_same_message(
    valkey: Valkey, separate_broker: Valkey, database: Database, tmp_path: Path, accept: str, spelling: str
) -> None:
    settings = Settings(state_dir=tmp_path, embedder="hash", accept=accept, remember_budget_seconds=10)
    broker = _spelled(separate_broker, spelling)
    async with Memory(database.app_url, redis=valkey.url, broker=broker, settings=settings) as memory:
        job_id = (await memory.remember("I like tea.", user_id="alice")).job_id

    pushed = without_tag(lying_in(separate_broker, STORE))
    assert pushed == without_tag(Doorbell(valkey.url).message(job_id, STORE))
    with valkey.client() as client:
        assert client.llen(Keys().queue(STORE)) == 0


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_workers_consume_from_every_spelling_of_a_broker_that_agents_accept(
    valkey: Valkey, separate_broker: Valkey, database: Database, tmp_path: Path, spelling: str
) -> None:
    broker = _spelled(separate_broker, spelling)
    env = environment(
        database.relay_url, valkey.url, AFTERMIND_BROKER_URL=broker, AFTERMIND_STATE_DIR=str(tmp_path / "worker")
    )
    settings = Settings(state_dir=tmp_path, embedder="hash", remember_budget_seconds=10)
    with workers(env, tmp_path), separate_broker.client() as client:
        async with Memory(database.app_url, redis=valkey.url, broker=broker, settings=settings) as memory:
            await (await memory.remember("I like tea.", user_id="alice")).stored(timeout=180)
            await wait_until(lambda: client.llen(Keys().queue(STORE)) == 0, description="a worker takes the doorbell")


async def test_bells_for_a_separate_broker_do_not_pile_up(separate_broker: Valkey) -> None:
    bells = BrokerBells(separate_broker.url, None, prefix=Keys().prefix, timeout_seconds=5)
    ids = [JobId(uuid4()) for _ in range(BELLS + 5)]

    rung = [await bells.ring(STORE, some) for some in (ids[:3], ids, ids)]

    assert rung == [3, BELLS - 3, 0]
    with separate_broker.client() as client:
        assert client.llen(Keys().queue(STORE)) == BELLS
    await bells.close()


@pytest.mark.parametrize("name", ["agent", "web", "reconciler"])
async def test_a_restricted_user_rings_at_a_separate_broker_before_any_worker_has_started(
    valkey: Valkey, name: str
) -> None:
    user = acl.users(Keys().prefix)[name]
    rules = [each for each in user.rules("password") if each != "+client|setinfo"]  # Redis 7.0 does not have it
    with valkey.client() as admin:
        admin.execute_command("ACL", "SETUSER", user.name, *rules)
    url = f"redis://{user.name}:password@127.0.0.1:{valkey.port}/0"
    bells = BrokerBells(url, None, prefix=Keys().prefix, timeout_seconds=5)

    assert await bells.ring(STORE, [JobId(uuid4())]) == 1
    await bells.close()


async def test_a_closed_memory_leaves_no_connection_to_a_separate_broker(
    valkey: Valkey, separate_broker: Valkey, database: Database, tmp_path: Path
) -> None:
    settings = Settings(state_dir=tmp_path, embedder="hash", remember_budget_seconds=10)
    async with Memory(database.app_url, redis=valkey.url, broker=separate_broker.url, settings=settings) as memory:
        await memory.remember("I like tea.", user_id="alice")

    with separate_broker.client() as client:
        assert client.llen(Keys().queue(STORE)) == 1  # closing sends the bells that are due
        wait_until_sync(
            lambda: "aftermind-doorbells" not in {each["name"] for each in client.client_list()},
            description="the broker has noticed that the connection is closed",
        )


def test_parent_and_fork_ring_at_a_separate_broker(separate_broker: Valkey) -> None:
    bells = BrokerBells(separate_broker.url, None, prefix=Keys().prefix, timeout_seconds=5)

    def ring() -> int:
        return loop.run_until_complete(bells.ring(STORE, [JobId(uuid4())]))

    with closing(asyncio.new_event_loop()) as loop:
        assert ring() == 1
        child = multiprocessing.get_context("fork").Process(target=_ring_in_child, args=(bells,))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert ring() == 1
        loop.run_until_complete(bells.close())
    with separate_broker.client() as client:
        tags = [json.loads(each)["properties"]["delivery_tag"] for each in client.lrange(Keys().queue(STORE), 0, -1)]
    assert len(set(tags)) == 3


def _ring_in_child(bells: BrokerBells) -> None:
    assert asyncio.run(bells.ring(STORE, [JobId(uuid4())])) == 1


async def test_a_turn_is_accepted_while_a_separate_broker_is_frozen(
    valkey: Valkey, separate_broker: Valkey, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(state_dir=tmp_path, embedder="hash", remember_budget_seconds=10)
    with separate_broker.frozen():
        async with Memory(database.app_url, redis=valkey.url, broker=separate_broker.url, settings=settings) as memory:
            assert not (await memory.remember("I like tea.", user_id="alice")).spooled

    [record] = [each for each in caplog.records if "doorbell not sent" in each.getMessage()]
    assert f"the Redis 127.0.0.1:{separate_broker.port}/0 takes no doorbell: no " in record.getMessage()
    assert record.exc_info is None


async def test_a_redis_that_is_only_the_broker_and_does_not_answer_is_one_line_with_its_address(
    valkey: Valkey, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = f"redis://:secret@127.0.0.1:{refused_port()}/3"
    settings = Settings(state_dir=tmp_path, embedder="hash", remember_budget_seconds=10)
    async with Memory(database.app_url, redis=valkey.url, broker=broker, settings=settings) as memory:
        receipt = await memory.remember("I like tea.", user_id="alice")
        assert not receipt.spooled
        assert "tea" in (await memory.recall("What do I like?", user_id="alice")).text

    [record] = [each for each in caplog.records if "doorbell not sent" in each.getMessage()]
    assert f"the Redis {broker.rpartition('@')[2]} takes no doorbell" in record.getMessage()
    assert "secret" not in record.getMessage()
    assert record.exc_info is None
