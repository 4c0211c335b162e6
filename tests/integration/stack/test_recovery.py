"""Components that die, folders that are half made, ports that are taken."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from aftermind.errors import StackError
from aftermind.stack import ComponentState, ComponentStatus, Endpoints, Stack
from tests.support import faults
from tests.support.servers import FAST, psql
from tests.support.waiting import wait_until_sync

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Endpoints]]:
    """One stack for the deaths of this module; each test leaves it mended."""
    stack = Stack(tmp_path_factory.mktemp("recovery") / "state", postgres_settings=FAST)
    yield stack, stack.up()
    stack.destroy()


@pytest.mark.parametrize("name", ["postgres", "postgres-replica", "redis"])
def test_a_component_that_is_killed_is_started_again(name: str, up: tuple[Stack, Endpoints]) -> None:
    stack, endpoints = up
    before = _status(stack, name)

    _kill(stack, name)

    _wait_for(stack, name, ComponentState.RUNNING, after=before)
    assert _status(stack, name).restarts == before.restarts + 1
    assert _status(stack, name).port == before.port
    assert psql(endpoints.postgres_url, "SELECT 1") == "1"
    with redis.Redis.from_url(endpoints.redis_url) as client:
        assert client.ping()


def test_what_was_acknowledged_survives_a_kill_of_both_stores(up: tuple[Stack, Endpoints]) -> None:
    stack, endpoints = up
    psql(endpoints.postgres_url, "CREATE TABLE IF NOT EXISTS kept (n int)", "INSERT INTO kept VALUES (1)")
    with redis.Redis.from_url(endpoints.redis_url) as client:
        client.set("kept", 1)
    before = {name: _status(stack, name) for name in ("postgres", "redis")}

    for name in before:
        _kill(stack, name)

    for name, status in before.items():
        _wait_for(stack, name, ComponentState.RUNNING, after=status)
    assert int(psql(endpoints.postgres_url, "SELECT count(*) FROM kept")) == 1
    with redis.Redis.from_url(endpoints.redis_url) as client:
        assert client.get("kept") == b"1"


def test_the_replica_follows_again_after_the_primary_was_killed(up: tuple[Stack, Endpoints]) -> None:
    stack, endpoints = up
    before = _status(stack, "postgres")

    _kill(stack, "postgres")
    _wait_for(stack, "postgres", ComponentState.RUNNING, after=before)
    psql(endpoints.postgres_url, "CREATE TABLE after_the_kill ()")

    wait_until_sync(
        lambda: psql(endpoints.replica_urls[0], "SELECT to_regclass('after_the_kill')") == "after_the_kill",
        description="the replica has what was written after the kill",
    )


def test_a_restart_waits_for_its_port_and_says_so(up: tuple[Stack, Endpoints]) -> None:
    stack, _ = up
    port = _status(stack, "redis").port
    assert port is not None

    stack.hold("redis")
    with socket.create_server(("127.0.0.1", port)), pytest.raises(StackError, match=f"port {port} is in use"):
        stack.release("redis", timeout=20)

    wait_until_sync(
        lambda: _status(stack, "redis").state is ComponentState.RUNNING,
        description="redis runs again once its port is free",
    )
    assert _status(stack, "redis").port == port


def test_a_held_component_stays_down_until_it_is_released(up: tuple[Stack, Endpoints]) -> None:
    stack, endpoints = up

    stack.hold("redis")
    with redis.Redis.from_url(endpoints.redis_url, retry=None) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    assert _status(stack, "redis").state is ComponentState.HELD

    stack.release("redis")
    with redis.Redis.from_url(endpoints.redis_url) as client:
        assert client.ping()
    log = (stack.logs / "supervisor.log").read_text()
    assert log.index("redis is held by a command") < log.index("redis is released by a command")


def test_a_component_that_does_not_exist_is_not_held(up: tuple[Stack, Endpoints]) -> None:
    with pytest.raises(StackError, match=r"no such component\. It has: postgres, postgres-replica, redis"):
        up[0].hold("mongodb")


def test_a_frozen_process_is_unhealthy_until_it_continues(up: tuple[Stack, Endpoints]) -> None:
    stack, _ = up
    with faults.frozen(_pid(stack, "redis")):
        wait_until_sync(
            lambda: "frozen by SIGSTOP" in _status(stack, "redis").detail,
            description="the status reports the frozen process",
        )
        assert _status(stack, "redis").state is ComponentState.UNHEALTHY
    wait_until_sync(lambda: _status(stack, "redis").state is ComponentState.RUNNING, description="it runs again")
    assert "health changed" in (stack.logs / "supervisor.log").read_text()


def test_a_frozen_component_is_still_stopped(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "state", replica=False, postgres_settings=FAST)
    stack.up()
    faults.freeze(_pid(stack, "redis"))

    stack.destroy()

    assert faults.processes_of(tmp_path / "state") == []


def test_a_port_taken_while_the_stack_was_down_is_exchanged(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "state", postgres_settings=FAST)
    stack.up()
    ports = {each.name: each.port for each in stack.status()}
    stack.down()

    with socket.create_server(("127.0.0.1", ports["postgres"] or 0)):
        endpoints = stack.up()
        try:
            now = {each.name: each.port for each in stack.status()}
            psql(endpoints.postgres_url, "CREATE TABLE here ()")
            wait_until_sync(
                lambda: psql(endpoints.replica_urls[0], "SELECT to_regclass('here')") == "here",
                description="the replica follows its primary to the new port",
            )
        finally:
            stack.destroy()

    assert now["postgres"] != ports["postgres"]
    assert (now["redis"], now["postgres-replica"]) == (ports["redis"], ports["postgres-replica"])


def test_interrupted_building_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    for name in ("postgres.building", "postgres-replica.building"):
        (tmp_path / "state" / name / "base").mkdir(parents=True)
        (tmp_path / "state" / name / "PG_VERSION").write_text("1")

    with Stack(tmp_path / "state", postgres_settings=FAST) as stack:
        assert {each.state for each in stack.status()} == {ComponentState.RUNNING}

    assert not list((tmp_path / "state").glob("*.building"))


def test_a_primary_that_lost_files_is_refused_and_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "state", replica=False, postgres_settings=FAST)
    stack.up()
    stack.down()
    (tmp_path / "state" / "postgres" / "global" / "pg_control").unlink()

    with pytest.raises(StackError, match="not a whole data folder") as refusal:
        stack.up()

    assert refusal.value.component == "postgres"
    assert "backup" in refusal.value.remedy
    assert (tmp_path / "state" / "postgres" / "base").exists()
    assert faults.processes_of(tmp_path / "state") == []


@pytest.mark.parametrize("damage", ["gone", "half", "foreign"])
def test_a_replica_in_any_bad_shape_is_built_anew(damage: str, tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    with Stack(state_dir, postgres_settings=FAST):
        pass
    if damage == "gone":
        shutil.rmtree(state_dir / "postgres-replica")
    elif damage == "half":
        shutil.rmtree(state_dir / "postgres-replica" / "global")
    else:  # the copy of a primary that has been destroyed since
        shutil.rmtree(state_dir / "postgres")

    with Stack(state_dir, postgres_settings=FAST) as stack:
        endpoints = stack.running()
        assert endpoints is not None
        psql(endpoints.postgres_url, "CREATE TABLE anew ()")
        wait_until_sync(
            lambda: psql(endpoints.replica_urls[0], "SELECT to_regclass('anew')") == "anew",
            description="the new copy follows the primary",
        )


def test_a_pid_file_whose_id_went_to_somebody_else_is_removed(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "state", replica=False, postgres_settings=FAST)
    stack.up()
    pid_file = tmp_path / "state" / "postgres" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    stack.down()
    neighbour = faults.bystander(owner_of=tmp_path / "state" / "postgres")
    pid_file.write_text("\n".join([str(neighbour.pid), *lines[1:]]) + "\n")

    try:
        stack.up()
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()
        stack.destroy()


def test_a_lost_stack_json_costs_new_passwords_and_no_data(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    with Stack(state_dir, postgres_settings=FAST) as stack:
        first = stack.running()
        assert first is not None
        psql(first.postgres_url, "CREATE TABLE kept ()")
    (state_dir / "stack.json").unlink()

    with Stack(state_dir, postgres_settings=FAST) as stack:
        second = stack.running()
        assert second is not None
        assert second.postgres_url != first.postgres_url
        assert psql(second.postgres_url, "SELECT to_regclass('kept')") == "kept"
        wait_until_sync(lambda: _sees(second, "kept"), description="the replica serves under the new password too")


def test_a_replica_that_fell_too_far_behind_is_built_anew_while_the_stack_runs(tmp_path: Path) -> None:
    narrow = {
        **FAST,
        "max_slot_wal_keep_size": "16MB",
        "max_wal_size": "32MB",
        "min_wal_size": "32MB",
        "tcp_user_timeout": "1s",
    }
    stack = Stack(tmp_path / "state", postgres_settings=narrow)
    endpoints = stack.up()
    try:
        with faults.frozen(_pid(stack, "postgres-replica")):
            for _ in range(6):
                psql(endpoints.admin_url, "SELECT pg_logical_emit_message(false, 'x', repeat('x', 16000000))")
                psql(endpoints.admin_url, "CHECKPOINT")
            wait_until_sync(
                lambda: psql(endpoints.admin_url, "SELECT wal_status FROM pg_replication_slots") == "lost",
                description="the slot has lost its log",
            )
        psql(endpoints.postgres_url, "CREATE TABLE anew ()")

        wait_until_sync(lambda: _sees(endpoints, "anew"), description="a new copy follows the primary")
        assert _status(stack, "postgres-replica").restarts == 1
    finally:
        stack.destroy()


def _sees(endpoints: Endpoints, table: str) -> bool:
    try:
        return psql(endpoints.replica_urls[0], f"SELECT to_regclass('{table}')") == table
    except AssertionError:  # psql's, while the replica is down
        return False


def _kill(stack: Stack, name: str) -> None:
    faults.kill(_pid(stack, name))


def _wait_for(stack: Stack, name: str, state: ComponentState, *, after: ComponentStatus) -> None:
    wait_until_sync(
        lambda: (now := _status(stack, name)).state is state and now.pid != after.pid,
        description=f"{name} is {state} as another process",
    )


def _status(stack: Stack, name: str) -> ComponentStatus:
    return next(each for each in stack.status() if each.name == name)


def _pid(stack: Stack, name: str) -> int:
    pid = _status(stack, name).pid
    assert pid is not None
    return pid
