"""What an agent's process counts, for Prometheus, where it was asked to: `Memory(metrics=prometheus_client.REGISTRY)`.

Labels are places, outcomes and names of errors, never an owner: their number must not grow with users.
"""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# Recall and remember take from a tenth of a millisecond to the second at which they give up.
QUICK = (0.0002, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

# Of a turn until it is stored, embedded, mined: from milliseconds to the hours of an outage.
FRESHNESS_BUCKETS = (*QUICK[QUICK.index(0.005) :], 5, 7.5, 10, 15, 20, 30, 45, 60, 300, 1_800, 7_200)

_made: "WeakKeyDictionary[CollectorRegistry, Instruments]" = WeakKeyDictionary()


class Instruments:
    """The agent's side in one registry. Two memories of a process that name the same registry share them."""

    def __init__(self, registry: "CollectorRegistry") -> None:
        from prometheus_client import Counter, Histogram

        self.recall = Histogram(
            "aftermind_recall_seconds",
            "Seconds of a recall, by the node whose rows it read: replica, primary, process or none.",
            ["served_by"],
            buckets=QUICK,
            registry=registry,
        )
        self.degraded = Counter("aftermind_recalls_degraded", "Recalls with a degraded block.", registry=registry)
        self.remember = Histogram(
            "aftermind_remember_seconds",
            "Seconds of a remember() call, by result: accepted or spooled.",
            ["outcome"],
            buckets=QUICK,
            registry=registry,
        )
        self.refused = Counter(
            "aftermind_remember_refused", "Turns that were not taken, by the error.", ["error"], registry=registry
        )


def instruments(registry: "CollectorRegistry") -> Instruments:
    """The instruments of a registry, made at the first call for it."""
    found = _made.get(registry)
    if found is None:
        found = _made[registry] = Instruments(registry)
    return found
