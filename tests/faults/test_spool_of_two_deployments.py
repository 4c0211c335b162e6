"""Two deployments with one state folder: a spooled turn is sent to the Redis and database that it is for, no other."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftermind import Memory, Settings
from aftermind.api.address_resolution import resolve, spool_deployment
from aftermind.api.health import spooled_bytes
from aftermind.cli import doctor_checks
from aftermind.outbox import publish_or_spool
from aftermind.outbox.spool import Spool
from aftermind.outbox.spool_deployment import Deployment
from aftermind.wire.turn_encoding import encode_turn
from tests.support.servers import Database, Servers
from tests.support.turns import texts_of, turn_of
from tests.support.valkey import Valkey, running_valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

pytestmark = pytest.mark.asyncio
TEXT = "For the staging database only."


@pytest.fixture
def staging(servers: Servers) -> Iterator[Database]:
    """A second database; `database` is that of production."""
    made = servers.create_database()
    yield made
    servers.drop_database(made)


@pytest.fixture
def staging_redis() -> Iterator[Valkey]:
    with running_valkey() as server:
        server.stop()
        yield server


@pytest.fixture(autouse=True)
def checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish_or_spool, "ORPHANS_SECONDS", 0.2)


def memory_on(database: Database, redis: Valkey, folder: Path) -> Memory:
    return Memory(database.app_url, broker=redis.url, settings=Settings(state_dir=folder, embedder="hash"))


async def spool_one(database: Database, redis: Valkey, folder: Path) -> Path:
    """Remember a turn while that Redis is down; the file that it is in when the process has ended."""
    async with memory_on(database, redis, folder) as memory:
        assert (await memory.remember(TEXT, user_id="alice", session_id="s")).spooled
    [path] = (folder / "spool").iterdir()
    return path


async def seen(memory: Memory) -> list[str]:
    return [each.content for each in await memory.history(user_id="alice", session_id="s", limit=10)]


async def test_a_turn_waits_for_its_deployment_and_is_stored_there_alone(
    valkey: Valkey,
    database: Database,
    staging: Database,
    staging_redis: Valkey,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = await spool_one(staging, staging_redis, tmp_path)
    assert path.stat().st_mode & 0o077 == 0
    assert staging_redis.password not in path.name

    with caplog.at_level(logging.WARNING):
        async with memory_on(database, valkey, tmp_path) as memory:
            await (await memory.remember("hello", user_id="alice", session_id="s")).status()

            def reported() -> list[logging.LogRecord]:
                return [each for each in caplog.records if "another deployment" in each.message]

            await wait_until(reported, description="the file is reported")
            assert await seen(memory) == ["hello"]
            assert TEXT not in (await memory.recall("staging database", user_id="alice")).text
            await memory.forget(user_id="alice")
            [spool] = [part for part in (await memory.health()).parts if part.name == "spool"]
        [record] = reported()
    assert record.__dict__["path"] == str(path)
    assert "see `aftermind doctor`" in record.message
    assert f"127.0.0.1:{staging_redis.port}/0" in record.__dict__["deployment"]
    assert spool.state == "degraded"
    assert str(path) in spool.detail
    assert path.exists()

    staging_redis.start()
    env = environment(staging.relay_url, staging_redis.url)
    with workers(env, tmp_path):
        async with memory_on(staging, staging_redis, tmp_path) as memory:

            async def stored() -> bool:
                return (await memory.progress(user_id="alice")).episodes == 1

            await wait_until(stored, description="the turn is stored", timeout=120)
            assert await seen(memory) == [TEXT]
    assert list((tmp_path / "spool").iterdir()) == []
    async with memory_on(database, valkey, tmp_path) as memory:
        assert await seen(memory) == []


@pytest.mark.parametrize("changed", ["redis", "database"])
async def test_a_turn_is_sent_after_one_address_has_changed(
    valkey: Valkey, database: Database, staging: Database, staging_redis: Valkey, tmp_path: Path, changed: str
) -> None:
    await spool_one(staging, staging_redis, tmp_path)
    if changed == "redis":
        later = staging, valkey
    else:
        staging_redis.start()
        later = database, staging_redis

    async with memory_on(*later, tmp_path) as memory:
        await memory.recall("anything", user_id="bob")
        await wait_until(lambda: not list((tmp_path / "spool").iterdir()), description="the spool is sent")
        assert await seen(memory) == [TEXT]


async def test_a_file_is_handed_over_by_its_name_after_both_addresses_have_changed(
    valkey: Valkey, database: Database, staging: Database, staging_redis: Valkey, tmp_path: Path
) -> None:
    path = await spool_one(staging, staging_redis, tmp_path)
    path.rename(path.with_name(f"{path.name.partition('@')[0]}.spool"))

    async with memory_on(database, valkey, tmp_path) as memory:
        await memory.recall("anything", user_id="bob")
        await wait_until(lambda: not list((tmp_path / "spool").iterdir()), description="the spool is sent")
        assert await seen(memory) == [TEXT]


async def test_doctor_lists_the_file_of_another_deployment_and_does_not_count_it(
    valkey: Valkey, database: Database, staging: Database, staging_redis: Valkey, tmp_path: Path
) -> None:
    path = await spool_one(staging, staging_redis, tmp_path)
    settings = Settings(state_dir=tmp_path)
    deployment = spool_deployment(settings, resolve(settings, url=database.app_url, broker=valkey.url))

    foreign, unsent = await doctor_checks.spool(settings, deployment)

    assert foreign.verdict is doctor_checks.Verdict.WARNING
    assert str(path) in foreign.seen
    assert "this state folder" in foreign.remedy
    assert unsent.seen == "empty"
    assert spooled_bytes(settings) > 0


async def test_files_of_another_deployment_take_no_space_of_this_one(tmp_path: Path) -> None:
    for deployment in (Deployment("staging-redis", "staging"), Deployment("redis", "production")):
        spool = Spool(tmp_path / "spool", max_bytes=1_000, deployment=deployment)
        turn = turn_of("alice", "x" * 400)
        await spool.append(turn, encode_turn(turn))
        spool.close()

    assert sum(path.stat().st_size for path in (tmp_path / "spool").iterdir()) > 1_000


async def test_a_search_for_what_is_left_names_the_files_of_another_deployment(
    valkey: Valkey, database: Database, staging: Database, staging_redis: Valkey, tmp_path: Path
) -> None:
    path = await spool_one(staging, staging_redis, tmp_path)
    async with memory_on(database, valkey, tmp_path) as memory:
        left = await memory.verify_erasure(TEXT, user_id="alice")

    [spool] = [place for place in left.places if place.name == "spool"]
    assert path.exists()
    assert (spool.found, "another deployment" in spool.missing) == (1, True)


async def test_one_embedded_redis_with_two_prefixes_is_two_deployments(tmp_path: Path) -> None:
    endpoints = {
        "postgres_url": "postgresql://app:x@127.0.0.1:15432/aftermind",
        "redis_url": "redis://127.0.0.1:15433/0",
    }
    (tmp_path / "endpoints.json").write_text(json.dumps(endpoints | {"replica_urls": []}))
    staging, production = (
        spool_deployment(
            settings, resolve(settings, url=f"postgresql://app:x@db/{prefix}", broker=endpoints["redis_url"])
        )
        for prefix in ("staging", "production")
        for settings in [Settings(state_dir=tmp_path, redis_prefix=f"{prefix}:")]
    )

    assert not production.owns(tmp_path / f"1-2{staging.file_suffix}.spool")


async def test_the_embedded_stack_takes_its_turns_after_its_ports_have_changed(tmp_path: Path) -> None:
    def spool_of_stack(port: int) -> Spool:
        postgres, redis = f"postgresql://app:x@127.0.0.1:{port}/aftermind", f"redis://:x@127.0.0.1:{port + 1}/0"
        endpoints = {"postgres_url": postgres, "redis_url": redis, "replica_urls": []}
        (tmp_path / "endpoints.json").write_text(json.dumps(endpoints))
        settings = Settings(state_dir=tmp_path)
        return Spool(settings.spool_dir, max_bytes=10**6, deployment=spool_deployment(settings, resolve(settings)))

    first = spool_of_stack(15432)
    turn = turn_of("alice", TEXT)
    await first.append(turn, encode_turn(turn))
    first.close()

    second = spool_of_stack(25432)
    assert await second.take_over() == 1
    assert texts_of(await second.next(10)) == [TEXT]
    second.close()
