"""`aftermind jobs run-now`: the facts of new messages, and what follows them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fork_server import run_module
from tests.support.workers import environment

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    env = environment(f"sqlite:{tmp_path}/bot.db", "")
    for name in ("AFTERMIND_BROKER_URL", "AFTERMIND_REDIS_URL"):
        del env[name]

    def call(*command: str, **settings: str) -> str:
        named = {"AFTERMIND_STATE_DIR": str(tmp_path / "state"), **settings}
        done = run_module(["aftermind.cli", *command], env={**env, **named})
        assert done.returncode == 0, done.stderr
        return " ".join(done.stdout.split())

    return call


def test_run_now_makes_facts_profile_and_summary_in_a_store_without_workers(run: Run) -> None:
    run("remember", "I live in Oslo. I work as a nurse.", "--user", "alice", "--session", "s")
    before = run("profile", "--user", "alice")

    run("jobs", "run-now")

    left = json.loads(run("jobs", "list", "--state", "queued", "--json"))
    done = {each["kind"] for each in json.loads(run("jobs", "list", "--state", "done", "--json"))}
    after = run("profile", "--user", "alice")
    assert before.endswith("`aftermind jobs run-now` makes it now.")
    assert "lives_in Oslo" in after
    assert (left, done) == ([], {"store", "extract", "summarise", "profile"})


@pytest.mark.parametrize("chosen", [("--kind", "extract"), ("--user", "bob")])
def test_run_now_leaves_out_what_was_not_chosen(run: Run, chosen: tuple[str, str]) -> None:
    run("remember", "I live in Oslo.", "--user", "alice", AFTERMIND_EXTRACT_QUIET_SECONDS="0")

    run("jobs", "run-now", *chosen)

    queued = {each["kind"] for each in json.loads(run("jobs", "list", "--state", "queued", "--json"))}
    assert queued == {"summarise", "profile"}


def test_where_workers_run_jobs_run_now_and_profile_name_the_second_run(run: Run) -> None:
    workers = {"AFTERMIND_RUN_JOBS": "false"}
    run("remember", "I live in Oslo.", "--user", "alice", **workers)

    printed = run("jobs", "run-now", **workers)
    profile = run("profile", "--user", "alice", **workers)

    assert "Run it again for them, after the facts." in printed
    assert profile.endswith("`aftermind jobs run-now` makes it now, run a second time after the facts.")
