"""`aftermind replay`: exit codes for scripts."""

import json
import os
from pathlib import Path

import pytest

from aftermind import JobFilter
from tests.integration.stores.test_dead_letters import RETRY, dead_extractions, memory_at
from tests.support.fork_server import run_module
from tests.support.scripted_openai import scripted_openai


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
