"""The JSON API over a real service: what a client without Python would do."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from aftermind.web import schemas
from tests.support.deployed_service import Service
from tests.support.waiting import wait_until_sync

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture
def api(service: Service) -> httpx.Client:
    with service.client() as client:
        yield client


def test_a_turn_is_taken_at_once_and_recalled_by_the_very_next_call(api: httpx.Client, user: str) -> None:
    taken = api.post(f"/v1/users/{user}/turns", json={"messages": "My ferret is called Biscuit."})

    assert taken.status_code == 202
    assert set(taken.json()) == {"job_id", "episode_ids", "spooled", "status_url"}
    block = api.post(f"/v1/users/{user}/recall", json={"query": "What is my ferret called?"}).json()
    assert "Biscuit" in block["text"]
    assert block["degraded"] is None
    assert block["matches"][0]["item"]["content"] == "My ferret is called Biscuit."
    assert block["matches"][0]["kind"] == "episode"


def test_what_a_recall_answers_is_the_json_of_its_schema(api: httpx.Client, user: str) -> None:
    long = {"role": "user", "content": "The ferret eats. " * 400, "metadata": {"weight_kg": 1.5, "tags": ["a"]}}
    api.post(f"/v1/users/{user}/turns", json={"messages": [long, "My ferret is called Biscuit."], "session_id": "s"})
    api.post(f"/v1/users/{user}/facts", json={"subject": "ferret", "predicate": "called", "object": "Biscuit"})
    api.put(f"/v1/users/{user}/blocks/pets", json={"content": "One ferret."})
    asked = {"query": "What is my ferret called?", "token_budget": 20_000}

    block = api.post(f"/v1/users/{user}/recall", json=asked)
    scored = api.post(f"/v1/users/{user}/recall/scored", json=asked)

    assert block.headers["content-type"] == scored.headers["content-type"] == "application/json"
    read = schemas.RecallOut.model_validate_json(block.content)
    assert read.model_dump_json().encode() == block.content
    assert {"episode", "fact"} <= {each.kind for each in read.matches}
    matches = TypeAdapter(list[schemas.MatchOut])
    assert matches.dump_json(matches.validate_json(scored.content)) == scored.content
    assert {each["kind"] for each in scored.json()} >= {"episode"}


BY_FASTAPI = {"anonymous": "false"}  # a recall with a query string is not answered by `DirectRecall`


@pytest.mark.parametrize("suffix", ["", "/scored"])
def test_a_recall_is_answered_alike_with_and_without_fastapi(api: httpx.Client, user: str, suffix: str) -> None:
    api.post(f"/v1/users/{user}%2Fa/turns", json={"messages": ["My ferret is called Biscuit.", "Bo has a cat."]})
    path, now = f"/v1/users/{user}%2Fa/recall{suffix}", datetime.now(UTC) + timedelta(minutes=1)
    asked = {"query": "Which ferret?", "limit": 5, "roles": ["user"], "until": now.isoformat(), "load": ["history"]}

    direct, plain = api.post(path, json=asked), api.post(path, json=asked, params=BY_FASTAPI)

    assert direct.status_code == plain.status_code == 200
    found, expected = direct.json(), plain.json()
    matches, expected_matches = (found, expected) if suffix else (found["matches"], expected["matches"])
    assert [each["item"]["content"] for each in matches] == [each["item"]["content"] for each in expected_matches]
    assert "My ferret is called Biscuit." in [each["item"]["content"] for each in matches]
    assert suffix or found["text"] == expected["text"]
    assert direct.headers.keys() == plain.headers.keys()


@pytest.mark.parametrize("suffix", ["", "/scored"])
@pytest.mark.parametrize(
    ("owner", "body"),
    [
        ("u", b'{"query": "x", "limit": 0}'),
        ("u", b'{"query": "x", "limits": 1}'),
        ("u", b'{"query": 7}'),
        ("u", b'{"query": "x", "since": "2026-01-01T00:00:00"}'),
        ("u", b'{"query": "\\ud800"}'),
        ("u", b'{"query": "x"'),
        ("u", b"[]"),
        ("u", b""),
        ("u%00", b'{"query": "x"}'),
        ("group:g", b'{"query": "x"}'),
        ("u" * 513, b'{"query": "x"}'),
    ],
)
def test_an_invalid_recall_has_the_same_problem_with_and_without_fastapi(
    api: httpx.Client, owner: str, body: bytes, suffix: str
) -> None:
    path, headers = f"/v1/users/{owner}/recall{suffix}", {"Content-Type": "application/json"}

    direct = api.post(path, content=body, headers=headers)
    plain = api.post(path, content=body, headers=headers, params=BY_FASTAPI)

    assert (direct.status_code, direct.json()) == (plain.status_code, plain.json())
    assert 400 <= direct.status_code < 500


def test_a_recall_needs_the_right_to_read(service: Service, user: str) -> None:
    with service.client("write") as writer:
        direct = writer.post(f"/v1/users/{user}/recall", json={"query": "x"})
        plain = writer.post(f"/v1/users/{user}/recall", json={"query": "x"}, params=BY_FASTAPI)

    assert (direct.status_code, direct.json()) == (plain.status_code, plain.json())
    assert direct.status_code == 403


def test_a_receipt_can_be_followed_to_its_end(api: httpx.Client, user: str) -> None:
    taken = api.post(f"/v1/users/{user}/turns", json={"messages": ["I live in Porto."], "session_id": "one"}).json()

    def status() -> dict[str, Any]:
        found: dict[str, Any] = api.get(taken["status_url"]).json()
        return found

    assert status()["stored"] in ("waiting", "done")
    wait_until_sync(lambda: status()["extracted"] == "done", description="the turn is mined")
    assert status() == {"stored": "done", "embedded": "not needed", "extracted": "done", "why": None}  # stored with it
    assert api.get(f"/v1/users/{user}/turns/{user_of_nobody()}").status_code == 404
    facts = api.get(f"/v1/users/{user}/facts").json()["items"]
    assert [(fact["predicate"], fact["object"]) for fact in facts] == [("lives_in", "Porto")]
    why = api.get(f"/v1/users/{user}/facts/{facts[0]['id']}/why").json()
    assert [episode["content"] for episode in why["episodes"]] == ["I live in Porto."]
    jobs = api.get(f"/v1/users/{user}/jobs", params={"state": "done"}).json()["items"]
    assert {job["kind"] for job in jobs} >= {"store", "extract"}
    assert api.get(f"/v1/users/{user}/jobs/{jobs[0]['id']}").json() == jobs[0]


def test_the_address_of_a_receipt_is_spelt_as_an_address(api: httpx.Client) -> None:
    taken = api.post("/v1/users/a%3Fb%23c%2541/turns", json={"messages": "hello"}).json()

    assert taken["status_url"].startswith("/v1/users/a%3Fb%23c%2541/turns/")
    assert api.get(taken["status_url"]).status_code == 200


def test_the_same_idempotency_key_is_the_same_turn(api: httpx.Client, user: str) -> None:
    first, second = (
        api.post(f"/v1/users/{user}/turns", json={"messages": "once"}, headers={"Idempotency-Key": "k-1"}).json()
        for _ in range(2)
    )

    assert first["job_id"] == second["job_id"]
    wait_until_sync(lambda: api.get(first["status_url"]).json()["stored"] == "done", description="stored")
    assert len(api.get(f"/v1/users/{user}/episodes").json()["items"]) == 1


def test_the_same_idempotency_key_with_other_content_is_refused(api: httpx.Client, user: str) -> None:
    def post(content: str, session: str) -> httpx.Response:
        body = {"messages": content, "session_id": session}
        return api.post(f"/v1/users/{user}/turns", json=body, headers={"Idempotency-Key": "k-1"})

    first = post("once", "s1")
    while_pending = [post("twice", "s1"), post("once", "s2")]
    wait_until_sync(
        lambda: api.get(first.json()["status_url"]).json()["stored"] == "done", description="stored", timeout=20
    )
    after = [post("twice", "s1"), post("once", "s2")]

    assert [each.status_code for each in (*while_pending, *after)] == [422] * 4
    assert "idempotency" in after[0].json()["type"]
    assert post("once", "s1").json()["job_id"] == first.json()["job_id"]
    assert [each["content"] for each in api.get(f"/v1/users/{user}/episodes").json()["items"]] == ["once"]


def test_episodes_are_paged_back_in_time_without_a_gap_or_a_double(api: httpx.Client, user: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    said = [
        {"role": "user", "content": f"message {n}", "occurred_at": (start + timedelta(minutes=n)).isoformat()}
        for n in range(25)
    ]
    api.post(f"/v1/users/{user}/turns", json={"messages": said, "session_id": "s"})

    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": 10, "session_id": "s"} | ({"cursor": cursor} if cursor else {})
        page = api.get(f"/v1/users/{user}/episodes", params=params).json()
        seen = [episode["content"] for episode in page["items"]] + seen
        cursor = page["next"]
        if cursor is None:
            break

    assert seen == [f"message {n}" for n in range(25)]


def test_facts_are_told_paged_and_taken_back(api: httpx.Client, user: str) -> None:
    for n in range(20):
        told = api.post(f"/v1/users/{user}/facts", json={"subject": "user", "predicate": "likes", "object": f"tea {n}"})
        assert told.status_code == 201

    first = api.get(f"/v1/users/{user}/facts", params={"limit": 4}).json()
    api.post(f"/v1/users/{user}/facts", json={"subject": "user", "predicate": "likes", "object": "coffee"})
    seen, cursor = list(first["items"]), first["next"]
    while cursor is not None:
        page = api.get(f"/v1/users/{user}/facts", params={"limit": 4, "cursor": cursor}).json()
        seen, cursor = [*seen, *page["items"]], page["next"]
    assert [fact["object"] for fact in seen] == [f"tea {n}" for n in reversed(range(20))]

    gone = first["items"][0]["id"]
    assert api.delete(f"/v1/users/{user}/facts/{gone}").status_code == 204
    assert api.delete(f"/v1/users/{user}/facts/{gone}").status_code == 404
    rows = api.get(f"/v1/users/{user}/facts", params={"history": True}).json()["items"]
    assert next(row for row in rows if row["id"] == gone)["superseded_at"] is not None


def test_a_block_is_edited_under_its_version(api: httpx.Client, user: str) -> None:
    path = f"/v1/users/{user}/blocks/todo"
    made = api.put(path, json={"content": "milk"}, headers={"If-Match": '"0"'})
    assert (made.status_code, made.headers["etag"]) == (200, '"1"')

    assert api.post(f"{path}/append", json={"content": "eggs"}).json()["content"] == "milk\neggs"
    replaced = api.post(f"{path}/replace", json={"old": "milk", "new": "tea"})
    assert replaced.json()["version"] == 3
    late = api.put(path, json={"content": "mine"}, headers={"If-Match": '"1"'})
    assert (late.status_code, late.json()["type"]) == (409, "urn:problem-type:block-conflict")
    assert api.get(path).json()["content"] == "tea\neggs"
    assert [block["name"] for block in api.get(f"/v1/users/{user}/blocks").json()] == ["todo"]
    assert api.delete(path).status_code == 204
    assert api.get(path).status_code == 404


def test_an_answer_from_a_recall_before_an_erasure_is_not_stored(api: httpx.Client, user: str) -> None:
    api.post(f"/v1/users/{user}/turns", json={"messages": "My PIN is 4711."})
    found = api.post(f"/v1/users/{user}/recall", json={"query": "What is my PIN?"}).json()
    assert api.post(f"/v1/users/{user}/forget", json={"everything": True}).status_code == 200

    answer = [{"role": "assistant", "content": "It is 4711."}]
    turn = api.post(f"/v1/users/{user}/turns", json={"messages": answer, "recalled": found["last_erasure"]}).json()

    wait_until_sync(lambda: api.get(turn["status_url"]).json()["stored"] == "forgotten", description="it is dropped")
    assert api.get(f"/v1/users/{user}/episodes").json()["items"] == []
    assert api.post(f"/v1/users/{user}/turns", json={"messages": "x", "recalled": -1}).status_code == 422


def test_a_user_is_exported_and_forgotten_and_everything_has_to_be_said(api: httpx.Client, user: str) -> None:
    turn = api.post(f"/v1/users/{user}/turns", json={"messages": "a canary sings"}).json()
    wait_until_sync(lambda: api.get(turn["status_url"]).json()["extracted"] == "done", description="mined")

    whole = api.get(f"/v1/users/{user}/export").json()
    assert [episode["content"] for episode in whole["episodes"]] == ["a canary sings"]
    assert whole["vectors"] == {}
    [vector] = api.get(f"/v1/users/{user}/export", params={"vectors": True}).json()["vectors"].values()
    assert all(isinstance(number, float) for number in vector)
    assert api.post(f"/v1/users/{user}/forget", json={}).status_code == 422
    done = api.post(f"/v1/users/{user}/forget", json={"everything": True})
    assert done.json()["rows"]["episodes"] == 1
    assert api.get(f"/v1/users/{user}/episodes").json() == {"items": [], "next": None}
    assert not api.post(f"/v1/users/{user}/recall", json={"query": "canary"}).json()["matches"]


def test_rows_of_a_user_can_be_had_as_they_are(api: httpx.Client, user: str) -> None:
    api.post(f"/v1/users/{user}/turns", json={"messages": ["I love chess."], "session_id": "games"})
    wait_until_sync(
        lambda: [row["state"] for row in api.get(f"/v1/users/{user}/extraction").json()] == ["facts"],
        description="mined",
    )

    assert [row["session_id"] for row in api.get(f"/v1/users/{user}/sessions").json()["items"]] == ["games"]
    group, me = f"/v1/groups/of%20{user}", {"user_id": user}
    assert api.put(f"{group}/members/{user}", json={"role": "writer"}).json()["role"] == "writer"
    assert api.put(f"{group}/members/other", json={"role": "reader"}).status_code == 200
    assert api.post(f"{group}/turns", params=me, json={"messages": "The heliotrope is ours."}).status_code == 202
    assert api.post(f"{group}/turns?user_id=other", json={"messages": "No."}).status_code == 403
    assert "heliotrope" in api.post(f"{group}/recall?user_id=other", json={"query": "heliotrope"}).json()["text"]
    assert [row["content"] for row in api.get(f"{group}/episodes", params=me).json()] == ["The heliotrope is ours."]
    assert [each["user_id"] for each in api.get(f"{group}/members").json()] == sorted(["other", user])
    assert [api.delete(f"{group}/members/other").status_code for _ in range(2)] == [204, 404]
    assert api.get(f"{group}/episodes?user_id=other").status_code == 404
    assert api.get(f"/v1/users/group:of%20{user}/episodes").status_code == 422
    mine = {"group": f"of {user}", "everything": True}
    assert api.post("/v1/users/other/forget", json=mine).json()["rows"]["episodes"] == 0
    assert api.post(f"/v1/users/{user}/forget", json=mine).json()["rows"]["episodes"] == 1
    assert api.get(f"{group}/episodes", params=me).json() == []
    assert [row["content"] for row in api.get(f"/v1/users/{user}/episodes").json()["items"]] != []
    assert api.delete(group).json()["rows"] is not None
    assert api.get(f"{group}/episodes", params=me).status_code == 404
    window = api.get(f"/v1/users/{user}/context", params={"session_id": "games", "summary": "true"}).json()
    assert [row["content"] for row in window["episodes"]] == ["I love chess."]
    assert api.patch(f"/v1/users/{user}/session-metadata?session_id=games", json={"a": 1}).json() == {"a": 1}
    assert api.get(f"/v1/users/{user}/session-metadata?session_id=games").json() == {"a": 1}
    run = f"/v1/users/{user}/checkpoints/run%2F1"
    assert api.put(run, json={"state": {"n": 1}, "session_id": "games"}).json()["resumed_at"] is None
    assert [each["run_id"] for each in api.get(f"/v1/users/{user}/checkpoints").json()] == ["run/1"]
    answers = [api.post(f"{run}/resume?session_id=games").status_code for _ in range(2)]
    assert (answers, api.get(f"{run}?session_id=games").json()["state"]) == ([200, 409], {"n": 1})
    assert [api.delete(f"{run}?session_id=games").status_code for _ in range(2)] == [204, 404]
    assert api.get(f"/v1/users/{user}/progress").json()["episodes"] == 1
    assert api.get(f"/v1/users/{user}/profile").status_code == 200
    assert api.get(f"/v1/users/{user}/summary", params={"session_id": "games"}).status_code == 200
    assert api.get(f"/v1/users/{user}/spending").status_code == 200
    scored = api.post(f"/v1/users/{user}/recall/scored", json={"query": "chess"}).json()
    assert scored[0]["rank"] == 1
    assert 0 < scored[0]["score"] <= 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": {"role": "nobody", "content": "x"}}, "role"),
        ({"messages": {"role": "user", "content": ""}}, "content"),
        ({"messages": "x", "session_id": "\x00"}, "session_id"),
    ],
)
def test_bad_input_is_a_problem_that_names_the_field(
    api: httpx.Client, user: str, body: dict[str, Any], field: str
) -> None:
    answer = api.post(f"/v1/users/{user}/turns", json=body)

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["field"] == field
    assert answer.json()["detail"]


def test_what_does_not_fit_the_schema_is_told_without_its_value(api: httpx.Client, user: str) -> None:
    answer = api.post(f"/v1/users/{user}/recall", json={"query": "x", "limit": "a secret"})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "body.limit"
    assert "a secret" not in answer.text


def test_a_misspelt_field_of_a_body_is_refused_with_the_nearest_one(api: httpx.Client, user: str) -> None:
    misspelt = api.post(f"/v1/users/{user}/recall", json={"query": "x", "token_budgets": 3})
    unknown = api.post(f"/v1/users/{user}/recall", json={"query": "x", "colour": "red"})

    assert [(answer.status_code, answer.json()["errors"][0]["field"]) for answer in (misspelt, unknown)] == [
        (422, "body.token_budgets"),
        (422, "body.colour"),
    ]
    assert "Did you mean token_budget?" in misspelt.json()["detail"]
    assert "The fields are query, " in unknown.json()["detail"]


@pytest.mark.parametrize("bad", ["\x00", "\ud800"])
def test_text_that_no_database_keeps_is_a_problem_of_the_request(api: httpx.Client, user: str, bad: str) -> None:
    plan = {"filter": {"error": bad}, "name": "n", "reason": "r", "actor": "a"}
    asked = [
        ("/v1/replays", plan),
        ("/v1/replays", {**plan, "filter": {}, "name": bad}),
        ("/v1/dead-letters/discard", {"filter": {"reasons": [bad]}, "note": "n", "actor": "a"}),
        (f"/v1/users/{user}/facts", {"subject": "x", "predicate": bad, "object": "z"}),
        (f"/v1/users/{user}/forget", {"session_id": bad}),
    ]
    header = {"Content-Type": "application/json"}
    filtered = {"query": "x", "metadata": {"k": bad}}  # cleaned as the metadata of messages is
    answers = [(path, api.post(path, content=json.dumps(body), headers=header)) for path, body in asked]

    assert [(path, answer.status_code) for path, answer in answers if answer.status_code != 422] == []
    assert not [path for path, answer in answers if "dictionary or object" in answer.text]
    cleaned = api.post(f"/v1/users/{user}/recall", content=json.dumps(filtered), headers=header)
    assert (cleaned.status_code, cleaned.json()["degraded"]) == (200, None)


def test_a_body_without_end_is_refused(api: httpx.Client, user: str) -> None:
    def endless() -> Any:
        for _ in range(40):
            yield b" " * 1_000_000

    answer = api.post(f"/v1/users/{user}/turns", content=endless(), headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["type"]) == (413, "urn:problem-type:http-413")


def test_another_sites_page_can_send_nothing(api: httpx.Client, user: str) -> None:
    for headers in ({"Origin": "https://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = api.post(f"/v1/users/{user}/turns", json={"messages": "x"}, headers=headers)
        assert answer.status_code == 403

    own = api.post(f"/v1/users/{user}/turns", json={"messages": "x"}, headers={"Origin": str(api.base_url)})
    assert own.status_code == 202


def user_of_nobody() -> str:
    return "00000000-0000-7000-8000-000000000000"


def test_the_facts_around_an_entity_are_a_graph(api: httpx.Client, user: str) -> None:
    for subject, predicate, object_ in (("Ann", "married_to", "Bob"), ("Bob", "works_at", "Acme")):
        api.post(f"/v1/users/{user}/facts", json={"subject": subject, "predicate": predicate, "object": object_})

    near = api.get(f"/v1/users/{user}/entities/graph", params={"entity": "ann", "hops": 1}).json()
    far = api.get(f"/v1/users/{user}/entities/graph", params={"entity": "ann"}).json()
    refused = api.get(f"/v1/users/{user}/entities/graph", params={"entity": "ann", "hops": 6})

    assert [fact["object"] for fact in near["facts"]] == ["Bob"]
    assert far["hops"] == {"ann": 0, "Bob": 1, "Acme": 2}
    assert refused.status_code == 422


def test_names_of_one_entity_are_merged(api: httpx.Client, user: str) -> None:
    api.post(f"/v1/users/{user}/facts", json={"subject": "Mel", "predicate": "likes", "object": "tea"})

    merged = api.post(f"/v1/users/{user}/entities/merge", json={"entity": "Melanie", "aliases": ["Mel"]})
    refused = api.post(f"/v1/users/{user}/entities/merge", json={"entity": "Melanie", "aliases": []})

    assert merged.status_code == 200
    assert [(fact["subject"], fact["object"]) for fact in merged.json()] == [("Melanie", "tea")]
    assert refused.status_code == 422


def test_a_misspelt_parameter_is_refused_and_not_ignored(api: httpx.Client, user: str) -> None:
    api.post(f"/v1/users/{user}/turns", json={"messages": ["I live in Porto."], "session_id": "one"})

    misspelt = api.get(f"/v1/users/{user}/episodes", params={"sesion_id": "two"})
    unknown = api.get(f"/v1/users/{user}/profile", params={"colour": "red"})

    assert (misspelt.status_code, misspelt.json()["field"]) == (422, "sesion_id")
    assert "Did you mean session_id?" in misspelt.json()["detail"]
    assert (unknown.status_code, unknown.json()["field"]) == (422, "colour")
    assert api.get(f"/v1/users/{user}/episodes", params={"session_id": "two"}).json()["items"] == []
