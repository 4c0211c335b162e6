"""The settings that keep a bell harmless, and what counts as a bell."""

from uuid import uuid4

import pytest

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
