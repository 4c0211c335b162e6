"""Commands that show or create something print it as JSON, too."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aftermind.cli import FAMILIES, make_app_for
from aftermind.sync import Memory
from aftermind.types.message import Message
from tests.support.servers import Database

# What each command must show of what is stored here, or of what it creates.
SHOWN = {
    "facts --user ann": lambda found: found[0]["object"] == "tea",
    "facts --user ann --history": lambda found: found[0]["superseded_at"] is None,
    "facts --user ann --why": lambda found: found[0]["extractor"] == "user",
    "graph user --user ann": lambda found: found["hops"] == {"user": 0, "tea": 1},
    "recall tea --user ann": lambda found: "tea" in found["text"],
    "api-keys list": lambda found: (found[0]["name"], sorted(found[0]["rights"])) == ("shop", ["read"]),
    "webhooks list": lambda found: found[0]["url"] == "https://1.1.1.1/",
    "audit list": lambda found: {"read"} <= {each["action"] for each in found},
    "audit verify": lambda found: found[0]["faults"] == [],
    "retention show": lambda found: found["max_age"] == 90 * 86_400,
    "retention run --dry-run": lambda found: found["episodes"] == 0,
    "costs": lambda found: found == [],
    "tenants": lambda found: [each["users"] for each in found] == [1],
    "users": lambda found: [each["user_id"] for each in found] == ["ann"],
    "verify-erasure --user ann": lambda found: any(place["owned"] for place in found["places"]),
    "replay list": lambda found: found == [],
    "jobs list": lambda found: isinstance(found, list),
    "jobs pauses": lambda found: found == [],
    "jobs processes": lambda found: found == [],
    "jobs latency": lambda found: isinstance(found, list),
    "health": lambda found: found["parts"][0]["state"] == "ok",
    "dead-letters list": lambda found: found == [],
    "dead-letters stats": lambda found: found == [],
    "reembed status": lambda found: found["counts"]["episodes"] == 0,
    "api-keys create till": lambda found: (found["key"]["name"], bool(found["text"])) == ("till", True),
    "webhooks create https://1.1.1.1/two": lambda found: (
        (found["webhook"]["url"][-3:], bool(found["secret"])) == ("two", True)
    ),
    "retention set --max-age 30d": lambda found: found["max_age"] == 30 * 86_400,
    "remember tea --user ann": lambda found: (len(found["episode_ids"]), found["spooled"]) == (1, False),
}


def test_commands_print_json(
    database: Database, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("DATABASE_URL", database.app_url),
        ("RELAY_URL", database.relay_url),
        ("BROKER_URL", redis_url),
        ("STATE_DIR", str(tmp_path)),
    ):
        monkeypatch.setenv(f"AFTERMIND_{name}", value)
    with Memory() as memory:
        memory.facts.add("user", "likes", "tea", user_id="ann")
        memory.remember(Message.user("tea, please"), user_id="bob")
        memory.api_keys.create("shop", rights=["read"])
        memory.webhooks.create("https://1.1.1.1/")
    runner, app = CliRunner(), make_app_for(FAMILIES)
    set_policy = runner.invoke(app, ["retention", "set", "--max-age", "90d"])
    assert set_policy.exit_code == 0, set_policy.output

    wrong: dict[str, Any] = {}
    for command, is_shown in SHOWN.items():
        done = runner.invoke(app, [*command.split(), "--json"])
        try:
            found = json.loads(done.stdout)
        except ValueError:
            wrong[command] = (done.exit_code, done.output[-500:], repr(done.exception))
            continue
        if not is_shown(found):
            wrong[command] = found

    assert wrong == {}


def test_wide_tables_have_whole_ids_and_beliefs(
    database: Database, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("DATABASE_URL", database.app_url), ("BROKER_URL", redis_url), ("STATE_DIR", str(tmp_path))):
        monkeypatch.setenv(f"AFTERMIND_{name}", value)
    with Memory() as memory:
        memory.facts.add("user", "lives_in", "Oslo", user_id="ann")
        memory.facts.add("user", "lives_in", "Bergen", user_id="ann")

    shown = CliRunner().invoke(make_app_for(FAMILIES), ["facts", "--user", "ann", "--history", "--wide"]).output

    rows = [line for line in shown.splitlines() if "Oslo" in line]
    assert "superseded" in shown.splitlines()[0]
    assert len(rows) == 2  # believed without an end, then with the end
    assert len({row.split("Oslo")[1] for row in rows}) == 2
