"""`redis+cluster://`: owners are spread over shards, and a shard that is away concerns its owners alone."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aftermind import Memory, Settings, errors
from aftermind.cli import doctor_checks
from aftermind.types import Scope
from aftermind.wire.pending_shards import open_pending
from aftermind.wire.redis import acl
from aftermind.wire.redis.client import RedisLink, run_all, split_shards
from aftermind.wire.redis.script import Script, load
from aftermind.wire.redis_keys import Keys, shard_number
from tests.support.failovers import lose_redis_shard
from tests.support.redis_cluster import RedisCluster, running_redis_cluster
from tests.support.servers import Database
from tests.support.turns import ROOMY, offer, turn_of
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

pytestmark = pytest.mark.timeout(600)

USERS = [f"user-{number}" for number in range(12)]  # of several shards on each of three primaries


@pytest.fixture(scope="module")
def primaries() -> Iterator[RedisCluster]:
    """Three primaries, of which a test may kill one, if it brings it back."""
    with running_redis_cluster() as running:
        yield running


@pytest.fixture
def cluster(primaries: RedisCluster) -> RedisCluster:
    """The same, emptied: workers would store the pending turns of another test."""
    primaries.empty()
    return primaries


def _settings(folder: Path) -> Settings:
    return Settings(state_dir=folder, embedder="hash", extractor="off")


def _of_redis_7_0(user: acl.RedisUser) -> acl.RedisUser:
    return replace(user, commands=tuple(each for each in user.commands if each != "client|setinfo"))


@pytest.mark.long
async def test_turns_of_every_shard_are_recalled_stored_announced_and_forgotten(
    cluster: RedisCluster, database: Database, redis_url: str, tmp_path: Path
) -> None:
    shards = {shard_number(Scope(namespace="default", user_id=user)) for user in USERS}
    assert len(shards) > 4

    async with Memory(database.app_url, broker=redis_url, redis=cluster.url, settings=_settings(tmp_path)) as memory:
        receipts = [await memory.remember(f"{user} keeps bees", user_id=user) for user in USERS]
        pending = [str(await memory.recall("bees", user_id=user)) for user in USERS]
        heard = asyncio.ensure_future(anext(memory.events(user_id=USERS[0])))
        env = environment(database.relay_url, cluster.url, AFTERMIND_EXTRACTOR="off", AFTERMIND_BROKER_URL=redis_url)
        with workers(env, tmp_path):
            for receipt in receipts:
                await receipt.stored(timeout=120)
            stored = [await memory.recall("bees", user_id=user) for user in USERS]
            event = await heard
            forgotten = [await memory.forget(user_id=user) for user in USERS]
        left = [str(await memory.recall("bees", user_id=user)) for user in USERS]

    assert not any(receipt.spooled for receipt in receipts)
    assert all(f"{user} keeps bees" in block for user, block in zip(USERS, pending, strict=True))
    assert all(f"{user} keeps bees" in str(block) for user, block in zip(USERS, stored, strict=True))
    assert not any(block.degraded for block in stored)
    assert event.scope.user_id == USERS[0]
    assert len(forgotten) == len(USERS)
    assert not any("bees" in block for block in left)


async def test_turns_of_a_silent_shard_are_spooled_and_those_of_others_are_not(
    cluster: RedisCluster, database: Database, redis_url: str, tmp_path: Path
) -> None:
    silent = cluster.primaries[2]
    owned = [user for user in USERS if cluster.primary_of(Scope(namespace="default", user_id=user)) is silent]
    others = [user for user in USERS if user not in owned]

    settings = _settings(tmp_path).model_copy(update={"remember_budget_seconds": 2.0, "redis_timeout_seconds": 2.0})
    async with Memory(database.app_url, broker=redis_url, redis=cluster.url, settings=settings) as memory:
        with silent.frozen():
            spooled = [await memory.remember("bees", user_id=user) for user in owned[:2]]
            taken = [await memory.remember("bees", user_id=user) for user in others]
            blocks = [str(await memory.recall("bees", user_id=user)) for user in (*owned[:2], *others)]
            with pytest.raises(errors.RedisUnavailable):  # a list without the turns of the silent shard is wrong
                await memory.job_admin.pending_turns()

        async def are_sent() -> bool:
            waiting = (await memory.health()).waiting
            return waiting is not None and waiting.turns == len(owned[:2]) + len(others) and not waiting.spooled_bytes

        await wait_until(are_sent, description="the spooled turns are sent")

    assert all(receipt.spooled for receipt in spooled)
    assert not any(receipt.spooled for receipt in taken)
    assert all("bees" in block for block in blocks)


@pytest.mark.long
async def test_a_shard_that_is_away_concerns_its_owners_alone_and_loses_no_turn(
    cluster: RedisCluster, database: Database, redis_url: str, tmp_path: Path
) -> None:
    outcome = await lose_redis_shard(cluster, database, redis_url, tmp_path)

    assert (outcome.lost, outcome.doubled, outcome.stale) == ([], [], [])
    assert outcome.disturbed == []
    assert outcome.refused == 0
    assert outcome.remember_spooled_s > 0


@pytest.mark.long
async def test_a_replica_that_takes_over_a_shard_loses_and_doubles_no_turn(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    with running_redis_cluster(replicas=True) as cluster:
        outcome = await lose_redis_shard(cluster, database, redis_url, tmp_path)

    assert (outcome.lost, outcome.doubled, outcome.stale) == ([], [], [])
    assert outcome.disturbed == []


async def test_a_slot_that_is_moved_takes_no_call_until_another_node_has_it(cluster: RedisCluster) -> None:
    """Key by key: a script would meet half of its keys."""
    link = RedisLink(cluster.url, timeout=20.0)
    keys = link.keys("moved:")
    settled = Script("erasure_generation_raise", keys)
    try:
        await settled(link, 7, "")
        with cluster.moving(0), pytest.raises(errors.RedisUnavailable, match="ASK"):
            await settled(link, 8, "")

        async def answers() -> bool:
            with suppress(errors.RedisUnavailable):  # the first call learns that the slot was moved
                return bool(await settled(link, 9, "") == [b"9", None])
            return False

        await wait_until(answers, description="the new node takes calls, with the functions loaded")
    finally:
        await link.close()


async def test_a_cluster_is_served_by_users_with_the_rights_of_their_roles(cluster: RedisCluster) -> None:
    turn, prefix = turn_of("ada", "bees"), "acl:"
    known = {name: _of_redis_7_0(user) for name, user in acl.cluster_users(prefix).items()}
    links = {name: RedisLink(cluster.url_of(user.name, f"of-{name}"), timeout=20.0) for name, user in known.items()}
    try:
        for node in cluster.primaries:
            with node.client() as client:
                for name, user in known.items():
                    client.execute_command("ACL", "SETUSER", user.name, *user.rules(f"of-{name}"))
        agent, worker = (open_pending(links[name], links[name].keys(prefix)) for name in ("agent", "worker"))
        await run_all(load(*shard) for shard in split_shards(links["worker"], links["worker"].keys(prefix)))
        shard = agent.shard_of(turn.scope)

        [accepted] = await shard.accept([offer(turn)], limits=ROOMY)
        read = await agent.read(turn.scope.owner, limit=10)
        backlog = await worker.backlog()
        settled = await worker.settle([turn.job_id], watermark=None, owners=[turn.scope.owner])
        with pytest.raises(errors.RedisUnavailable, match="NOPERM"):
            await links["agent"].call("GET", Keys("other:", shard=0).epoch())
    finally:
        for link in links.values():
            await link.close()

    assert accepted.refusal is None
    assert [each.job_id for each in read.turns] == [turn.job_id]
    assert (backlog.turns, settled.removed) == (1, 1)


async def test_the_doctor_checks_each_primary_and_names_a_shard_that_is_away(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    settings = _settings(tmp_path)

    whole = await doctor_checks.redis(cluster.url, settings)
    with cluster.primaries[2].frozen():
        lame = await doctor_checks.redis(cluster.url, settings)

    assert not [each for each in whole if each.verdict is doctor_checks.Verdict.BAD]
    assert "shard" in next(each.what for each in lame if each.verdict is doctor_checks.Verdict.BAD)


async def test_a_connection_to_a_node_without_the_slot_is_closed(cluster: RedisCluster) -> None:
    """A node without the slot answers MOVED, and its connection is closed."""
    link = RedisLink(cluster.url, timeout=20.0)
    other = RedisLink(cluster.primaries[2].url, timeout=20.0)
    try:
        channel = await other.connect()
        with pytest.raises(errors.RedisUnavailable, match="MOVED"):
            await other.call("GET", link.keys("aftermind:").epoch())
        await wait_until(lambda: not channel.is_open, description="the connection is closed")
    finally:
        await link.close()
        await other.close()
