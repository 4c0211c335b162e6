"""The TypeScript client has the types of this service, and works against it from Node."""

import pytest
from tools import typescript_schema

from tests.support.deployed_service import Service


def test_the_types_are_those_of_this_service() -> None:
    described = typescript_schema.document()

    written = typescript_schema.TARGET.read_text()

    assert written.startswith(typescript_schema.header(described)), "run `make typescript`"


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_requests_events_and_tokens_work_from_node(service: Service) -> None:
    if typescript_schema.run_npm("--version").returncode:
        pytest.skip("npm cannot install the libraries of clients/typescript")

    done = typescript_schema.run_npm("test", AFTERMIND_URL=service.url, AFTERMIND_KEY=service.keys["all"])

    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-1_000:]


@pytest.mark.long
@pytest.mark.usefixtures("worker")
def test_the_example_of_the_vercel_ai_sdk_works(service: Service) -> None:
    example = typescript_schema.CLIENT.parents[1] / "examples" / "vercel-ai"
    for folder in (typescript_schema.CLIENT, example):
        if typescript_schema.run_npm("--version", folder=folder).returncode:
            pytest.skip(f"npm cannot install the libraries of {folder.name}")

    built = typescript_schema.run_npm("run", "build")
    done = typescript_schema.run_npm(
        "test", folder=example, AFTERMIND_URL=service.url, AFTERMIND_KEY=service.keys["all"]
    )

    assert built.returncode == done.returncode == 0, built.stdout + done.stdout[-4_000:] + done.stderr[-1_000:]
