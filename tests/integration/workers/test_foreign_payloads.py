"""Entries that were written by hand: what is inside them decides nothing about other owners, and they stop no queue."""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from aftermind import Memory
from aftermind.errors import JobDead
from aftermind.types import Scope
from aftermind.wire.redis_keys import Keys, owner_part
from aftermind.wire.turn_encoding import encode_turn
from tests.support.servers import Database, psql_async
from tests.support.turns import turn_of
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

KEYS = Keys()
BOB = Scope(namespace="theirs", user_id="bob")


async def test_a_pending_turn_of_one_owner_stores_nothing_for_another(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    foreign = encode_turn(turn_of("bob", "planted", namespace="theirs"))
    memory, theirs = (
        Memory(database.app_url, broker=redis_url),
        Memory(database.app_url, broker=redis_url, namespace="theirs"),
    )
    receipts = [await memory.remember(f"turn {number}", user_id="ann") for number in range(3)]
    with redis.Redis.from_url(redis_url) as client:
        client.hset(KEYS.turn(receipts[1].job_id), "payload", foreign)

    assert "planted" not in (await memory.recall("planted", user_id="ann")).text
    with workers(environment(database.relay_url, redis_url), tmp_path):
        await receipts[2].stored(timeout=180)
        with pytest.raises(JobDead):
            await receipts[1].stored(timeout=180)

    letter = f"SELECT namespace, user_id, state, reason_code FROM aftermind.jobs WHERE id = '{receipts[1].job_id}'"
    assert await psql_async(database.url, letter) == "default|ann|dead|foreign_payload"
    assert [each.content for each in await memory.history(user_id="ann")] == ["turn 0", "turn 2"]
    assert await theirs.history(user_id="bob") == []
    assert await psql_async(database.url, "SELECT count(*) FROM aftermind.jobs WHERE namespace = 'theirs'") == "0"
    await memory.close()
    await theirs.close()


async def test_a_ledger_row_of_one_owner_stores_nothing_for_another(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    foreign = encode_turn(turn_of("bob", "planted", namespace="theirs")).hex()
    memory, theirs = (
        Memory(database.app_url, broker=redis_url),
        Memory(database.app_url, broker=redis_url, namespace="theirs"),
    )
    receipts = [await memory.remember(f"turn {number}", user_id="ann", accept="postgres") for number in range(3)]
    planted = receipts[1].job_id
    await psql_async(
        database.admin_url, f"UPDATE aftermind.jobs SET raw = decode('{foreign}', 'hex') WHERE id = '{planted}'"
    )

    with workers(environment(database.relay_url, redis_url, AFTERMIND_RECONCILE_SECONDS="0.5"), tmp_path):
        await receipts[2].stored(timeout=180)
        with pytest.raises(JobDead):
            await receipts[1].stored(timeout=180)

    assert [each.content for each in await memory.history(user_id="ann")] == ["turn 0", "turn 2"]
    assert await theirs.history(user_id="bob") == []
    await memory.close()
    await theirs.close()


def without_payload(client: redis.Redis, job: str) -> None:
    client.hdel(KEYS.turn(job), "payload")


def without_owner(client: redis.Redis, job: str) -> None:
    client.hdel(KEYS.turn(job), "owner")


def of_another_owner(client: redis.Redis, job: str) -> None:
    client.hset(KEYS.turn(job), "owner", owner_part(BOB))


def with_text_for_numbers(client: redis.Redis, job: str) -> None:
    client.hset(KEYS.turn(job), mapping={"base": "x", "size": "y", "at": "z"})


def of_another_type(client: redis.Redis, job: str) -> None:
    client.delete(KEYS.turn(job))
    client.set(KEYS.turn(job), "x")


def with_an_id_that_is_none(client: redis.Redis, job: str) -> None:
    owner = owner_part(Scope(user_id="ann"))
    client.copy(KEYS.turn(job), KEYS.turn("no-id"))
    for key in (KEYS.pending(owner), KEYS.ready(owner), KEYS.index()):
        client.zrem(key, job)
        client.zadd(key, {"no-id": 1})
    client.delete(KEYS.turn(job))


@pytest.mark.parametrize(
    "spoil",
    [
        without_payload,
        without_owner,
        of_another_owner,
        with_text_for_numbers,
        of_another_type,
        with_an_id_that_is_none,
    ],
)
async def test_a_malformed_pending_entry_is_removed_and_stops_no_other(
    database: Database, redis_url: str, tmp_path: Path, spoil: Callable[[redis.Redis, str], None]
) -> None:
    memory = Memory(database.app_url, broker=redis_url)
    receipts = [await memory.remember(f"turn {number}", user_id="ann") for number in range(3)]
    other = await memory.remember("of another", user_id="eve")
    with redis.Redis.from_url(redis_url) as client:
        spoil(client, str(receipts[0].job_id))
        await memory.recall("turn", user_id="ann")

        with workers(environment(database.relay_url, redis_url), tmp_path):
            await other.stored(timeout=180)
            await receipts[2].stored(timeout=180)
            await wait_until(lambda: client.zcard(KEYS.index()) == 0, description="it is removed")

    assert [each.content for each in await memory.history(user_id="ann")] == ["turn 1", "turn 2"]
    assert await memory.history(user_id="bob") == []
    await memory.close()
