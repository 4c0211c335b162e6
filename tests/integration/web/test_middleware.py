"""What the service does before it reads a request: it authenticates, counts, bounds, and sets deadlines."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from aftermind import Settings
from aftermind.sync import Memory
from aftermind.web.auth import COOKIE
from tests.support.deployed_service import Service, serving
from tests.support.waiting import wait_until_sync

HEADER_SECONDS, BODY_SECONDS = 1.0, 2.0
MANY_VALUES = b'{"messages": [' + b"1," * 4_000_000 + b"1]}"  # 8 MB


@pytest.fixture(scope="module")
def strict(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with short deadlines and low limits, and a key."""
    changed = {
        "web_header_timeout_seconds": HEADER_SECONDS,
        "web_body_timeout_seconds": BODY_SECONDS,
        "web_streams_per_key": 2,
        "web_rate_per_key": 20.0,
        "metrics_token": "prometheus-token-1",
    }
    told = settings.model_dump(include=settings.model_fields_set)
    strict = Settings(**{**told, **changed})
    with Memory(settings=strict) as memory:
        keys = {name: memory.api_keys.create(name, namespace="strict")[1] for name in ("all", "streams", "rate")}
    with serving(strict, tmp_path_factory.mktemp("strict") / "log") as url:
        yield Service(url=url, settings=strict, keys=keys)


@pytest.mark.parametrize("shown", ["", "Authorization: Bearer am_000000000000_wrong\r\n"])
def test_a_request_without_a_key_is_refused_before_its_body_is_sent(service: Service, shown: str) -> None:
    with _connected(service.url) as connection:
        connection.sendall(_head("POST", "/v1/users/u/turns", f"{shown}Content-Length: 9000000\r\n"))

        assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")


def test_a_form_without_a_key_is_refused_before_its_body_is_sent(service: Service) -> None:
    with _connected(service.url) as connection:
        form = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 900000\r\n"
        connection.sendall(_head("POST", "/memory/blocks?user=u", form))

        answer = connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 303 ")
    assert b"location: /login" in answer.lower()


def test_a_body_with_millions_of_values_is_refused_unparsed(service: Service) -> None:
    text = ",[{" * 700_000  # 2 MB of the same characters inside a text are a text
    with service.client() as api:
        refused = api.post("/v1/users/many/turns", content=MANY_VALUES, headers={"Content-Type": "application/json"})
        taken = api.post("/v1/users/many/recall", json={"query": "x", "metadata": {"k": text}})

    assert (refused.status_code, refused.json()["field"]) == (422, "body")
    assert "at most 100,000 JSON values" in refused.json()["detail"]
    assert "JSON values" not in taken.text


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b"408"),
        (b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-Slow: ", b"408"),
    ],
)
def test_a_client_that_never_finishes_its_headers_is_disconnected(strict: Service, sent: bytes, status: bytes) -> None:
    with _connected(strict.url) as connection:
        connection.sendall(sent)

        assert _until_closed(connection).startswith(b"HTTP/1.1 " + status)


def test_bytes_that_trickle_in_do_not_extend_a_deadline(strict: Service) -> None:
    with _connected(strict.url) as connection:
        key = f"Authorization: Bearer {strict.keys['all']}\r\nContent-Type: application/json\r\n"
        connection.sendall(_head("POST", "/v1/users/u/turns", f"{key}Content-Length: 100000\r\n"))
        is_closed = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                while not is_closed.wait(0.05):
                    connection.sendall(b" ")

        sender = threading.Thread(target=trickle)
        sender.start()
        try:
            answer = _until_closed(connection)
        finally:
            is_closed.set()
            sender.join()

    assert answer.startswith(b"HTTP/1.1 408")


def test_a_refused_clients_body_has_a_deadline_too(strict: Service) -> None:
    with _connected(strict.url) as connection:
        connection.sendall(_head("POST", "/v1/users/u/turns", "Content-Length: 100000\r\n"))

        assert _until_closed(connection).startswith(b"HTTP/1.1 401 ")


def test_a_key_has_a_bounded_number_of_streams(strict: Service) -> None:
    with strict.client("streams") as api, contextlib.ExitStack() as opened:
        for number in range(2):
            stream = opened.enter_context(api.stream("GET", f"/v1/users/u{number}/events"))
            assert stream.status_code == 200
        refused = api.get("/v1/users/u/events")

        assert (refused.status_code, refused.json()["type"]) == (429, "urn:problem-type:too-many-requests")
        assert int(refused.headers["retry-after"]) >= 1
        with strict.client("all") as other:
            assert other.get("/v1/whoami").status_code == 200

    def opens_again() -> bool:
        with strict.client("streams") as api, api.stream("GET", "/v1/users/u/events") as stream:
            return stream.status_code == 200

    wait_until_sync(opens_again, description="a closed stream gives its place back")


def test_a_key_has_a_bounded_rate(strict: Service) -> None:
    with strict.client("rate") as api:
        answers = [api.get("/v1/whoami") for _ in range(200)]

        assert {answer.status_code for answer in answers} == {200, 429}
        assert [answer.status_code for answer in answers[:20]] == [200] * 20
        waits = {int(answer.headers["retry-after"]) for answer in answers if answer.status_code == 429}
        assert waits <= {1, 2}  # until the window of two seconds ends
        wait_until_sync(lambda: api.get("/v1/whoami").status_code == 200, description="it may ask again")


def test_metrics_need_their_token(strict: Service, service: Service) -> None:
    for url, token, status in (
        (strict.url, None, 401),
        (strict.url, "prometheus-token-2", 401),
        (strict.url, strict.keys["all"], 401),
        (strict.url, "prometheus-token-1", 200),
        (service.url, service.keys["all"], 401),
    ):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/metrics", headers=headers).status_code == status


def test_every_answer_of_the_api_forbids_caching(service: Service, user: str) -> None:
    with service.client() as api:
        for path in (f"/v1/users/{user}/episodes", "/v1/whoami", "/v1/no-such-thing", "/v1/openapi.json", "/readyz"):
            assert api.get(path).headers["cache-control"] == "no-store", path


def test_no_answer_leads_to_the_host_that_a_request_names(service: Service) -> None:
    with service.client(Host="evil.example") as api:
        for path in ("/v1/whoami/", "/memory/", "/static", "/login/", "/", "/favicon.ico"):
            answer = api.get(path)
            assert "evil.example" not in answer.headers.get("location", ""), path
            assert "evil.example" not in answer.text, path


@pytest.mark.parametrize("headers", [{"Host": "["}, {"Host": "a:b"}, {"Origin": "http://["}])
def test_a_malformed_host_or_origin_is_a_bad_request(service: Service, headers: dict[str, str]) -> None:
    with service.client(**headers) as api:
        for path in ("/v1/whoami", "/memory"):
            assert api.get(path).status_code == 400


def test_logs_name_routes_and_no_paths(settings: Settings, service: Service, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(settings, log) as url, httpx.Client(base_url=url) as api:
        headers = {"Authorization": f"Bearer {service.keys['all']}"}
        api.put("/v1/users/marmalade/blocks/rhubarb", json={"content": "x"}, headers=headers)
        api.get("/v1/users/marmalade/episodes?metadata=rhubarb", headers=headers)
        api.get("/v1/marmalade/rhubarb", headers=headers)
        api.get("/memory/rhubarb?user=marmalade")

    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["logger"] == "aftermind.web.middleware"]
    assert "PUT /v1/users/{user_id}/blocks/{name}" in [line["message"] for line in requests]
    assert {line["status"] for line in requests} >= {200, 404, 422}
    assert not [line for line in lines if "marmalade" in json.dumps(line) or "rhubarb" in json.dumps(line)]


@contextlib.contextmanager
def _connected(url: str) -> Iterator[socket.socket]:
    at = urlsplit(url)
    with socket.create_connection((at.hostname or "", at.port or 0), timeout=30) as connection:
        yield connection


def _head(method: str, target: str, headers: str) -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode()


def _until_closed(connection: socket.socket) -> bytes:
    """All that is received until the server ends the connection; a timeout of the socket fails the test."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            received += piece
    return received


def test_an_unknown_address_is_a_page_for_browsers_and_a_problem_for_programs(service: Service) -> None:
    with service.client() as client:
        client.cookies.set(COOKIE, service.keys["all"])
        page = client.get("/nothing", headers={"Accept": "text/html,*/*"})
        problem = client.get("/v1/nothing", headers={"Accept": "text/html,*/*"})

    assert page.status_code == problem.status_code == 404
    assert "text/html" in page.headers["content-type"]
    assert "No screen has this address." in page.text
    assert problem.headers["content-type"] == "application/problem+json"
    assert problem.json()["type"] == "urn:problem-type:http-404"


def test_a_missing_right_is_named_as_it_is_given(service: Service) -> None:
    with service.client("read") as client:
        refused = client.get("/v1/jobs").json()

    assert refused["detail"] == "this needs an API key with the right 'operate'; the key has read."


def test_a_body_of_another_type_than_json_is_refused_with_the_headers_name(service: Service) -> None:
    with service.client() as client:
        answer = client.post(
            "/v1/users/alice/turns",
            content=b'{"messages": "x"}',
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        without = client.post("/v1/users/alice/turns", content=b'{"messages": "x"}')
        good = client.post("/v1/users/alice/recall", json={"query": "x"})

    assert [answer.status_code, without.status_code, good.status_code] == [415, 415, 200]
    assert "Content-Type: application/json" in answer.json()["detail"]
