"""What a bell sets in motion, and what becomes of one that nobody acknowledges."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery

from aftermind import Memory
from aftermind.wire import queues
from aftermind.wire.redis_keys import Keys
from aftermind_workers.early_doorbell_strategy import MAX_BELLS
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import SLOWLY, TOUCHY, environment, start_worker, workers

QUEUE = Keys().queue(queues.STORE)


@contextmanager
def looking(redis_url: str) -> Iterator[Any]:  # Any: redis-py's stubs mix sync and async answers
    client = redis.Redis.from_url(redis_url)
    try:
        yield client
    finally:
        client.close()


async def test_work_begins_when_its_bell_arrives_and_waits_for_no_thread(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    memory = Memory(database.app_url, broker=redis_url)
    worker = start_worker(
        environment(database.relay_url, redis_url), tmp_path / "held.log", app="tests.support.paused_worker"
    )
    try:
        await (await memory.remember("I moved to Oslo.", user_id="ann")).stored(timeout=180)
        await (await memory.remember("I like it there.", user_id="ann")).stored(timeout=180)
        stored = [episode.content for episode in await memory.history(user_id="ann")]
        assert stored == ["I moved to Oslo.", "I like it there."]
    finally:
        worker.kill()
        worker.wait(timeout=180)
        await memory.close()


async def test_bells_that_celery_drops_keep_no_later_one_from_beginning_at_once(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    memory, past = Memory(database.app_url, broker=redis_url), datetime.now(UTC) - timedelta(hours=1)
    app = Celery("theirs", broker=redis_url, set_as_current=False)
    app.conf.update(broker_transport_options={"global_keyprefix": Keys().prefix})
    worker = start_worker(
        environment(database.relay_url, redis_url), tmp_path / "held.log", app="tests.support.paused_worker"
    )
    try:
        await (await memory.remember("I moved to Oslo.", user_id="ann")).stored(timeout=180)
        with looking(redis_url) as client:
            for _ in range(MAX_BELLS + 1):
                app.send_task(queues.TASK, args=[str(uuid4())], queue=queues.STORE, expires=past)
            await wait_until(lambda: client.llen(QUEUE) == 0, description="the bells are taken")
        await (await memory.remember("I like it there.", user_id="ann")).stored(timeout=180)
    finally:
        worker.kill()
        worker.wait(timeout=180)
        app.close()
        await memory.close()


async def test_a_bell_that_is_not_acknowledged_yet_is_no_write_to_redis(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    memory = Memory(database.app_url, broker=redis_url)
    with workers(environment(database.relay_url, redis_url), tmp_path, app=TOUCHY), looking(redis_url) as client:
        await (await memory.remember("warm", user_id="ann")).stored(timeout=180)
        receipt = await memory.remember(SLOWLY, user_id="ann")
        await wait_until(lambda: client.llen(QUEUE) == 0, description="the bell is taken")

        assert list(client.scan_iter("*unacked*")) == []
        await receipt.stored(timeout=180)
        assert list(client.scan_iter("*unacked*")) == []
    await memory.close()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
async def test_what_a_worker_took_a_bell_for_is_done_by_another_though_it_ends(
    database: Database, redis_url: str, tmp_path: Path, how: str
) -> None:
    env = environment(database.relay_url, redis_url, AFTERMIND_LEASE_SECONDS="2", AFTERMIND_HEARTBEAT_SECONDS="0.5")
    memory = Memory(database.app_url, broker=redis_url)
    first = start_worker(env, tmp_path / "first.log", app=TOUCHY)
    with looking(redis_url) as client:
        await (await memory.remember("warm", user_id="ann")).stored(timeout=180)
        receipt = await memory.remember(SLOWLY, user_id="ann")
        await wait_until(lambda: client.llen(QUEUE) == 0, description="the bell is taken")
        first.kill() if how == "SIGKILL" else first.terminate()
        first.wait(timeout=180)
    with workers(env, tmp_path):
        await receipt.stored(timeout=180)

    assert [episode.content for episode in await memory.history(user_id="ann")] == ["warm", SLOWLY]
    await memory.close()
