"""The doctor finds roles that row-level security does not bind, tables without it, and keys that are not shared."""

import base64
from importlib.metadata import version
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from aftermind import Memory, Settings
from aftermind.cli import doctor, doctor_checks, worker_probe
from aftermind.cli.doctor_checks import Finding, Verdict
from aftermind.stack.ports import choose
from aftermind.wire.process_registry import list_announced
from aftermind_tasks.runtime import open_runtime
from tests.support.servers import Database, psql_async
from tests.support.valkey import running_valkey
from tests.support.waiting import wait_until

MIB = 1_048_576
OLD, NEW = (base64.urlsafe_b64encode(bytes([number]) * 32).decode() for number in (1, 2))


@pytest.fixture(autouse=True)
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker runs on these queues: their probes need not wait."""
    monkeypatch.setattr(worker_probe, "LONGEST_SECONDS", 0.1)


def settings_of(database: Database, url: str, redis_url: str, folder: Path) -> Settings:
    return Settings(
        database_url=url,
        relay_url=database.relay_url,
        broker_url=redis_url,
        state_dir=folder,
        embedder="off",
    )


async def found(settings: Settings, what: str) -> list[Finding]:
    return [each for each in await doctor.examine(settings) if each.what == what]


async def test_a_superuser_and_the_owner_are_bad_and_a_member_is_well(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    for url in (database.admin_url, database.url):
        [seen] = await found(settings_of(database, url, redis_url, tmp_path), "role")
        assert seen.verdict is Verdict.BAD
        allowed = settings_of(database, url, redis_url, tmp_path).model_copy(update={"allow_owner": True})
        [seen] = await found(allowed, "role")
        assert seen.verdict is Verdict.WARNING

    bound = settings_of(database, database.app_url, redis_url, tmp_path)
    assert await found(bound, "role") == []
    assert [each.verdict for each in await found(bound, "tenants")] == [Verdict.GOOD]


async def test_the_setting_of_a_login_that_is_refused_is_named(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    well = settings_of(database, database.app_url, redis_url, tmp_path)
    away = SecretStr(database.relay_url.rpartition("/")[0] + "/no_such_database")

    [work] = await found(well.model_copy(update={"relay_url": away}), "work")
    [replica] = await found(well.model_copy(update={"replica_urls": (away,)}), "replica")
    [primary] = await found(well.model_copy(update={"database_url": away}), "Postgres")

    assert work.remedy.startswith("Correct the database or the user in AFTERMIND_RELAY_URL")
    assert "in AFTERMIND_REPLICA_URLS" in replica.remedy
    assert "in AFTERMIND_DATABASE_URL" in primary.remedy


async def test_a_login_of_a_replica_or_of_the_relay_that_is_refused_is_bad(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    well = settings_of(database, database.app_url, redis_url, tmp_path)
    as_superuser = well.model_copy(update={"replica_urls": tuple(map(SecretStr, database.replica_admin_urls))})
    relay = well.model_copy(update={"relay_url": SecretStr(database.admin_url)})

    of_replica = [each for each in await doctor.examine(as_superuser) if each.what.startswith("replica ")]
    async with Memory(settings=relay) as memory:
        jobs = next(part for part in (await memory.health()).parts if part.name == "jobs")

    assert [each.verdict for each in of_replica] == [Verdict.BAD]
    assert "row-level security" in of_replica[0].seen
    assert Verdict.BAD in {each.verdict for each in await found(relay, "work")}
    assert jobs.state == "down"
    assert "row-level security" in jobs.detail


async def test_a_node_of_a_redis_cluster_is_bad_as_a_single_server(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    bus_port = str(choose(1)[0])  # else 10,000 above the other port, which may be more than there are
    with (
        running_valkey() as alone,
        running_valkey("--cluster-enabled", "yes", "--cluster-port", bus_port) as node,
    ):
        found = {each: await doctor_checks.redis(each.url, settings) for each in (alone, node)}

    assert not [each for each in found[alone] if each.verdict is Verdict.BAD]
    [seen] = [each for each in found[node] if each.verdict is Verdict.BAD]
    assert "Redis Cluster" in seen.seen
    assert "redis+cluster://" in seen.remedy


async def test_compression_of_the_wal_is_suggested_where_it_is_off(database: Database) -> None:
    async def suggested(value: str) -> list[str]:
        await psql_async(database.admin_url, f'ALTER DATABASE "{database.name}" SET wal_compression = {value}')
        findings = await doctor_checks.postgres(database.app_url, Settings())
        return [each.remedy for each in findings if each.seen == "wal_compression=off"]

    try:
        assert await suggested("pglz") == []
        [remedy] = await suggested("off")
        assert "wal_compression=on" in remedy
    finally:
        await psql_async(database.admin_url, f'ALTER DATABASE "{database.name}" RESET wal_compression')


async def test_a_table_without_row_level_security_is_bad(database: Database, redis_url: str, tmp_path: Path) -> None:
    await psql_async(database.admin_url, "ALTER TABLE aftermind.facts DISABLE ROW LEVEL SECURITY")

    [seen] = await found(settings_of(database, database.app_url, redis_url, tmp_path), "tenants")

    assert seen.verdict is Verdict.BAD
    assert "facts" in seen.seen


async def test_a_trail_that_another_process_writes_with_another_key_is_bad(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    settings = settings_of(database, database.app_url, redis_url, tmp_path)
    async with Memory(settings=settings) as memory:
        await memory.audit.record("read", user_id="alice")
    [seen] = await found(settings, "audit keys")
    assert seen.verdict is Verdict.GOOD

    other = settings.model_copy(update={"audit_key": SecretStr("another key of sixteen")})
    [seen] = await found(other, "audit keys")

    assert seen.verdict is Verdict.BAD
    assert "default" in seen.seen


async def test_a_trail_that_is_older_than_its_end_outside_the_database_is_reported(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    """As after the restore of an older copy: the head of that time, with its good seal, and its entries."""
    settings = settings_of(database, database.app_url, redis_url, tmp_path)
    columns = "seq, mac, pruned_to, pruned_mac, key_id, seal"
    async with Memory(settings=settings) as memory:
        await memory.audit.record("read", user_id="alice")
        await psql_async(database.admin_url, f"CREATE TABLE public.old AS SELECT {columns} FROM aftermind.audit_heads")
        for _ in range(2):
            await memory.audit.record("read", user_id="alice")
        before = await found(settings, "audit trail")
        await psql_async(
            database.admin_url,
            "DELETE FROM aftermind.audit_log WHERE seq > 1",
            f"UPDATE aftermind.audit_heads SET ({columns}) = (SELECT {columns} FROM public.old)",
            "DROP TABLE public.old",
        )
        [after] = await found(settings, "audit trail")
        [report] = await memory.audit.verify()
        for _ in range(3):
            await memory.audit.record("read", user_id="alice")
        [later] = await memory.audit.verify()
        of_longer = await found(settings, "audit trail")
        for witness in memory.audit._trail.witnesses:  # as the janitor does
            await witness.prune({"default": later.last})
        [last] = await memory.audit.verify()

    assert before == of_longer == []
    assert after.verdict is Verdict.WARNING
    assert after.seen == "default ends at 1 instead of 3"
    assert "`aftermind audit verify`" in after.remedy
    assert all("the newest entries were cut off" in fault.what for fault in report.faults)
    assert len(report.faults) == len(report.witnesses) == 2
    assert {fault.seq for fault in later.faults} == {2, 3}
    assert {fault.what for fault in later.faults} == {"it is not the one that Redis has"}
    assert last.is_whole


async def test_a_trail_that_is_missing_in_the_database_is_reported(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    """As after the restore of a copy that is older than the first entry."""
    settings = settings_of(database, database.app_url, redis_url, tmp_path)
    async with Memory(settings=settings) as memory:
        await memory.audit.record("read", user_id="alice")
    tables = ("audit_log", "audit_heads")
    await psql_async(database.admin_url, *(f"DELETE FROM aftermind.{table}" for table in tables))

    [seen] = await found(settings, "audit trail")

    assert (seen.verdict, seen.seen) == (Verdict.WARNING, "default ends at 0 instead of 1")
    assert await found(settings, "audit keys") == []


async def test_processes_with_different_keys_are_bad(database: Database, redis_url: str, tmp_path: Path) -> None:
    mine = settings_of(database, database.relay_url, redis_url, tmp_path)
    keys = {"webhook_key": SecretStr(NEW), "encryption_key": SecretStr("a master key of sixteen")}
    same = mine.model_copy(update=keys)
    worker = await open_runtime(same, worker="one")
    rotating = await open_runtime(same.model_copy(update={"webhook_key": SecretStr(f"{OLD},{NEW}")}), worker="two")

    async def bad(settings: Settings) -> set[str]:
        return {each.seen for each in await found(settings, "keys") if each.verdict is Verdict.BAD}

    async def announced() -> bool:
        assert worker.redis is not None
        return len(await list_announced(worker.redis, worker.keys)) == 2

    await wait_until(announced, description="both have announced their keys")
    lacking = await bad(same)
    strange = await bad(same.model_copy(update={"encryption_key": SecretStr("another key of sixteen")}))
    text = values_of(redis_url, worker.keys.processes())
    await rotating.close()
    await worker.close()

    assert lacking == {"this process, worker one lack the newest AFTERMIND_WEBHOOK_KEY, which worker two has"}
    assert "this process lacks the newest AFTERMIND_ENCRYPTION_KEY, which worker one, worker two have" in strange
    assert not any(secret in text for secret in (OLD, NEW, "a master key"))


async def test_a_process_announces_its_settings_without_addresses_and_secrets(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    settings = settings_of(database, database.relay_url, redis_url, tmp_path).model_copy(
        update={"extract_quiet_seconds": 3.5, "openai_base_url": "https://me:secret@models.example"}
    )
    worker = await open_runtime(settings, worker="one", concurrency=7)
    async with Memory(settings=settings) as memory:

        async def announced() -> tuple[str, ...]:
            return next((each.settings for each in await memory.job_admin.processes()), ())

        listed = await wait_until(announced, description="the process is announced")
    other_quiet = settings.model_copy(update={"extract_quiet_seconds": 1.0})
    same, other = [await found(each, "settings") for each in (settings, other_quiet)]
    await worker.close()

    assert {"extract_quiet_seconds=3.5", "concurrency=7", f"embedder={settings.embedder}"} <= set(listed)
    assert "secret" not in str(listed)
    assert same == other == []


async def test_a_damaged_key_file_does_not_keep_a_worker_from_starting(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "webhook.key").write_text("short")
    settings = settings_of(database, database.relay_url, redis_url, tmp_path)

    worker = await open_runtime(settings, worker="one")
    [seen] = await found(settings, "keys")
    await worker.close()

    assert seen.verdict is Verdict.BAD
    assert "damaged" in seen.seen


async def test_the_redis_user_is_shown(database: Database, redis_url: str, tmp_path: Path) -> None:
    [seen] = await found(settings_of(database, database.app_url, redis_url, tmp_path), "Redis user")

    assert seen.seen == "default"
    assert "redis-acl" in seen.remedy


def values_of(redis_url: str, key: str) -> str:
    """Everything that a hash of Redis holds."""
    with redis.Redis.from_url(redis_url) as client:
        return str(client.hgetall(key))


async def test_a_worker_that_runs_with_other_settings_is_named(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    settings = settings_of(database, database.relay_url, redis_url, tmp_path)
    worker = await open_runtime(settings.model_copy(update={"extractor": "off"}), worker="one")

    async def announced() -> bool:
        assert worker.redis is not None
        return bool(await list_announced(worker.redis, worker.keys))

    await wait_until(announced, description="the worker has announced its settings")
    [seen] = await found(settings, "settings")
    alike = await found(settings.model_copy(update={"extractor": "off"}), "settings")
    await worker.close()

    assert seen.verdict is Verdict.WARNING
    assert "extractor=off in worker one" in seen.seen
    assert alike == []


async def test_operators_see_version_queues_memory_and_settings_of_each_process(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    settings = settings_of(database, database.relay_url, redis_url, tmp_path)
    worker = await open_runtime(settings, worker="one", consumed=("memory.store", "memory.embed"))

    async with Memory(settings=settings) as memory:
        [seen] = await wait_until(memory.job_admin.processes, description="the worker has announced itself")
    await worker.close()

    assert (seen.name, seen.queues) == ("worker one", ("memory.store", "memory.embed"))
    assert seen.version == version("aftermind")
    assert seen.heartbeat_at >= seen.started_at
    assert 10 * MIB < seen.peak_memory_bytes < 10_000 * MIB
    assert "embedder=off" in seen.settings


async def test_a_login_that_is_refused_has_a_remedy_that_fits(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    missing = database.app_url.rpartition("/")[0] + "/nowhere"

    [seen] = await found(settings_of(database, missing, redis_url, tmp_path), "Postgres")

    assert seen.verdict is Verdict.BAD
    assert "does not exist" in seen.seen
    assert "doctor" not in seen.seen
    assert "Start it" not in seen.remedy
    assert "AFTERMIND_DATABASE_URL" in seen.remedy


async def test_a_replica_is_not_blamed_for_a_primary_that_does_not_answer(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    settings = settings_of(database, database.app_url, redis_url, tmp_path)

    [seen] = await doctor_checks.replica(database.app_replica_urls[0], "postgresql://127.0.0.1:1/gone", settings)

    assert seen.verdict is Verdict.GOOD
    assert "the primary does not" in seen.seen


async def test_a_redis_that_does_not_answer_has_the_reason_and_another_remedy_than_this_command(
    database: Database, tmp_path: Path
) -> None:
    away = settings_of(database, database.app_url, "redis://127.0.0.1:1/0", tmp_path)

    findings = [each for each in await doctor.examine(away) if "Redis" in each.what or "connect" in each.seen]

    assert [each.verdict for each in findings if each.what == "Redis"] == [Verdict.BAD]
    assert all("aftermind doctor" not in each.seen for each in findings)
    assert not any(each.seen.startswith(f"{each.what}: ") for each in findings)
