"""Runs a worker or a reconciler for every database of the map: one process each, so that none waits for another one."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

from aftermind.settings import Settings
from aftermind.stack import run_without_root
from aftermind.telemetry import log_format
from aftermind.telemetry.logger import get_logger

FIRST_DELAY_SECONDS = 1.0  # before a process is started again; doubled each time
MAX_DELAY_SECONDS = 30.0
STABLE_SECONDS = 60.0  # a process that ran for so long is started again after the first delay

log = get_logger(__name__)


def run(settings: Settings, argv: Sequence[str]) -> int:
    """Run the command for each database until SIGTERM or SIGINT; returns an exit code.

    A process that ends is started again. The ports of metrics are counted up from `metrics_port`, in the order of the
    map, and the files of readiness have the name of the database as a suffix, except for `default`.
    """
    log_format.configure(level=settings.log_level, style=settings.log_format)
    return asyncio.run(_run(settings, argv))


async def _run(settings: Settings, argv: Sequence[str]) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with asyncio.TaskGroup() as group:
        for place, name in enumerate(settings.database_names):
            group.create_task(_keep_running(name, argv, _environment(settings, name, place), stop), name=name)
    return 0


def _environment(settings: Settings, name: str, place: int) -> dict[str, str]:
    more = {"AFTERMIND_DATABASE": name}
    if settings.metrics_port:
        more["AFTERMIND_METRICS_PORT"] = str(settings.metrics_port + place)
    if settings.ready_file is not None and place:
        more["AFTERMIND_READY_FILE"] = f"{settings.ready_file}.{name}"
    return {**os.environ, **more}


async def _keep_running(name: str, argv: Sequence[str], env: dict[str, str], stop: asyncio.Event) -> None:
    delay, stopping = FIRST_DELAY_SECONDS, asyncio.create_task(stop.wait())
    while not stop.is_set():
        started = time.monotonic()
        # In a separate session: Ctrl-C reaches this process, which ends the others once.
        process = await asyncio.create_subprocess_exec(
            *run_without_root.dying_with_parent("SIGTERM"), *argv, env=env, start_new_session=True
        )
        ended = asyncio.create_task(process.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            with suppress(ProcessLookupError):
                process.terminate()
            await ended
            return
        delay = FIRST_DELAY_SECONDS if time.monotonic() - started > STABLE_SECONDS else delay
        log.warning("process ended", extra={"database": name, "exit_code": process.returncode, "again_in": delay})
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await stop.wait()
        delay = min(MAX_DELAY_SECONDS, 2 * delay)
