"""The doctor finds roles that row-level security does not bind, tables without it, and keys that are not shared."""

from pathlib import Path

from pydantic import SecretStr

from aftermind import Memory, Settings
from aftermind.cli import doctor
from aftermind.cli.checks import Finding, Verdict
from tests.support.servers import Database, psql


def settings_of(database: Database, url: str, redis_url: str, folder: Path) -> Settings:
    return Settings(
        database_url=url,
        relay_url=database.relay_url,
        broker_url=redis_url,
        state_dir=folder,
        allow_owner=False,
        embedder="off",
    )  # type: ignore[arg-type, call-arg]


async def found(settings: Settings, what: str) -> list[Finding]:
    return [each for each in await doctor.examine(settings) if each.what == what]


async def test_a_superuser_and_the_owner_are_bad_and_a_member_is_well(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    for url in (database.admin_url, database.url):
        seen = await found(settings_of(database, url, redis_url, tmp_path), "role")
        assert Verdict.BAD in {each.verdict for each in seen}

    bound = settings_of(database, database.app_url, redis_url, tmp_path)
    assert await found(bound, "role") == []
    assert [each.verdict for each in await found(bound, "tenants")] == [Verdict.GOOD]


async def test_a_table_without_row_level_security_is_bad(database: Database, redis_url: str, tmp_path: Path) -> None:
    psql(database.admin_url, "ALTER TABLE aftermind.facts DISABLE ROW LEVEL SECURITY")

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
