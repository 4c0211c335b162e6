"""The settings of a run: ordinary ones, sped up so that half a minute holds what a day would."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RATE = 130.0  # turns a second: 3,900 in half a minute; two cores bear 200 beside the faults, half as quick ones 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a run goes. Seconds, and turns a second of all producers together."""

    seconds: float
    rate: float = RATE
    producers: int = 2
    lanes: int = 6  # concurrent conversations of one producer
    recalls: float = 24.0  # a second, of all readers
    lease: float = 5.0
    accept: str = "redis"
    seed: int = 1
    skews: tuple[float, ...] = ()  # seconds by which the wall clock of each producer, in turn, is wrong

    def settings(self) -> Mapping[str, str]:
        """As environment of every process of the run."""
        return {
            "AFTERMIND_ACCEPT": self.accept,
            "AFTERMIND_LEASE_SECONDS": str(self.lease),
            "AFTERMIND_HEARTBEAT_SECONDS": str(self.lease / 4),
            "AFTERMIND_RECONCILE_SECONDS": "0.5",
            "AFTERMIND_BACKOFF_BASE_SECONDS": "0.2",
            "AFTERMIND_BACKOFF_CAP_SECONDS": "2",
            "AFTERMIND_EXTRACT_QUIET_SECONDS": "1",
            "AFTERMIND_EXTRACT_MAX_WAIT_SECONDS": "3",
            # Else nothing is quiet before three minutes are over: what condenses waits for a user who is silent.
            "AFTERMIND_SUMMARY_QUIET_SECONDS": "2",
            "AFTERMIND_SUMMARY_MAX_WAIT_SECONDS": "6",
            "AFTERMIND_PROFILE_QUIET_SECONDS": "2",
            "AFTERMIND_PROFILE_MAX_WAIT_SECONDS": "6",
            "AFTERMIND_MODEL_TIMEOUT_SECONDS": "3",
            # Ten processes share two cores here: these budgets are twice the default, so that what is counted as
            # degraded is what a fault did.
            "AFTERMIND_RECALL_BUDGET_SECONDS": "2",
            "AFTERMIND_QUERY_EMBEDDING_BUDGET_SECONDS": "0.8",
            "AFTERMIND_SHUTDOWN_GRACE_SECONDS": "4",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one producer does. `rate` is in turns a second, of this producer alone."""

    producer: int
    folder: str
    seconds: float
    rate: float
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one reader does; `rate` in recalls a second."""

    reader: int
    folder: str
    rate: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasing:
    """What one process that erases does. `pause` in seconds after each round of a lane."""

    eraser: int
    folder: str
    seconds: float
    lanes: int = 4
    pause: float = 0.1


def environment(settings: Mapping[str, str], *, root: Path) -> dict[str, str]:
    """Ours without anybody's own settings, and with these; `root` is the tree whose code runs, installed or not."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("AFTERMIND_", "OPENAI_"))}
    paths = os.pathsep.join(str(root / each) for each in ("", "app", "tasks", "workers"))
    return {**inherited, **settings, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
