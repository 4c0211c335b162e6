"""Jobs that an operator has paused are reported as paused, with the command that ends it: never as missing workers."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from aftermind import Settings, errors
from aftermind.api import address_resolution
from aftermind.api.health import Component
from aftermind.cli import FAMILIES, doctor_checks, jobs, make_app_for
from aftermind.cli.doctor_checks import Finding, Verdict
from aftermind.memory import Memory
from tests.support.servers import Database, psql, psql_async
from tests.support.waiting import wait_until

OLD_JOB = """
    INSERT INTO aftermind.jobs (id, namespace, user_id, kind, state, effect_key, run_at, queue_position)
    VALUES (gen_random_uuid(), 'default', 'u', 'extract', 'queued', gen_random_uuid()::text,
            now() - interval '1 hour', {position})
"""


@pytest.fixture
def settings(database: Database, redis_url: str, tmp_path: Path) -> Settings:
    return Settings(
        database_url=database.app_url,
        relay_url=database.relay_url,
        broker_url=redis_url,
        redis_prefix=f"paused-{uuid4().hex[:8]}:",
        state_dir=tmp_path,
        embedder="hash",
        extractor="rules",
    )


@pytest.mark.parametrize(
    ("kind", "namespace", "is_overdue", "command"),
    [
        (None, None, False, "aftermind jobs resume"),
        ("extract", None, False, "aftermind jobs resume --kind extract"),
        ("extract", "default", False, "aftermind jobs resume --kind extract --namespace default"),
        ("store", None, True, "aftermind jobs resume --kind store"),
        ("extract", "other", True, "aftermind jobs resume --kind extract --namespace other"),
    ],
)
@pytest.mark.parametrize("position", ["1", "NULL"])
async def test_old_jobs_are_overdue_unless_they_are_paused(
    database: Database,
    settings: Settings,
    kind: str | None,
    namespace: str | None,
    is_overdue: bool,
    command: str,
    position: str,
) -> None:
    await psql_async(database.url, OLD_JOB.format(position=position))
    async with Memory(settings=settings) as memory:
        assert [row.kind for row in (await memory.health()).overdue] == ["extract"]
        await memory.job_admin.pause(kind=kind, namespace=namespace, reason="maintenance", actor="ops")

        health = await memory.health()
        findings = await doctor_checks.work(address_resolution.resolve(settings), settings)

    assert [row.kind for row in health.overdue] == ["extract"] * is_overdue
    assert [row.runnable for row in health.work] == [1]
    assert health.is_ready
    [pauses] = [part for part in health.parts if part.name == "pauses"]
    assert pauses.state == "degraded"
    assert (f"`{command}`" if namespace is None else "`aftermind jobs pauses`") in pauses.detail
    assert "other" not in pauses.detail
    [paused] = [each for each in findings if "maintenance" in each.seen]
    assert paused.verdict == "warning", "in words, as in the table"
    assert f"`{command}`" in paused.remedy
    assert any(each.verdict is Verdict.BAD for each in findings) == is_overdue


@pytest.mark.parametrize(
    ("kind", "namespace", "is_of_it"),
    [
        (None, None, True),
        ("extract", None, True),
        (None, "default", True),
        ("extract", "default", True),
        ("store", None, False),
        ("extract", "other", False),
    ],
)
@pytest.mark.parametrize("still_paused", [None, "third"])
@pytest.mark.parametrize("position", ["1", "NULL"])
async def test_the_age_of_a_job_counts_from_the_end_of_its_pause(
    database: Database,
    settings: Settings,
    kind: str | None,
    namespace: str | None,
    is_of_it: bool,
    still_paused: str | None,
    position: str,
) -> None:
    await psql_async(database.url, OLD_JOB.format(position=position))
    async with Memory(settings=settings) as memory:
        if still_paused is not None:
            await memory.job_admin.pause(kind="extract", namespace=still_paused, reason="held", actor="ops")
        await memory.job_admin.pause(kind=kind, namespace=namespace, reason="maintenance", actor="ops")
        await memory.job_admin.resume(kind=kind, namespace=namespace, actor="ops")
        short = await memory.health()
        await psql_async(database.url, "UPDATE aftermind.hold_history SET created_at = now() - interval '2 hours'")

        health = await memory.health()

    assert short.overdue, "it could run for an hour before"
    [row] = health.work
    assert (row.age_seconds < 600) is is_of_it
    assert bool(health.overdue) is not is_of_it


@pytest.mark.parametrize("position", ["1", "NULL"])
async def test_the_end_of_the_pause_of_one_namespace_hides_no_overdue_job_of_others(
    database: Database, settings: Settings, position: str
) -> None:
    await psql_async(database.url, OLD_JOB.format(position=position))
    older = OLD_JOB.replace("'default'", "'resumed'").replace("1 hour", "2 hours")
    await psql_async(database.url, older.format(position=position))
    async with Memory(settings=settings) as memory:
        await memory.job_admin.pause(kind="extract", namespace="resumed", reason="maintenance", actor="ops")
        await memory.job_admin.resume(kind="extract", namespace="resumed", actor="ops")
        await psql_async(database.url, "UPDATE aftermind.hold_history SET created_at = now() - interval '3 hours'")
        [overdue] = (await memory.health()).overdue

    assert round(overdue.age_seconds / 3_600) == 1


async def test_the_age_of_a_turn_of_one_process_counts_from_the_end_of_its_pause(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, embedder="hash", extractor="rules", run_jobs=False)
    async with Memory(f"sqlite:{tmp_path}/bot.db", settings=settings) as memory:

        async def age() -> float:
            return sum(row.age_seconds for row in (await memory.health()).work)

        await memory.job_admin.pause(kind="store", namespace="other", reason="of others", actor="ops")
        await memory.job_admin.pause(kind="store", reason="maintenance", actor="ops")
        await memory.remember("I live in Oslo.", user_id="alice")
        await asyncio.sleep(1.0)  # the pause lasts
        begun = time.monotonic()
        await memory.job_admin.resume(kind="store", actor="ops")
        after = await age()
        assert after <= time.monotonic() - begun
        await memory.job_admin.resume(kind="store", namespace="other", actor="ops")
        before = await wait_until(lambda: _above(1.0, age), description="it could run for a second")
        await memory.job_admin.pause(kind="store", reason="for a moment", actor="ops")
        await memory.job_admin.resume(kind="store", actor="ops")

        assert await age() >= before - 0.5, "what it could run before the pause counts"


async def _above(limit: float, age: Callable[[], Awaitable[float]]) -> float:
    found = await age()
    return found if found > limit else 0.0


@pytest.mark.parametrize("position", ["1", "NULL"])
async def test_any_number_of_paused_jobs_hides_no_overdue_job_of_others(
    database: Database, settings: Settings, position: str
) -> None:
    before = "SELECT gen_random_uuid(), 'paused', 'u', 'extract', 'queued', gen_random_uuid()::text"
    into = OLD_JOB.partition("VALUES")[0]
    await psql_async(
        database.url, f"{into} {before}, now() - interval '2 hours', {position} FROM generate_series(1, 10001)"
    )
    await psql_async(database.url, OLD_JOB.format(position="2" if position == "1" else position))
    async with Memory(settings=settings) as memory:
        await memory.job_admin.pause(kind="extract", namespace="paused", reason="maintenance", actor="ops")
        [overdue] = (await memory.health()).overdue
        assert (overdue.kind, round(overdue.age_seconds / 3_600)) == ("extract", 1)

        await memory.job_admin.pause(kind="extract", namespace="default", reason="maintenance", actor="ops")
        assert (await memory.health()).overdue == ()


async def test_any_number_of_paused_turns_hides_no_overdue_turn_of_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aftermind.api.health.OVERDUE_SECONDS", 0.0)
    unhurried = settings.model_copy(update={"remember_budget_seconds": 60.0, "redis_timeout_seconds": 60.0})
    async with Memory(settings=unhurried, namespace="paused") as paused, Memory(settings=unhurried) as memory:
        await asyncio.gather(*(paused.remember("I like tea.", user_id=f"u{number}") for number in range(1_001)))
        await memory.job_admin.pause(kind="store", namespace="paused", reason="maintenance", actor="ops")
        assert (await memory.health()).overdue == ()
        await memory.remember("I live in Oslo.", user_id="u")

        async def is_overdue() -> bool:
            return [row.kind for row in (await memory.health()).overdue] == ["store"]

        await wait_until(is_overdue, description="the turn of the other namespace is overdue")


@pytest.mark.parametrize(("namespace", "is_overdue"), [(None, False), ("default", False), ("other", True)])
async def test_turns_whose_store_jobs_are_paused_are_not_overdue(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, namespace: str | None, is_overdue: bool
) -> None:
    monkeypatch.setattr("aftermind.api.health.OVERDUE_SECONDS", 0.0)
    async with Memory(settings=settings) as memory:
        await memory.remember("I live in Oslo.", user_id="u")

        async def is_overdue_now() -> bool:
            return [row.kind for row in (await memory.health()).overdue] == ["store"]

        await wait_until(is_overdue_now, description="a pending turn has an age")
        await memory.job_admin.pause(kind="store", namespace=namespace, reason="maintenance", actor="ops")

        assert await is_overdue_now() is is_overdue


@pytest.fixture
def environment(database: Database, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of a deployment, for commands in this process."""
    for name, value in (
        ("DATABASE_URL", database.app_url),
        ("RELAY_URL", database.relay_url),
        ("BROKER_URL", redis_url),
        ("REDIS_PREFIX", f"paused-{uuid4().hex[:8]}:"),
        ("STATE_DIR", str(tmp_path)),
    ):
        monkeypatch.setenv(f"AFTERMIND_{name}", value)


@pytest.mark.usefixtures("environment")
def test_a_paused_job_is_listed_with_its_pause_and_its_namespace(database: Database) -> None:
    app, run = make_app_for(FAMILIES), CliRunner().invoke
    psql(database.url, *(OLD_JOB.format(position="1").replace("'default'", f"'{space}'") for space in ("acme", "beta")))
    assert run(app, ["jobs", "pause", "--namespace", "acme", "--reason", "tests of mine"]).exit_code == 0

    listed = run(app, ["jobs", "list", "--wide"]).output
    first = run(app, ["jobs", "list", "--limit", "1"]).output
    unknown = run(app, ["jobs", "timeline", str(uuid4())])

    [paused] = [line for line in listed.splitlines() if "acme" in line]
    [other] = [line for line in listed.splitlines() if "beta" in line]
    assert re.search("paused by .+ since .+: tests of mine", paused)
    assert "paused" not in other
    assert "Listed: 1, the limit. --limit sets another one." in first
    assert "Listed" not in listed
    assert "no job, episode or fact of namespace 'default' has it. --namespace names" in str(unknown.exception)


@pytest.mark.usefixtures("environment")
def test_the_pause_of_a_queue_is_listed_as_what_ends_it() -> None:
    app, run = make_app_for(FAMILIES), CliRunner().invoke
    pause = ["jobs", "pause", "--reason", "maintenance"]

    async def check() -> tuple[Component, list[Finding]]:
        async with Memory(settings=Settings()) as memory:
            [pauses] = [part for part in (await memory.health()).parts if part.name == "pauses"]
        return pauses, await doctor_checks.work(address_resolution.resolve(Settings()), Settings())

    paused = run(app, [*pause, "--queue", "memory.extract"])
    run(app, [*pause, "--kind", "embed", "--namespace", "acme"])

    listed = run(app, ["jobs", "pauses"])
    as_json = run(app, ["jobs", "pauses", "--json"])
    health, findings = asyncio.run(check())
    run(app, ["jobs", "resume", "--kind", "profile"])
    in_part = run(app, ["jobs", "pauses"])
    run(app, ["jobs", "resume", "--queue", "memory.extract"])
    rest = run(app, ["jobs", "pauses"])

    def names(output: str) -> list[str]:
        return [line.split()[0] for line in output.splitlines() if "maintenance" in line]

    assert paused.output == "Paused: memory.extract in every namespace.\n"
    assert names(listed.output) == ["memory.extract", "embed"]
    assert len(json.loads(as_json.stdout)) == 4
    assert (
        "memory.extract jobs are paused: `aftermind jobs resume --queue memory.extract` ends it; 1 pause"
        in health.detail
    )
    assert {each.what: each.remedy.split("`")[1] for each in findings if "maintenance" in each.seen} == {
        "memory.extract jobs": "aftermind jobs resume --queue memory.extract",
        "embed jobs": "aftermind jobs resume --kind embed --namespace acme",
    }
    assert names(in_part.output) == ["extract", "summarise", "embed"]
    assert names(rest.output) == ["embed"]


@pytest.mark.usefixtures("environment")
def test_a_queue_is_resumed_as_far_as_it_is_paused() -> None:
    app, run = make_app_for(FAMILIES), CliRunner().invoke
    assert run(app, ["jobs", "pause", "--queue", "memory.extract", "--reason", "x"]).exit_code == 0
    assert run(app, ["jobs", "resume", "--kind", "extract"]).exit_code == 0

    rest = run(app, ["jobs", "resume", "--queue", "memory.extract"])
    again = run(app, ["jobs", "resume", "--queue", "memory.extract"])

    assert rest.exit_code == 0, rest.output
    assert "Resumed: extract in" not in rest.output
    assert "Resumed:" in rest.output
    assert again.exit_code == 1


async def test_a_backlog_is_reported_with_a_queue_that_a_worker_can_be_started_for(
    database: Database, settings: Settings
) -> None:
    for kind in ("summarise", "index"):
        await psql_async(database.url, OLD_JOB.format(position="NULL").replace("'extract'", f"'{kind}'"))

    findings = await doctor_checks.work(address_resolution.resolve(settings), settings)

    remedies = {each.what: each.remedy for each in findings if each.verdict is Verdict.BAD}
    assert "--queues memory.extract`" in remedies["summarise jobs"]
    assert "--queues memory.embed`" in remedies["index jobs"]
    assert "Too few workers process them, or none." in remedies["index jobs"]


@pytest.mark.usefixtures("environment")
def test_turns_that_are_not_stored_yet_are_listed_and_found_by_their_short_ids() -> None:
    app, run = make_app_for(FAMILIES), CliRunner().invoke
    assert run(app, ["jobs", "pause", "--namespace", "acme", "--reason", "contract"]).exit_code == 0
    for space in ("acme", "beta"):
        assert run(app, ["remember", "I like tea.", "--user", "pz", "--namespace", space]).exit_code == 0

    listed = run(app, ["jobs", "list", "--namespace", "acme", "--user", "pz"]).output
    queued = run(app, ["jobs", "list", "--state", "queued", "--wide"]).output
    [row] = [line for line in listed.splitlines() if "pending" in line]
    timeline = run(app, ["jobs", "timeline", row.split()[0], "--namespace", "acme"])
    others = [["--state", "dead"], ["--kind", "embed"], ["--user", "unknown"], ["--error", "x"]]
    elsewhere = [run(app, ["jobs", "list", *filters]).output for filters in others]

    no_facts = run(app, ["facts", "--namespace", "acme", "--user", "pz"]).output
    recorded = run(app, ["audit", "list", "--namespace", "acme", "--json"]).stdout

    assert "paused by" in no_facts
    assert "`aftermind jobs resume --namespace acme` ends it" in no_facts
    assert '"reason": "contract"' in recorded
    assert re.search("paused by .+ since .+: contract", listed)
    assert [line.split()[5] for line in queued.splitlines() if "pending" in line] == ["acme", "beta"]
    assert "waits in Redis for a store worker" in queued
    assert timeline.exit_code == 0, timeline.exception
    assert "accepted" in timeline.output
    assert not any("pending" in text for text in elsewhere)


@pytest.mark.usefixtures("environment")
def test_pending_is_a_state_to_filter_by_and_the_limit_is_for_turns_and_jobs_together(database: Database) -> None:
    app, run = make_app_for(FAMILIES), CliRunner().invoke
    psql(database.url, *[OLD_JOB.format(position="NULL")] * 3)
    for text in ("I like tea.", "I like rain."):
        assert run(app, ["remember", text, "--user", "pz"]).exit_code == 0

    pending = run(app, ["jobs", "list", "--state", "pending"]).output
    both = run(app, ["jobs", "list", "--limit", "3"]).output
    every = run(app, ["jobs", "list", "--limit", "10"]).output
    as_json = json.loads(run(app, ["jobs", "list", "--state", "pending", "--json"]).stdout)
    unknown = run(app, ["jobs", "list", "--state", "waiting"])

    def count(output: str) -> tuple[int, int]:
        words = [line.split() for line in output.splitlines()]
        return sum("pending" in line for line in words), sum("extract" in line for line in words)

    assert (count(pending), count(both), count(every)) == ((2, 0), (2, 1), (2, 3))
    assert "Listed: 3, the limit." in both
    assert "Listed" not in every
    assert [each["worker"] for each in as_json] == [None, None]
    assert unknown.exit_code == 2
    assert "is not one of pending, queued" in " ".join(unknown.output.split())


@pytest.mark.usefixtures("environment")
def test_a_list_of_pending_turns_fails_while_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    app, run = make_app_for(FAMILIES), CliRunner().invoke
    monkeypatch.setenv("AFTERMIND_BROKER_URL", "redis://127.0.0.1:1/0")

    pending = run(app, ["jobs", "list", "--state", "pending", "--json"])
    every = run(app, ["jobs", "list", "--json"])

    assert isinstance(pending.exception, errors.RedisUnavailable)
    assert pending.stdout == ""
    assert (every.exit_code, json.loads(every.stdout)) == (0, [])
    assert "turns that are not stored yet are not listed" in every.stderr


@pytest.mark.usefixtures("environment")
def test_a_list_reports_that_only_the_oldest_pending_turns_were_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    app, run = make_app_for(FAMILIES), CliRunner().invoke
    monkeypatch.setattr(jobs, "MAX_PENDING_SEARCHED", 2)
    for user in ("pa", "pa", "pb"):
        assert run(app, ["remember", "I like tea.", "--user", user]).exit_code == 0

    latest = run(app, ["jobs", "list", "--state", "pending", "--user", "pb", "--json"])
    oldest = run(app, ["jobs", "list", "--state", "pending", "--user", "pa", "--limit", "2", "--json"])

    assert json.loads(latest.stdout) == []
    assert "only the oldest 2 were searched" in latest.stderr
    assert [turn["owner"]["user_id"] for turn in json.loads(oldest.stdout)] == ["pa", "pa"]
    assert "searched" not in oldest.stderr


@pytest.mark.usefixtures("environment")
def test_overdue_jobs_give_status_and_health_the_exit_code_1(database: Database) -> None:
    app, run = make_app_for(FAMILIES), CliRunner().invoke
    assert run(app, ["status"]).exit_code == run(app, ["health"]).exit_code == 0

    psql(database.url, OLD_JOB.format(position="NULL"))
    status, health = run(app, ["status"]), run(app, ["health"])
    assert run(app, ["jobs", "pause", "--kind", "extract", "--reason", "x"]).exit_code == 0
    paused = run(app, ["status"])

    assert (status.exit_code, health.exit_code, paused.exit_code) == (1, 1, 0)
    assert "extract: 1 pending job, the oldest for 3600 s" in " ".join(status.output.split())


async def test_pending_turns_without_any_store_worker_are_a_failure_before_they_are_overdue(settings: Settings) -> None:
    async with Memory(settings=settings) as memory:
        await memory.remember("I live in Oslo.", user_id="u")

        async def finding() -> Finding:
            findings = await doctor_checks.work(address_resolution.resolve(settings), settings)
            [found] = [each for each in findings if each.what == "pending turns"]
            return found

        async def is_bad() -> bool:
            return (await finding()).verdict is Verdict.BAD

        await wait_until(is_bad, description="the turn has an age")
        found = await finding()
        assert "no store worker is running" in found.seen
        assert "aftermind worker --queues memory.store" in found.remedy
        await memory.job_admin.pause(kind="store", reason="maintenance", actor="ops")
        assert (await finding()).verdict is Verdict.GOOD, "its own finding reports the pause"


@pytest.mark.usefixtures("environment")
def test_every_pause_of_a_namespace_is_ended_together() -> None:
    app, run = make_app_for(FAMILIES), CliRunner().invoke
    for options in (["--queue", "memory.extract", "--namespace", "acme"], ["--namespace", "acme"], ["--kind", "embed"]):
        assert run(app, ["jobs", "pause", "--reason", "x", *options]).exit_code == 0

    assert run(app, ["jobs", "resume", "--namespace", "acme"]).exit_code == 0
    left = json.loads(run(app, ["jobs", "pauses", "--json"]).stdout)

    assert [(each["kind"], each["namespace"]) for each in left] == [("embed", None)]


@pytest.mark.usefixtures("environment")
def test_a_pause_that_does_not_exist_is_named_in_the_error() -> None:
    resumed = CliRunner().invoke(make_app_for(FAMILIES), ["jobs", "resume", "--namespace", "nosuch"])

    assert "namespace nosuch" in str(resumed.exception)


@pytest.mark.usefixtures("environment")
def test_jobs_that_lost_a_lease_are_found_and_shown(database: Database) -> None:
    app, run = make_app_for(FAMILIES), CliRunner().invoke
    psql(database.url, OLD_JOB.format(position="1"), "UPDATE aftermind.jobs SET lost_leases = 2")
    psql(database.url, OLD_JOB.format(position="2"))

    found = run(app, ["jobs", "list", "--error", "lease", "--wide"]).output
    other = run(app, ["jobs", "list", "--error", "timeout", "--wide"]).output

    assert [line for line in found.splitlines() if "extract" in line] == [
        line for line in found.splitlines() if "lease_lost: 2 times" in line
    ]
    assert "lease_lost: 2 times" in found
    assert "extract" not in other


async def test_the_status_of_a_turn_names_the_pause(settings: Settings) -> None:
    async with Memory(settings=settings) as memory:
        await memory.job_admin.pause(kind="store", reason="INC-77", actor="ops")
        receipt = await memory.remember("I live in Oslo.", user_id="u")

        status = await memory.jobs.status(receipt.job_id, user_id="u")

        assert status is not None
        assert str(status.why).startswith("store jobs are paused by an operator since")
        assert "INC-77" not in str(status.why)
        (outcome,) = await memory.extraction(user_id="u")
        assert outcome.reason == "not stored yet"
        await memory.job_admin.pause(kind="extract", reason="INC-77", actor="ops")
        (outcome,) = await memory.extraction(user_id="u")
        assert str(outcome.reason).startswith("extract jobs are paused by an operator since")
