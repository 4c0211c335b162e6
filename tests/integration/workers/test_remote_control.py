"""A worker reports over the broker and takes no orders, whoever may publish there."""

from collections.abc import Callable
from pathlib import Path

from celery import Celery

from aftermind import Settings
from aftermind_workers.celery_config import celery_config
from tests.support.servers import Database
from tests.support.waiting import wait_until_sync
from tests.support.workers import environment, workers


def test_a_worker_cannot_be_shut_down_nor_changed_over_the_broker(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    env = environment(database.relay_url, redis_url, AFTERMIND_STATE_DIR=str(tmp_path))
    with workers(env, tmp_path) as (worker,):
        app = Celery("test", set_as_current=False)
        app.conf.update(celery_config(Settings(), broker=redis_url))
        wait_until_sync(_answers(app), description="the worker reports")
        orders: tuple[Callable[[], object], ...] = (
            app.control.shutdown,
            lambda: app.control.pool_shrink(1),
            lambda: app.control.cancel_consumer("memory.store"),
            lambda: app.control.rate_limit("aftermind.run", "1/h"),
            lambda: app.control.revoke("x", terminate=True),
        )

        app.control.broadcast("heartbeat")  # as Flower does when it starts
        for order in orders:
            order()
        wait_until_sync(_answers(app), description="it reports again, behind the orders")

        assert worker.is_running()
        assert "KeyError('heartbeat')" not in (tmp_path / "worker-0.log").read_text()
        answered = wait_until_sync(
            lambda: app.control.inspect(timeout=30, limit=1).active_queues(), description="it reports its queues"
        )
        [queues] = answered.values()
        assert [each["name"] for each in queues] == ["memory.store"]


def _answers(app: Celery) -> Callable[[], bool]:
    return lambda: bool(app.control.inspect(timeout=2, limit=1).ping())
