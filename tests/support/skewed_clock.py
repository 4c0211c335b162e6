"""Processes with a wrong clock: libfaketime, preloaded, reads the offset from a file that a test may change."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

PATCHES = Path(__file__).with_name("skewed_clock_path")
LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/local/lib/faketime/libfaketimeMT.so.1")


def libfaketime() -> Path:
    """The library. Where there is none: an error under CI, a skip with the reason elsewhere."""
    for pattern in LIBRARIES:
        for found in Path("/").glob(pattern.lstrip("/")):
            return found
    if os.environ.get("CI"):
        raise RuntimeError("wrong clocks are tested with libfaketime, which is not installed")
    pytest.skip("libfaketime is not installed: apt-get install faketime")


class SkewedClock:
    """A wall clock that differs from this machine's by `seconds`; the monotonic clock is right."""

    def __init__(self, file: Path, seconds: float = 0.0) -> None:
        self._file = file
        self.step(seconds)

    def step(self, seconds: float) -> None:
        """From now on it differs by so many seconds: processes that run see it step."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(f"{seconds:+g}\n")
        draft.replace(self._file)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Environment variables of a process that has this clock."""
        return {
            **env,
            "LD_PRELOAD": str(libfaketime()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Else pthread_cond_timedwait waits too long, and threads of Python wait seconds for the interpreter's lock.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "PYTHONPATH": os.pathsep.join([str(PATCHES), *filter(None, [env.get("PYTHONPATH")])]),
        }
