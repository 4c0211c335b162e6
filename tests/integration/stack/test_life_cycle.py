"""Up, down, up again, destroyed."""

import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from aftermind.errors import StackError
from aftermind.stack import ComponentState, Stack
from tests.support.faults import processes_of
from tests.support.servers import FAST, psql
from tests.support.waiting import wait_until_sync

pytestmark = pytest.mark.long  # a stack of its own each


def test_a_second_start_finds_what_the_first_one_kept_and_takes_no_time(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "state")
    first = stack.up()
    psql(first.postgres_url, "CREATE TABLE note (text text)", "INSERT INTO note VALUES ('kept')")
    with redis.Redis.from_url(first.redis_url, decode_responses=True) as client:
        client.set("note", "kept")
    stack.down()

    began = time.monotonic()
    second = stack.up()
    took = time.monotonic() - began

    try:
        assert second == first
        assert took < 2
        assert psql(second.postgres_url, "SELECT text FROM note") == "kept"
        assert psql(second.replica_admin_urls[0], "SELECT text FROM note") == "kept"
        with redis.Redis.from_url(second.redis_url, decode_responses=True) as client:
            assert client.get("note") == "kept"
    finally:
        stack.destroy()


def test_down_leaves_no_process_and_destroy_no_file(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "state", postgres_settings=FAST)
    stack.up()
    assert len(processes_of(tmp_path / "state")) > 4

    stack.down()
    assert processes_of(tmp_path / "state") == []
    assert {each.state for each in stack.status()} == {ComponentState.STOPPED}

    stack.destroy()
    assert not (tmp_path / "state").exists()


def test_destroy_leaves_what_is_not_ours(tmp_path: Path) -> None:
    stack = Stack(tmp_path, replica=False, postgres_settings=FAST)
    stack.up()
    (tmp_path / "spool").mkdir()

    stack.destroy()

    assert [path.name for path in tmp_path.iterdir()] == ["spool"]


def test_a_second_supervisor_over_the_same_folder_is_refused(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    with Stack(state_dir, replica=False, postgres_settings=FAST) as stack:
        second = Stack(state_dir, replica=False)

        with pytest.raises(StackError, match=r"already runs over .*aftermind down"):
            second.up()

        assert second.running() == stack.running() is not None
        assert {each.state for each in second.status()} == {ComponentState.RUNNING}
    assert second.running() is None


def test_of_two_starts_at_once_one_is_refused_and_the_other_unharmed(tmp_path: Path) -> None:
    stacks = [Stack(tmp_path / "state", replica=False, postgres_settings=FAST) for _ in range(2)]

    with ThreadPoolExecutor(2) as pool:
        outcomes = [each.exception() for each in [pool.submit(stack.up) for stack in stacks]]

    try:
        (refusal,) = [outcome for outcome in outcomes if outcome is not None]
        assert "already runs over" in str(refusal)
        assert {each.state for each in stacks[0].status()} == {ComponentState.RUNNING}
        assert not list((tmp_path / "state").glob("wanted-*"))
    finally:
        for stack in stacks:
            stack.destroy()


def test_settings_of_the_users_own_postgres_do_not_lead_ours_astray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PGSSLMODE": "require", "PGPORT": "1", "PGOPTIONS": "-c no=1", "PGDATA": "/nowhere"}.items():
        monkeypatch.setenv(name, value)

    with Stack(tmp_path / "state", postgres_settings=FAST) as stack:
        assert {each.state for each in stack.status()} == {ComponentState.RUNNING}


def test_a_folder_with_odd_characters_in_its_name_will_do(tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s a "state" \\ fólder %s' / ("deep" * 30)

    with Stack(odd, postgres_settings=FAST) as stack:
        assert {each.state for each in stack.status()} == {ComponentState.RUNNING}


def test_files_in_the_current_folder_are_not_taken_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("asyncio.py", "redis.py", "psutil.py"):
        (tmp_path / name).write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)

    with Stack(tmp_path / "state", replica=False, postgres_settings=FAST) as stack:
        assert {each.state for each in stack.status()} == {ComponentState.RUNNING}


def test_what_holds_a_password_is_readable_by_the_owner_only_and_never_shown(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "state", replica=False, postgres_settings=FAST)
    endpoints = stack.up()
    try:
        private = ["stack.json", "endpoints.json", "wanted.json", "status.json", "redis/redis.conf"]
        modes = {name: stat.S_IMODE((tmp_path / "state" / name).stat().st_mode) for name in private}
        assert modes == dict.fromkeys(private, 0o600)
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700

        secrets = [value for key, value in _config(tmp_path / "state").items() if key.endswith("password")]
        shown = repr(endpoints) + "".join(" ".join(each.cmdline()) for each in processes_of(tmp_path / "state"))
        logs = "".join(path.read_text() for path in stack.logs.iterdir())
        assert len(secrets) == 4
        assert not [secret for secret in secrets if secret in shown + logs]
    finally:
        stack.destroy()


def test_the_endpoints_lie_beside_the_stack_for_as_long_as_it_is_up(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "state", postgres_settings=FAST)
    endpoints = stack.up()
    try:
        assert json.loads((tmp_path / "state" / "endpoints.json").read_text()) == {
            "postgres_url": endpoints.app_url,
            "relay_url": endpoints.relay_url,
            "owner_url": endpoints.postgres_url,
            "replica_urls": list(endpoints.replica_urls),
            "redis_url": endpoints.redis_url,
        }
        stack.down()
        assert not (tmp_path / "state" / "endpoints.json").exists()
    finally:
        stack.destroy()


def test_a_detached_stack_outlives_whoever_started_it_until_down(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    starter = Stack(state_dir, replica=False, postgres_settings=FAST)
    endpoints = starter.up(detach=True)
    another = Stack(state_dir)
    try:
        assert another.running() == endpoints
    finally:
        another.down()

    wait_until_sync(lambda: not processes_of(state_dir), description="the detached stack is gone")
    starter.destroy()


def test_the_replica_can_be_left_out_and_taken_in_again(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    with Stack(state_dir, postgres_settings=FAST) as both:
        assert len(both.running().replica_urls) == 1  # type: ignore[union-attr]  # it is up
    with Stack(state_dir, replica=False, postgres_settings=FAST) as alone:
        endpoints = alone.running()
        assert endpoints is not None
        assert endpoints.replica_urls == ()
        assert psql(endpoints.admin_url, "SELECT count(*) FROM pg_replication_slots") == "0"
        psql(endpoints.postgres_url, "CREATE TABLE meanwhile ()")

    with Stack(state_dir, postgres_settings=FAST) as again:
        endpoints = again.running()
        assert endpoints is not None
        (replica,) = endpoints.replica_urls
        wait_until_sync(
            lambda: psql(replica, "SELECT to_regclass('meanwhile')") == "meanwhile",
            description="the replica has what was written without it",
        )


def _config(state_dir: Path) -> dict[str, str]:
    found = json.loads((state_dir / "stack.json").read_text())
    assert isinstance(found, dict)
    return found
