"""`aftermind ingest` waits for work through a restart of Redis."""

import asyncio
from pathlib import Path

from aftermind import Memory
from tests.support.fork_server import end, start_module
from tests.support.proxy import proxy_to
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

OUTAGE_SECONDS = 3.0


async def test_an_outage_of_redis_does_not_end_an_ingest_that_waits(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    conversation, log = tmp_path / "said.jsonl", tmp_path / "ingest.log"
    conversation.write_text('{"messages": [{"role": "user", "content": "I live in Oslo."}], "user_id": "ann"}\n')
    env = environment(database.app_url, redis_url, AFTERMIND_STATE_DIR=str(tmp_path))
    async with proxy_to(redis_url) as proxy:
        with log.open("wb") as output:
            cut = {**env, "AFTERMIND_BROKER_URL": proxy.url(redis_url), "AFTERMIND_REDIS_URL": proxy.url(redis_url)}
            command = ["aftermind.cli", "ingest", str(conversation)]
            process = start_module(command, env=cut, output=output)
        try:
            async with Memory(database.app_url, broker=redis_url) as memory:
                await wait_until(lambda: _is_accepted(memory), description="it waits for a worker")
            proxy.reset()
            await asyncio.sleep(OUTAGE_SECONDS)
            assert process.poll() is None, log.read_text()
            proxy.let_pass()
            relayed = environment(database.relay_url, redis_url, AFTERMIND_STATE_DIR=str(tmp_path))
            with workers(relayed, tmp_path, on="memory.store,memory.extract"):
                await wait_until(lambda: process.poll() is not None, timeout=60, description="it has ended")
        finally:
            end([process], timeout=5)

    assert process.returncode == 0, log.read_text()


async def _is_accepted(memory: Memory) -> bool:
    return (await memory.progress(user_id="ann")).pending_turns == 1
