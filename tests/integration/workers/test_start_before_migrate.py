"""A worker that starts before the schema is there, or before its role has its rights, waits and then works."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from aftermind import Memory, errors
from aftermind.cli import doctor_checks
from aftermind.cli.doctor_checks import Verdict
from aftermind.settings import Settings
from aftermind_tasks.runtime import open_runtime
from tests.support.servers import Database, migrate, psql_async
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

WITHOUT_RIGHTS = ("REVOKE USAGE ON SCHEMA aftermind FROM aftermind_app, aftermind_relay",)
WITHOUT_SCHEMA = ("DROP SCHEMA aftermind CASCADE",)


@pytest.mark.parametrize(
    ("before", "reason"), [(WITHOUT_RIGHTS, "permission denied for schema aftermind"), (WITHOUT_SCHEMA, "no revision")]
)
async def test_a_worker_waits_for_the_migration_and_then_stores_what_was_accepted(
    database: Database, redis_url: str, tmp_path: Path, before: Sequence[str], reason: str
) -> None:
    log, ready = tmp_path / "worker-0.log", tmp_path / "ready"
    await psql_async(database.url, *before)
    memory = Memory(database.app_url, broker=redis_url, settings=Settings(state_dir=tmp_path / "agent"))
    receipt = await memory.remember("I live in Oslo.", user_id="ann")

    with workers(environment(database.relay_url, redis_url, AFTERMIND_READY_FILE=str(ready)), tmp_path):
        await wait_until(lambda: reason in log.read_text(), description="the worker names what it waits for")
        assert not ready.exists()
        migrate(database.url)
        await receipt.stored(timeout=60)
        await wait_until(ready.exists, description="the worker is ready")

    lines = log.read_text()
    assert "worker waits" in lines
    assert "aftermind migrate" in lines
    assert "Traceback" not in lines
    await memory.close()


async def test_a_start_that_fails_leaves_no_connection_open(database: Database, tmp_path: Path) -> None:
    settings = Settings(database_url=database.relay_url, broker_url="amqp://localhost", state_dir=tmp_path)
    open_connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'aftermind-worker%'"

    with pytest.raises(errors.InvalidSettings, match="AFTERMIND_REDIS_URL"):
        await open_runtime(settings.model_copy(update={"embedder": "hash"}), worker="one")

    async def are_closed() -> bool:
        return (await psql_async(database.admin_url, open_connections)).strip() == "0"

    await wait_until(are_closed, timeout=10, description="the server has ended them")


async def test_doctor_names_the_command_that_grants_the_rights(database: Database) -> None:
    await psql_async(database.url, *WITHOUT_RIGHTS)

    findings = await doctor_checks.postgres(database.app_url, Settings())
    migrate(database.url)

    [seen] = [each for each in findings if each.verdict is Verdict.BAD]
    assert (seen.what, seen.seen) == ("role", "permission denied for schema aftermind")
    assert "`aftermind migrate`" in seen.remedy
