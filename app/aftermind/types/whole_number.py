"""Arguments that are whole numbers with a bound, as the `limit` of a call that lists something."""

from collections.abc import Callable

from aftermind import errors

MAX_ROWS = 10_000


def check_whole_number(
    value: object,
    *,
    most: int = MAX_ROWS,
    field: str = "limit",
    error: Callable[[str, object, str], Exception] = errors.InvalidQuery,
) -> None:
    """Raise the error (`InvalidQuery`) about `field` unless the value is a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
        raise error(field, value, f"it is a whole number from 1 to {most:,}.")
