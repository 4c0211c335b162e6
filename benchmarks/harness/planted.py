"""Faults of our own making, one a run: each has to turn the comparison red, or the harness proves nothing."""

from collections.abc import Callable, Mapping
from enum import StrEnum

VARIABLE = "NOTHING_LOST_PLANT"


class Plant(StrEnum):
    """What is broken on purpose."""

    ACK_BEFORE_COMMIT = "a job is acknowledged before its effect is committed"
    NO_FENCE = "an effect commits without the fence"
    NO_RECONCILER = "no reconciler runs"
    SHORT_LEASE = "a lease is shorter than its job, and nobody beats"
    EARLY_WATERMARK = "the watermark is taken before COMMIT"
    EARLY_CLEAR = "pending is cleared before COMMIT"
    POP_BEFORE_PUSH = "a replay takes the letter away before it puts the successor in"


def environment(plant: Plant | None) -> Mapping[str, str]:
    """What tells a process of ours which fault it has."""
    return {} if plant is None else {VARIABLE: plant.name}


def has_reconciler(plant: Plant | None) -> bool:
    """Whether a reconciler is to be started."""
    return plant is not Plant.NO_RECONCILER


def plant(environ: Mapping[str, str]) -> None:
    """Break this process as its environment says, if it says so."""
    name = environ.get(VARIABLE)
    if name is not None:
        _PLANTS[Plant[name]]()


_PLANTS: Mapping[Plant, Callable[[], None]] = {}
