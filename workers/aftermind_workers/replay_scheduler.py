"""Enqueues the items of replay plans, at each plan's rate.

Run it as a separate process: `python -m aftermind_workers.replay_scheduler`. Workers of `memory.replay` run it as
standby. All state is in the plan's row, and a step is one transaction under its lock: several replayers take turns, and
one that is killed has completed a step or changed nothing.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from uuid import uuid4

from aftermind import errors
from aftermind.ledger.postgres.replay_step import ReplayEngine
from aftermind.settings import Settings
from aftermind.telemetry import log_format
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId
from aftermind.types.replay import PlanId
from aftermind.wire import queues
from aftermind_tasks.runtime import Runtime, open_runtime
from aftermind_workers import isolated_background_steps

log = get_logger(__name__)

IDLE_SECONDS = 1.0  # how soon a plan that was started is noticed; `running` reads a handful of rows by index
STEP_ITEMS = 100  # of one transaction, so that an abort never waits long for a step


async def run(
    runtime: Runtime, *, until: Callable[[], bool], pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Step every running plan when it is due, until stopped. Raises nothing but cancellation."""
    while not until():
        try:
            wait = await run_round(runtime)
        except errors.Unavailable as exc:
            log.warning("replayer waits", extra={"error": str(exc)})
            wait = IDLE_SECONDS
        except Exception:  # the edge of the loop: an error of one round must not end the replaying
            log.exception("replayer round failed")
            wait = IDLE_SECONDS
        await pause(wait)


async def run_round(runtime: Runtime) -> float:
    """One step of each running plan; how many seconds to wait for the next round."""
    replays = runtime.replays
    if replays is None:
        return IDLE_SECONDS
    plans = await replays.list_running()
    waits = await isolated_background_steps.run_each("replay", plans, lambda plan_id: _step(runtime, replays, plan_id))
    return min((wait for wait in waits if wait is not None), default=IDLE_SECONDS)


async def _step(runtime: Runtime, replays: ReplayEngine, plan_id: PlanId) -> float | None:
    done = await replays.step(plan_id, limit=STEP_ITEMS)
    if done.replayed:
        log.info("replayed", extra={"plan": plan_id, "jobs": done.replayed, "skipped": done.skipped})
        with contextlib.suppress(errors.Unavailable):  # the reconciler rings, too
            await runtime.bells.ring(queues.REPLAY, [JobId(uuid4())])
    return done.wait_seconds


async def _main() -> None:
    settings = Settings()
    log_format.configure(level=settings.log_level, style=settings.log_format)
    runtime = await open_runtime(settings, worker=f"{socket.gethostname()}:{os.getpid()}:replayer")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def pause(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stop.wait()

    try:
        await run(runtime, until=stop.is_set, pause=pause)
    finally:
        await runtime.close()


if __name__ == "__main__":
    asyncio.run(_main())
