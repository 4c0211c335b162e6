"""Which fault strikes when: a pure function of seed and length, so that a run can be repeated."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """What is done to the pipeline."""

    KILL_WORKER = "kill -9 of a worker"
    FREEZE_IN_POP = "a worker frozen in its pop, then kill -9"
    FREEZE_WORKER = "a worker frozen for longer than its lease"
    FREEZE_AT_WORK = "a worker frozen in jobs of the ledger, for longer than their lease"
    STOP_WORKER = "SIGTERM of a worker"
    ROLLING_RESTART = "SIGTERM of all workers, one after the other"
    KILL_RECONCILER = "kill -9 of the reconciler"
    KILL_REDIS = "kill -9 of Redis"
    FREEZE_REDIS = "Redis frozen"
    WIPE_REDIS = "Redis wiped"
    RESTART_POSTGRES = "immediate restart of Postgres"
    PAUSE_REPLICA = "the replica's replay paused"
    RESTART_REPLICA = "immediate restart of the replica"
    CUT_AGENTS = "the agents cut off from Redis"
    CUT_WORKERS = "the workers cut off from Redis"
    CUT_ALL = "everybody's connections to Redis reset"
    GARBAGE_BELLS = "messages that are no doorbells, in the queues of the workers"
    DAMAGE_SPOOL = "the agents cut off from Redis, and a record of their spool damaged"
    MODEL_FAULTS = "the model server answers 429, 500, garbage, a wrong schema, or nothing"


WORKER_FAULTS = (
    FaultKind.FREEZE_IN_POP,
    FaultKind.KILL_WORKER,
    FaultKind.KILL_WORKER,
    FaultKind.FREEZE_WORKER,
    FaultKind.KILL_WORKER,
    FaultKind.STOP_WORKER,
    FaultKind.KILL_WORKER,
    FaultKind.KILL_RECONCILER,
    FaultKind.GARBAGE_BELLS,
)
SERVICE_FAULTS = (
    FaultKind.KILL_REDIS,
    FaultKind.RESTART_POSTGRES,
    FaultKind.MODEL_FAULTS,
    FaultKind.CUT_WORKERS,
    FaultKind.PAUSE_REPLICA,
    FaultKind.CUT_AGENTS,
    FaultKind.RESTART_REPLICA,
    FaultKind.FREEZE_REDIS,
    FaultKind.CUT_ALL,
    FaultKind.DAMAGE_SPOOL,
)
LASTS = {  # seconds, where the fault has a length of its own
    FaultKind.FREEZE_IN_POP: 1.5,
    FaultKind.FREEZE_REDIS: 1.5,
    FaultKind.PAUSE_REPLICA: 2.0,
    FaultKind.CUT_AGENTS: 1.5,
    FaultKind.DAMAGE_SPOOL: 2.0,
    FaultKind.CUT_WORKERS: 2.0,
    FaultKind.MODEL_FAULTS: 2.5,
}
REST = 0.12  # of the run at its end goes without faults, so that the last ones are seen to be recovered from
WORKER_EVERY = 2.6  # seconds between faults of workers; half that is the most by which one is moved
SERVICE_EVERY = 4.2  # leaves a second or two between two faults, in which no recall may be degraded


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One stroke: so many seconds after the start, for so long; `target` picks among the workers there are."""

    kind: FaultKind
    at: float
    lasts: float = 0.0
    target: int = 0


def plan(seconds: float, *, seed: int, lease: float, wipes: int = 0) -> list[Fault]:
    """The strokes of a run, in order.

    Faults of workers and of services have a rhythm each; every kind comes once before any comes again. With `wipes`,
    Redis is emptied so often instead of anything else being done to it: no promise outlives both.
    """
    rng = random.Random(seed)
    until = seconds * (1 - REST)
    lasts = {**LASTS, FaultKind.FREEZE_WORKER: lease * 1.3}
    workers = _rhythm(WORKER_FAULTS, 1.0, until, WORKER_EVERY, rng, lasts)
    services = _rhythm(_services(wipes, rng), 2.2, until, SERVICE_EVERY, rng, lasts)
    return sorted([*workers, *services], key=lambda fault: fault.at)


def _services(wipes: int, rng: random.Random) -> Sequence[FaultKind]:
    if not wipes:
        first, rest = SERVICE_FAULTS[:2], list(SERVICE_FAULTS[2:])
        return (*first, *rng.sample(rest, len(rest)))  # a short run has the first two, and others by its seed
    untouched = (FaultKind.RESTART_POSTGRES, FaultKind.MODEL_FAULTS, FaultKind.PAUSE_REPLICA)
    return (FaultKind.WIPE_REDIS,) * wipes + untouched


def _rhythm(
    kinds: Sequence[FaultKind],
    first: float,
    until: float,
    every: float,
    rng: random.Random,
    lasts: dict[FaultKind, float],
) -> list[Fault]:
    faults: list[Fault] = []
    at, index = first, 0
    while at < until:
        kind = kinds[index % len(kinds)]
        moved = at + rng.uniform(0, every / 4)
        faults.append(Fault(kind=kind, at=moved, lasts=lasts.get(kind, 0.0), target=rng.randrange(1_000)))
        at, index = at + every, index + 1
    return faults
