"""A tenant moves to another database while its agents talk, and everything of it continues there."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from typer.testing import CliRunner

from aftermind import JobFilter, Memory, Settings, errors
from aftermind.api import address_resolution
from aftermind.api.multi_database_calls import away_databases
from aftermind.cli import make_app_for
from aftermind.cli.doctor_checks import Verdict
from aftermind.cli.doctor_key_and_audit_checks import audit_keys
from aftermind.db.tenant_moves import MOVE_LOCK
from tests.fundamentals.conftest import QUICK, as_environment
from tests.support.deployed_service import running
from tests.support.moving_tenant import USER, copied, talking
from tests.support.servers import Database, Servers, psql, psql_async
from tests.support.waiting import PATIENCE_SECONDS

HOME, ACME = "home", "acme"
COUNT = "SELECT count(*), count(DISTINCT id) FROM aftermind.episodes WHERE namespace = 'acme'"
HOLDS = "SELECT count(*) FROM aftermind.hold_history WHERE namespace = 'acme'"
DEAD = """
    UPDATE aftermind.jobs SET state = 'dead', token = NULL, lease_until = NULL, reason_code = 'llm_bad_request'
    WHERE id = (SELECT id FROM aftermind.jobs WHERE namespace = 'acme' AND kind = 'extract' AND state = 'done' LIMIT 1)
"""


@pytest.fixture(scope="module")
def settings(servers: Servers, databases: dict[str, Database], tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Both tenants are placed in the default database, and no setting changes."""
    one, other = databases["default"], databases["eu"]
    return Settings(
        database_url=one.app_url,
        relay_url=one.relay_url,
        migrator_url=one.url,
        databases={
            "eu": {
                "database_url": other.app_url,
                "relay_url": other.relay_url,
                "migrator_url": other.url,
                "replica_urls": other.app_replica_urls,
            }
        },
        namespace=HOME,
        redis_url=servers.redis_url,
        redis_prefix=f"moved-{uuid4().hex[:8]}:",
        state_dir=tmp_path_factory.mktemp("state"),
        embedder="hash",
        extractor="rules",
        recall_budget_seconds=10,
        remember_budget_seconds=10,
        **QUICK,
    )


@pytest.fixture(scope="module")
def worker(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A worker for each database."""
    with running(["worker"], settings, tmp_path_factory.mktemp("worker") / "worker.log", patience=180):
        yield


@pytest.fixture
async def memory(settings: Settings, worker: None) -> AsyncIterator[Memory]:
    """A memory of all tenants."""
    async with Memory(settings=copied(settings)) as opened:
        yield opened


@pytest.mark.long
async def test_a_tenant_moves_while_its_agents_talk_and_nothing_is_lost_doubled_or_stale(
    memory: Memory, settings: Settings, databases: dict[str, Database]
) -> None:
    await memory.encryption.encrypt(namespace=ACME, spread_seconds=0)
    await memory.job_admin.pause(kind="extract", namespace=ACME, reason="maintenance", actor="ops")
    first = await memory.remember("I live in Oslo.", user_id=USER, namespace=ACME)
    await first.stored(timeout=PATIENCE_SECONDS)
    await memory.job_admin.resume(kind="extract", namespace=ACME, actor="ops")
    await first.extracted(timeout=PATIENCE_SECONDS)
    _, key = await memory.api_keys.create("test", namespace=ACME)
    await psql_async(databases["default"].admin_url, DEAD)
    unaware = Memory(settings=copied(settings))

    async with talking(settings, ACME) as agents:
        await agents.talk_on("the agents talk")
        moved = await memory.tenants.move(ACME, to="eu")
        await agents.talk_on("the agents talk on")
    async with unaware:  # it learns of the move by its first call, which writes
        await unaware.facts.add("user", "likes", "tea", user_id=USER, namespace=ACME)

    assert agents.stale == []
    assert (moved.source, moved.target) == ("default", "eu")
    assert moved.rows > 0
    turns = len(agents.receipts)
    ids = [each for receipt in agents.receipts for each in receipt.episode_ids]
    stored = [each.content for each in await memory.get(*ids, user_id=USER, namespace=ACME) if each is not None]
    assert stored == [f"The keyword is word{number}x." for number in range(turns)]
    assert await psql_async(databases["eu"].admin_url, COUNT) == f"{turns + 1}|{turns + 1}"
    facts = await memory.facts.query(user_id=USER, namespace=ACME)
    assert {fact.object for fact in facts} >= {"Oslo", "tea"}
    assert [job.kind for job in await memory.dead_letters.list(JobFilter(namespace=ACME))] == ["extract"]
    assert (await memory.api_keys.check(key)) is not None
    timeline = await memory.job_admin.timeline(first.job_id, namespace=ACME)
    assert timeline is not None
    assert ["maintenance (ops)" in str(step.detail) for step in timeline.steps if step.name == "paused"] == [True]
    assert [each.namespace for each in await memory.job_admin.tenants()].count(ACME) == 1
    with pytest.raises(errors.TenantMoved, match="'acme' is served by database 'eu'"):
        async with unaware._parts.db.transaction(namespace=ACME):
            pass

    purged = await memory.tenants.purge(ACME, database="default")

    assert purged.rows > 0
    trail = [(str(each.action), dict(each.detail)) for each in await memory.audit.list(namespace=ACME)]
    assert trail[-3:] == [
        ("move", {"to": "eu", "step": "begun"}),
        ("move", {"from": "default", "step": "ended"}),
        ("erase", {"left database": "default"}),
    ]
    (report,) = await memory.audit.verify(namespace=ACME)
    assert report.is_whole, report.faults
    every = await memory.audit.verify()
    assert ACME in {each.namespace for each in every}
    assert all(each.is_whole for each in every)
    assert away_databases(every) == ()
    addresses = address_resolution.resolve(settings)
    for found in await audit_keys(addresses, settings):
        assert found.verdict is Verdict.GOOD, found
    assert await psql_async(databases["default"].admin_url, COUNT) == "0|0"
    assert [await psql_async(databases[name].admin_url, HOLDS) for name in ("default", "eu")] == ["0", "1"]
    assert "Oslo" in (await memory.recall("Where do I live?", user_id=USER, namespace=ACME)).text
    async with Memory(settings=copied(settings)) as fresh:
        assert await fresh.api_keys.check(key) is not None
        assert "Oslo" in (await fresh.recall("Where do I live?", user_id=USER, namespace=ACME)).text


@pytest.mark.long  # after the test above
def test_a_tenant_moves_back_by_the_command(
    settings: Settings, databases: dict[str, Database], worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in as_environment(settings).items():
        monkeypatch.setenv(name, value)
    before = psql(databases["eu"].admin_url, COUNT)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(make_app_for(["tenants"]), ["tenants", *arguments])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output

    async def recall() -> str:
        async with Memory(settings=copied(settings)) as memory:
            receipt = await memory.remember("I play the viola.", user_id=USER, namespace=ACME)
            await receipt.stored(timeout=PATIENCE_SECONDS)
            return (await memory.recall("What do I play?", user_id=USER, namespace=ACME)).text

    assert "acme is served by eu already" in run("move", ACME, "--to", "eu")
    moved = run("move", ACME, "--to", "default", "--delete-source")

    assert "acme is served by default" in moved
    assert psql(databases["default"].admin_url, COUNT) == before
    assert psql(databases["eu"].admin_url, COUNT) == "0|0"
    assert "viola" in asyncio.run(recall())
    assert "acme" in run()


@pytest.mark.parametrize(
    ("namespace", "to", "why"),
    [(HOME, "moon", "AFTERMIND_DATABASES has default, eu"), (HOME, "default", "serves namespace 'home' already")],
)
async def test_a_move_that_makes_no_sense_is_refused(memory: Memory, namespace: str, to: str, why: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=why):
        await memory.tenants.move(namespace, to=to)
    with pytest.raises(errors.InvalidSettings, match=r"has not been moved"):
        await memory.tenants.purge(namespace, database="default")


async def test_with_one_database_there_is_nothing_to_move_or_purge(tmp_path: Path) -> None:
    async with Memory(f"sqlite:{tmp_path}/memory.db", embedder="hash") as memory:
        with pytest.raises(
            errors.InvalidSettings, match=r"serves namespace 'acme', so there is nothing to purge.*left"
        ):
            await memory.tenants.purge(ACME, database="default")
        with pytest.raises(errors.InvalidSettings, match=r"has default only.*can be moved to"):
            await memory.tenants.move(ACME, to="default")


async def test_a_move_that_runs_can_neither_be_aborted_nor_begun_again_elsewhere(
    memory: Memory, databases: dict[str, Database]
) -> None:
    running_move = await asyncpg.connect(databases["default"].url)
    try:
        await running_move.execute("SELECT pg_advisory_lock($1, hashtext($2))", MOVE_LOCK, HOME)

        for call in (memory.tenants.abort, memory.tenants.move):
            with pytest.raises(errors.InvalidSettings, match="another process moves this tenant"):
                await call(HOME, to="eu")
    finally:
        await running_move.close()
