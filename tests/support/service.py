"""The web service as a process, as operators start it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from aftermind.api.local_web_token import read_token
from aftermind.stack.ports import choose
from tests.support.fork_server import end, start_module
from tests.support.waiting import wait_until_sync


@contextmanager
def service(env: Mapping[str, str], folder: Path) -> Iterator[str]:
    """A running service for the block; its address. Ended by SIGTERM."""
    port = choose(1)[0]
    argv = ["aftermind.cli", "web", "--port", str(port)]
    with (folder / "web.log").open("wb") as out:
        process = start_module(argv, env=env, cwd=folder, output=out)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_sync(lambda: _answers(url), description="the service answers")
        yield url
    finally:
        end([process], timeout=15)


def local_token(state_dir: Path) -> str:
    """What signs in at a service without keys, as a bearer token or as the cookie `aftermind_key`."""
    return read_token(state_dir)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=2, trust_env=False, verify=False).status_code == 200
    except httpx.TransportError:
        return False
