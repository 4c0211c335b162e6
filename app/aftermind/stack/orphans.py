"""Processes that a killed supervisor left running, and stale pid files."""

import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

GRACE_SECONDS = 10.0  # seconds before SIGKILL
SAME_START = 1.0  # seconds; a process with the same id but another start time is a different process


def identify(pid: int) -> dict[str, float] | None:
    """The data that distinguishes a process from a later one with the same id."""
    try:
        return {"pid": pid, "started": psutil.Process(pid).create_time()}
    except psutil.NoSuchProcess:
        return None


def is_alive(pid: int) -> bool:
    """Whether there is such a process; a zombie is none any more."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def end(remembered: Iterable[Mapping[str, Any]]) -> list[int]:
    """End those of the remembered processes that still live, with their children; returns their ids.

    `Any`: the mappings come from the status file of an earlier supervisor.
    """
    living = [found for entry in remembered if (found := _find(entry)) is not None]
    _end_all(living)
    return [process.pid for process in living]


def end_postmaster(data: Path) -> None:
    """Stop a server that still runs over a data folder, and remove a stale pid file.

    Postgres removes a stale pid file itself, except if another process of the same user has the id. The caller holds
    the lock of the state folder, so no legitimate server runs there.
    """
    pid_file = data / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().splitlines()[0])
    except FileNotFoundError:
        return
    except (IndexError, ValueError):  # cut off by a full disk
        pid = 0
    if pid > 0 and _is_postmaster(pid, data):
        _end_all([psutil.Process(pid)])
    pid_file.unlink(missing_ok=True)


def _find(entry: Mapping[str, Any]) -> psutil.Process | None:
    try:
        process = psutil.Process(int(entry["pid"]))
        same = abs(process.create_time() - float(entry["started"])) < SAME_START
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.Error, KeyError, TypeError, ValueError):
        return None


def _is_postmaster(pid: int, data: Path) -> bool:
    try:
        return str(data) in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def _end_all(processes: list[psutil.Process]) -> None:
    families = [member for process in processes for member in (process, *_children(process))]
    for process in processes:
        _send(process, signal.SIGINT if _is_postgres(process) else signal.SIGTERM)
        _send(process, signal.SIGCONT)
    _, stubborn = psutil.wait_procs(families, timeout=GRACE_SECONDS)
    for process in stubborn:
        _send(process, signal.SIGKILL)
    psutil.wait_procs(stubborn, timeout=GRACE_SECONDS)


def _is_postgres(process: psutil.Process) -> bool:
    try:
        return process.name() == "postgres"  # SIGTERM would make it wait for its clients
    except psutil.Error:
        return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        return
