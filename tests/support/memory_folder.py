"""Temporary files of a test run in memory, where there is space for them: servers, state folders, spools, SQLite files.

Most are made and deleted within seconds. ext4 passes over inodes that were deleted in the last seconds one by one, and
each sync waits for the disk. What a machine's power cut would do to files is no test's subject.
"""

import os
import shutil
import tempfile
from pathlib import Path

import psutil

MEMORY, PREFIX = Path("/dev/shm"), "aftermind-tests-"  # each folder is of one run alone
NEEDED_BYTES = 6 * 1024**3  # four processes of a run take 2 GB at most, and write-ahead logs may grow


def use_memory() -> None:
    """Have this process, and what it starts, make temporary files in a folder in memory."""
    try:
        is_enough = shutil.disk_usage(MEMORY).free > NEEDED_BYTES
    except OSError:
        is_enough = False
    if not is_enough:
        return
    for left in MEMORY.glob(f"{PREFIX}*"):  # of a run that was killed or failed
        process = left.name.removeprefix(PREFIX)
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            shutil.rmtree(left, ignore_errors=True)
    folder = MEMORY / f"{PREFIX}{os.getpid()}"
    folder.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


def delete_folder() -> None:
    """Delete that folder, if this process has made it."""
    shutil.rmtree(MEMORY / f"{PREFIX}{os.getpid()}", ignore_errors=True)
