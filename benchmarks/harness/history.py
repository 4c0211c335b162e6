"""What every client asked for and was told, as lines of JSON: the one side of the comparison."""

import json
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

    def append(self, entry: Remembered | Recalled) -> None:
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


def recalled(folder: Path) -> list[Recalled]:
    """Every line of every reader."""
    entries: list[Recalled] = []
    for path in sorted(folder.glob("reader-*.jsonl")):
        entries.extend(Recalled(**json.loads(line)) for line in path.read_bytes().splitlines() if line)
    return entries


def now() -> float:
    """Wall clock, in seconds: all processes and the database are of one machine, and so of one clock."""
    return time.time()
