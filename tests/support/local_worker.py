"""A worker inside the test's process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aftermind import Settings, errors
from aftermind_tasks.runtime import open_runtime
from aftermind_workers.event_loop_thread import LoopThread
from aftermind_workers.lifecycle import Worker


@asynccontextmanager
async def worker_without_celery(settings: Settings) -> AsyncIterator[Worker]:
    """A worker in this process, to answer bells with `work_loop.serve`; what runs at the end is cancelled."""
    loop = LoopThread()
    loop.start()
    runtime = await asyncio.wrap_future(loop.submit(open_runtime(settings, worker="here")))
    try:
        yield Worker(loop=loop, runtime=runtime)
    finally:
        loop.call_soon(loop.cancel_tasks)
        with suppress(errors.AftermindError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(5):
                await asyncio.wrap_future(loop.submit(runtime.close()))
        await asyncio.to_thread(loop.stop)
