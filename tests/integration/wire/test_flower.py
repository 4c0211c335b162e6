"""Flower, live, as the Redis user of `aftermind redis-acl`: it sees the workers, and is denied nothing of its work."""

import asyncio
import base64
import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from aftermind.cli import worker
from aftermind.stack import ports
from tests.integration.wire.test_acl import PREFIX, denied, guarded, url_of
from tests.support.servers import Database
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

__all__ = ["guarded"]

LOGIN = base64.b64encode(b"me:secret").decode()


def asked(url: str) -> object:
    """The answer to somebody who knows the password; None while nobody answers."""
    try:
        request = urllib.request.Request(url, headers={"Authorization": f"Basic {LOGIN}"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:  # it is an answer too, and holds its socket
        refused.close()
        return None
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


async def test_flower_shows_the_workers_under_its_own_user(
    guarded: Valkey,
    database: Database,
    tmp_path: Path,
) -> None:
    port = ports.choose(1)[0]
    env = environment(database.relay_url, url_of(guarded, "worker"), AFTERMIND_REDIS_PREFIX=PREFIX)
    looking = environment(database.relay_url, url_of(guarded, "flower"), AFTERMIND_REDIS_PREFIX=PREFIX)
    looking |= {"AFTERMIND_STATE_DIR": str(tmp_path)}
    looking |= {"FLOWER_ADDRESS": "127.0.0.1", "FLOWER_PORT": str(port), "FLOWER_BASIC_AUTH": "me:secret"}
    with workers(env, tmp_path), (tmp_path / "flower.log").open("wb") as log:
        with guarded.client() as admin:  # workers load the scripts that Flower may only run
            bound = f"{PREFIX}_kombu.binding.celery.pidbox"
            await wait_until(lambda: bool(admin.exists(bound)), description="the worker is connected")
        flower = await asyncio.create_subprocess_exec(*worker.flower_argv(), env=looking, stdout=log, stderr=log)
        try:

            async def seen() -> bool:
                found = await asyncio.to_thread(asked, f"http://127.0.0.1:{port}/workers?json=1")
                return "worker-0@test" in json.dumps(found)

            await wait_until(seen, description="Flower shows the worker")
        finally:
            flower.terminate()
            await asyncio.wait_for(flower.wait(), 180)

    assert denied(guarded) == [], (tmp_path / "flower.log").read_text()[-2000:]


@pytest.mark.long
async def test_flower_reconnects_every_two_seconds_and_shows_the_workers_again(
    valkey: Valkey, database: Database, tmp_path: Path
) -> None:
    port = ports.choose(1)[0]
    env = environment(database.relay_url, valkey.url)
    watching = env | {"AFTERMIND_STATE_DIR": str(tmp_path), "AFTERMIND_LOG_FORMAT": "text"}
    watching |= {"FLOWER_ADDRESS": "127.0.0.1", "FLOWER_PORT": str(port), "FLOWER_BASIC_AUTH": "me:secret"}
    path = tmp_path / "flower.log"
    with workers(env, tmp_path), path.open("wb") as log:
        flower = await asyncio.create_subprocess_exec(*worker.flower_argv(), env=watching, stdout=log, stderr=log)
        try:

            async def shows(status: bool) -> bool:
                found = await asyncio.to_thread(asked, f"http://127.0.0.1:{port}/workers?json=1")
                rows = found["data"] if isinstance(found, dict) else []
                return any(row["hostname"] == "worker-0@test" and row["status"] is status for row in rows)

            await wait_until(lambda: shows(True), description="Flower shows the worker")
            valkey.stop()
            await wait_until(
                lambda: path.read_text().count("no events") >= 4, description="Flower has tried four times"
            )
            valkey.start()

            await wait_until(lambda: shows(True), description="Flower shows the worker again")
        finally:
            flower.terminate()
            await asyncio.wait_for(flower.wait(), 180)

    assert "trying again in" not in path.read_text(), "Flower's own listener doubles its pause"
