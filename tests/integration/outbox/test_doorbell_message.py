"""Our messages are Celery's own, whoever makes them."""

import json
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from aftermind.outbox.doorbell_message import Doorbell
from aftermind.types import JobId
from aftermind.wire.queues import EMBED, STORE, TASK
from aftermind.wire.redis_keys import Keys
from tests.support.valkey import Valkey


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


def test_kombu_rings_where_our_own_push_would(valkey: Valkey) -> None:
    doorbell, job_id = Doorbell(valkey.url), JobId(uuid4())

    doorbell.ring(STORE, [job_id])

    assert without_tag(lying_in(valkey, STORE)) == without_tag(doorbell.message(job_id, STORE))
    doorbell.close()
