"""A worker inside the test's process."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress

import redis.asyncio as aioredis

from aftermind import Settings, errors
from aftermind.wire.redis_keys import Keys
from aftermind_tasks.runtime import open_runtime
from aftermind_workers import claim_and_run_loop
from aftermind_workers.event_loop_thread import LoopThread
from aftermind_workers.lifecycle import Worker


@asynccontextmanager
async def answered_bells(worker: Worker, queue: str, redis_url: str) -> AsyncIterator[list[Future[int]]]:
    """Each bell of the queue is answered as Celery's workers answer it, for the block; the answers are in the list."""
    answers: list[Future[int]] = []

    async def answer() -> None:
        keys = Keys(worker.runtime.settings.redis_prefix)
        async with aioredis.Redis.from_url(redis_url, socket_timeout=None) as client:
            while True:
                if await client.brpop([keys.queue(queue)], timeout=0) is not None:
                    answers.append(worker.loop.submit(claim_and_run_loop.serve(worker, queue)))

    answering = asyncio.create_task(answer())
    try:
        yield answers
    finally:
        answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering


@asynccontextmanager
async def worker_without_celery(settings: Settings) -> AsyncIterator[Worker]:
    """A worker in this process, to answer bells with `claim_and_run_loop.serve`; what runs at the end is cancelled."""
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
