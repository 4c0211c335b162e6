"""Flower as operators start it: closed without its password, read-only, and dead and replayed jobs are found in it."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import psutil
import pytest

from aftermind import Memory
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.stack.ports import choose
from aftermind.types.replay import JobFilter
from aftermind.wire import queues
from tests.support.fork_server import end, start_module
from tests.support.servers import Database
from tests.support.waiting import wait_until, wait_until_sync
from tests.support.workers import LOUDLY, TOUCHY, environment, workers

LOGIN = ("operator", "a long password")
BRISK = {
    "AFTERMIND_MAX_ATTEMPTS": "2",
    "AFTERMIND_BACKOFF_BASE_SECONDS": "0.1",
    "AFTERMIND_RECONCILE_SECONDS": "0.5",
    "FLOWER_BASIC_AUTH": ":".join(LOGIN),
    "FLOWER_UNAUTHENTICATED_API": "true",  # of some other installation: it must open nothing here
}
QUEUES = ",".join((queues.STORE, queues.REPLAY))


@pytest.mark.long
async def test_a_dead_job_and_its_replay_are_found_in_flower_by_the_job_id_also_after_a_restart(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    env = environment(database.relay_url, redis_url, AFTERMIND_STATE_DIR=str(tmp_path), **BRISK)
    memory = Memory(database.relay_url, broker=redis_url)  # replay plans are an operator's
    with flower(env, tmp_path) as client:
        with workers(env, tmp_path, on=QUEUES, app=TOUCHY):
            receipt = await memory.remember(f"{LOUDLY}: a secret of mine", user_id="ann", session_id="s")
            dead = await wait_until(
                lambda: _found(client, str(receipt.job_id), "FAILURE"), description="Flower shows it"
            )
        with workers(env, tmp_path, on=QUEUES):  # the mended release
            new = NewPlan(name="p", reason="mended", actor="a test")
            plan = await memory.replays.create(JobFilter(ids=(receipt.job_id,)), new)
            await memory.replays.start(plan.id)
            again = await wait_until(
                lambda: _found(client, str(receipt.job_id), "SUCCESS"),
                timeout=180,
                description="Flower shows the replay",
            )

    assert dead["uuid"] == f"store-{receipt.job_id}"
    assert dead["name"] == "memory.store"
    assert "bug:ValueError" in dead["exception"]
    assert f"'replays': '{receipt.job_id}'" in again["kwargs"]
    with flower(env, tmp_path) as client:
        seen = json.dumps(client.get("/api/tasks").json())
        assert dead["uuid"] in seen, "it remembers"
        assert again["uuid"] in seen
        assert "secret" not in seen
    assert not [path for path in _files(tmp_path) if b"a secret of mine" in path.read_bytes()]
    await memory.close()


def test_nothing_is_told_and_nothing_done_without_the_password_nor_done_with_it(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    env = environment(database.relay_url, redis_url, AFTERMIND_STATE_DIR=str(tmp_path), **BRISK)
    with flower(env, tmp_path) as client, httpx.Client(base_url=client.base_url, trust_env=False) as stranger:
        reading = ("/", "/workers", "/tasks", "/broker", "/api/workers", "/api/tasks", "/metrics", "/healthcheck")
        acting = ("/api/task/send-task/aftermind.run", "/api/worker/shutdown/x", "/api/task/revoke/x")
        assert {path: stranger.get(path).status_code for path in reading} == dict.fromkeys(reading, 401)
        assert {path: stranger.post(path).status_code for path in acting} == dict.fromkeys(acting, 401)
        assert {path: client.post(path).status_code for path in acting} == dict.fromkeys(acting, 403)
        assert {path: client.get(path).status_code for path in reading} == dict.fromkeys(reading, 200)
    for path in _files(tmp_path):
        assert path.name.endswith(".log") or path.stat().st_mode & 0o077 == 0, f"others may read {path}"


def test_it_shows_what_workers_report_about_themselves(database: Database, redis_url: str, tmp_path: Path) -> None:
    env = environment(database.relay_url, redis_url, AFTERMIND_STATE_DIR=str(tmp_path), **BRISK)
    with workers(env, tmp_path), flower(env, tmp_path) as client:
        reported = wait_until_sync(
            lambda: _complete(client.get("/api/workers?refresh=1").json()), description="the worker has answered"
        )

    assert [each["name"] for each in reported["worker-0@test"]["active_queues"]] == ["memory.store"]
    assert reported["worker-0@test"]["stats"]["pid"]
    assert "message refused" not in (tmp_path / "flower.log").read_text()


@pytest.mark.parametrize("login", ["", "operator", "operator:", ":password", "a:b,c"])
def test_flower_does_not_start_without_user_and_password(login: str, tmp_path: Path) -> None:
    env = {**os.environ, "FLOWER_BASIC_AUTH": login, "AFTERMIND_STATE_DIR": str(tmp_path)}
    done = psutil.Popen([sys.executable, "-m", "aftermind.cli", "flower"], env=env, cwd=tmp_path)

    assert done.wait(timeout=180) == 2


@contextmanager
def flower(env: Mapping[str, str], folder: Path) -> Iterator[httpx.Client]:
    """A running Flower, and a client that knows its password; ended by SIGTERM."""
    port = choose(1)[0]
    with (folder / "flower.log").open("ab") as out:
        process = start_module(["aftermind.cli", "flower", "--port", str(port)], env=env, cwd=folder, output=out)
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", auth=LOGIN, trust_env=False, timeout=20)
    try:
        wait_until_sync(lambda: _answers(client), description="Flower answers")
        yield client
    finally:
        client.close()
        end([process], timeout=20)


def _complete(reported: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """The reports once the worker has answered each question: Flower asks them one by one."""
    return reported if {"active_queues", "stats"} <= set(reported.get("worker-0@test", {})) else None


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthcheck").status_code == 200
    except httpx.TransportError:
        return False


def _found(client: httpx.Client, job_id: str, state: str) -> dict[str, str]:
    """The job of this state that the search of Flower's page finds by the id."""
    assert UUID(job_id)
    tasks = client.get("/api/tasks", params={"search": job_id}).json()
    return next((each for each in tasks.values() if each["state"] == state and each["name"] != "aftermind.run"), {})


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("flower*") if path.is_file()]
