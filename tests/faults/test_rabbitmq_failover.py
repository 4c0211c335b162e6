"""A RabbitMQ cluster as broker: the loss of a node loses no turn, and workers go on."""

from pathlib import Path

import pytest

from tests.support.failovers import lose_rabbitmq_node
from tests.support.rabbitmq import running_cluster
from tests.support.servers import Database
from tests.support.valkey import Valkey

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


async def test_the_loss_of_a_node_loses_and_doubles_no_accepted_turn(
    database: Database, valkey: Valkey, tmp_path: Path
) -> None:
    with running_cluster() as nodes:
        outcome = await lose_rabbitmq_node(nodes, database, valkey.url, tmp_path)

    assert (outcome.lost, outcome.doubled, outcome.stale) == ([], [], [])
