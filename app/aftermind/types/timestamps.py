"""Points in time that callers give: with a zone, and inside what Python, Postgres and JSON can convert to UTC."""

from datetime import UTC, datetime, timedelta

# Two days inside datetime's own range: no conversion between zones leaves it.
EARLIEST = datetime(1, 1, 3)  # noqa: DTZ001  # compared without its zone
LATEST = datetime(9999, 12, 29)  # noqa: DTZ001


def why_unusable(moment: object) -> str | None:
    """Why a value cannot be used as a point in time; None where it can."""
    if not isinstance(moment, datetime) or moment.tzinfo is None or moment.utcoffset() is None:
        return "a time is a datetime with its zone; use datetime(2026, 1, 31, tzinfo=UTC)."
    if not EARLIEST <= moment.replace(tzinfo=None) <= LATEST:
        return f"a time must be between the years {EARLIEST.year} and {LATEST.year}, a few days inside them."
    return None


def before_now(span: timedelta, *, now: datetime | None = None) -> datetime | None:
    """The time so long ago; None where that is before any usable time."""
    try:
        return (now or datetime.now(UTC)) - span
    except OverflowError:
        return None
