"""A short leg for each planted fault, with the strokes that bring it out; the comparison has to say what was lost."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.fault_schedule import Fault, FaultKind
from benchmarks.harness.history import now
from benchmarks.harness.phase import Leg, LegResult, run
from benchmarks.harness.planted_bugs import Plant
from benchmarks.harness.run_settings import Pace
from benchmarks.harness.servers import site
from tests.support.servers import Servers

STORE, MODELS = 0, 1  # the workers of a short leg, as targets of a fault
PACE = Pace(seconds=10.0, rate=60.0, producers=1, recalls=24.0)
MANY_USERS = replace(PACE, rate=30.0, lanes=20, recalls=60.0)  # each says something every 0.7 s, and is asked before
SLOW_MODEL = 0.8  # seconds of a model call: long enough for a worker to be killed or frozen in it
LATE_REPLICA = 0.6  # seconds by which the replica replays commits late
DRAIN, DRAIN_AT_MOST = 40.0, 120.0  # seconds without progress, and in all; a leg with a replay drains twice
# Seconds of one leg, which takes 20 to 80, and 200 with a load of 25; beyond them its fault counts as not caught.
LEG_AT_MOST = 300.0
# A job that has lost two leases is tried alone, so with a lease that is too short the worker ends about one a second.
FEW_TURNS = replace(PACE, seconds=5.0, rate=2.0)
# What the comparison has to say at least: any other number it reports may come from the slow model or the late replica.
EXPECTED: Mapping[Plant, frozenset[str]] = {
    Plant.ACK_BEFORE_COMMIT: frozenset({"unembedded", "missing_facts"}),
    Plant.NO_FENCE: frozenset({"duplicated"}),
    Plant.NO_RECONCILER: frozenset({"unfinished"}),
    Plant.SHORT_LEASE: frozenset({"dead_after_replay"}),
    Plant.EARLY_WATERMARK: frozenset({"stale_recalls"}),
    Plant.EARLY_CLEAR: frozenset({"lost"}),
    Plant.POP_BEFORE_PUSH: frozenset({"missing_facts"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """What the comparison said about a planted fault."""

    plant: Plant
    broken: Mapping[str, int]
    seconds: float = 0.0  # that its leg took
    error: str | None = None  # why its leg did not end

    @property
    def is_caught(self) -> bool:
        """Whether the loss that it causes was reported."""
        return bool(EXPECTED[self.plant] & self.broken.keys())


async def catch(servers: Servers, plant: Plant, folder: Path, *, root: Path) -> Caught:
    """Run the short leg of one planted fault. A leg that fails or takes too long caught nothing, and ends no run."""
    began = now()
    broken: Mapping[str, int] = {}
    error = None
    try:
        async with asyncio.timeout(LEG_AT_MOST), site(servers, folder) as place:
            result: LegResult = await run(leg_of(plant), place, root=root)
            broken = result.findings.broken
    except Exception as exc:  # the others are still to be run, and reported
        error = f"{type(exc).__name__}: {exc}"
    return Caught(plant=plant, broken=broken, seconds=now() - began, error=error)


def leg_of(plant: Plant) -> Leg:
    """The short leg that brings a planted fault out."""
    base = Leg(
        pace=PACE,
        faults=(),
        plant=plant,
        stores=1,
        drain_seconds=DRAIN,
        drain_at_most=DRAIN_AT_MOST,
        replays=False,
    )
    return replace(base, **_DIFFERENCES[plant])  # type: ignore[arg-type]


def _strokes(
    kind: FaultKind, target: int, *, first: float, every: float, count: int, lasts: float = 0.0
) -> list[Fault]:
    times = [first + every * number for number in range(count)]
    return [Fault(kind=kind, at=at, lasts=lasts, target=target) for at in times]


def _kills(target: int) -> Sequence[Fault]:
    return _strokes(FaultKind.KILL_WORKER, target, first=4.0, every=4.5, count=2)


_FREEZE = _strokes(FaultKind.FREEZE_AT_WORK, MODELS, first=4.0, every=1.0, count=1, lasts=PACE.lease * 2)
_DIFFERENCES: Mapping[Plant, Mapping[str, object]] = {
    Plant.ACK_BEFORE_COMMIT: {"faults": _kills(MODELS), "model_seconds": SLOW_MODEL},
    Plant.NO_FENCE: {"faults": _FREEZE, "model_seconds": SLOW_MODEL, "models": 2},
    Plant.NO_RECONCILER: {"faults": _kills(MODELS), "model_seconds": SLOW_MODEL},
    Plant.SHORT_LEASE: {"pace": FEW_TURNS, "model_seconds": SLOW_MODEL, "replays": True},
    Plant.EARLY_WATERMARK: {"pace": MANY_USERS, "replica_seconds": LATE_REPLICA},
    Plant.EARLY_CLEAR: {"faults": _kills(STORE)},
    Plant.POP_BEFORE_PUSH: {"replays": True, "replayer_kills": 4},
}
