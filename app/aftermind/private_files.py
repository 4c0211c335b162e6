"""Files with secrets or memory: only this user may read them, and no other user may replace them.

A file is written under a temporary name with mode 0600 and then renamed, so it is complete or absent and never follows
a symbolic link. A file that is read must belong to this user (or root) and must not be writable by others.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PRIVATE_MODE, FOLDER_MODE = 0o600, 0o700
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UnsafeFile(OSError):
    """A file that another user created or could change. `strerror` has the remedy."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EPERM, why, str(path))


def make_folder(path: Path) -> None:
    """Make a folder that only this user may enter, where there is none."""
    path.mkdir(parents=True, exist_ok=True, mode=FOLDER_MODE)


def write(path: Path, data: bytes, *, mode: int = PRIVATE_MODE) -> None:
    """Replace a file in one step. What was there before, a symbolic link too, is replaced and not followed."""
    with writing(path, mode=mode) as file:
        file.write(data)


@contextmanager
def writing(path: Path, *, mode: int = PRIVATE_MODE) -> Iterator[IO[bytes]]:
    """As `write`, of what the block writes; after an error in the block the former file stays."""
    with _temporary_file(path, mode) as (made, file):
        yield file
        _sync(file)
        made.replace(path)


def create(path: Path, data: bytes, *, mode: int = PRIVATE_MODE) -> bool:
    """Write a file where there is none; whether this call did. Of several processes one succeeds."""
    with _temporary_file(path, mode) as (made, file):
        file.write(data)
        _sync(file)
        try:
            os.link(made, path, follow_symlinks=False)
        except FileExistsError:
            return False
    return True


def read(path: Path) -> bytes:
    """A file's bytes. Raises `UnsafeFile` for a symbolic link, or a file that others own or may write; `OSError`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise UnsafeFile(path, "it is a symbolic link: replace it by the file itself") from exc
        raise
    with os.fdopen(descriptor, "rb") as file:
        check_owner(path, os.fstat(file.fileno()))
        return file.read()


def check_owner(path: Path, found: os.stat_result) -> None:
    """Raise `UnsafeFile` unless it is a regular file of this user (or root) that others may not write."""
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile(path, "it is not a regular file")
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeFile(path, f"it belongs to another user (uid {found.st_uid}): chown it to this one")
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise UnsafeFile(path, "other users may write it: chmod go-w")


def open_for_append(path: Path) -> IO[bytes]:
    """A file to append to, made with mode 0600; a symbolic link is not followed."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, PRIVATE_MODE), "ab")


@contextmanager
def _temporary_file(path: Path, mode: int) -> Iterator[tuple[Path, IO[bytes]]]:
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask is
            yield made, file
    finally:
        with suppress(FileNotFoundError):
            made.unlink()


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
