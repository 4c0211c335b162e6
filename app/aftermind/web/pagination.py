"""Pages of a list, by an opaque cursor that names the last row of a page: new rows do not shift the next page."""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, Field

from aftermind import errors
from aftermind.types import EpisodeId

T = TypeVar("T")
S = TypeVar("S")

DEEPEST = 10_000  # rows that can be paged through; beyond it narrow the filters, or export

Limit = Annotated[int, Query(gt=0, le=1_000, description="Maximum number of rows of a page.")]
Cursor = Annotated[str | None, Query(max_length=2_000, description="`next` of the previous page.")]


class Page(BaseModel, Generic[T]):
    """Some rows, and the cursor of the next page; null where there is none."""

    items: list[T]
    next: str | None = Field(description="`cursor` of the next page; null: this is the last page.")


def rows_to_read(cursor: str | None, limit: int) -> int:
    """Number of rows to read from the start in order to return the page at `cursor` and detect whether another one
    follows.
    """
    return min(_place(cursor)[0] + limit + 1, DEEPEST)


def page(
    rows: Sequence[S], *, cursor: str | None, limit: int, key: Callable[[S], object], shown: Callable[[S], T]
) -> Page[T]:
    """The page at `cursor` of rows read from the first on."""
    place, last = _place(cursor)
    start = next((index + 1 for index, row in enumerate(rows) if str(key(row)) == last), place) if last else place
    chosen = rows[start : start + limit]
    # By position, not by `start`: new rows have shifted the rows that were already returned, so fewer are read after
    # them.
    more = len(rows) > place + limit
    following = encode([start + len(chosen), str(key(chosen[-1]))]) if chosen and more else None
    return Page(items=[shown(row) for row in chosen], next=following)


def before(cursor: str | None) -> tuple[int, EpisodeId] | int | None:
    """The episode that a cursor of episodes names by position and id, or a position alone. Raises `InvalidQuery`."""
    if cursor is None:
        return None
    found = decode(cursor)
    position, id_ = found if isinstance(found, list) and len(found) == 2 else (found, None)
    if isinstance(position, bool) or not isinstance(position, int) or not -(2**63) <= position < 2**63:
        raise _bad(cursor)
    if id_ is None:
        return position
    try:
        return position, EpisodeId(UUID(id_))
    except (AttributeError, TypeError, ValueError) as exc:
        raise _bad(cursor) from exc


def encode(value: object) -> str:
    """A cursor of something that JSON can hold."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def decode(cursor: str) -> object:
    """What is in a cursor. Raises `InvalidQuery`."""
    try:
        return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error, RecursionError) as exc:
        raise _bad(cursor) from exc


def _place(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return 0, ""
    match decode(cursor):
        case [int() as place, str() as last] if 0 <= place <= DEEPEST:
            return place, last
    raise _bad(cursor)


def _bad(cursor: str) -> errors.InvalidQuery:
    return errors.InvalidQuery("cursor", cursor, "it must be the `next` of a page of this list.")
