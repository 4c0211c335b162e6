"""Why a process ended, in words: its exit code, the end of its log, and what to do about the usual causes."""

import shutil
import signal
from pathlib import Path

import orjson

DISK_FULL = "No space left on device"
FULL_BYTES = 1024**2  # with less, neither a page of the WAL nor a report can be written
TAIL_BYTES = 4000
TAIL_LINES = 3
# Another process sends these: the end of the log is of the work before, and no cause.
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# What the servers print, and what helps. The first that fits wins.
CAUSES = (
    (DISK_FULL, "the disk is full", "Free some space; it is started again by itself."),
    ("Address already in use", "its port is in use by another program", "End that program."),
    ("Cannot allocate memory", "there is not enough memory", "End other programs, or lower shared_buffers."),
    (
        "Bad file format reading the append only file",
        "its append-only file is damaged",
        "Repair a copy of it with valkey-check-aof or redis-check-aof --fix, then start again.",
    ),
    (
        "could not locate a valid checkpoint record",
        "its data folder is damaged",
        "Restore it from a backup, or start with an empty stack: `aftermind stack destroy`.",
    ),
)


def explain_exit(code: int, log_path: Path, offset: int) -> tuple[str, str]:
    """What happened and what to do, from the exit code and what was logged since `offset`."""
    tail = _tail(log_path, offset)
    how = _how(code)
    if is_full(log_path.parent):
        tail = f"{DISK_FULL}\n{tail}"  # with a full disk the log has no reason
    for needle, cause, remedy in CAUSES:
        if needle in tail:
            return f"{how}: {cause}", remedy
    if -code in FROM_OUTSIDE:
        return how, f"Its log: {log_path}"
    said = " | ".join(_message_of(line.strip()) for line in tail.splitlines()[-TAIL_LINES:] if line.strip()).rstrip(".")
    return (f"{how}: {said}" if said else how), f"Its log: {log_path}"


def _message_of(line: str) -> str:
    """The message of a line: of a JSON line of a program of ours, its message, and the class of its error."""
    try:
        found = orjson.loads(line)
        return " ".join([found["message"], *([f"({found['error_class']})"] if "error_class" in found else [])])
    except (ValueError, TypeError, KeyError):
        return line


def is_full(folder: Path) -> bool:
    """Whether the disk of a folder is practically full."""
    return shutil.disk_usage(folder).free < FULL_BYTES


def _how(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


def _tail(log_path: Path, offset: int) -> str:
    try:
        with log_path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(min(offset, size), size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
