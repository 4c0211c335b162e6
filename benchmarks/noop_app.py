"""The incumbent beside us: Celery's no-op jobs, with the configuration of our workers.

But for one thing: a plain job has nothing but the broker that would bring it back from a killed worker, so what is not
acknowledged yet is noted in Redis, as Celery does by default. Our bells need no such note: see `celery_config`.
"""

from celery import Celery

from aftermind.settings import Settings
from aftermind_workers import celery_config

NOOP = "benchmarks.noop"

_settings = Settings()
app = Celery("noop", set_as_current=False)
_broker = _settings.broker_url.get_secret_value() if _settings.broker_url else "redis://"
app.conf.update(celery_config.celery_config(_settings, broker=_broker))
app.conf.broker_transport_options |= {"ack_emulation": True}


def noop(job_id: str) -> None:
    """Nothing."""


app.task(noop, name=NOOP, ignore_result=True)
