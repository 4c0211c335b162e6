"""The settings that keep a bell harmless, and what counts as a bell."""

import os
import subprocess
import sys
from uuid import uuid4

import certifi
import pytest
from celery import Celery

from aftermind import errors
from aftermind.settings import Settings
from aftermind.wire import queues
from aftermind_workers import celery_config, doorbell_task


def settings() -> Settings:
    return Settings(redis_prefix="ours:")


def test_only_json_is_accepted_and_nothing_is_kept_as_a_result() -> None:
    conf = celery_config.celery_config(settings(), broker="redis://localhost/0")

    assert conf["accept_content"] == ["json"]
    assert conf["result_backend"] is None
    assert conf["task_ignore_result"] is True


def test_a_bell_is_acknowledged_after_the_work_and_never_rejected() -> None:
    conf = celery_config.celery_config(settings(), broker="redis://localhost/0")

    assert conf["task_acks_late"] is True
    assert conf["task_reject_on_worker_lost"] is False
    assert conf["task_retry_on_worker_lost"] is False
    assert conf["worker_prefetch_multiplier"] == 1


def test_every_queue_is_declared_and_a_misspelt_one_is_not_made() -> None:
    conf = celery_config.celery_config(settings(), broker="redis://localhost/0")

    assert {queue.name for queue in conf["task_queues"]} == set(queues.QUEUES)
    assert conf["task_create_missing_queues"] is False


@pytest.mark.parametrize("broker", ["redis://localhost/0", "amqp://localhost"])
def test_worker_and_doorbell_declare_the_queues_alike(broker: str) -> None:
    conf = celery_config.celery_config(settings(), broker=broker)

    declared = {queue.name: queue.queue_arguments or {} for queue in conf["task_queues"]}
    assert declared == {name: dict(queues.queue_arguments(broker)) for name in queues.QUEUES}


def test_redis_is_never_waited_for_without_end_and_a_push_is_never_repeated() -> None:
    options = celery_config.celery_config(settings(), broker="redis://localhost/0")["broker_transport_options"]

    assert options["socket_timeout"] > 1  # a pop waits one second
    assert options["socket_connect_timeout"]
    assert options["retry_on_timeout"] is False
    assert options["global_keyprefix"] == "ours:"


@pytest.mark.parametrize(
    ("broker", "spelled"),
    [
        ("redis://:p%40ss@h:6380/3", "redis://:p%40ss@h:6380/3"),
        ("redis://user:p%2Fw@[::1]?db=3", "redis://user:p%2Fw@[::1]:6379/3"),
        ("redis://h?virtual_host=3", "redis://h:6379/3"),
        ("rediss://h/1?ssl_cert_reqs=none", "rediss://h:6379/1"),
        ("unix://user:pw@/run/my redis.sock?db=3", "redis+socket://user:pw@/run/my%20redis.sock?virtual_host=3"),
        ("redis+socket:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
    ],
)
def test_a_redis_broker_is_spelled_as_celery_takes_it(broker: str, spelled: str) -> None:
    app = _app(broker)

    assert app.conf.broker_url == spelled
    assert app.connection_for_read().transport.driver_type == "redis"


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", {"ssl_cert_reqs": "required", "ssl_check_hostname": True}),
        ("?ssl_cert_reqs=CERT_NONE", {"ssl_cert_reqs": "none", "ssl_check_hostname": True}),
        (
            f"?ssl_ca_certs={certifi.where()}&ssl_check_hostname=false",
            {"ssl_cert_reqs": "required", "ssl_ca_certs": certifi.where(), "ssl_check_hostname": False},
        ),
    ],
)
def test_a_worker_verifies_a_broker_with_tls_as_an_agent_does(query: str, options: dict[str, object]) -> None:
    assert _app(f"rediss://h/0{query}").connection_for_read().ssl == options


def _app(broker: str) -> Celery:
    app = Celery("test", set_as_current=False)
    app.conf.update(celery_config.celery_config(settings(), broker=broker))
    return app


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("AFTERMIND_BROKER_URL", "redis://h?virtual_host=x"),
        ("AFTERMIND_REDIS_URL", "redis+cluster://a,b"),
    ],
)
def test_a_broker_that_celery_cannot_use_is_refused_by_its_name(name: str, url: str) -> None:
    start = [sys.executable, "-c", "import aftermind_workers.celery_app"]
    done = subprocess.run(start, env={**os.environ, name: url}, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert f"InvalidSettings: {name}='{url}'" in done.stderr


def test_another_broker_is_not_given_redis_options() -> None:
    assert celery_config.celery_config(settings(), broker="amqp://localhost")["broker_transport_options"] == {}


@pytest.mark.parametrize(("name", "found"), [("celery", "5.6.2"), ("kombu", "5.6.0rc1"), ("celery", "4.4.7")])
def test_a_worker_does_not_start_on_a_celery_that_stalls(name: str, found: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"workers need 5\.7"):
        celery_config.check_versions({name: found})


@pytest.mark.parametrize("found", ["5.7.0", "5.10.1", "6.0.0b1"])
def test_later_releases_are_taken(found: str) -> None:
    celery_config.check_versions({"celery": found, "kombu": found})


def test_one_job_id_is_a_bell() -> None:
    assert doorbell_task.is_bell((str(uuid4()),), {})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("not an id",), {}),
        ((7,), {}),
        ((None,), {}),
        (({"job_id": "x"},), {}),
        ((str(uuid4()), "delete everything"), {}),
        ((), {"job_id": str(uuid4())}),
        ((str(uuid4()),), {"kind": "forget"}),
    ],
)
def test_anything_else_is_garbage(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    assert not doorbell_task.is_bell(args, kwargs)
