"""Our messages are Celery's own, whoever makes them."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from aftermind import Memory, Settings
from aftermind.outbox.doorbell_message import Doorbell
from aftermind.types import JobId
from aftermind.wire.queues import EMBED, STORE, TASK
from aftermind.wire.redis_keys import Keys
from tests.support.rabbitmq import refused_port
from tests.support.servers import Database
from tests.support.valkey import Valkey, running_valkey


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
    """A second Redis."""
    with tempfile.TemporaryDirectory() as folder, running_valkey("--unixsocket", f"{folder}/redis.sock") as server:
        yield server


def _spelled(server: Valkey, spelling: str) -> str:
    [_, path] = server.options[-2:]
    return {
        "redis": server.url,
        "unix": f"unix://:{server.password}@{path}?db=0",
        "as Celery": f"redis+socket://:{server.password}@{path}?virtual_host=0",
    }[spelling]


@pytest.mark.asyncio
@pytest.mark.parametrize("spelling", ["redis", "unix", "as Celery"])
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


@pytest.mark.asyncio
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
