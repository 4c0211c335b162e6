"""A page listens to its own user's events with a token that opens nothing else, from an origin that may."""

from datetime import timedelta

import httpx
import pytest

from aftermind import Settings, errors
from aftermind.sync import Memory
from aftermind.web import create_app
from tests.support.deployed_service import Service

ORIGIN = "https://app.example"


@pytest.fixture(scope="module")
def settings(settings: Settings) -> Settings:
    """A service that a page of `ORIGIN` may call."""
    return settings.model_copy(update={"web_cors_origins": (ORIGIN,)})


def _status(service: Service, url: str, **headers: str) -> int:
    with httpx.stream("GET", f"{service.url}{url}", headers=headers, timeout=20) as answer:
        return answer.status_code


def test_a_token_opens_the_events_of_its_user_and_nothing_else(service: Service, user: str) -> None:
    with service.client("read") as backend:
        made = backend.post(f"/v1/users/{user}/stream-token", json={})
    assert made.status_code == 201, made.text
    token, url = made.json()["token"], made.json()["url"]

    assert _status(service, url) == 200
    assert _status(service, f"/v1/users/{user}/events", Authorization=f"Bearer {token}") == 200
    for path in (
        f"/v1/users/other/events?token={token}",
        f"/v1/users/-/events?anonymous=true&token={token}",
        f"/v1/users/{user}/episodes?token={token}",
        f"/v1/users/{user}/export?token={token}",
        f"/v1/whoami?token={token}",
        f"/v1/jobs?token={token}",
        f"/v1/groups/{user}/episodes?user_id={user}&token={token}",
        f"/v1/groups/{user}/members?token={token}",
    ):
        assert _status(service, path) == 403, path
    of_other = httpx.get(f"{service.url}/v1/users/other/events?token={token}", timeout=20).json()["detail"]
    assert of_other.startswith("this stream token is for another user's events.")
    with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {token}"}) as page:
        assert page.post(f"/v1/users/{user}/turns", json={"messages": "mine"}).status_code == 403
        assert page.post(f"/v1/users/{user}/stream-token", json={}).status_code == 403
        assert page.put(f"/v1/groups/{user}/members/{user}", json={}).status_code == 403
        assert page.post(f"/v1/groups/{user}/recall?user_id={user}", json={"query": "x"}).status_code == 403


def test_a_changed_an_ended_and_a_revoked_token_open_nothing(service: Service, user: str) -> None:
    with Memory(settings=service.settings) as memory:
        key, _ = memory.api_keys.create("backend", namespace="ours")
        good = memory.api_keys.create_stream_token(key.id, user_id=user)
        ended = memory.api_keys.create_stream_token(key.id, user_id=user, lifetime=timedelta(microseconds=1))
        body, signature = good.split(".")
        forged = memory.api_keys.create_stream_token(key.id, user_id="other").split(".")[0]
        path = f"/v1/users/{user}/events?token="

        assert _status(service, path + good) == 200
        altered = (f"{body}.{signature[:-2]}xx", f"{forged}.{signature}", body, f"{good}x")
        for text in (ended, *altered, "ams_", "ams_e30.x"):
            assert _status(service, path + text) == 401, text
        memory.api_keys.revoke(key.id, namespace="ours")
        assert _status(service, path + good) == 401
        with pytest.raises(errors.InvalidKey):
            memory.api_keys.create_stream_token(key.id, user_id=user)
        with pytest.raises(errors.InvalidKey, match="hour"):
            memory.api_keys.create_stream_token(key.id, user_id=user, lifetime=timedelta(hours=2))


@pytest.mark.timeout(120)  # the token lasts for an hour, and a stream for 12 minutes
@pytest.mark.parametrize("by_token", [True, False])
def test_an_open_stream_ends_when_its_key_is_revoked(service: Service, user: str, *, by_token: bool) -> None:
    with Memory(settings=service.settings) as memory:
        key, text = memory.api_keys.create("backend", namespace="ours")
        token = memory.api_keys.create_stream_token(key.id, user_id=user, lifetime=timedelta(hours=1))
        shown = token if by_token else text
        url, headers = f"{service.url}/v1/users/{user}/events", {"Authorization": f"Bearer {shown}"}
        with httpx.stream("GET", url, headers=headers, timeout=60) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("retry:")
            memory.api_keys.revoke(key.id, namespace="ours")
            assert "" in list(lines)  # the stream is read to its end
        assert _status(service, f"/v1/users/{user}/events", **headers) == 401


def test_a_parameter_of_another_endpoint_is_refused(service: Service, user: str) -> None:
    with service.client("read") as backend:
        answer = backend.get(f"/v1/users/{user}/facts", params={"token": "I live in Lisbon."})
    assert answer.status_code == 422
    assert "has no such parameter" in answer.text
    assert "anonymous" in answer.text
    assert "token, " not in answer.json()["detail"]


def test_no_token_opens_the_events_of_a_group(service: Service, user: str) -> None:
    with service.client() as backend, Memory(settings=service.settings) as memory:
        backend.put(f"/v1/groups/{user}/members/ann", json={"role": "writer"})
        assert backend.post(f"/v1/users/group:{user}/stream-token", json={}).status_code == 422
        key, _ = memory.api_keys.create("backend", namespace="ours")
        with pytest.raises(errors.InvalidScope, match="group="):
            memory.api_keys.create_stream_token(key.id, user_id=f"group:{user}")
        token = memory.api_keys.create_stream_token(key.id, user_id="ann")

    assert _status(service, f"/v1/users/group:{user}/events?token={token}") == 422
    assert _status(service, f"/v1/users/ann/events?token={token}") == 200


def test_a_stream_ends_with_its_token(service: Service, user: str) -> None:
    with service.client("read") as backend:
        url = backend.post(f"/v1/users/{user}/stream-token", json={"lifetime_seconds": 2}).json()["url"]

    with httpx.stream("GET", f"{service.url}{url}", timeout=60) as answer:
        assert answer.status_code == 200
        assert answer.read() is not None  # until the service ends it

    assert _status(service, url) == 401


def test_an_api_key_in_an_address_is_not_read(service: Service, user: str) -> None:
    assert _status(service, f"/v1/users/{user}/events?token={service.keys['all']}") == 401


def test_a_page_of_an_allowed_origin_may_use_every_method_of_the_api(service: Service) -> None:
    paths = httpx.get(f"{service.url}/v1/openapi.json").json()["paths"]
    methods = {name.upper() for operations in paths.values() for name in operations if name != "parameters"}

    allowed = {
        method: httpx.options(
            f"{service.url}/v1/whoami", headers={"Origin": ORIGIN, "Access-Control-Request-Method": method}
        ).status_code
        for method in methods
    }

    assert "PATCH" in allowed
    assert set(allowed.values()) == {200}


def test_a_page_of_an_allowed_origin_may_call_the_api_and_others_may_not(service: Service, user: str) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    path = f"{service.url}/v1/users/{user}/turns"

    allowed = httpx.options(path, headers={"Origin": ORIGIN, **asked})
    refused = httpx.options(path, headers={"Origin": "https://evil.example", **asked})

    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-credentials" not in allowed.headers
    assert "access-control-allow-origin" not in refused.headers
    site = {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"}
    with service.client("all", **site) as page:
        taken = page.post(f"/v1/users/{user}/turns", json={"messages": "I live in Bergen."})
    assert (taken.status_code, taken.headers["access-control-allow-origin"]) == (202, ORIGIN)
    cookie = {"Cookie": f"aftermind_key={service.keys['all']}"}
    by_cookie = httpx.post(path, json={"messages": "x"}, headers={**site, **cookie})
    assert by_cookie.status_code == 403
    with service.client("all", **{**site, "Origin": "https://evil.example"}) as page:
        assert page.post(f"/v1/users/{user}/turns", json={"messages": "x"}).status_code == 403


@pytest.mark.parametrize("origin", ["*", "app.example", "https://app.example/", "javascript:alert(1)"])
def test_an_origin_that_is_none_is_refused_at_the_start(settings: Settings, origin: str) -> None:
    with pytest.raises(errors.InvalidSettings, match=r"(?i)web_cors_origins"):
        create_app(settings.model_copy(update={"web_cors_origins": (origin,)}))
