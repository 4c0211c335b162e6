"""Commands on a store without servers: what is kept, and at which time it was known."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from aftermind import Memory, Message, Settings
from tests.support.fork_server import run_module
from tests.support.learning import AT_ONCE

JUNE = datetime(2026, 6, 1, tzinfo=UTC)

LEARNS_AT_ONCE = Settings(**AT_ONCE)


def command(store: str, *argv: str) -> "CompletedProcess[str]":
    """Run `aftermind` with this store."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AFTERMIND_")}
    env |= {f"AFTERMIND_{name.upper()}": str(value) for name, value in AT_ONCE.items()}
    return run_module(["aftermind.cli", *argv], env=env | {"AFTERMIND_DATABASE_URL": store, "COLUMNS": "120"})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with two messages of Ann, some weeks apart."""
    return f"sqlite:{tmp_path_factory.mktemp('kept') / 'memory.db'}"


@pytest.fixture
async def stored(store: str) -> datetime:
    """When everything was stored."""
    async with Memory(store, embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        for content, role, day in (
            ("I live in Oslo.", Message.user, 0),
            ("Oslo is cold in winter.", Message.assistant, 40),
        ):
            message = role(content, occurred_at=JUNE + timedelta(days=day))
            receipt = await memory.remember([message], user_id="ann", idempotency_key=content)
            await receipt.extracted(timeout=30)
    return datetime.now(UTC)


@pytest.mark.parametrize("url", ["inmemory", "vector"])
@pytest.mark.parametrize("argv", [("remember", "Hello.", "--user", "ann"), ("ingest", "--sample"), ("users",)])
def test_a_command_refuses_a_store_that_ends_with_it(url: str, argv: tuple[str, ...]) -> None:
    done = command(url, *argv)

    assert done.returncode == 2, done.stderr
    assert f"AFTERMIND_DATABASE_URL='{url}'" in done.stderr
    assert "sqlite:./memory.db" in done.stderr
    assert "Remembered" not in done.stdout


def test_recall_takes_the_filters_of_the_python_call(store: str, stored: datetime) -> None:
    everything = command(store, "recall", "Oslo", "--user", "ann").stdout
    of_user = command(store, "recall", "Oslo", "--user", "ann", "--role", "user").stdout
    later = command(store, "recall", "Oslo", "--user", "ann", "--since", "2026-07-01").stdout
    earlier = command(store, "recall", "Oslo", "--user", "ann", "--until", "2026-07-01").stdout

    assert "I live in Oslo." in everything
    assert "cold in winter" in everything
    assert "I live in Oslo." in of_user
    assert "cold in winter" not in of_user
    assert "I live in Oslo." not in later
    assert "cold in winter" in later
    assert "I live in Oslo." in earlier
    assert "cold in winter" not in earlier


def test_facts_and_recall_show_the_memory_as_it_was_known(store: str, stored: datetime) -> None:
    before, after = "2026-01-01T00:00:00", (stored + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%S")

    assert "oslo" in command(store, "facts", "--user", "ann", "--known-at", after).stdout.casefold()
    assert "No facts match" in command(store, "facts", "--user", "ann", "--known-at", before).stdout
    assert "cold in winter" in command(store, "recall", "Oslo", "--user", "ann", "--known-at", after).stdout
    assert "cold in winter" not in command(store, "recall", "Oslo", "--user", "ann", "--known-at", before).stdout


@pytest.mark.parametrize("option", ["--as-of", "--known-at"])
def test_a_time_is_a_date_its_beginning_or_how_long_ago(store: str, stored: datetime, option: str) -> None:
    found = {
        given: command(store, "facts", "--user", "ann", option, given).stdout.casefold()
        for given in ("0d", "2020", "2020-10")
    }
    refused = command(store, "facts", "--user", "ann", option, "last-year")

    assert "oslo" in found["0d"]
    assert "oslo" not in found["2020"] + found["2020-10"]
    assert refused.returncode != 0
    assert "2026-01-31" in refused.stderr


@pytest.mark.parametrize("option", ["--as-of", "--known-at"])
def test_the_history_of_facts_refuses_a_time(store: str, stored: datetime, option: str) -> None:
    done = command(store, "facts", "--user", "ann", "--history", option, "2026-01-01")

    assert done.returncode != 0
    assert "--history shows facts of every time. Leave the time out." in " ".join(done.stderr.split())


def test_a_memory_without_a_store_names_the_setting() -> None:
    done = command("", "users")

    assert done.returncode != 0
    assert "AFTERMIND_DATABASE_URL" in done.stderr
    assert "url=None" not in done.stderr
    assert "AFTERMIND_STATE_DIR" in done.stderr


def test_recall_takes_a_session_metadata_and_a_threshold(tmp_path: Path) -> None:
    store, file = f"sqlite:{tmp_path / 'memory.db'}", tmp_path / "chats.jsonl"
    chats = [
        {"user_id": "ann", "session_id": name, "metadata": {"topic": name}, "messages": [said(f"Oslo in {name}.")]}
        for name in ("spring", "autumn")
    ]
    file.write_text("\n".join(map(json.dumps, chats)))
    assert command(store, "ingest", str(file)).returncode == 0

    def recall(*options: str) -> str:
        return command(store, "recall", "Oslo", "--user", "ann", *options).stdout

    assert all(name in recall() for name in ("spring", "autumn"))
    for options in (("--in-session", "spring"), ("--metadata", 'topic="spring"')):
        assert "spring" in recall(*options)
        assert "autumn" not in recall(*options)
    assert "No matches" in recall("--min-score", "1", "--in-session", "winter")
    assert recall("--limit", "1").count("Oslo in") == 1
    assert "Oslo in" in recall("--since", "30d")
    assert "Oslo in" not in recall("--until", "30d")
    refused = command(store, "recall", "Oslo", "--user", "ann", "--metadata", "topic=spring")
    assert refused.returncode == 2
    assert "--metadata 'name=" in refused.stderr


def test_a_tenant_is_exported_and_comes_back_into_its_namespace(tmp_path: Path) -> None:
    first, second = (f"sqlite:{tmp_path / name}" for name in ("first.db", "second.db"))
    file, taken = tmp_path / "chats.jsonl", tmp_path / "acme.jsonl"
    users = ["ann", "bob", None]
    file.write_text("\n".join(json.dumps({"user_id": user, "messages": [said(f"I am {user}.")]}) for user in users))
    assert command(first, "ingest", str(file), "--namespace", "acme").returncode == 0
    assert command(first, "remember", "I am of another tenant.", "--user", "eve").returncode == 0

    exported = command(first, "export", "--all-users", "--namespace", "acme", "--to", str(taken))
    lines = command(first, "export", "--all-users", "--namespace", "acme").stdout.splitlines()
    refused = command(first, "export", "--all-users", "--user", "ann")
    ingested = command(second, "ingest", str(taken))
    listed = {space: command(second, "users", "--namespace", space).stdout for space in ("acme", "default")}
    elsewhere = command(second, "ingest", str(taken), "--namespace", "other")

    assert "3 messages and" in exported.stdout, exported.stderr
    assert taken.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line)["scope"]["user_id"] for line in lines] == [None, "ann", "bob"]
    assert refused.returncode == 2
    assert ingested.returncode == 0, ingested.stderr
    assert all(name in listed["acme"] for name in ("(anonymous)", "ann", "bob"))
    assert "No users." in listed["default"]
    assert elsewhere.returncode == 0
    assert "ann" in command(second, "users", "--namespace", "other").stdout


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_doctor_names_variables_that_are_no_settings(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AFTERMIND_")}
    named = {"AFTERMIND_DATABASE_URL": f"sqlite:{tmp_path / 'memory.db'}", "AFTERMIND_EMBEDER": "hash"}
    done = run_module(["aftermind.cli", "doctor"], env=env | named, cwd=tmp_path)

    assert "settings: AFTERMIND_EMBEDER is ignored: there is no such setting" in done.stdout
    assert "Did you mean AFTERMIND_EMBEDDER?" in done.stdout


async def test_an_export_of_all_users_has_groups(tmp_path: Path) -> None:
    store, file = f"sqlite:{tmp_path}/memory.db", tmp_path / "all.jsonl"
    async with Memory(store, embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        await memory.groups.add("team", "ann")
        for group, content in ((None, "I live in Oslo."), ("team", "We deploy on Fridays.")):
            receipt = await memory.remember(content, user_id="ann", group=group)
            await receipt.stored(timeout=30)

    done = command(store, "export", "--all-users", "--to", str(file))

    assert done.returncode == 0, done.stderr
    contents = {
        line["scope"]["user_id"]: [each["content"] for each in line["episodes"]]
        for line in map(json.loads, file.read_text().splitlines())
    }
    assert contents["group:team"] == ["We deploy on Fridays."]
    assert contents["ann"] == ["I live in Oslo.", "We deploy on Fridays."]
    assert "We deploy on Fridays." in command(store, "export", "--user", "group:team").stdout


async def test_a_tenant_is_forgotten_with_its_groups_and_no_other_tenant(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/memory.db"
    async with Memory(store, embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        await memory.groups.add("team", "ann", namespace="acme")
        for namespace, group, user in (
            ("acme", None, "ann"),
            ("acme", None, None),
            ("acme", "team", "ann"),
            ("acme", None, "zoe"),
            ("other", None, "ann"),
        ):
            receipt = await memory.remember("I live in Oslo.", user_id=user, group=group, namespace=namespace)
            await receipt.stored(timeout=30)

    for refused in (("--yes",), ("--namespace", "acme", "--user", "ann", "--yes"), ("--namespace", "acme", "--prove")):
        assert command(store, "forget", "--all-users", *refused).returncode == 2
    assert command(store, "forget", "--all-users", "--namespace", "acme").returncode == 1  # nothing confirms it
    assert "ann" in command(store, "users", "--namespace", "acme").stdout
    done = command(store, "forget", "--all-users", "--namespace", "acme", "--yes")
    again = command(store, "forget", "--all-users", "--namespace", "acme", "--yes", "--json")

    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[:3]] == ["(anonymous)", "ann", "group"]
    assert "Forgotten: 4 users of namespace acme." in done.stdout
    assert json.loads(again.stdout) == {"namespace": "acme", "forgotten": 0, "failed": []}
    assert "No users." in command(store, "users", "--namespace", "acme").stdout
    assert "ann" in command(store, "users", "--namespace", "other").stdout


def test_two_exports_of_the_same_content_are_equal(store: str, stored: datetime, tmp_path: Path) -> None:
    for name in ("one", "two"):
        done = command(store, "export", "--all-users", "--to", str(tmp_path / name))
        assert done.returncode == 0, done.stderr

    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_an_end_that_no_id_has_is_refused_with_the_way_to_the_whole_one(store: str, stored: datetime) -> None:
    done = command(store, "dead-letters", "discard", "--id", "588d126b", "--note", "x")

    assert done.returncode == 2
    assert "--wide" in " ".join(done.stderr.split())


async def test_the_reasons_for_a_corrected_fact_name_the_one_that_it_replaced(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'memory.db'}"
    async with Memory(store, embedder="hash", extractor="rules", settings=LEARNS_AT_ONCE) as memory:
        wrong = await memory.facts.add("user", "lives in", "Oslo", user_id="bo")
        await memory.facts.correct(wrong, object="Rome", user_id="bo")

    done = command(store, "facts", "--why", "--user", "bo")

    assert "stated by an API call" in done.stdout, done.stderr
    assert "replaced: user lives in Oslo" in done.stdout


def test_doctor_opens_the_store_and_reports_why_it_cannot(store: str, stored: datetime, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    well, ill = command(store, "doctor"), command(f"sqlite:{tmp_path / 'file' / 'memory.db'}", "doctor")

    assert "store: sqlite: answers" in well.stdout, well.stderr
    assert "Traceback" not in well.stderr
    assert ill.returncode == 1
    assert "bad      store:" in ill.stdout


def test_a_namespace_without_a_policy_is_not_reported_as_one_that_has_nothing_to_delete(
    store: str, stored: datetime
) -> None:
    forecast = command(store, "retention", "run", "--dry-run").stdout

    assert "default has no policy, so nothing is deleted. `aftermind retention set` sets one." in forecast
