"""What every client asked for and was told, as lines of JSON: the one side of the comparison."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

Kind = Literal["invoke", "ok", "fail", "info"]  # Jepsen's words: info means that nobody knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One numbered turn on its way: `invoke` before the call, then how the call ended."""

    type: Kind
    marker: str
    user: str
    session: str
    number: int
    at: float
    fact: str | None = None
    spooled: bool = False
    took: float = 0.0
    job: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """One recall for a turn that was acknowledged before it began.

    `type` is `ok` (the turn is in the block), `stale` (a whole block without it), `degraded` or `error`.
    """

    type: Literal["ok", "stale", "degraded", "error"]
    marker: str
    user: str
    began: float
    ended: float
    acknowledged: float
    served_by: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What became of one turn of a user whose memory is erased again and again.

    `forgotten`: a `forget` that was called after the turn was acknowledged has returned. `kept`: no `forget` was called
    after it. A turn that is neither was accepted while a `forget` ran. `receipt` is how the receipt ended: `done`,
    `forgotten`, or `unknown`. `seen` counts recalls that showed it after it was forgotten.
    """

    marker: str
    forgotten: bool = False
    kept: bool = False
    receipt: str = "unknown"
    seen: int = 0
    why: str = ""


class History:
    """One process's file. A line is written before the next step is taken, so a kill loses none that was told."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, entry: Remembered | Recalled | Erased) -> None:
        """Write one line; the kernel has it when this returns, so killing us changes nothing."""
        self._file.write(json.dumps(asdict(entry), separators=(",", ":")).encode() + b"\n")


class Tail:
    """Reads what other processes append, as far as they have come."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        self._offsets: dict[Path, int] = {}

    def read(self) -> Iterator[Remembered]:
        """What was appended since the last call."""
        for path in sorted(self._folder.glob(self._pattern)):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offsets[path] = self._offsets.get(path, 0) + len(line)
                    yield Remembered(**json.loads(line))


def remembered(folder: Path) -> list[Remembered]:
    """Every line of every producer."""
    return list(Tail(folder, "producer-*.jsonl").read())


def erased(folder: Path) -> list[Erased]:
    """Every line of every process that erases."""
    paths = sorted(folder.glob("eraser-*.jsonl"))
    return [Erased(**json.loads(line)) for path in paths for line in path.read_bytes().splitlines() if line]


def recalled(folder: Path) -> list[Recalled]:
    """Every line of every reader."""
    entries: list[Recalled] = []
    for path in sorted(folder.glob("reader-*.jsonl")):
        entries.extend(Recalled(**json.loads(line)) for line in path.read_bytes().splitlines() if line)
    return entries


CLOCK = "NOTHING_LOST_CLOCK"  # what the wall clock is ahead of the monotonic one, in seconds, as the runner measured it


def now() -> float:
    """Seconds since 1970 by the machine's monotonic clock, which a process with a skewed wall clock shares."""
    return time.monotonic() + float(os.environ.get(CLOCK) or time.time() - time.monotonic())


def clock() -> dict[str, str]:
    """The environment by which a process with a skewed wall clock has the same `now()`."""
    return {CLOCK: str(time.time() - time.monotonic())}
