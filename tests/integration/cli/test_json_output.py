"""Every command that has a result prints it as JSON, too."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import typer
from typer.testing import CliRunner

from aftermind.cli import FAMILIES, make_app_for
from aftermind.sync import Memory
from aftermind.types.message import Message
from tests.support.dead_letters import Letters
from tests.support.servers import Database

# They run until they are stopped, or print what components have logged.
WITHOUT_RESULT = {"worker", "reconciler", "flower", "web", "mcp", "demo", "logs"}
# What each command must show of what is stored here, or of what it creates.
SHOWN = {
    "facts --user ann": lambda found: found[0]["object"] == "tea",
    "facts --user ann --history": lambda found: found[0]["superseded_at"] is None,
    "facts --user ann --why": lambda found: found[0]["extractor"] == "user",
    "profile --user ann": lambda found: found is None,
    "graph user --user ann": lambda found: found["hops"] == {"user": 0, "tea": 1},
    "recall tea --user ann": lambda found: "tea" in found["text"],
    "recall tea --user ann --explain": lambda found: ("tea" in found["block"]["text"], found["excluded"]) == (True, []),
    "api-keys list": lambda found: (found[0]["name"], sorted(found[0]["rights"])) == ("shop", ["read"]),
    "webhooks list": lambda found: found[0]["url"] == "https://1.1.1.1/",
    "audit list": lambda found: {"read"} <= {each["action"] for each in found},
    "audit verify": lambda found: found[0]["faults"] == [],
    "retention show": lambda found: found["max_age"] == 90 * 86_400,
    "retention run --dry-run": lambda found: found["episodes"] == 0,
    "costs": lambda found: found == [],
    "tenants": lambda found: [each["users"] for each in found] == [1],
    "users": lambda found: [each["user_id"] for each in found] == ["ann"],
    "verify-erasure --user ann": lambda found: (
        (found["is_erased"], any(place["owned"] for place in found["places"])) == (False, True)
    ),
    "replay list": lambda found: found == [],
    "jobs list": lambda found: isinstance(found, list),
    "jobs pauses": lambda found: found == [],
    "jobs processes": lambda found: found == [],
    "metrics": lambda found: found == [],
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

# What commands that change something must print, in this order. `{…}` is a value that an earlier result has.
ACTED = {
    "merge-entities tea chai --user ann": lambda found: found == [],  # no fact is about it
    "jobs pause --reason x --kind embed": lambda found: [each["kind"] for each in found] == ["embed"],
    "jobs resume --kind embed": lambda found: found == [],
    "jobs run-now --kind embed": lambda found: found["changed"] == 0,
    "jobs cancel --note x --kind embed": lambda found: found["changed"] == 0,
    "replay create --because x --user alice --namespace default": lambda found: found["estimate"]["items"] == 2,
    "replay start {plan[id]}": lambda found: found["state"] == "running",
    "replay pause {id}": lambda found: found["state"] == "paused",
    "replay resume {id}": lambda found: found["state"] == "running",
    "replay abort {id}": lambda found: found["state"] == "aborted",
    "dead-letters discard --note x --user alice --namespace default": lambda found: found["discarded"] == 2,
    "jobs restore --user alice --namespace default": lambda found: found["changed"] == 2,
    "retention clear": lambda found: found["removed"] is True,
    "webhooks create https://1.1.1.1/three": lambda found: "secret" in found,
    "webhooks enable {webhook[id]}": lambda found: list(found) == ["enabled"],
    "webhooks delete {enabled}": lambda found: list(found) == ["deleted"],
    "api-keys create desk": lambda found: "text" in found,
    "api-keys revoke {key[id]}": lambda found: list(found) == ["revoked"],
    "reextract --user nobody --dry-run": lambda found: found == [],
    "reembed start --to hash --dimension 128 --dry-run": lambda found: found["target"]["dimension"] == 128,
    "redis-acl": lambda found: all(each["line"].startswith(f"user {each['user']} ") for each in found),
    "secrets {tmp}/secrets": lambda found: found["files_written"] > 10,
    "export --user ann --to {tmp}/ann.json": lambda found: found["episodes"] == 1,
    "ingest --no-wait {tmp}/ann.json {tmp}/bad.jsonl": lambda found: (found["queued"], len(found["bad"])) == (1, 1),
    "forget --user ann --yes": lambda found: found["rows"]["facts"] > 0,
    "forget --user bob --prove --yes": lambda found: (  # the application's role cannot read every table
        [found["proof"][when]["is_erased"] for when in ("before", "after")] == [False, None]
        and "table replay_plans" in found["proof"]["after"]["unsearched"]
    ),
    "down": lambda found: found == [],
    "stack destroy --yes": lambda found: list(found) == ["removed"],
}


def test_every_command_with_a_result_has_the_option() -> None:
    def commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:  # Any: typer brings its own click
        for name, each in group.commands.items():
            if isinstance(each, typer.core.TyperGroup):
                yield from commands(each, f"{path}{name} ")
            else:
                yield f"{path}{name}", each

    every = dict(commands(typer.main.get_command(make_app_for(FAMILIES)), ""))

    without = {name for name, each in every.items() if not any("--json" in option.opts for option in each.params)}
    assert len(every) > 70
    assert without == WITHOUT_RESULT


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
    (tmp_path / "bad.jsonl").write_text("no JSON\n")

    wrong: dict[str, Any] = {}
    found: Any = {}  # Any: JSON
    for command, is_shown in (*SHOWN.items(), *ACTED.items()):
        if command == "replay create --because x --user alice --namespace default":
            asyncio.run(_mark_dead(database.url))
        named = found if isinstance(found, dict) else {}
        try:
            done = runner.invoke(app, [*command.format(**{"tmp": tmp_path, **named}).split(), "--json"])
            found = json.loads(done.stdout)
        except ValueError:
            wrong[command] = (done.exit_code, done.output[-500:], repr(done.exception))
            continue
        try:
            is_right = is_shown(found)
        except (LookupError, TypeError):
            is_right = False
        if not is_right:
            wrong[command] = found

    assert wrong == {}


async def _mark_dead(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await Letters(connection).mark_dead(2)
    finally:
        await connection.close()


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
