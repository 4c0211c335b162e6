"""Queue names, the name of the only task, and the queue of each kind of job."""

from collections.abc import Mapping

from aftermind.types import JobKind

TASK = "aftermind.run"  # never changes: a worker discards tasks with an unknown name

STORE = "memory.store"
EMBED = "memory.embed"
EXTRACT = "memory.extract"
REPLAY = "memory.replay"
QUEUES = (STORE, EMBED, EXTRACT, REPLAY)

# Slow model calls have separate queues and worker pools: they never delay a store.
QUEUE_OF: Mapping[JobKind, str] = {
    JobKind.STORE: STORE,
    JobKind.FORGET: STORE,
    JobKind.EMBED: EMBED,
    JobKind.INDEX: EMBED,
    JobKind.EXTRACT: EXTRACT,
    JobKind.SUMMARISE: EXTRACT,
    JobKind.PROFILE: EXTRACT,
    JobKind.SHADOW: REPLAY,
}


MAX_QUEUED_DOORBELLS = 1_000  # beyond it RabbitMQ drops the oldest: each is for all pending work, and costs no turn


def queue_arguments(broker: str) -> Mapping[str, str | int]:
    """How queues are declared, by both sides alike: RabbitMQ replicates quorum queues, and none grows for ever."""
    if not broker.startswith("amqp"):
        return {}
    return {"x-queue-type": "quorum", "x-max-length": MAX_QUEUED_DOORBELLS, "x-overflow": "drop-head"}
