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


def queue_arguments(broker: str) -> Mapping[str, str]:
    """How queues are declared, by both sides alike: RabbitMQ replicates quorum queues and loses none of their bells."""
    return {"x-queue-type": "quorum"} if broker.startswith("amqp") else {}
