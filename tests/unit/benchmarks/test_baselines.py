"""The benchmarks compare Aftermind with plain Celery, which has to run its jobs and to recover them."""

import pytest
from celery import Celery

from benchmarks import noop_app
from benchmarks.harness import plain_celery_app


@pytest.mark.parametrize("app", [noop_app.app, plain_celery_app.app], ids=["no-op jobs", "nothing_lost"])
def test_a_baseline_uses_celerys_own_consumer_and_records_unacknowledged_jobs(app: Celery) -> None:
    assert app.conf.worker_consumer == "celery.worker.consumer:Consumer"
    assert app.conf.broker_transport_options.get("ack_emulation", True)
    assert app.conf.task_acks_late
