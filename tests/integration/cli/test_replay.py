"""`aftermind replay`: exit codes for scripts."""

import json
import os
import re
import subprocess
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from aftermind import JobFilter, JobKind
from aftermind.types import JobId, NewJob, Scope
from aftermind.types.job_admin import JobAction
from tests.integration.stores.test_dead_letters import RETRY, dead_extractions, memory_at
from tests.support.fork_server import run_module
from tests.support.scripted_openai import scripted_openai


async def test_a_sample_of_a_plan_without_extractions_is_refused_with_the_reason(tmp_path: Path) -> None:
    url, job_id = f"sqlite:{tmp_path}/bot.db", JobId(uuid4())
    scope = Scope(namespace="default", user_id="alice")
    job = NewJob(id=job_id, kind=JobKind.EMBED, scope=scope, effect_key="e", delay=timedelta(hours=1))
    async with memory_at(url, tmp_path) as memory:
        async with memory._parts.db.transaction(namespace="default") as tx:
            await memory._parts.ledger.enqueue(tx, [job])
        await memory.job_admin.apply(JobAction.DISCARD, JobFilter(ids=(job_id,)), note="x", actor="ops")

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        env = {"AFTERMIND_DATABASE_URL": url, "AFTERMIND_EMBEDDER": "off", "AFTERMIND_STATE_DIR": str(tmp_path)}
        return run_module(["aftermind.cli", "replay", *argv], env=os.environ | env, cwd=tmp_path)

    created = run("create", "--id", str(job_id), "--because", "x", "--sample", "1")
    plan = re.search(r"aftermind replay start (\S+)", created.stdout)
    assert plan is not None, created.stderr
    tried = run("dry-run", plan[1])

    assert (created.returncode, tried.returncode) == (1, 2)
    assert "dry-run" not in created.stdout
    for output in (created.stderr, tried.stderr):
        assert "has no sample: none of its jobs extracts facts" in " ".join(output.split())


@pytest.mark.parametrize(("extractor", "state", "code"), [("openai:gpt-5", "failed", 1), ("rules", "done", 0)])
async def test_a_replay_that_is_awaited_fails_where_a_job_fails_again(
    extractor: str, state: str, code: int, tmp_path: Path
) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with memory_at(url, tmp_path) as memory:
        await dead_extractions(memory, users=1)
        plan = await memory.replays.create(JobFilter(), RETRY)

    with scripted_openai() as server:
        server.script.faults = {"refusal": 1.0}
        env = {"AFTERMIND_DATABASE_URL": url, "AFTERMIND_EXTRACTOR": extractor, "AFTERMIND_STATE_DIR": str(tmp_path)}
        env |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-test", "AFTERMIND_EMBEDDER": "off"}
        command = ["aftermind.cli", "replay", "start", plan.id, "--wait", "--json"]
        done = run_module(command, env=os.environ | env, cwd=tmp_path)

    assert done.returncode == code, done.stderr
    assert json.loads(done.stdout)["counts"] == {state: 1}
