"""Hostile values in every place of a request: each answer is a success or names what is wrong, none is a fault."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from fastapi.routing import APIRoute

from aftermind.web.app import create_routes
from tests.support.deployed_service import Service
from tests.support.openapi_document import DOCUMENT

DEEP = 3_000
NESTED = "[" * DEEP + "]" * DEEP
VALUES = {
    "nested": NESTED,
    "nested object": '{"a":' * DEEP + "1" + "}" * DEEP,
    "nested metadata": '{"a":' + NESTED + "}",
    "nested cursor": base64.urlsafe_b64encode(NESTED.encode()).decode()[:1_900],
    "deep cursor": base64.urlsafe_b64encode(("[" * 1_400).encode()).decode(),
    "wide integer": "9" * 4_000,
    "wider integer": "9" * 5_000,
    "integer in JSON": '{"a":' + "9" * 4_000 + "}",
    "integer cursor": base64.urlsafe_b64encode(b"9" * 1_200).decode(),
    "place cursor": base64.urlsafe_b64encode(b'[1, "x\\ud800"]').decode(),
    "beyond 64 bits": str(2**63),
    "negative": "-" + str(2**63 + 1),
    "first year": "0001-01-01T00:00:00+14:00",
    "first day": "0001-01-01T00:00:00Z",
    "last day": "9999-12-31T23:59:59Z",
    "last year": "9999-12-31T23:59:59-14:00",
    "no number": "NaN",
    "infinity": "1e999",
    "nul": "a\x00b",
    "surrogate": "\udc80",
    "empty": "",
    "long": "x" * 9_000,
    "bracket": "[",
    "percent": "%",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "true": "true",
}
EACH = pytest.mark.parametrize("name", list(VALUES))
KNOWN = {"user_id": "u", "user": "u", "job_id": VALUES["uuid"], "fact_id": VALUES["uuid"], "name": "n", "plan_id": "p"}
KNOWN |= {"run_id": "r", "group": "g", "member": "m"}
KNOWN |= {"webhook_id": VALUES["uuid"], "fact": VALUES["uuid"], "episode": VALUES["uuid"], "id": VALUES["uuid"]}


def _operations() -> list[tuple[str, str, list[dict[str, Any]]]]:
    return [
        (method, path, operation.get("parameters", []))
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
        if not path.endswith("/events") and path != "/v1/retention/run"
    ]


@EACH
def test_no_parameter_of_the_api_is_a_fault(service: Service, name: str) -> None:
    value, faults = VALUES[name], []
    with _requests(service, {"Authorization": f"Bearer {service.keys['all']}"}) as status:
        for method, path, parameters in _operations():
            for parameter in parameters:
                where, called = parameter["in"], parameter["name"]
                if where == "header" and not (value.isprintable() and value.isascii()):
                    continue
                target = _path(path, {**KNOWN, called: value} if where == "path" else KNOWN)
                target += f"?{_query({called: value})}" if where == "query" else ""
                answer = status(method.upper(), target, {called: value} if where == "header" else {})
                if answer >= 500:
                    faults.append((method, path, called, answer))

    assert faults == []


@EACH
def test_no_parameter_of_a_screen_is_a_fault(service: Service, name: str) -> None:
    value, faults = VALUES[name], []
    with _requests(service, {"Cookie": f"aftermind_key={service.keys['all']}"}) as status:
        for path, parameters in _screens().items():
            for called in parameters:
                params = {**{each: KNOWN[each] for each in parameters if each in KNOWN}, called: value}
                answer = status("GET", f"{path}?{_query(params)}", {})
                if answer >= 500:
                    faults.append((path, called, answer))

    assert faults == []


BODIES = {
    "turn": ("turns", {"messages": {"role": "user", "content": "x", "metadata": {"k": "HERE"}}}),
    "parts": ("turns", {"messages": {"role": "user", "content": [{"type": "image_url", "image_url": "HERE"}]}}),
    "extra": ("turns", {"messages": {"role": "user", "content": "x", "tool_calls": "HERE"}}),
    "said at": ("turns", {"messages": {"role": "user", "content": "x", "occurred_at": "HERE"}}),
    "filter": ("recall", {"query": "x", "metadata": {"k": "HERE"}}),
    "since": ("recall", {"query": "x", "since": "HERE"}),
    "known at": ("recall", {"query": "x", "known_at": "HERE"}),
    "valid": ("facts", {"subject": "a", "predicate": "b", "object": "c", "valid_from": "HERE"}),
    "ended": ("facts", {"subject": "a", "predicate": "b", "object": "c", "valid_to": "HERE"}),
    "before": ("forget", {"before": "HERE"}),
    "plan": (
        "/v1/replays",
        {"filter": {}, "name": "n", "reason": "r", "actor": "a", "mode": "edited", "overrides": {"k": "HERE"}},
    ),
    "died": ("/v1/dead-letters/discard", {"filter": {"since": "HERE"}, "note": "n", "actor": "a"}),
}


@pytest.mark.parametrize("where", list(BODIES))
@EACH
def test_no_value_of_a_body_is_a_fault(service: Service, where: str, name: str, user: str) -> None:
    path, body = BODIES[where]
    text = json.dumps(body)
    with service.client() as api:
        for sent in (json.dumps(VALUES[name]), VALUES[name]):  # as a text, and as JSON itself
            raw = text.replace('"HERE"', sent).encode("utf-8", "surrogatepass")
            url = path if path.startswith("/") else f"/v1/users/{user}/{path}"
            answer = api.post(url, content=raw, headers={"Content-Type": "application/json"})
            assert answer.status_code < 500, (name, answer.text)


@contextmanager
def _requests(service: Service, headers: Mapping[str, str]) -> Iterator[Callable[[str, str, Mapping[str, str]], int]]:
    """Requests on one connection, each for its status; 10,000 of them by httpx would take 20 s of CPU time."""
    connection = HTTPConnection(urlsplit(service.url).netloc, timeout=20)

    def status(method: str, target: str, more: Mapping[str, str]) -> int:
        body = None if method == "GET" else "{}"
        connection.request(method, target, body, {"Content-Type": "application/json", **headers, **more})
        answer = connection.getresponse()
        if answer.getheader("Content-Type", "").startswith("text/event-stream"):  # it has no end
            connection.close()
        answer.read()
        return answer.status

    with closing(connection):
        yield status


def _path(template: str, names: Mapping[str, str]) -> str:
    return template.format(**{name: quote(text, safe="", errors="surrogateescape") for name, text in names.items()})


def _query(parameters: Mapping[str, str]) -> str:
    return urlencode(parameters, errors="surrogateescape")


@cache
def _screens() -> dict[str, list[str]]:
    """The query parameters of every screen that is shown by GET."""
    found: dict[str, list[str]] = {}

    def add(routes: Any) -> None:  # Any: routers nest, and have no common type
        for route in routes:
            inner = getattr(route, "original_router", None) or getattr(route, "router", None)
            if isinstance(route, APIRoute) and "GET" in route.methods and not route.path.startswith("/v1"):
                fields = _flat(route.dependant)
                found[route.path] = fields
            elif inner is not None:
                add(inner.routes)

    add(create_routes().routes)
    return {path: fields for path, fields in found.items() if fields}


def _flat(dependant: Any) -> list[str]:  # Any: FastAPI's own
    own = [field.alias for field in dependant.query_params]
    return own + [name for each in dependant.dependencies for name in _flat(each)]
