"""The incumbent beside us: Celery's no-op jobs, with the configuration of our workers.

But for two things. Our consumer refuses what is no doorbell, so Celery's own is used. And only the broker would bring a
plain job back from a killed worker, so what is not acknowledged yet is noted in Redis, as Celery does by default;
doorbells need no such note (`celery_config`).
"""

from celery import Celery

from aftermind.settings import Settings
from aftermind_workers import celery_config

NOOP = "benchmarks.noop"

_settings = Settings()
app = Celery("noop", set_as_current=False)
_broker = _settings.broker_url.get_secret_value() if _settings.broker_url else "redis://"
app.conf.update(celery_config.celery_config(_settings, broker=_broker))
app.conf.worker_consumer = "celery.worker.consumer:Consumer"
app.conf.broker_transport_options |= {"ack_emulation": True}


def noop(job_id: str) -> None:
    """Nothing."""


app.task(noop, name=NOOP, ignore_result=True)
