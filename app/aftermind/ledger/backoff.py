"""Delay before the next attempt: capped exponential backoff with full jitter."""

from collections.abc import Callable
from datetime import timedelta


def backoff(attempt: int, *, base: timedelta, cap: timedelta, random: Callable[[], float]) -> timedelta:
    """The wait after the `attempt`-th failure (from 1): between half and all of `base` x 2^(attempt-1), at most `cap`.

    Half is kept so that a wait grows for certain; the other half is drawn (`random` gives 0 to 1), so that jobs that
    failed together do not come back together. After Brooker, "Exponential Backoff And Jitter" (AWS, 2015).
    """
    grown = min(cap, base * 2 ** min(attempt - 1, 40)) if attempt < 60 else cap
    return grown * (0.5 + 0.5 * random())
