"""The steps of a re-embedding, as jobs: one of an owner at a time, each a batch of episodes."""

from datetime import timedelta
from hashlib import blake2b

from aftermind.types import EmbedderIdentity, JobId, JobKind, NewJob, Scope
from aftermind.types.uuid7 import uuid7

TARGET, AFTER, RATE = "reembed", "after", "rate"  # keys of the payload
FIRST_POSITION = -(2**62)


def new_step(
    owner: Scope,
    target: EmbedderIdentity,
    *,
    rate: float = 0.0,
    after: int = FIRST_POSITION,
    delay: timedelta | None = None,
) -> NewJob:
    """A step that makes vectors of the target for the owner's episodes from a position on.

    `rate` is in episodes a second, 0 unlimited: the step after it waits as long as its episodes take at that rate.
    """
    digest = blake2b(target.key.encode(), digest_size=8).hexdigest()
    return NewJob(
        id=JobId(uuid7()),
        kind=JobKind.EMBED,
        scope=owner,
        payload={TARGET: target.key, AFTER: after, RATE: rate},
        effect_key=f"reembed:{digest}:{owner.user_column}",
        delay=delay,
    )
