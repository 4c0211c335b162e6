"""The TypeScript client has the types of this service, and works against it from Node."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from tools import typescript_schema

from aftermind import Memory, Settings
from tests.integrations.attacks import assert_attacks_stay_data
from tests.support.deployed_service import Service, serving

# A busy machine must not end a recall without what it looks for.
BUDGETS = (
    *("remember_budget_seconds", "recall_budget_seconds", "redis_timeout_seconds"),
    *("db_timeout_seconds", "db_connect_timeout_seconds"),
)
EXAMPLE = typescript_schema.CLIENT.parents[1] / "examples" / "vercel-ai"


def test_the_types_are_those_of_this_service() -> None:
    described = typescript_schema.document()

    written = typescript_schema.TARGET.read_text()

    assert written.startswith(typescript_schema.header(described)), "run `make typescript`"


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_requests_events_and_tokens_work_from_node(service: Service) -> None:
    if typescript_schema.run_npm("--version").returncode:
        pytest.skip("npm cannot install the libraries of clients/typescript")

    done = typescript_schema.run_npm("test", MEMORY_URL=service.url, MEMORY_KEY=service.keys["all"])

    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-1_000:]


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_the_example_of_the_vercel_ai_sdk_works(service: Service) -> None:
    build_example()

    done = typescript_schema.run_npm("test", folder=EXAMPLE, MEMORY_URL=service.url, MEMORY_KEY=service.keys["all"])

    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-1_000:]


@pytest.mark.long
async def test_attacks_reach_the_model_of_the_vercel_ai_sdk_as_data_only(
    fresh_settings: Settings, tmp_path: Path
) -> None:
    build_example()
    settings = fresh_settings.model_copy(
        update=dict.fromkeys(BUDGETS, 30.0)
    )  # no worker: nothing but turns is recalled
    async with Memory(settings=settings) as memory:
        _, key = await memory.api_keys.create("example")
        with serving(settings, tmp_path / "log") as url:
            process = await asyncio.create_subprocess_exec(
                typescript_schema.NODE / "bin" / "node",
                "dist/test/prompts.js",
                cwd=EXAMPLE,
                env={**os.environ, "MEMORY_URL": url, "MEMORY_KEY": key},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            questions, prompts = process.stdin, process.stdout
            assert questions is not None
            assert prompts is not None

            async def ask(user: str, question: str) -> tuple[str, str]:
                questions.write(json.dumps({"userId": user, "question": question}).encode() + b"\n")
                sent = json.loads(await prompts.readline())
                return sent["instructions"], sent["prompt"]

            await assert_attacks_stay_data(memory, ask)
            questions.close()
            assert await process.wait() == 0


def build_example() -> None:
    """Compile the client and the example; skip the test if npm cannot install their libraries."""
    for folder, arguments in ((typescript_schema.CLIENT, ("run", "build")), (EXAMPLE, ("exec", "tsc"))):
        if typescript_schema.run_npm("--version", folder=folder).returncode:
            pytest.skip(f"npm cannot install the libraries of {folder.name}")
        built = typescript_schema.run_npm(*arguments, folder=folder)
        assert built.returncode == 0, built.stdout + built.stderr
