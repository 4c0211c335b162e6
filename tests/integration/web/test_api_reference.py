"""The reference of the HTTP API: its commands work as they are printed, and it has the right of each operation."""

import shlex

import pytest

from aftermind.sync import Memory
from aftermind.web.api_reference import Operation, list_operations
from tests.support.deployed_service import Service

MISSING = {404, 409}  # the example's ids are made up
# Valid requests, refused because nothing fits in what is stored, or because a name has no address.
REFUSED = {
    "POST /v1/users/{user_id}/blocks/{name}/replace",
    "POST /v1/users/{user_id}/undo",
    "POST /v1/replays",
    "POST /v1/reextract",
    "POST /v1/webhooks",
}


@pytest.fixture(scope="module")
def operations(service: Service) -> list[Operation]:
    with Memory(settings=service.settings, namespace="ours") as memory:
        memory.groups.add("team", "alice")
    with service.client(None) as client:
        document = client.get("/v1/openapi.json").json()
    return [each for _, group in list_operations(document) for each in group]


def test_every_printed_command_is_a_valid_request(service: Service, operations: list[Operation]) -> None:
    assert len(operations) > 80
    answers = {}
    with service.client(None) as client:
        for each in sorted(operations, key=lambda each: each.method == "DELETE"):
            text = each.example.replace("$URL", "").replace("$KEY", service.keys["all"])
            method, url, headers, body = _parsed(text)
            with client.stream(method, url, headers=headers, content=body) as answer:
                if "event-stream" not in answer.headers.get("content-type", ""):
                    answer.read()
                answers[f"{each.method} {each.path}"] = answer.status_code

    refused = {
        name: code for name, code in answers.items() if code >= 400 and code not in MISSING and name not in REFUSED
    }
    assert refused == {}
    assert sum(code < 300 for code in answers.values()) > len(answers) / 2


def test_a_key_without_the_named_right_is_refused(service: Service, operations: list[Operation]) -> None:
    with service.client(None) as client:
        for each in operations:
            lacking = "write" if each.right != "write" else "read"
            text = each.example.replace("$URL", "").replace("$KEY", service.keys[lacking])
            method, url, headers, body = _parsed(text)
            assert client.request(method, url, headers=headers, content=body).status_code == 403, each.path


def _parsed(command: str) -> tuple[str, str, dict[str, str], str | None]:
    """Method, address, headers and body of a curl command."""
    words = shlex.split(command.replace("\\\n", " "))  # as a shell continues lines
    assert words[:2] == ["curl", "-s"]
    method, url, headers, body = "GET", "", {}, None
    rest = iter(words[2:])
    for word in rest:
        if word == "-X":
            method = next(rest)
        elif word == "-H":
            name, _, value = next(rest).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = next(rest)
        else:
            url = word
    return method, url, headers, body
