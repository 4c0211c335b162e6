"""`make_app(settings)`, and the `app` that `celery -A aftermind_workers.celery_app` needs."""

from celery import Celery

from aftermind import errors
from aftermind.api import address_resolution
from aftermind.settings import Settings
from aftermind_workers import (
    celery_config,
    celery_consumer,
    doorbell_task,
    lifecycle,
    redis_transport,
    remote_control_limits,
)


def make_app(settings: Settings) -> Celery:
    """A Celery application of ours: its settings, its one task, its signals. Connects nothing.

    Raises `InvalidSettings` where no valid broker is named, or Celery is too old for the promises.
    """
    celery_config.check_versions()
    redis_transport.install()
    celery_consumer.refuse_compression()
    app = Celery("aftermind", set_as_current=False)
    app.conf.update(celery_config.celery_config(settings, broker=broker_url(settings)))
    doorbell_task.add_task(app, settings)
    remote_control_limits.allow_reports_only()
    lifecycle.connect(settings)
    return app


def broker_url(settings: Settings) -> str:
    """Celery's broker: the one that is set, else the Redis of pending turns."""
    url = settings.broker_url or settings.redis_url
    if url is None:
        why = "a worker needs it: `aftermind up` starts one and `aftermind worker` passes it on."
        raise errors.InvalidSettings("AFTERMIND_BROKER_URL", None, why)
    broker, name = url.get_secret_value(), "BROKER_URL" if settings.broker_url else "REDIS_URL"
    address_resolution.check_broker(broker, f"AFTERMIND_{name}")
    return broker


app = make_app(Settings())
