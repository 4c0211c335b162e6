"""Schemathesis over the OpenAPI: whatever is sent, no 5xx, and no answer outside the schema."""

import os
from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.deployed_service import Service
from tests.support.openapi_document import DOCUMENT

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "12"))  # an operation; `make schema` asks for more

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


OPERATIONS = [
    (method, path)
    for path, methods in DOCUMENT["paths"].items()
    for method in methods
    if not path.endswith("/events")  # a stream has no end
]


@pytest.fixture(scope="module")
def described(service: Service, worker: None) -> schemathesis.BaseSchema:
    """The schema as the service gives it out."""
    return schemathesis.openapi.from_url(f"{service.url}/v1/openapi.json")


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """One connection for every request, which takes no settings of the environment."""
    with requests.Session() as opened:
        opened.trust_env = False
        yield opened


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda value: value)
def test_no_answer_is_outside_the_schema(
    service: Service, described: schemathesis.BaseSchema, session: requests.Session, method: str, path: str
) -> None:
    operation = described[path][method]
    cases = operation.as_strategy(GenerationMode.POSITIVE) | operation.as_strategy(GenerationMode.NEGATIVE)
    headers = {"Authorization": f"Bearer {service.keys['all']}"}

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=cases)
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(headers=headers, checks=CHECKS, session=session, timeout=30)

    ask()
