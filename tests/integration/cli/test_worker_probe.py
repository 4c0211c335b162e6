"""The doctor's canary: a bell that is taken shows a worker, and one that is not leaves nothing behind."""

from pathlib import Path

from aftermind.cli import worker_probe
from aftermind.wire import queues
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers


async def test_a_bell_is_taken_where_a_worker_takes_bells_and_nowhere_else(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    keys, link = Keys(), RedisLink(redis_url, timeout=2.0, name="test")
    with workers(environment(database.relay_url, redis_url), tmp_path):

        async def is_taken() -> dict[str, float | None] | None:
            sung = await worker_probe.sing(link, keys)
            return sung if sung[queues.STORE] is not None else None

        async def left() -> list[int]:
            return [await link.call("LLEN", keys.queue(name)) for name in queues.QUEUES]

        async def none_is_left() -> bool:
            return not any(await left())

        sung = await wait_until(is_taken, description="the store worker takes a bell")
        # While it runs: a worker that is told to stop hands back the bell that it has not answered yet.
        await wait_until(none_is_left, description="no bell is left")

    assert sung is not None
    assert {name for name, wait in sung.items() if wait is not None} == {queues.STORE}
    await link.close()
