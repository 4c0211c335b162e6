"""What operators and the anonymous bucket need over HTTP: ids of every kind, undo, re-extraction, retention, audit."""

import asyncio
from urllib.parse import quote
from uuid import UUID

import asyncpg
import httpx
import pytest

from aftermind.sync import Memory
from tests.support.dead_letters import Letters
from tests.support.deployed_service import Service
from tests.support.waiting import wait_until_sync

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture
def api(service: Service) -> httpx.Client:
    with service.client() as client:
        yield client


@pytest.mark.parametrize("shape", ["{}/of/a/path", "{}//", "/{}", "{} ü?#%2F"])
def test_an_id_of_any_characters_can_be_named_in_a_path(api: httpx.Client, user: str, shape: str) -> None:
    name = shape.format(user)
    path = f"/v1/users/{quote(name, safe='')}"

    taken = api.post(f"{path}/turns", json={"messages": "My ferret is called Biscuit."})

    assert taken.status_code == 202
    assert api.get(taken.json()["status_url"]).status_code == 200
    assert "Biscuit" in api.post(f"{path}/recall", json={"query": "ferret"}).json()["text"]
    block = f"{path}/blocks/{quote('to/do', safe='')}"
    assert api.put(block, json={"content": "milk"}).json()["name"] == "to/do"
    assert api.get(block).json()["content"] == "milk"
    done = api.post(f"{path}/forget", json={"everything": True})
    assert done.status_code == 200


def test_the_anonymous_user_is_served_where_it_is_named(api: httpx.Client) -> None:
    whose = {"anonymous": "true"}
    taken = api.post("/v1/users/-/turns", json={"messages": "My newt is called Marmite."}, params=whose)

    assert taken.status_code == 202
    assert api.get(taken.json()["status_url"]).status_code == 200
    assert "Marmite" in api.post("/v1/users/-/recall", json={"query": "newt"}, params=whose).json()["text"]
    refused = api.get("/v1/users/somebody/episodes", params=whose)
    assert (refused.status_code, refused.json()["field"]) == (422, "user_id")
    assert api.post("/v1/users/-/forget", json={"everything": True}, params=whose).status_code == 200
    assert api.get("/v1/users/-/episodes", params=whose).json()["items"] == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "turns", {"messages": "My newt is called Marmite."}),
        ("POST", "recall", {"query": "newt"}),
        ("GET", "episodes", None),
        ("GET", "events", None),
    ],
)
def test_the_anonymous_user_is_refused_without_its_parameter(
    api: httpx.Client, method: str, path: str, body: dict[str, str] | None
) -> None:
    refused = api.request(method, f"/v1/users/-/{path}", json=body)

    assert (refused.status_code, refused.json()["field"]) == (422, "user_id")
    assert refused.headers["content-type"] == "application/problem+json"
    assert "anonymous=true" in refused.json()["detail"]
    assert api.request(method, f"/v1/users/-/{path}?anonymous=false", json=body).status_code == 422


def test_undo_takes_back_the_facts_of_a_message_and_a_dry_run_nothing(api: httpx.Client, user: str) -> None:
    turn = api.post(f"/v1/users/{user}/turns", json={"messages": "I live in Porto."}).json()
    _mined(api, turn["status_url"])

    def undo(*, dry_run: bool) -> dict[str, object]:
        found: dict[str, object] = api.post(
            f"/v1/users/{user}/undo", json={"ids": turn["episode_ids"], "dry_run": dry_run}
        ).json()
        return found

    tried = undo(dry_run=True)
    assert [fact["object"] for fact in tried["retracted"]] == ["Porto"]
    assert len(api.get(f"/v1/users/{user}/facts").json()["items"]) == 1
    assert undo(dry_run=False)["retracted"] == tried["retracted"]
    assert api.get(f"/v1/users/{user}/facts").json()["items"] == []
    unknown = api.post(f"/v1/users/{user}/undo", json={"ids": ["00000000-0000-7000-8000-000000000000"]})
    assert (unknown.status_code, unknown.json()["field"]) == (422, "ids")


def test_extraction_is_repeated_after_a_dry_run_that_changes_nothing(api: httpx.Client, user: str) -> None:
    turn = api.post(f"/v1/users/{user}/turns", json={"messages": "I live in Porto."}).json()
    _mined(api, turn["status_url"])
    for fact in api.get(f"/v1/users/{user}/facts").json()["items"]:
        api.delete(f"/v1/users/{user}/facts/{fact['id']}")
    asked = {"user_id": user, "reason": "a better model"}

    tried = api.post("/v1/reextract", json={**asked, "dry_run": True})
    assert tried.status_code == 201, tried.text
    changes = f"/v1/replays/{tried.json()['id']}/dry-run"
    wait_until_sync(lambda: [each["state"] for each in api.get(changes).json()] == ["done"], description="it was tried")
    assert tried.json()["state"] == "draft"
    api.post(f"/v1/replays/{tried.json()['id']}/abort", json={"note": "a dry run"})
    started = api.post("/v1/reextract", json=asked)

    assert started.json()["state"] in ("running", "done")
    plan = f"/v1/replays/{started.json()['id']}"
    wait_until_sync(lambda: api.get(plan).json()["state"] == "done", description="the plan is done")
    assert api.post("/v1/reextract", json={**asked, "user_id": f"not {user}"}).status_code == 422


def test_a_retention_policy_is_set_tried_carried_out_and_removed(service: Service, user: str) -> None:
    with service.client("other") as api:  # a namespace in which no other test stores anything
        for text in ("first", "second", "third"):
            turn = api.post(f"/v1/users/{user}/turns", json={"messages": text}).json()
            _mined(api, turn["status_url"])
        assert api.get("/v1/retention").json() is None
        assert api.put("/v1/retention", json={}).status_code == 422
        assert api.put("/v1/retention", json={"max_age_seconds": 1}).status_code == 422
        assert api.put("/v1/retention", json={"max_episodes": 2, "archive": "/etc"}).status_code == 422

        assert api.put("/v1/retention", json={"max_episodes": 2}).json()["max_episodes"] == 2
        assert api.post("/v1/retention/run", params={"dry_run": True}).json()["episodes"] == 1
        assert len(api.get(f"/v1/users/{user}/episodes").json()["items"]) == 3
        done = api.post("/v1/retention/run").json()
        assert (done["episodes"], done["is_done"]) == (1, True)
        assert [row["content"] for row in api.get(f"/v1/users/{user}/episodes").json()["items"]] == ["second", "third"]
        assert api.delete("/v1/retention").status_code == 204
        assert api.delete("/v1/retention").status_code == 404


def test_every_access_is_audited_with_the_identity_that_was_authenticated(service: Service, user: str) -> None:
    cookies = {"aftermind_key": service.keys["all"]}
    with service.client() as api:
        api.get(f"/v1/users/{user}/episodes")
        api.get(f"/v1/users/{user}/episodes")
        api.put(f"/v1/users/{user}/blocks/todo", json={"content": "milk"})
        api.get(f"/v1/users/{user}/export")
        api.post(f"/v1/users/{user}/forget", json={"everything": True})
    with httpx.Client(base_url=service.url, cookies=cookies) as browser:
        browser.get(f"/v1/users/{user}/episodes")
        browser.get("/chat", params={"user": user})
        browser.get("/events", params={"user": user})
        entries = browser.get("/v1/audit", params={"user_id": user}).json()
        assert browser.get("/v1/audit/verify").json()["is_whole"] is True

    key = service.keys["all"].split("_")[1]
    by_key, by_session = f"key {key} (all)", f"session of key {key} (all)"
    assert [(entry["actor"], entry["action"], entry["detail"].get("by")) for entry in entries] == [
        (by_key, "read", "/v1/users/{user_id}/episodes"),
        (by_key, "edit", "/v1/users/{user_id}/blocks/{name}"),
        (by_key, "export", "/v1/users/{user_id}/export"),
        (by_key, "erase", None),
        (by_session, "read", "/v1/users/{user_id}/episodes"),
        (by_session, "read", "/chat"),
        (by_session, "read", "/events"),
    ]


def _dead_letter(owner_url: str, user: str) -> UUID:
    async def die() -> UUID:
        connection = await asyncpg.connect(owner_url)
        try:
            return (await Letters(connection).mark_dead(namespace="ours", user=user))[0]
        finally:
            await connection.close()

    return asyncio.run(die())


def test_a_dead_letter_is_shown_after_an_entry_names_the_reader(service: Service, owner_url: str, user: str) -> None:
    job = _dead_letter(owner_url, user)
    with service.client() as api:
        assert api.get(f"/v1/dead-letters/{job}").status_code == 200
        entries = api.get("/v1/audit", params={"user_id": user}).json()
    with service.client("other") as other_tenant:
        assert other_tenant.get(f"/v1/dead-letters/{job}").status_code == 404

    key = service.keys["all"].split("_")[1]
    assert [(entry["actor"], entry["action"], entry["detail"]["job"]) for entry in entries] == [
        (f"key {key} (all)", "read", str(job))
    ]


def test_a_plan_without_extractions_has_no_sample(api: httpx.Client, owner_url: str, user: str) -> None:
    job = _dead_letter(owner_url, user)  # of the kind embed
    new = {"filter": {"ids": [str(job)]}, "name": "p", "reason": "r"}
    plan = api.post("/v1/replays", json=new).json()["id"]

    answers = [api.request(method, f"/v1/replays/{plan}/dry-run") for method in ("POST", "GET")]

    for answer in answers:
        assert answer.status_code == 409, answer.text
        assert "none of its jobs extracts facts" in answer.text


def test_no_operation_of_a_group_serves_a_user_who_is_no_member(service: Service, user: str) -> None:
    bodies = {"turns": {"messages": "Mine."}, "recall": {"query": "heliotrope"}}
    with service.client() as api, service.client("other") as other_tenant:
        paths = api.get("/v1/openapi.json").json()["paths"]
        calls = [
            (method, path, path.rpartition("/")[2])
            for path, methods in paths.items()
            for method, found in methods.items()
            if "{group}" in path and any(each["name"] == "user_id" for each in found["parameters"])
        ]
        for each in ("ann", "bob", "left"):
            role = "reader" if each == "bob" else "writer"
            assert api.put(f"/v1/groups/{user}/members/{each}", json={"role": role}).status_code == 200
        api.post(f"/v1/groups/{user}/turns?user_id=ann", json={"messages": "The heliotrope is ours."})
        api.delete(f"/v1/groups/{user}/members/left")

        assert {each[2] for each in calls} >= {"turns", "recall", "episodes"}
        for method, path, name in calls:
            for client, member, status in (
                (api, "eve", 404),
                (api, "left", 404),
                (api, user, 404),
                (other_tenant, "ann", 404),
                (api, "bob", 403 if name == "turns" else 200),
            ):
                url = path.format(group=user)
                answer = client.request(method, url, params={"user_id": member}, json=bodies.get(name))
                assert answer.status_code == status, (method, path, member, answer.text)
                assert ("heliotrope" in answer.text) is (status == 200), (method, path, member)
            assert api.request(method, path.format(group=user), json=bodies.get(name)).status_code == 422


def test_every_access_to_a_group_is_audited_with_its_member(service: Service, user: str) -> None:
    group = f"/v1/groups/{user}"
    with service.client() as api:
        api.put(f"{group}/members/ann", json={"role": "writer"})
        for _ in range(2):
            api.post(f"{group}/turns?user_id=ann", json={"messages": "Ours."})
            api.get(f"{group}/episodes?user_id=ann")
        api.get(f"{group}/episodes?user_id=eve")
        api.get(f"{group}/members")
        assert [api.delete(f"{group}/members/ann").status_code for _ in range(2)] == [204, 404]
        for bad in ("a%00b", "x" * 600):
            assert api.get(f"{group}/episodes?user_id={bad}").status_code == 422
            assert api.put(f"{group}/members/{bad}", json={"role": "writer"}).status_code == 422
        entries = api.get("/v1/audit", params={"user_id": f"group:{user}"}).json()

    by = "/v1/groups/{group}"
    assert {entry["actor"] for entry in entries} == {f"key {service.keys['all'].split('_')[1]} (all)"}
    assert [(entry["action"], entry["detail"]) for entry in entries] == [
        ("edit", {"member": "ann", "role": "writer"}),
        ("edit", {"member": "ann", "by": f"{by}/turns"}),
        ("read", {"member": "ann", "by": f"{by}/episodes"}),
        ("read", {"member": "eve", "by": f"{by}/episodes"}),
        ("read", {"by": f"{by}/members"}),
        ("edit", {"member": "ann", "removed": True}),
    ]


def test_a_label_of_the_callers_own_is_kept_apart_from_who_it_is(service: Service, owner_url: str, user: str) -> None:
    with service.client() as api:
        planned = []
        for label in ({"actor": "the president"}, {}):
            found = {"filter": {"ids": [str(_dead_letter(owner_url, user))]}}
            plan = api.post("/v1/replays", json={**found, **label, "name": "again", "reason": "a test"})
            planned.append(plan.json()["actor"])
            assert api.post("/v1/dead-letters/discard", json={**found, **label, "note": "a test"}).json() == {
                "discarded": 1
            }
        entries = api.get("/v1/audit", params={"action": "discard", "limit": 2}).json()

    key = f"key {service.keys['all'].split('_')[1]} (all)"
    assert [(entry["actor"], entry["detail"].get("label")) for entry in entries] == [
        (key, "the president"),
        (key, None),
    ]
    assert planned == ["the president", key]


def test_an_erasure_is_verified(api: httpx.Client, user: str) -> None:
    turn = api.post(f"/v1/users/{user}/turns", json={"messages": "a canary sings"}).json()
    _mined(api, turn["status_url"])
    before = api.get(f"/v1/users/{user}/erasure")
    assert before.status_code == 200, before.text
    assert before.json()["is_erased"] is False
    assert any(place["owned"] and not place["is_clean"] for place in before.json()["places"])

    api.post(f"/v1/users/{user}/forget", json={"everything": True})

    after = api.get(f"/v1/users/{user}/erasure").json()
    assert [place for place in after["places"] if not place["is_clean"] and not place["missing"]] == []
    missing = [place["name"] for place in after["places"] if place["missing"]]
    assert after["unsearched"] == missing
    assert after["is_erased"] is (None if missing else True)


def _mined(api: httpx.Client, status_url: str) -> None:
    wait_until_sync(lambda: api.get(status_url).json()["extracted"] in ("done", "not needed"), description="mined")


def test_the_reason_of_a_pause_of_all_namespaces_is_in_the_timelines_of_keys_of_all_namespaces_alone(
    api: httpx.Client, service: Service, user: str
) -> None:
    reason = "because of tenant globex"
    with Memory(settings=service.settings) as memory:
        rights = ["read", "operate", "tenants"]
        _, of_all = memory.api_keys.create("of all", rights=rights, namespace="ours")
        memory.job_admin.pause(kind="extract", reason=reason, actor="root")
        try:
            turn = api.post(f"/v1/users/{user}/turns", json={"messages": "I live in Porto."}).json()
            wait_until_sync(lambda: api.get(turn["status_url"]).json()["stored"] == "done", description="stored")
        finally:
            assert memory.job_admin.resume(kind="extract", actor="root")
    _mined(api, turn["status_url"])

    def read(key: str) -> tuple[str, str]:
        bearer = {"Authorization": f"Bearer {key}"}
        steps = api.get(f"/v1/timelines/{turn['job_id']}", headers=bearer).json()["steps"]
        page = httpx.get(f"{service.url}/jobs/job", params={"id": turn["job_id"]}, cookies={"aftermind_key": key})
        assert page.status_code == 200
        [paused] = [step for step in steps if step["name"] == "paused"]
        assert paused["ended_at"] > paused["at"]
        return paused["detail"], page.text

    detail, page = read(service.keys["all"])
    whole, whole_page = read(of_all)

    assert whole == f"{detail}: {reason} (root); resumed by root"
    assert detail in page
    assert reason not in page
    assert reason in whole_page


def test_a_key_ends_pauses_of_keys_and_none_of_the_command_line(api: httpx.Client, service: Service) -> None:
    assert api.put("/v1/pauses", json={"kind": "profile", "reason": "mine"}).status_code == 204
    assert api.delete("/v1/pauses", params={"kind": "profile"}).status_code == 204

    namespace = api.get("/v1/whoami").json()["namespace"]
    with Memory(settings=service.settings) as memory:  # as the command line does
        memory.job_admin.pause(kind="profile", namespace=namespace, reason="INC-77", actor="root")
        try:
            refused = api.delete("/v1/pauses", params={"kind": "profile"})
            assert (refused.status_code, refused.json()["type"]) == (409, "urn:problem-type:pause-of-operator")
            assert "paused by root" in refused.json()["detail"]
        finally:
            assert memory.job_admin.resume(kind="profile", namespace=namespace, actor="root")
    assert api.delete("/v1/pauses", params={"kind": "profile"}).status_code == 404


def test_a_tenants_key_sees_no_chart_of_what_others_fail_at_and_pay(service: Service, owner_url: str) -> None:
    asyncio.run(_fill_history(owner_url))
    with httpx.Client(base_url=service.url, cookies={"aftermind_key": service.keys["all"]}) as browser:
        page = browser.get("/", params={"hours": 24}).text
        drawn = browser.get("/overview/series", params={"hours": 24}).json()

    assert 'data-chart="waiting"' in page
    assert 'data-chart="errors"' not in page
    assert "invented" not in page
    assert drawn["waiting"]
    assert not {"errors", "cost"} & drawn.keys()


async def _fill_history(owner_url: str) -> None:
    connection = await asyncpg.connect(owner_url)
    try:
        await connection.execute(
            "INSERT INTO aftermind.metric_history (seconds, at, series) "
            "SELECT 60, date_trunc('minute', now()) - minute * interval '1 min', jsonb_build_object("
            "'aftermind_runnable_jobs{kind=\"store\"}', minute, "
            '\'aftermind_failures_total{kind="extract",reason="invented"}\', minute) '
            "FROM generate_series(1, 30) AS minute ON CONFLICT DO NOTHING"
        )
    finally:
        await connection.close()
