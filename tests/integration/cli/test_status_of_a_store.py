"""`aftermind status` and the hints of other commands, where the settings name a store without an embedded stack."""

import json
from pathlib import Path

from aftermind import Memory, Settings
from tests.support.fork_server import run_module
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.workers import environment


async def test_status_shows_the_store_that_the_settings_name(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with Memory(url, settings=Settings(state_dir=tmp_path / "state", embedder="hash", extractor="off")) as memory:
        await (await memory.remember("I live in Oslo.", user_id="alice")).stored(timeout=PATIENCE_SECONDS)
    env = {**environment(url, ""), "AFTERMIND_STATE_DIR": str(tmp_path / "state")}

    shown = run_module(["aftermind.cli", "status"], env=env)
    read = run_module(["aftermind.cli", "status", "--json"], env=env)
    facts = run_module(["aftermind.cli", "facts", "--user", "bob"], env=env)

    assert shown.returncode == 0, shown.stderr
    assert "store" in shown.stdout
    assert "aftermind worker" in shown.stdout
    assert {each["name"] for each in json.loads(read.stdout)["parts"]} >= {"store"}
    assert "No facts: this user has no messages. `aftermind users`" in facts.stdout


def test_up_refuses_a_store_that_needs_no_stack_before_anything_starts(tmp_path: Path) -> None:
    env = {**environment(f"sqlite:{tmp_path}/bot.db", ""), "AFTERMIND_STATE_DIR": str(tmp_path / "state")}

    refused = run_module(["aftermind.cli", "up"], env=env)

    assert refused.returncode == 2
    assert "this store needs no stack. Unset the variable" in " ".join(refused.stderr.split())
    assert not (tmp_path / "state" / "postgres").exists()


async def test_status_of_a_store_that_is_away_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "bot.db").write_text("not a database, and longer than the header of one: " + "x" * 100)
    env = {**environment(f"sqlite:{tmp_path}/bot.db", ""), "AFTERMIND_STATE_DIR": str(tmp_path / "state")}

    shown = run_module(["aftermind.cli", "status"], env=env)

    assert shown.returncode == 1
    assert "down" in shown.stdout
    assert "How many jobs are to do is unknown" in shown.stdout
    assert "0 jobs" not in shown.stdout
