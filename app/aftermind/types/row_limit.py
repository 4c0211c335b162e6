"""The `limit` of a call that lists something."""

from collections.abc import Callable

from aftermind import errors

MAX_ROWS = 10_000


def check_limit(
    limit: object, *, most: int = MAX_ROWS, error: Callable[[str, object, str], Exception] = errors.InvalidQuery
) -> None:
    """Raise the error (`InvalidQuery`) unless `limit` is a whole number from 1 to `most`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= most:
        raise error("limit", limit, f"it is a whole number from 1 to {most:,}.")
