"""A provider that refuses our key is said loudly: nothing else shows why its jobs wait."""

import asyncio
import json
import os
import re
from pathlib import Path

import asyncpg
import pytest

from aftermind import JobFilter, JobKind, errors
from aftermind.api.address_resolution import Addresses
from aftermind.cli import doctor_checks
from aftermind.cli.doctor_checks import Verdict
from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.llm.rate_limit_and_circuit_breaker import FAILURES, ProviderLimiter
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from tests.support.dead_letters import Letters
from tests.support.fork_server import run_module, start_module
from tests.support.replay_engine import SteppedReplays
from tests.support.resource_cleanup import closing
from tests.support.servers import Database, psql_async
from tests.support.waiting import PATIENCE_SECONDS, wait_until


async def _refuse(redis_url: str) -> None:
    async with closing(RedisLink(redis_url, timeout=2.0, name="test")) as link:
        gate = ProviderLimiter()
        gate.bind(link, Keys())
        await gate.report("openai", errors.ModelKeyRefused("openai", "the key was refused (401)"))


async def test_doctor_names_the_address_of_a_provider_without_a_connection(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    async with closing(RedisLink(redis_url, timeout=2.0, name="test")) as link:
        gate = ProviderLimiter()
        gate.bind(link, Keys())
        for _ in range(FAILURES):
            await gate.report("openai", errors.ModelUnavailable("openai", "no connection (ConnectError)"))
    settings = Settings(state_dir=tmp_path, embedder="hash", extractor="rules")
    found = Addresses(store=database.app_url, replicas=(), redis=redis_url, broker=redis_url)

    findings = await doctor_checks.work(found, settings)

    [paused] = [each for each in findings if each.what == "provider openai"]
    assert "without a connection" in paused.seen
    assert "OPENAI_BASE_URL" in paused.remedy


async def test_doctor_and_health_name_the_provider_whose_key_is_refused(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    settings = Settings(state_dir=tmp_path, embedder="hash", extractor="rules")
    await _refuse(redis_url)
    found = Addresses(store=database.app_url, replicas=(), redis=redis_url, broker=redis_url)

    findings = await doctor_checks.work(found, settings)
    async with Memory(database.app_url, broker=redis_url, redis=redis_url, settings=settings) as memory:
        seen = await memory.health()

    [refused] = [each for each in findings if each.what == "provider openai"]
    assert refused.verdict is Verdict.BAD
    assert "refuses our key" in refused.seen
    assert "OPENAI_API_KEY" in refused.remedy
    [models] = [part for part in seen.parts if part.name == "models"]
    assert models.state == "degraded"
    assert "refuses our key" in models.detail


OLD_JOB = """
    INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key, run_at)
    VALUES (gen_random_uuid(), 'default', 'u', '{kind}', 'queued', gen_random_uuid()::text, now() - interval '1 hour')
"""


async def test_jobs_that_wait_for_a_provider_are_not_overdue_and_no_worker_is_missing(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    settings = Settings(state_dir=tmp_path, embedder="hash", extractor="openai:gpt-5-mini", openai_api_key="k")
    found = Addresses(store=database.app_url, replicas=(), redis=redis_url, broker=redis_url)
    for kind in ("extract", "forget"):
        await psql_async(database.url, OLD_JOB.format(kind=kind))
    async with Memory(database.app_url, broker=redis_url, redis=redis_url, settings=settings) as memory:
        before = {row.kind for row in (await memory.health()).overdue}
        async with closing(RedisLink(redis_url, timeout=2.0, name="test")) as link:
            gate = ProviderLimiter()
            gate.bind(link, Keys())
            for _ in range(FAILURES):
                await gate.report("openai", errors.ModelUnavailable("openai", "no connection (ConnectError)"))
            health, findings = await memory.health(), await doctor_checks.work(found, settings)
            await link.call("HINCRBY", Keys().provider("openai"), "open", -20_000)  # the pause of 5 s ended 15 s ago
            in_gap = await memory.health()
            await gate.report("openai", None)
            after = await memory.health()

    assert before == {"extract", "forget"}
    assert {row.kind for row in health.overdue} == {row.kind for row in in_gap.overdue} == {"forget"}
    assert health.paused["openai"] > 0
    assert in_gap.paused == {"openai": 0.0}
    assert after.paused == {}
    assert {row.kind for row in after.overdue} == {"extract", "forget"}
    verdicts = {each.what: each.verdict for each in findings}
    assert verdicts["extract jobs"] is Verdict.GOOD
    assert (verdicts["forget jobs"], verdicts["provider openai"]) == (Verdict.BAD, Verdict.BAD)


@pytest.mark.parametrize(("setting", "value"), [("embedder", "hush"), ("extractor", "rule")])
async def test_doctor_names_the_setting_that_is_wrong(setting: str, value: str) -> None:
    [found] = await doctor_checks.models(Settings.model_validate({setting: value}))

    assert found.verdict is Verdict.BAD
    assert found.remedy == f"Correct AFTERMIND_{setting.upper()}."


async def test_doctor_names_the_key_that_is_missing_and_counts_jobs_that_wait_for_another_attempt(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    settings = Settings(
        state_dir=tmp_path, embedder="openai:text-embedding-3-small", extractor="openai:gpt-5", openai_api_key=None
    )
    later = OLD_JOB.format(kind="extract").replace("- interval '1 hour'", "+ interval '1 hour'")
    await psql_async(database.url, later)
    found = Addresses(store=database.app_url, relay=database.relay_url, redis=redis_url, broker=redis_url)

    models, work = await doctor_checks.models(settings), await doctor_checks.work(found, settings)

    missing = [(each.what, each.seen) for each in models if each.verdict is Verdict.WARNING]
    assert missing == [
        ("model openai:text-embedding-3-small", "OPENAI_API_KEY is not set here"),
        ("model openai:gpt-5", "OPENAI_API_KEY is not set here"),
    ]
    assert [(each.what, each.seen) for each in work if each.what == "extract jobs"] == [
        ("extract jobs", "1 scheduled for later")
    ]


RETRYING_JOB = """
    INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key, run_at, attempts, error)
    VALUES (gen_random_uuid(), 'default', 'u', '{kind}', 'retrying', gen_random_uuid()::text,
            now() + interval '{later}', 1, 'openai: no answer in time')
"""


async def test_a_job_that_is_due_during_a_pause_has_it_as_its_reason_and_a_later_one_its_error(
    database: Database, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause is 60 s long."""
    for name, value in {
        "DATABASE_URL": database.app_url,
        "RELAY_URL": database.relay_url,
        "BROKER_URL": redis_url,
        "STATE_DIR": str(tmp_path),
        "EXTRACTOR": "openai:gpt-5-mini",
    }.items():
        monkeypatch.setenv(f"AFTERMIND_{name}", value)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    await _refuse(redis_url)
    for kind, later in (("extract", "10 s"), ("summarise", "1 hour")):
        await psql_async(database.url, RETRYING_JOB.format(kind=kind, later=later))
    async with Memory(settings=Settings()) as memory:
        jobs = {job.kind: job for job in await memory.job_admin.list(JobFilter())}
        reasons = await memory.job_admin.hold_reasons(list(jobs.values()), namespace="default")

    command = ["aftermind.cli", "jobs", "list", "--wide"]
    listed = (await asyncio.to_thread(run_module, command, env=dict(os.environ))).stdout
    [paused] = [line for line in listed.splitlines() if "extract" in line]
    [in_backoff] = [line for line in listed.splitlines() if "summarise" in line]

    assert list(reasons) == [jobs[JobKind.EXTRACT].id]
    assert re.match(r"openai is paused for \d+ s: ", reasons[jobs[JobKind.EXTRACT].id])
    assert "openai is paused for" in paused
    assert "no answer in time" in in_backoff


@pytest.mark.parametrize(
    ("tokens", "usd", "held"),
    [(100, 0.0, {JobKind.EXTRACT}), (0, 2.0, {JobKind.EXTRACT, JobKind.EMBED})],
)
async def test_a_spent_budget_holds_what_it_counts_until_its_day_ends(
    database: Database, redis_url: str, tmp_path: Path, tokens: int, usd: float, held: set[JobKind]
) -> None:
    """Of dollars also embeddings; a job whose next attempt is on a later day waits for its time."""
    budgets = {"default": {"tokens_per_day": 50, "usd_per_day": 1}}
    settings = Settings(state_dir=tmp_path, embedder="hash", extractor="rules", namespace_budgets=budgets)
    spent = f"""
        INSERT INTO aftermind.spending (namespace, user_id, day, kind, model, tokens_in, cost_usd)
        VALUES ('default', 'u', CAST(now() AT TIME ZONE 'UTC' AS date), 'extract', 'm', {tokens}, {usd})
    """
    jobs_of = [("extract", "0 s"), ("embed", "0 s"), ("forget", "0 s"), ("summarise", "2 days")]
    await psql_async(database.url, spent, *(RETRYING_JOB.format(kind=kind, later=later) for kind, later in jobs_of))
    async with Memory(database.app_url, broker=redis_url, redis=redis_url, settings=settings) as memory:
        jobs = await memory.job_admin.list(JobFilter(namespace="default"))
        reasons = await memory.job_admin.hold_reasons(jobs, namespace="default")

    assert len(jobs) == 4
    assert {job.kind for job in jobs if job.id in reasons} == held
    assert all(reason.endswith("wait until 00:00 UTC") for reason in reasons.values())


async def test_a_replay_that_is_awaited_prints_how_far_its_jobs_are_and_the_pause_that_they_wait_for(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    env = os.environ | {"AFTERMIND_DATABASE_URL": database.app_url, "AFTERMIND_RELAY_URL": database.relay_url}
    env |= {"AFTERMIND_BROKER_URL": redis_url, "AFTERMIND_STATE_DIR": str(tmp_path), "OPENAI_API_KEY": "k"}
    env |= {"AFTERMIND_EXTRACTOR": "openai:gpt-5-mini", "AFTERMIND_EMBEDDER": "hash"}
    await _refuse(redis_url)
    async with closing(PostgresDatabase(database.url)) as db:
        letters, replays = Letters(await asyncpg.connect(database.url)), SteppedReplays(db)
        await letters.mark_dead(2, kind="extract")
        new = NewPlan(name="again", reason="the provider is back", actor="ops", rate=100)
        plan = await replays.create(JobFilter(namespace="default"), new)
        errors_file = tmp_path / "stderr"
        with errors_file.open("wb") as err, (tmp_path / "stdout").open("wb") as out:
            command = ["aftermind.cli", "replay", "start", plan.id, "--wait"]
            process = await asyncio.to_thread(start_module, command, env=env, output=out, errors=err)
        await wait_until(
            lambda: "running: 2 waiting" in errors_file.read_text(), description="the command prints the first line"
        )
        await replays.step(plan.id)
        await wait_until(
            lambda: "running: 2 replayed (2 queued); waiting: openai is paused for" in errors_file.read_text(),
            description="the command prints the pause",
        )
        got = await asyncio.to_thread(run_module, ["aftermind.cli", "replay", "get", plan.id], env=env)
        as_json = await asyncio.to_thread(run_module, [*command[:2], "get", plan.id, "--json"], env=env)
        await letters.end("done")
        await replays.step(plan.id)
        code = await asyncio.to_thread(process.wait, PATIENCE_SECONDS)
        await letters.connection.close()

    assert (code, (tmp_path / "stdout").read_text().splitlines()[1]) == (0, "done: 2 done")
    lines = got.stdout.splitlines()
    assert lines[1] == "running: 2 replayed (2 queued)"
    assert lines[2].startswith("waiting: openai is paused for")
    found = json.loads(as_json.stdout)
    assert (found["counts"], found["successors"]) == ({"replayed": 2}, {"queued": 2})
