"""Tenants in two databases behind one memory, one worker command and one web service."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from aftermind import Memory, Settings, errors
from aftermind.cli import doctor, make_app_for
from aftermind.cli.doctor_checks import Verdict
from aftermind.types import JobKind
from aftermind.types.replay import JobFilter
from tests.fundamentals.conftest import QUICK, as_environment
from tests.support.deployed_service import running, serving
from tests.support.servers import Database, Servers, psql_async
from tests.support.waiting import PATIENCE_SECONDS, wait_until

HOME, ACME, TEAM = "home", "acme", "team-7"  # the first one is in the default database, the others in `eu`
TOWNS = {HOME: "Oslo", ACME: "Lisbon", TEAM: "Kyoto"}
EPISODES = "SELECT string_agg(DISTINCT namespace, ',' ORDER BY namespace) FROM aftermind.episodes"


@pytest.fixture(scope="module")
def settings(servers: Servers, databases: dict[str, Database], tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The same for agents, workers and the web service."""
    one, other = databases["default"], databases["eu"]
    return Settings(
        database_url=one.app_url,
        relay_url=one.relay_url,
        databases={
            "eu": {
                "database_url": other.app_url,
                "relay_url": other.relay_url,
                "replica_urls": other.app_replica_urls,
            }
        },
        placement={ACME: "eu", "team-*": "eu"},
        namespace=HOME,
        redis_url=servers.redis_url,
        redis_prefix=f"several-{uuid4().hex[:8]}:",
        state_dir=tmp_path_factory.mktemp("state"),
        embedder="hash",
        extractor="rules",
        recall_budget_seconds=10,
        remember_budget_seconds=10,
        **QUICK,
    )


@pytest.fixture(scope="module")
def worker(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One command: it runs a worker for each database."""
    with running(["worker"], settings, tmp_path_factory.mktemp("worker") / "worker.log", patience=180):
        yield


@pytest.fixture
async def memory(settings: Settings, worker: None) -> AsyncIterator[Memory]:
    """A memory of all tenants."""
    async with Memory(settings=settings) as opened:
        yield opened


async def is_ready(memory: Memory) -> bool:
    """Whether the components of both databases are listed, and answer."""
    health = await memory.health()
    return health.is_ready and {"store", "store (eu)", "redis", "redis (eu)"} <= {part.name for part in health.parts}


async def serves_both(memory: Memory) -> bool:
    """Whether the worker of each database has announced itself."""
    return len({each.name for each in await memory.job_admin.processes() if each.queues}) == 2


async def test_each_tenant_is_stored_and_recalled_in_its_database_alone(
    memory: Memory, databases: dict[str, Database]
) -> None:
    for namespace, town in TOWNS.items():
        receipt = await memory.remember(f"I live in {town}.", user_id="alice", namespace=namespace)
        await receipt.embedded(timeout=PATIENCE_SECONDS)
        await receipt.extracted(timeout=PATIENCE_SECONDS)

    assert await psql_async(databases["default"].admin_url, EPISODES) == HOME
    assert await psql_async(databases["eu"].admin_url, EPISODES) == f"{ACME},{TEAM}"
    for namespace, town in TOWNS.items():
        block = await memory.recall("Where do I live?", user_id="alice", namespace=namespace)
        assert not block.degraded
        assert [other for other in TOWNS.values() if other in block.text] == [town]
        facts = await memory.facts.query(user_id="alice", namespace=namespace)
        assert [fact.object for fact in facts] == [town]
    async with Memory(settings=memory.settings, namespace=ACME) as own:  # without a namespace at each call
        assert TOWNS[ACME] in (await own.recall("Where do I live?", user_id="alice")).text


async def test_operators_see_the_tenants_jobs_and_dead_letters_of_every_database(memory: Memory) -> None:
    for namespace in (HOME, ACME):
        await (await memory.remember("hello", user_id="bob", namespace=namespace)).stored(timeout=PATIENCE_SECONDS)
        await memory.job_admin.pause(kind=JobKind.EXTRACT, namespace=namespace, reason="test", actor="test")

    tenants = await memory.job_admin.tenants()
    pauses = await memory.job_admin.pauses()

    assert [each.namespace for each in tenants if each.namespace in (HOME, ACME)] == [ACME, HOME]
    assert {each.namespace for each in pauses} == {HOME, ACME}
    await wait_until(lambda: serves_both(memory), description="a worker for each database is listed")
    await wait_until(lambda: is_ready(memory), description="the components of both databases are well")
    for namespace in (HOME, ACME):
        assert await memory.job_admin.resume(kind=JobKind.EXTRACT, namespace=namespace, actor="test")
        assert await memory.dead_letters.list(JobFilter(namespace=namespace)) == []
    with pytest.raises(errors.InvalidFilter, match="several databases"):
        await memory.dead_letters.discard(JobFilter(), note="all of them", actor="test")


async def test_the_service_answers_keys_of_each_database_and_only_in_their_namespaces(
    memory: Memory, settings: Settings, tmp_path: Path
) -> None:
    keys = {name: (await memory.api_keys.create("test", namespace=name))[1] for name in (HOME, ACME)}
    await (await memory.remember("I play the viola", user_id="carol", namespace=ACME)).stored(timeout=PATIENCE_SECONDS)

    with serving(settings, tmp_path / "web.log") as url:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            answers = {
                name: await client.post(
                    "/v1/users/carol/recall",
                    json={"query": "What do I play?"},
                    headers={"Authorization": f"Bearer {key}"},
                )
                for name, key in keys.items()
            }
            unknown = await client.get("/v1/users", headers={"Authorization": "Bearer am_0_0"})

    assert "viola" in answers[ACME].text
    assert answers[HOME].status_code == 200
    assert "viola" not in answers[HOME].text
    assert unknown.status_code == 401


async def test_what_an_ended_process_has_spooled_for_one_database_is_sent_when_another_one_is_used(
    memory: Memory, settings: Settings
) -> None:
    eu = {**settings.databases["eu"], "redis_url": SecretStr("redis://127.0.0.1:1/0")}  # nothing answers there
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    cut_off = Memory(settings=Settings(**{**given, "databases": {"eu": eu}}))
    receipt = await cut_off.remember("I keep bees", user_id="erin", namespace=ACME)
    await cut_off.close()
    assert receipt.spooled

    async with Memory(settings=settings) as later:
        await later.remember("hello", user_id="erin", namespace=HOME)

        async def is_stored() -> bool:
            status = await memory.jobs.status(receipt.job_id, user_id="erin", namespace=ACME)
            return status is not None and str(status.stored) == "done"

        await wait_until(is_stored, description="the spooled turn is stored")


async def test_a_key_opens_no_tenant_of_another_database(memory: Memory, databases: dict[str, Database]) -> None:
    key, text = await memory.api_keys.create("test", namespace=ACME)
    assert await memory.api_keys.check(text) == key
    token = await memory.api_keys.create_stream_token(key.id, user_id="alice")
    found = await memory.api_keys.check_stream_token(token)
    assert found is not None
    assert found[0] == key

    # What the administrator of one database could do.
    await psql_async(
        databases["eu"].admin_url, f"UPDATE aftermind.api_keys SET namespace = '{HOME}' WHERE id = '{key.id}'"
    )
    assert await memory.api_keys.check(text) is None


async def test_doctor_checks_every_database_and_finds_rows_of_a_tenant_that_is_placed_elsewhere(
    memory: Memory, settings: Settings
) -> None:
    await (await memory.remember("hello", user_id="dora", namespace=ACME)).stored(timeout=PATIENCE_SECONDS)

    async def sees(placement: dict[str, str], verdict: Verdict, text: str) -> bool:
        found = await doctor.examine(settings.model_copy(update={"placement": placement}))
        assert {"Postgres", "Postgres (eu)", "Redis", "Redis (eu)"} <= {each.what for each in found}
        (seen,) = (each for each in found if each.what == "placement (eu)")
        return seen.verdict is verdict and text in seen.seen

    # A check that the machine is too busy for is repeated.
    await wait_until(
        lambda: sees(dict(settings.placement), Verdict.GOOD, "each placed here"), description="tenants are placed"
    )
    await wait_until(lambda: sees({}, Verdict.BAD, ACME), description="the misplaced tenant is named")


async def test_doctor_names_the_setting_of_the_database_that_refuses(settings: Settings) -> None:
    lost = Settings(
        database_url=settings.database_url,
        relay_url=settings.relay_url,
        redis_url=settings.redis_url,
        databases={"eu": {"database_url": "postgresql+asyncpg://127.0.0.1:1/nosuch"}},
        state_dir=settings.state_dir,
        embedder="hash",
        extractor="rules",
    )

    bad = {each.what: each.remedy for each in await doctor.examine(lost) if each.verdict is Verdict.BAD}

    assert "correct `database_url` of eu in AFTERMIND_DATABASES" in bad["Postgres (eu)"]


def test_migrate_migrates_every_database(
    settings: Settings, databases: dict[str, Database], worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in as_environment(settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AFTERMIND_MIGRATOR_URL", databases["default"].url)
    eu = {"database_url": databases["eu"].app_url, "migrator_url": databases["eu"].url}
    monkeypatch.setenv("AFTERMIND_DATABASES", json.dumps({"eu": eu}))

    done = CliRunner().invoke(make_app_for(["migrate"]), ["migrate", "--json"])

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout).keys() == {"default", "eu"}


def test_health_of_the_chosen_database_does_not_depend_on_another_one(
    settings: Settings, worker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in as_environment(settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AFTERMIND_DATABASE_URL", "postgresql://aftermind@127.0.0.1:9/away")

    monkeypatch.setenv("AFTERMIND_DATABASE", "default")
    away = CliRunner().invoke(make_app_for(["health"]), ["health"])
    monkeypatch.setenv("AFTERMIND_DATABASE", "eu")
    chosen = CliRunner().invoke(make_app_for(["health"]), ["health", "--json"])

    assert away.exit_code == 1, away.output
    assert chosen.exit_code == 0, chosen.output
    assert "store" in {part["name"] for part in json.loads(chosen.stdout)["parts"]}


async def test_a_memory_of_one_database_refuses_a_tenant_of_another_one(memory: Memory) -> None:
    alone = memory.settings.of_database("eu")
    parts = Memory(settings=alone, namespace=ACME)._parts
    try:
        with pytest.raises(errors.InvalidScope, match="places it in database 'default'"):
            parts.scope(namespace=HOME)
        with pytest.raises(errors.InvalidScope, match="places it in database 'default'"):
            async with parts.db.transaction(namespace=HOME):
                pass
    finally:
        await parts.close()
