"""Faults of processes: killed without a word, frozen, thawed."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


def kill(pid: int) -> None:
    """kill -9 of one process, leaving its children to themselves."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()


def kill_tree(pid: int) -> None:
    """kill -9 of a process and all its descendants, the ancestors first so that nobody restarts anybody."""
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def freeze(pid: int, *, whole_tree: bool = True) -> None:
    """SIGSTOP: alive, connected, and silent."""
    _send(pid, signal.SIGSTOP, whole_tree=whole_tree)


def thaw(pid: int, *, whole_tree: bool = True) -> None:
    """SIGCONT."""
    _send(pid, signal.SIGCONT, whole_tree=whole_tree)


@contextmanager
def frozen(pid: int, *, whole_tree: bool = True) -> Iterator[None]:
    """Frozen within the block, thawed after it even if the test fails."""
    freeze(pid, whole_tree=whole_tree)
    try:
        yield
    finally:
        thaw(pid, whole_tree=whole_tree)


def tree(pid: int) -> list[psutil.Process]:
    """The process and its descendants as of now; empty when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def processes_of(folder: Path) -> list[psutil.Process]:
    """Whoever works in a folder or names it on the command line; zombies do not count."""
    return [process for process in psutil.process_iter() if _belongs(process, str(folder))]


def bystander(*, owner_of: Path) -> "subprocess.Popen[bytes]":
    """A harmless process of the user that a folder belongs to."""
    user = owner_of.stat().st_uid if os.geteuid() == 0 else None
    return subprocess.Popen(["sleep", "600"], user=user)


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _belongs(process: psutil.Process, folder: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.cwd().startswith(folder) or any(folder in part for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _send(pid: int, number: signal.Signals, *, whole_tree: bool) -> None:
    for process in tree(pid) if whole_tree else tree(pid)[:1]:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
