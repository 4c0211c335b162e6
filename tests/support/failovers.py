"""Failovers of real servers under load: the primary or a node is killed, and what was accepted is counted."""

import asyncio
from pathlib import Path
from typing import Any, Literal

from kombu.connection import Connection

from aftermind import Memory, Settings
from aftermind.types import Scope
from aftermind.wire.queues import STORE
from tests.support.failover_load import Load, Outcome, survive
from tests.support.postgres_pair import PostgresPair
from tests.support.rabbitmq import Node
from tests.support.redis_cluster import RedisCluster
from tests.support.sentinels import Sentinels
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

WORKERS = 2
OFF = {"AFTERMIND_EXTRACTOR": "off"}


async def lose_postgres_primary(
    pair: PostgresPair, redis: str, folder: Path, accept: Literal["redis", "postgres"]
) -> Outcome:
    """Kill the primary, promote the replica, and start the old primary again as a second primary."""
    app, relay = pair.url(pair.endpoints.app_url), pair.url(pair.endpoints.relay_url)

    async def fail_over(load: Load) -> None:
        await pair.kill_primary()
        await pair.promote_replica()
        await load.reach(20)
        await pair.return_old_primary()

    with workers(environment(relay, redis, **OFF), folder, count=WORKERS):
        async with Memory(app, broker=redis, settings=_settings(folder, accept=accept)) as memory:
            return await survive(memory, pair.endpoints.replica_admin_urls[0], fail_over)


async def lose_redis_primary(sentinels: Sentinels, database: Database, folder: Path) -> Outcome:
    """Kill the primary, wait until the sentinels have made another one, and start the old one again."""

    async def fail_over(load: Load) -> None:
        old = await asyncio.to_thread(sentinels.primary)
        await asyncio.to_thread(old.kill)
        await asyncio.to_thread(sentinels.wait_for_failover, old)
        await load.reach(100)
        await asyncio.to_thread(old.start)  # as a primary, until the sentinels demote it
        await load.reach(100)

    settings = _settings(folder, remember_budget_seconds=0.5, redis_timeout_seconds=0.5)
    url = sentinels.url()
    with workers(environment(database.relay_url, url, **OFF), folder, count=WORKERS):
        async with Memory(database.app_url, broker=url, settings=settings) as memory:
            return await survive(memory, database.admin_url, fail_over)


async def lose_redis_shard(cluster: RedisCluster, database: Database, broker: str, folder: Path) -> Outcome:
    """Kill a primary of a Redis Cluster; its replica takes over, or without one it is started again.

    The bystanders are users of the other primaries.
    """
    lost = cluster.primaries[0]
    named = {f"user-{number}": Scope(namespace="default", user_id=f"user-{number}") for number in range(30)}
    is_lost = {user: cluster.primary_of(owner) is lost for user, owner in named.items()}

    async def kill(load: Load) -> None:
        await asyncio.to_thread(lost.kill)
        await load.reach(60)
        if cluster.replicas:
            await asyncio.to_thread(cluster.wait_for_failover, cluster.replicas[0])
        else:
            await asyncio.to_thread(lost.start)
            await asyncio.to_thread(cluster.wait_until_whole)

    env = environment(database.relay_url, cluster.url, **OFF) | {"AFTERMIND_BROKER_URL": broker}
    with workers(env, folder, count=WORKERS):
        async with Memory(database.app_url, broker=broker, redis=cluster.url, settings=_settings(folder)) as memory:
            return await survive(
                memory,
                database.admin_url,
                kill,
                users=[user for user, is_own in is_lost.items() if is_own][:2],
                bystanders=[user for user, is_own in is_lost.items() if not is_own][:3],
            )


async def lose_rabbitmq_node(nodes: list[Node], database: Database, redis: str, folder: Path) -> Outcome:
    """Kill the first node of a cluster, to which every process is connected."""
    urls = ";".join(node.url for node in nodes)

    async def kill_the_first(load: Load) -> None:
        await asyncio.to_thread(nodes[0].kill)

    env = environment(database.relay_url, redis, **OFF) | {"AFTERMIND_BROKER_URL": urls}
    with workers(env, folder, count=WORKERS):
        async with Memory(database.app_url, broker=urls, redis=redis, settings=_settings(folder)) as memory:
            outcome = await survive(memory, database.admin_url, kill_the_first)

        async def are_connected() -> bool:
            return await asyncio.to_thread(_count_consumers, nodes[1]) >= WORKERS

        await wait_until(are_connected, description="the workers consume from other nodes")
    return outcome


def _count_consumers(node: Node) -> int:
    with Connection(node.url) as connection:  # type: ignore[no-untyped-call]
        return int(connection.default_channel.queue_declare(STORE, passive=True).consumer_count)


def _settings(folder: Path, **more: Any) -> Settings:  # Any: fields of the settings
    return Settings(state_dir=folder, embedder="hash", extractor="off", **more)
