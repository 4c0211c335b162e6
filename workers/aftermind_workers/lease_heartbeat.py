"""Heartbeat of a lease during the work: renews it, and stops the work when it is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aftermind import errors
from aftermind.telemetry.logger import get_logger
from aftermind.types import JobId

log = get_logger(__name__)
Renew = Callable[[], Awaitable[bool]]  # True while a lease of the batch holds, and once its effect is committed


class LostInOutageError(errors.LeaseLost):
    """The lease ran out because the server that keeps it could not be asked to renew it."""


@asynccontextmanager
async def held(renew: Renew, *, job_id: JobId, every: float, lasts: float) -> AsyncIterator[None]:
    """Renew a lease every `every` seconds while the block runs.

    If `renew` reports that the lease is lost, or fails for the `lasts` seconds of a lease, the block is cancelled and
    `LeaseLost` raised (`LostInOutageError` in the second case). The fence would refuse its effect anyway: this saves
    the model call. `job_id` names the batch in the error.
    """
    try:
        async with asyncio.TaskGroup() as group:
            beating = group.create_task(_beat(renew, job_id, every, lasts))
            try:
                yield
            finally:
                beating.cancel()
    except BaseExceptionGroup as several:
        raise _first(several) from None


async def _beat(renew: Renew, job_id: JobId, every: float, lasts: float) -> None:
    loop = asyncio.get_running_loop()
    good_until = loop.time() + lasts
    was_away, due = False, loop.time() + every
    while True:
        await asyncio.sleep(every)
        asked_at = loop.time()
        is_stalled, due = asked_at > due + every, asked_at + every  # the work held up this process: that counts
        try:
            async with asyncio.timeout(every):  # `wait_for` of Python 3.11 can swallow the cancellation that ends it
                holds = await renew()
        except (TimeoutError, errors.Unavailable):
            holds, was_away = asked_at < good_until, not is_stalled  # none can have taken it before it ran out
        else:
            good_until = asked_at + lasts
            was_away = was_away and not holds and not is_stalled
        if not holds:
            log.warning("lease lost", extra={"job_id": str(job_id), "by_outage": was_away})
            raise LostInOutageError(job_id) if was_away else errors.LeaseLost(job_id)


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of the work, or the lost lease that ended it; a group never leaves this module."""
    flat = [_first(error) if isinstance(error, BaseExceptionGroup) else error for error in several.exceptions]
    lost = [error for error in flat if isinstance(error, errors.LeaseLost)]
    return (lost or flat)[0]
