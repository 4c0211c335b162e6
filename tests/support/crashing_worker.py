"""Our worker application, with a store job that stumbles over certain words: `celery -A tests.support.crashing_worker`.

What stumbles is the moment between claim and commit: the process dies at `DEADLY`, takes its time at `SLOWLY`, and
fails for good at `HOPELESS`, and raises at `LOUDLY` what quotes all that was said, as libraries do.
"""

import asyncio
import os
import signal
from collections.abc import Sequence

from aftermind import errors
from aftermind.types import Turn
from aftermind_tasks import store
from aftermind_tasks.runtime import Runtime
from aftermind_tasks.turn_preparation import Prepared
from aftermind_workers.celery_app import app
from tests.support.workers import DEADLY, HOPELESS, LOUDLY, SLOWLY

__all__ = ["app"]

MOMENT = 1.5  # seconds; time enough for a test to freeze the process in it

_prepare = store.prepare


async def _stumbling(runtime: Runtime, turns: Sequence[Turn]) -> Prepared:
    said = [message.content for turn in turns for message in turn.messages]
    if any(DEADLY in text for text in said):
        os.kill(os.getpid(), signal.SIGKILL)
    if any(SLOWLY in text for text in said):
        await asyncio.sleep(MOMENT)
    if any(HOPELESS in text for text in said):
        raise errors.InvalidInput("it is never done")
    for text in said:
        if LOUDLY in text:
            raise ValueError(f"cannot take {text!r}")
    return await _prepare(runtime, turns)


setattr(store, "prepare", _stumbling)  # noqa: B010  # mypy takes an assignment for a mistake, which it is elsewhere
