"""The state folder: its paths, its lock, and files that are whole or absent."""

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from aftermind.errors import StackError

FREE_BYTES_TO_CREATE = 512 * 1024**2  # two clusters of 40 MB, their first WAL segments, and working space
FREE_BYTES_TO_START = 64 * 1024**2
LOG_BYTES = 16 * 1024**2  # a log beyond this is set aside as NAME.log.1
HELD_EXIT_CODE = 3  # of a supervisor that finds another one holding the folder
LOCK_PATIENCE = 1.0  # seconds: `holder` takes the lock for an instant to see whether it is free


class StateFolder:
    """Paths of one stack's state folder, by convention `.aftermind/`."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self.config = self.root / "stack.json"
        self.wanted = self.root / "wanted.json"
        self.status = self.root / "status.json"
        self.endpoints = self.root / "endpoints.json"
        self.lock_file = self.root / "lock"
        self.logs = self.root / "logs"
        self.primary = self.root / "postgres"
        self.replica = self.root / "postgres-replica"
        self.redis = self.root / "redis"

    def create(self) -> None:
        """Create the folder, readable by its owner only, or raise with the reason."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.logs.mkdir(mode=0o700, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as exc:
            why = f"the state folder {self.root} cannot be written: {exc.strerror}"
            raise StackError("stack", why, _remedy(exc, self.root)) from exc
        self._require_space()

    def start_request_path(self, run: str) -> Path:
        """The desired state of a start until its supervisor has the lock: a start that loses has no effect."""
        return self.root / f"wanted-{run}.json"

    def log(self, name: str) -> Path:
        """Path of the log of a component."""
        return self.logs / f"{name}.log"

    def lock(self) -> int:
        """Take the folder for this process, until it ends; returns the descriptor that holds the lock."""
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    raise self.held_error() from None
                time.sleep(0.02)
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        return descriptor

    def holder(self) -> int | None:
        """The process id of the supervisor that holds this folder, or None if there is none."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.read(descriptor, 32) or b"0")
        else:
            return None
        finally:
            os.close(descriptor)

    def held_error(self) -> StackError:
        """The refusal that a second supervisor over the same folder gets."""
        return StackError(
            "stack",
            f"a supervisor (process {self.holder()}) already runs over {self.root}",
            "Use the running one (`aftermind status`), or stop it first (`aftermind down`).",
        )

    def remove(self) -> None:
        """Remove all that the stack made; the folder itself only when nothing of others is in it."""
        data = [self.primary, self.replica, self.redis, self.logs]
        halves = [self.building(self.primary), self.building(self.replica)]
        files = [self.endpoints, self.status, self.wanted, self.config, self.lock_file]
        try:
            for path in filter(Path.exists, [*data, *halves]):
                shutil.rmtree(path)
            for path in [*files, *self.root.glob("wanted-*.json"), *self.root.glob(".*.json-*")]:
                path.unlink(missing_ok=True)
            if self.root.exists() and not any(self.root.iterdir()):
                self.root.rmdir()
        except OSError as exc:
            why = f"{exc.filename} cannot be removed: {exc.strerror}"
            raise StackError("stack", why, _remedy(exc, self.root)) from exc

    @staticmethod
    def building(data: Path) -> Path:
        """Where a data folder is made; it is renamed when it is complete."""
        return data.with_name(f"{data.name}.building")

    def trim_logs(self) -> None:
        """Rotate logs that are too long; writers append, so they continue in the same, emptied file."""
        for path in self.logs.glob("*.log"):
            with suppress(OSError):
                if path.stat().st_size > LOG_BYTES:
                    shutil.copyfile(path, path.with_suffix(".log.1"))
                    os.truncate(path, 0)

    def _require_space(self) -> None:
        needed = FREE_BYTES_TO_START if self.primary.exists() else FREE_BYTES_TO_CREATE
        free = shutil.disk_usage(self.root).free
        if free < needed:
            raise StackError(
                "stack",
                f"the disk of {self.root} has {free // 1024**2} MB free, {needed // 1024**2} MB are needed to start",
                "Free some space, or put the state folder on another disk.",
            )


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Replace a JSON file in one step, so that a reader sees the old or the new one; only the owner may read it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(value, file, indent=1)
        Path(temporary).replace(path)
    except OSError as exc:
        Path(temporary).unlink(missing_ok=True)
        raise StackError("stack", f"{path} cannot be written: {exc.strerror}", _remedy(exc, path.parent)) from exc


def read_json(path: Path) -> dict[str, object] | None:
    """The object in a JSON file, or None when there is no such file."""
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise StackError("stack", f"{path} cannot be read: {exc}", "Correct or remove that file.") from exc
    if not isinstance(value, dict):
        raise StackError("stack", f"{path} does not hold an object", "Correct or remove that file.")
    return value


def _remedy(exc: OSError, folder: Path) -> str:
    if exc.errno == errno.ENOSPC:
        return "The disk is full: free some space."
    return f"Give this user the right to write {folder}, or choose another state folder."
