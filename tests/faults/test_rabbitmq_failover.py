"""A RabbitMQ cluster as broker: the loss of a node loses no turn, and workers go on."""

import asyncio
from pathlib import Path

import pytest
from kombu.connection import Connection

from aftermind import Memory, Settings
from aftermind.wire.queues import QUEUES
from tests.support.failover_load import Load, survive
from tests.support.rabbitmq import Node, running_cluster
from tests.support.servers import Database
from tests.support.valkey import Valkey
from tests.support.workers import environment, workers

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


async def test_the_loss_of_a_node_loses_and_doubles_no_accepted_turn(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    settings = Settings(state_dir=tmp_path, embedder="hash", extractor="off")
    with running_cluster() as nodes:
        urls = ";".join(node.url for node in nodes)

        async def lose_the_first(load: Load) -> None:
            await asyncio.to_thread(nodes[0].kill)

        env = environment(database.relay_url, valkey.url, AFTERMIND_EXTRACTOR="off") | {"AFTERMIND_BROKER_URL": urls}
        with workers(env, tmp_path, count=2):
            async with Memory(database.app_url, broker=urls, redis=valkey.url, settings=settings) as memory:
                outcome = await survive(memory, database.admin_url, lose_the_first)

        assert (outcome.lost, outcome.doubled, outcome.stale) == ([], [], [])
        assert await asyncio.to_thread(consumers, nodes[1]) >= 2


def consumers(node: Node) -> int:
    """How many consumers the queue of new turns has."""
    with Connection(node.url) as connection:  # type: ignore[no-untyped-call]
        return int(connection.default_channel.queue_declare(QUEUES[0], passive=True).consumer_count)
