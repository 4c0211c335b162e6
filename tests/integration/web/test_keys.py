"""Who is let in, and that nobody sees another namespace's rows: every operation of the API, one by one."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from aftermind import Settings, errors
from aftermind.sync import Memory
from tests.support.dead_letters import Letters
from tests.support.deployed_service import Service, serving
from tests.support.servers import psql
from tests.support.service import local_token

CANARY = "canary-7f3a"
USER = "alice"  # there is one in each namespace
UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"
FILTER = {"user_id": USER}
RIGHTS = ("read", "write", "operate")


@dataclass(frozen=True)
class Planted:
    """Ids of what namespace `ours` has; somebody of `theirs` knows them all."""

    episode_id: str
    job_id: str
    fact_id: str
    dead_id: str
    plan_id: str
    webhook_id: str

    def path(self, template: str) -> str:
        """A route's path with all of them in it."""
        names = {"user_id": USER, "name": "secret", "fact_id": self.fact_id, "plan_id": self.plan_id}
        names["webhook_id"] = self.webhook_id
        job = self.dead_id if template.startswith("/v1/dead-letters") else self.job_id
        return template.format(
            **names, job_id=job, any_id=self.job_id, action_id=UNKNOWN_ID, run_id="run", group="club", member=USER
        )


@dataclass(frozen=True)
class Operation:
    """One operation: the right that it needs, and a request that would do something where it is allowed."""

    right: str
    body: Any = None
    params: dict[str, Any] = field(default_factory=dict)


PLAN = {"filter": FILTER, "name": "again", "reason": "a test", "actor": "me"}
FACT = {"subject": "user", "predicate": "likes", "object": "tea"}
HOOK = {"url": "https://1.1.1.1/", "events": ["MemoryUpdateFailed"]}  # a kind of which nothing comes here
OPERATIONS = {
    ("GET", "/v1/whoami"): Operation("read"),
    ("GET", "/v1/spending"): Operation("operate"),
    ("GET", "/v1/users"): Operation("read"),
    ("POST", "/v1/users/{user_id}/turns"): Operation("write", {"messages": "hello"}),
    ("GET", "/v1/users/{user_id}/turns/{job_id}"): Operation("read"),
    ("POST", "/v1/users/{user_id}/recall"): Operation("read", {"query": CANARY}),
    ("POST", "/v1/users/{user_id}/recall/scored"): Operation("read", {"query": CANARY}),
    ("POST", "/v1/users/{user_id}/recall/explain"): Operation("read", {"query": CANARY}),
    ("POST", "/v1/users/{user_id}/feedback"): Operation("write", {"helpful": [UNKNOWN_ID]}),
    ("GET", "/v1/users/{user_id}/episodes"): Operation("read"),
    ("GET", "/v1/users/{user_id}/context"): Operation("read"),
    ("GET", "/v1/users/{user_id}/extraction"): Operation("read"),
    ("GET", "/v1/users/{user_id}/sessions"): Operation("read"),
    ("GET", "/v1/users/{user_id}/summary"): Operation("read"),
    ("GET", "/v1/users/{user_id}/profile"): Operation("read"),
    ("GET", "/v1/users/{user_id}/progress"): Operation("read"),
    ("GET", "/v1/users/{user_id}/spending"): Operation("read"),
    ("GET", "/v1/users/{user_id}/export"): Operation("read"),
    ("POST", "/v1/users/{user_id}/forget"): Operation("write", {"ids": [UNKNOWN_ID]}),
    ("GET", "/v1/users/{user_id}/facts"): Operation("read", params={"history": True}),
    ("POST", "/v1/users/{user_id}/facts"): Operation("write", FACT),
    ("DELETE", "/v1/users/{user_id}/facts/{fact_id}"): Operation("write"),
    ("GET", "/v1/users/{user_id}/facts/{fact_id}/why"): Operation("read"),
    ("GET", "/v1/users/{user_id}/entities/graph"): Operation("read", params={"entity": "user"}),
    ("POST", "/v1/users/{user_id}/entities/merge"): Operation("write", {"entity": "Mel", "aliases": ["Melanie"]}),
    ("GET", "/v1/users/{user_id}/blocks"): Operation("read"),
    ("GET", "/v1/users/{user_id}/blocks/{name}"): Operation("read"),
    ("PUT", "/v1/users/{user_id}/blocks/{name}"): Operation("write", {"content": "mine"}),
    ("POST", "/v1/users/{user_id}/blocks/{name}/append"): Operation("write", {"content": "mine"}),
    ("POST", "/v1/users/{user_id}/blocks/{name}/replace"): Operation("write", {"old": "mine", "new": "yours"}),
    ("DELETE", "/v1/users/{user_id}/blocks/{name}"): Operation("write"),
    ("GET", "/v1/users/{user_id}/checkpoints"): Operation("read"),
    ("GET", "/v1/users/{user_id}/checkpoints/{run_id}"): Operation("read"),
    ("PUT", "/v1/users/{user_id}/checkpoints/{run_id}"): Operation("write", {"state": {}}),
    ("POST", "/v1/users/{user_id}/checkpoints/{run_id}/resume"): Operation("write"),
    ("DELETE", "/v1/users/{user_id}/checkpoints/{run_id}"): Operation("write"),
    ("GET", "/v1/users/{user_id}/session-metadata"): Operation("read"),
    ("PATCH", "/v1/users/{user_id}/session-metadata"): Operation("write", {"mine": 1}),
    ("GET", "/v1/groups/{group}/members"): Operation("read"),
    ("PUT", "/v1/groups/{group}/members/{member}"): Operation("write", {}),
    ("DELETE", "/v1/groups/{group}/members/{member}"): Operation("write"),
    ("DELETE", "/v1/groups/{group}"): Operation("write"),
    ("POST", "/v1/groups/{group}/turns"): Operation("write", {"messages": "hello"}, params=FILTER),
    ("POST", "/v1/groups/{group}/recall"): Operation("read", {"query": CANARY}, params=FILTER),
    ("GET", "/v1/groups/{group}/episodes"): Operation("read", params=FILTER),
    ("GET", "/v1/users/{user_id}/events"): Operation("read"),
    ("POST", "/v1/users/{user_id}/stream-token"): Operation("read", {}),
    ("GET", "/v1/users/{user_id}/jobs"): Operation("read"),
    ("GET", "/v1/users/{user_id}/jobs/{job_id}"): Operation("read"),
    ("GET", "/v1/jobs"): Operation("operate"),
    ("GET", "/v1/jobs/summary"): Operation("operate"),
    ("GET", "/v1/pending-turns"): Operation("operate"),
    ("GET", "/v1/timelines/{any_id}"): Operation("operate"),
    ("POST", "/v1/jobs/actions"): Operation("operate", {"action": "discard", "filter": {}, "note": "gone"}),
    ("POST", "/v1/jobs/actions/{action_id}/undo"): Operation("operate"),
    ("PUT", "/v1/pauses"): Operation("operate", {"reason": "a test"}),
    ("DELETE", "/v1/pauses"): Operation("operate"),
    ("GET", "/v1/dead-letters"): Operation("operate"),
    ("GET", "/v1/dead-letters/groups"): Operation("operate"),
    ("GET", "/v1/dead-letters/{job_id}"): Operation("operate"),
    ("POST", "/v1/dead-letters/discard"): Operation("operate", {"filter": {}, "note": "gone", "actor": "me"}),
    ("POST", "/v1/replays"): Operation("operate", PLAN),
    ("GET", "/v1/replays"): Operation("operate"),
    ("GET", "/v1/replays/{plan_id}"): Operation("operate"),
    ("GET", "/v1/replays/{plan_id}/estimate"): Operation("operate"),
    ("GET", "/v1/replays/{plan_id}/items"): Operation("operate"),
    ("POST", "/v1/replays/{plan_id}/start"): Operation("operate"),
    ("POST", "/v1/replays/{plan_id}/pause"): Operation("operate", {"note": "wait"}),
    ("POST", "/v1/replays/{plan_id}/abort"): Operation("operate", {"note": "stop"}),
    ("POST", "/v1/webhooks"): Operation("operate", HOOK),
    ("POST", "/v1/users/{user_id}/undo"): Operation("write", {"ids": [UNKNOWN_ID]}),
    ("GET", "/v1/users/{user_id}/erasure"): Operation("operate"),
    ("POST", "/v1/reextract"): Operation("operate", {"reason": "a test", "user_id": USER, "dry_run": True}),
    ("POST", "/v1/replays/{plan_id}/dry-run"): Operation("operate"),
    ("GET", "/v1/replays/{plan_id}/dry-run"): Operation("operate"),
    ("GET", "/v1/retention"): Operation("operate"),
    ("PUT", "/v1/retention"): Operation("operate", {"max_episodes": 1_000_000}),
    ("DELETE", "/v1/retention"): Operation("operate"),
    ("POST", "/v1/retention/run"): Operation("operate", params={"dry_run": True}),
    ("GET", "/v1/audit"): Operation("operate"),
    ("GET", "/v1/audit/verify"): Operation("operate"),
    ("GET", "/v1/webhooks"): Operation("operate"),
    ("GET", "/v1/webhooks/{webhook_id}"): Operation("operate"),
    ("POST", "/v1/webhooks/{webhook_id}/enable"): Operation("operate"),
    ("POST", "/v1/webhooks/{webhook_id}/secret"): Operation("operate"),
    ("DELETE", "/v1/webhooks/{webhook_id}"): Operation("operate"),
}
EACH = pytest.mark.parametrize(("method", "path"), list(OPERATIONS), ids=lambda value: value)


@pytest.fixture(scope="module")
def planted(service: Service, worker: None, owner_url: str) -> Planted:
    """Of everything that can be asked for, one thing of namespace `ours`, with the canary in its text."""
    with Memory(settings=service.settings, namespace="ours") as memory:
        receipt = memory.remember(f"{CANARY} an episode", user_id=USER, idempotency_key="planted")
        receipt.extracted(30)
        fact = memory.facts.add("user", "likes", f"{CANARY} a fact", user_id=USER)
        memory.blocks.set("secret", f"{CANARY} a block", user_id=USER)
        memory.groups.add("club", USER)
        memory.remember(f"{CANARY} of a group", user_id=USER, group="club").stored(30)
        dead = str(asyncio.run(_mark_dead(owner_url)))
    with service.client() as ours:
        made = ours.post("/v1/replays", json={**PLAN, "name": CANARY})
        assert made.status_code == 201, made.text
        hook = ours.post("/v1/webhooks", json={**HOOK, "description": CANARY})
        assert hook.status_code == 201, hook.text
    return Planted(
        episode_id=str(receipt.episode_ids[0]),
        job_id=str(receipt.job_id),
        fact_id=str(fact.id),
        dead_id=dead,
        plan_id=made.json()["id"],
        webhook_id=hook.json()["id"],
    )


async def _mark_dead(url: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return (await Letters(connection).mark_dead(namespace="ours", user=USER, error=f"{CANARY} an error"))[0]
    finally:
        await connection.close()


def test_every_operation_is_among_those_tested_here(service: Service) -> None:
    with service.client() as api:
        paths = api.get("/v1/openapi.json").json()["paths"]
    there = {(method.upper(), path) for path, methods in paths.items() for method in methods}

    assert there == set(OPERATIONS)


@EACH
def test_without_a_right_key_nothing_is_done(service: Service, planted: Planted, method: str, path: str) -> None:
    asked = OPERATIONS[method, path]
    with service.client(None) as stranger:
        for shown in (None, "Bearer am_000000000000_wrong", "Bearer x", "Basic YWxpY2U6"):
            headers = {} if shown is None else {"Authorization": shown}
            answer = _ask(stranger, method, planted.path(path), asked, headers)
            assert answer.status_code == 401, answer.text
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert CANARY not in answer.text


@EACH
def test_a_key_does_what_its_rights_allow_and_no_more(
    service: Service, planted: Planted, method: str, path: str
) -> None:
    asked = OPERATIONS[method, path]
    for right in set(RIGHTS) - {asked.right}:
        with service.client(right) as limited:
            answer = _ask(limited, method, planted.path(path), asked)
        assert answer.status_code == 403, answer.text
        assert CANARY not in answer.text


def test_a_key_of_another_namespace_sees_and_changes_nothing_of_ours(service: Service, planted: Planted) -> None:
    before = _everything(service)

    with service.client("other") as theirs:
        for (method, path), asked in OPERATIONS.items():
            answer = _ask(theirs, method, planted.path(path), asked)
            assert answer.status_code < 500, (method, path, answer.text)
            assert CANARY not in answer.text, (method, path)
            assert planted.episode_id not in answer.text, (method, path)

    assert _everything(service) == before


def test_what_is_looked_for_would_be_seen_with_a_key_of_ours(service: Service, planted: Planted) -> None:
    """Else the tests above would find nothing because there is nothing."""
    with service.client() as ours:
        seen = [
            path
            for method, path in OPERATIONS
            if method == "GET" and CANARY in _ask(ours, method, planted.path(path), OPERATIONS[method, path]).text
        ]

    of_user = (
        "episodes",
        "context",
        "export",
        "entities/graph",
        "facts",
        "facts/{fact_id}/why",
        "blocks",
        "blocks/{name}",
        "jobs",
    )
    assert {path.removeprefix("/v1/") for path in seen} == {
        *(f"users/{{user_id}}/{each}" for each in of_user),
        *("jobs", "dead-letters", "dead-letters/groups", "dead-letters/{job_id}", "replays", "replays/{plan_id}"),
        *("webhooks", "webhooks/{webhook_id}", "groups/{group}/episodes"),
    }


def test_a_revoked_and_an_expired_key_open_nothing(service: Service) -> None:
    with Memory(settings=service.settings) as memory:
        made, text = memory.api_keys.create("for a while", namespace="ours")
        headers = {"Authorization": f"Bearer {text}"}
        fresh = httpx.get(f"{service.url}/v1/whoami", headers=headers)
        assert fresh.json() == {"namespace": "ours", "rights": ["operate", "read", "write"], "key": made.id}
        assert not memory.api_keys.revoke(made.id, namespace="theirs")
        assert memory.api_keys.revoke(made.id, namespace="ours")
        assert memory.api_keys.check(text) is None
        assert not memory.api_keys.revoke(made.id, namespace="ours")
    with serving(service.settings, Path(service.settings.state_dir) / "second.log") as url:  # it has not seen it before
        assert httpx.get(f"{url}/v1/whoami", headers=headers).status_code == 401


def test_a_key_expires_by_the_clock_of_the_database(service: Service, owner_url: str) -> None:
    with Memory(settings=service.settings) as memory:
        made, text = memory.api_keys.create(
            "for a while", namespace="ours", expires_at=datetime.now(UTC) + timedelta(days=1)
        )
        before = memory.api_keys.check(text)
        psql(
            owner_url, f"UPDATE aftermind.api_keys SET expires_at = now() - interval '1 second' WHERE id = '{made.id}'"
        )
        after = memory.api_keys.check(text)
        [listed] = [key for key in memory.api_keys.list(namespace="ours") if key.id == made.id]
        with pytest.raises(errors.InvalidKey, match="over"):
            memory.api_keys.create("too late", namespace="ours", expires_at=datetime.now(UTC) - timedelta(seconds=1))
        names = {key.name for key in memory.api_keys.list(namespace="ours")}

    assert before is not None
    assert before.is_valid
    assert after is None
    assert not listed.is_valid
    assert "too late" not in names


def test_a_key_is_kept_as_a_hash_alone(service: Service, owner_url: str) -> None:
    async def rows() -> str:
        connection = await asyncpg.connect(owner_url)
        try:
            return json.dumps(
                [list(map(str, row)) for row in await connection.fetch("SELECT * FROM aftermind.api_keys")]
            )
        finally:
            await connection.close()

    kept = asyncio.run(rows())

    assert not [name for name, key in service.keys.items() if key.split("_", 2)[2] in kept]


@pytest.fixture(scope="module")
def open_service(fresh_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    log = tmp_path_factory.mktemp("open") / "log"
    with serving(fresh_settings, log, host="0.0.0.0") as url:
        yield url, log


def test_without_any_key_it_listens_near_and_says_so(open_service: tuple[str, Path]) -> None:
    _, log = open_service

    assert "no API key exists: the service listens on 127.0.0.1, not on 0.0.0.0" in log.read_text()
    assert "http://127.0.0.1:" in log.read_text()


def test_without_any_key_the_local_token_admits_and_nothing_else_does(
    open_service: tuple[str, Path], fresh_settings: Settings
) -> None:
    """A request of this machine is no proof: a proxy may have sent it, and need not say so in any header."""
    url, log = open_service
    file = fresh_settings.state_dir / "web.token"
    token = local_token(fresh_settings.state_dir)

    assert httpx.get(f"{url}/v1/whoami").status_code == 401
    assert httpx.get(f"{url}/v1/whoami", headers=_shown(token[:-1] + "x")).status_code == 401
    assert httpx.get(f"{url}/v1/whoami", headers=_shown(token)).json()["key"] is None
    assert file.stat().st_mode & 0o777 == 0o600
    assert token not in log.read_text()


def test_a_link_with_the_local_token_signs_a_browser_in(
    open_service: tuple[str, Path], fresh_settings: Settings
) -> None:
    with httpx.Client(base_url=open_service[0], follow_redirects=True) as browser:
        assert browser.get("/").url.path == "/login"
        assert browser.get("/login", params={"token": local_token(fresh_settings.state_dir)}).url.path == "/"
        assert browser.get("/memory").status_code == 200


def test_the_local_token_is_refused_to_a_name_that_is_not_of_this_machine(
    open_service: tuple[str, Path], fresh_settings: Settings
) -> None:
    headers = {**_shown(local_token(fresh_settings.state_dir)), "Host": "evil.example"}

    assert httpx.get(f"{open_service[0]}/v1/whoami", headers=headers).status_code == 401


def test_from_the_first_key_on_one_is_needed(open_service: tuple[str, Path], fresh_settings: Settings) -> None:
    with Memory(settings=fresh_settings) as memory:
        memory.api_keys.create("the first")
        assert memory.api_keys.any()
    with serving(fresh_settings, Path(fresh_settings.state_dir) / "closed.log") as url:
        assert httpx.get(f"{url}/v1/whoami").status_code == 401
        headers = _shown(local_token(fresh_settings.state_dir))
        assert httpx.get(f"{url}/v1/whoami", headers=headers).status_code == 401


def _shown(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def _ask(
    client: httpx.Client, method: str, path: str, asked: Operation, headers: dict[str, str] | None = None
) -> httpx.Response:
    request = client.build_request(method, path, json=asked.body, params=asked.params, headers=headers)
    answer = client.send(request, stream=True)
    if "event-stream" in answer.headers.get("content-type", ""):  # it has no end: what comes at once is looked at
        first = next(answer.iter_raw())
        answer.close()
        return httpx.Response(answer.status_code, headers=answer.headers, content=first)
    answer.read()
    return answer


def _everything(service: Service) -> dict[str, Any]:
    """All of ours that a request could change."""
    with service.client() as ours:
        whole: dict[str, Any] = ours.get(f"/v1/users/{USER}/export").json()
        whole["dead"] = ours.get("/v1/dead-letters").json()
        whole["plans"] = ours.get("/v1/replays").json()
        whole["webhooks"] = ours.get("/v1/webhooks").json()
    return whole
