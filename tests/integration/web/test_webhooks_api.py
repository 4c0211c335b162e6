"""Webhooks over HTTP and by the command: made, shown without their secret, refused, removed."""

import os
import re
import subprocess

import pytest

from tests.fundamentals.conftest import as_environment
from tests.support.deployed_service import Service
from tests.support.fork_server import run_module

HOOK = {"url": "https://1.1.1.1/hook", "events": ["MemoryUpdateFailed"], "description": "to the shop"}


def test_a_webhook_is_made_shown_enabled_and_removed(service: Service) -> None:
    with service.client() as api:
        made = api.post("/v1/webhooks", json=HOOK)
        assert made.status_code == 201, made.text
        hook = made.json()
        assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=", hook.pop("secret"))
        path = f"/v1/webhooks/{hook['id']}"

        assert (hook["url"], hook["events"], hook["description"]) == tuple(HOOK.values())
        assert api.get(path).json() == hook
        assert hook in api.get("/v1/webhooks").json()
        assert api.post(f"{path}/enable").json() == hook
        assert api.delete(path).status_code == 204
        for gone in (api.get(path), api.delete(path), api.post(f"{path}/enable")):
            assert gone.status_code == 404
            assert gone.headers["content-type"] == "application/problem+json"


def test_a_secret_is_replaced_and_both_sign_for_a_while(service: Service) -> None:
    with service.client() as api:
        hook = api.post("/v1/webhooks", json=HOOK).json()
        path = f"/v1/webhooks/{hook['id']}"

        rotated = api.post(f"{path}/secret", json={"overlap_hours": 2})
        ended = api.post(f"{path}/secret", json={"overlap_hours": 0}).json()

        assert rotated.status_code == 200, rotated.text
        assert rotated.json()["former_secret_until"] is not None
        assert ended["former_secret_until"] is None
        assert len({hook["secret"], rotated.json()["secret"], ended["secret"]}) == 3
        assert api.post(f"{path}/secret").json()["former_secret_until"] is not None
        assert "secret" not in api.get(path).json()
        assert api.post(f"{path}/secret", json={"overlap_hours": 721}).status_code == 422
        assert api.delete(path).status_code == 204
        assert api.post(f"{path}/secret").status_code == 404


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"url": "https://127.0.0.1/"}, "url"),
        ({"url": "https://169.254.169.254/latest/meta-data/"}, "url"),
        ({"url": "https://[::ffff:10.0.0.1]/"}, "url"),
        ({"url": "http://1.1.1.1/"}, "url"),
        ({"url": "https://me:secret@1.1.1.1/"}, "url"),
        ({"events": ["Everything"]}, "events"),
    ],
)
def test_one_that_cannot_be_is_refused(service: Service, wrong: dict[str, object], field: str) -> None:
    with service.client() as api:
        before = api.get("/v1/webhooks").json()
        answer = api.post("/v1/webhooks", json={**HOOK, **wrong})

        assert (answer.status_code, answer.json()["field"]) == (422, field)
        assert api.get("/v1/webhooks").json() == before


@pytest.mark.long
def test_the_command_makes_lists_enables_and_removes(service: Service) -> None:
    def command(*words: str) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, **as_environment(service.settings), "COLUMNS": "200"}
        return run_module(["aftermind.cli", "webhooks", *words, "--namespace", "ours"], env=env)

    made = command("create", "https://1.1.1.1/by-command", "--event", "MemoryUpdateFailed")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("whsec_")
    (hook,) = re.findall(r"[0-9a-f-]{36}", made.stderr)
    listed = command("list")
    assert hook[-8:] in listed.stdout
    assert made.stdout.strip() not in listed.stdout
    rotated = command("rotate-secret", hook, "--overlap-hours", "2")
    assert rotated.stdout.startswith("whsec_"), rotated.stderr
    assert rotated.stdout != made.stdout
    assert "signs too until" in rotated.stderr
    assert command("enable", hook[-8:]).returncode == 0
    assert command("delete", hook).returncode == 0
    again = command("delete", hook)
    assert (again.returncode, "namespace 'ours' has none with it" in again.stderr) == (2, True)
    refused = command("create", "https://localhost/")
    assert (refused.returncode, "public internet" in refused.stderr) == (2, True)
