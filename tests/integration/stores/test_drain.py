"""`drain` waits until nothing of a user is left to do, and names what is left after its timeout."""

from pathlib import Path

import pytest

from aftermind import Settings, errors
from aftermind.sync import Memory

PATIENCE_SECONDS = 60.0


def settings_with(folder: Path, quiet_seconds: float) -> Settings:
    return Settings(state_dir=folder, embedder="hash", extractor="rules", extract_quiet_seconds=quiet_seconds)


def test_facts_are_there_after_a_drain(tmp_path: Path) -> None:
    with Memory("inmemory", settings=settings_with(tmp_path, 0.0)) as memory:
        memory.drain(user_id="ann", timeout=0)  # nothing to wait for
        for name in ("Oslo", "Bergen"):
            memory.remember(f"I visited {name}.", user_id="ann")
        memory.drain(user_id="ann", timeout=PATIENCE_SECONDS)

        assert {fact.object for fact in memory.facts.query(user_id="ann")} == {"Oslo", "Bergen"}


def test_what_is_left_after_the_timeout_is_named(tmp_path: Path) -> None:
    with Memory("inmemory", settings=settings_with(tmp_path, 600.0)) as memory:
        memory.remember("I live in Oslo.", user_id="ann").stored(timeout=PATIENCE_SECONDS)
        memory.drain(user_id="bob", timeout=0)

        with pytest.raises(errors.DrainTimeout) as late:
            memory.drain(user_id="ann", timeout=0.1)

    assert "user 'ann': after 0.1 s, pending turns: 0, unfinished jobs: 1." in str(late.value)
    assert (late.value.user_id, late.value.pending_turns, late.value.jobs) == ("ann", 0, 1)
