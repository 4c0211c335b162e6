"""Recall under load while its nodes die, freeze and are promoted: no recall raises, none is late, none is stale."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from aftermind.db.engine import PostgresDatabase
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.recall import Query, ReadNode, Recall, Routing
from aftermind.recall.query_embeddings import QueryVectors
from aftermind.settings import Settings
from aftermind.stores.postgres import PostgresStore
from aftermind.stores.postgres.search import READ_SETTINGS, PostgresSearch
from aftermind.types import RecallBlock, Scope, ServedBy
from tests.support import faults
from tests.support.loop_clock import loop_clock
from tests.support.servers import Servers, psql_async
from tests.support.stored_turns import keep, said
from tests.support.waiting import wait_until

ALICE = Scope(user_id="alice", session_id="s1")
BUDGET_SECONDS = 4.0  # of a recall, and to connect: enough for a busy machine
LATEST = BUDGET_SECONDS + 0.6


@dataclass
class RepeatedRecalls:
    """Recalls one after the other, and what came of them."""

    recall: Recall
    blocks: list[RecallBlock] = field(default_factory=list)
    slowest: float = 0.0

    async def ask(self) -> RecallBlock:
        async with loop_clock() as clock:
            block = await self.recall.recall(Query.checked("Where do the bees live?", ALICE))
        self.slowest = max(self.slowest, clock.seconds)
        self.blocks.append(block)
        return block

    async def until_stopped(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            await self.ask()

    async def served_by(self, wanted: ServedBy) -> None:
        async def is_served() -> bool:
            return (await self.ask()).served_by is wanted

        await wait_until(is_served, description=f"recalls are served by the {wanted}")


@pytest.fixture
async def asking(module_servers: Servers) -> AsyncIterator[RepeatedRecalls]:
    database = await asyncio.to_thread(module_servers.create_database)
    await keep(database.url, [said("The bees live behind the barn"), said("Thanks!")])
    reading = [
        PostgresDatabase(url, connect_timeout_seconds=BUDGET_SECONDS, session_settings=READ_SETTINGS)
        for url in (database.url, *database.replica_urls)
    ]
    search = PostgresSearch()
    nodes = [ReadNode(name="replica", database=reading[1])]
    routing = Routing(reading[0], nodes, search, check=timedelta(seconds=1))
    settings = Settings(recall_budget_seconds=BUDGET_SECONDS)
    recall = Recall(PostgresStore(), search, routing, QueryVectors(HashEmbedder()), settings=settings)
    made = RepeatedRecalls(recall)
    await made.served_by(ServedBy.REPLICA)
    made.blocks.clear()
    yield made
    await recall.close()
    for each in reading:
        await each.close()


async def test_a_replica_killed_under_load_fails_no_recall_and_comes_back(
    module_servers: Servers, asking: RepeatedRecalls
) -> None:
    stopped = asyncio.Event()
    load = [asyncio.create_task(asking.until_stopped(stopped)) for _ in range(4)]

    for _ in range(2):
        faults.kill_tree(module_servers.pid("postgres-replica"))
        await asking.served_by(ServedBy.PRIMARY)
        await asking.served_by(ServedBy.REPLICA)
    stopped.set()
    await asyncio.gather(*load)

    assert {block.degraded for block in asking.blocks} == {None}
    assert all("behind the barn" in block.text for block in asking.blocks)
    assert asking.slowest < LATEST


async def test_a_frozen_replica_delays_one_recall_by_a_part_of_its_budget(
    module_servers: Servers, asking: RepeatedRecalls
) -> None:
    with faults.frozen(module_servers.pid("postgres-replica")):
        for _ in range(20):
            await asking.ask()

    assert {block.degraded for block in asking.blocks} == {None}
    assert asking.slowest < LATEST
    await asking.served_by(ServedBy.REPLICA)


async def test_with_the_primary_frozen_the_replica_goes_on_serving(
    module_servers: Servers, asking: RepeatedRecalls
) -> None:
    with faults.frozen(module_servers.pid("postgres")):
        for _ in range(20):
            block = await asking.ask()
            assert block.served_by is ServedBy.REPLICA
            assert "behind the barn" in block.text

    assert asking.slowest < LATEST


async def test_a_promoted_replica_serves_no_more(module_servers: Servers, asking: RepeatedRecalls) -> None:
    await psql_async(module_servers.endpoints.replica_admin_urls[0], "SELECT pg_promote()")

    await asking.served_by(ServedBy.PRIMARY)
    asking.blocks.clear()
    for _ in range(10):
        await asking.ask()

    assert {block.served_by for block in asking.blocks} == {ServedBy.PRIMARY}
