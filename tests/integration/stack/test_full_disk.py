"""A disk without space: said so before the start, and survived while the stack runs."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from aftermind.errors import StackError
from aftermind.stack import ComponentState, ComponentStatus, Stack
from tests.support.servers import FAST
from tests.support.waiting import wait_until_sync


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A factory of file systems of so many megabytes, where this user may mount one."""
    mounted: list[Path] = []

    def mount(megabytes: int) -> Path:
        folder = tmp_path / "disk"
        folder.mkdir()
        argv = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount here")
        if done.returncode != 0:
            pytest.skip(f"this user may not mount a file system: {done.stderr}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], timeout=10, check=True)


def test_too_small_a_disk_is_refused_before_anything_is_made(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(100)

    with pytest.raises(StackError, match=r"MB free, 512 MB are needed to start.*Free some space"):
        Stack(disk / "state").up()

    assert not (disk / "state" / "postgres").exists()


def test_a_disk_that_fills_up_is_named_and_everything_runs_again_once_there_is_space(
    small_disk: Callable[[int], Path],
) -> None:
    disk = small_disk(600)
    stack = Stack(disk / "state", replica=False, postgres_settings=FAST)
    endpoints = stack.up()
    try:
        with redis.Redis.from_url(endpoints.redis_url) as client:
            client.set("kept", 1)
            _fill(disk)
            with pytest.raises(redis.RedisError):
                client.set("lost", "x" * 1_000_000)
        wait_until_sync(
            lambda: "is full: free some space" in _status(stack, "redis").detail,
            description="the full disk is named",
        )

        (disk / "filler").unlink()

        wait_until_sync(
            lambda: _status(stack, "redis").state is ComponentState.RUNNING and _get(endpoints.redis_url) == b"1",
            description="redis runs again with what it had acknowledged",
        )
    finally:
        (disk / "filler").unlink(missing_ok=True)
        stack.destroy()


def _fill(disk: Path) -> None:
    with (disk / "filler").open("wb") as file:
        try:
            while True:
                file.write(b"x" * 1_000_000)
                file.flush()
        except OSError:
            return


def _get(url: str) -> object:
    with redis.Redis.from_url(url) as client:
        try:
            return client.get("kept")
        except redis.RedisError:
            return None


def _status(stack: Stack, name: str) -> ComponentStatus:
    return next(each for each in stack.status() if each.name == name)
