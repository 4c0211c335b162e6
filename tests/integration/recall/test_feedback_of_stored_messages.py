"""Feedback about a message that was read from Postgres."""

from pathlib import Path

from aftermind import Episode, Memory
from tests.support.servers import Database
from tests.support.workers import environment, workers


async def test_feedback_takes_the_id_of_a_stored_message(database: Database, redis_url: str, tmp_path: Path) -> None:
    async with Memory(database.app_url, broker=redis_url) as memory:
        receipt = await memory.remember("I live in Oslo.", user_id="ann")
        with workers(environment(database.relay_url, redis_url), tmp_path):
            await receipt.stored(timeout=30)
        block = await memory.recall("Where do I live?", user_id="ann")
        (stored,) = [each.item for each in block.matches if isinstance(each.item, Episode)]
        await memory.feedback(block, helpful=[stored.id], user_id="ann")
