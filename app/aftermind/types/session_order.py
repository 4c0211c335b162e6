"""The order of a session: positions that follow each other, whichever process counted them.

A turn gets its base where it is accepted. Each counter counts a session separately and records its start
(`counted_from`): Redis starts with its first turn of the session, and so does an agent without a connection to Redis.
Turns with the same start are in the order of their bases, whichever is stored first. Turns with another start come
after the stored ones: a counter that starts lower, because of a slow clock or an emptied Redis, is shifted past them
with all its turns.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from aftermind.types.message import Turn
from aftermind.types.scope import JobId, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """An episode's place in its session: its position, from where it was counted, and by how much it was shifted.

    `job_id` is the store job of its turn, for its timeline.
    """

    position: int
    counted_from: int | None = None
    shift: int = 0
    job_id: JobId | None = field(default=None, compare=False)


def session_columns(scope: Scope) -> tuple[str, str]:
    """The session within its namespace, as columns: (user, session), the empty text for none."""
    return scope.user_column, scope.session_id or ""


def placed_after(turn: Turn, last: Counted | None) -> Turn:
    """A turn that Postgres accepts, after the last of its session that it has accepted and not stored.

    They share a counter, since workers store them in any order; a second one may come from a Redis that lost its
    count, or from an agent that could not ask it.
    """
    if last is None:
        return turn if turn.counted_from is not None else replace(turn, counted_from=turn.base)
    return replace(turn, base=max(turn.base, last.position + 1), counted_from=last.counted_from)


def shift_at_once(turn: Turn, newest: Counted | None) -> int | None:
    """Shift that puts the turn after the newest; None if the shift of other turns of its counter is needed."""
    if turn.counted_from is None:
        return 0 if newest is None or turn.base > newest.position else newest.position + 1 - turn.base
    if newest is None:
        return 0
    if newest.counted_from == turn.counted_from:
        return newest.shift
    return 0 if turn.counted_from > newest.position else None


def shift_after(turn: Turn, newest: Counted, former: int | None) -> int:
    """Shift of the turn if others of its counter were shifted by `former`, or None if none of them is stored."""
    assert turn.counted_from is not None
    if former is None:
        return newest.position + 1 - turn.counted_from
    return max(former, newest.position + 1 - turn.base)


def shifted(turn: Turn, shift: int) -> Turn:
    """The turn at its place."""
    return turn if not shift else replace(turn, base=turn.base + shift, shift=shift)


def counted(turn: Turn) -> Counted:
    """State of the session's order after the turn is stored at its position."""
    last = turn.base + len(turn.messages) - 1
    return Counted(position=last, counted_from=turn.counted_from, shift=turn.shift, job_id=turn.job_id)


def placed_on_view(accepted: Iterable[Turn], local: Iterable[Turn], newest: Mapping[str | None, Counted]) -> list[Turn]:
    """Turns of an owner that wait, each where a store would put it: first what is accepted, then what this host has."""
    stand = dict(newest)
    found: list[Turn] = []
    ordered = (*sorted(accepted, key=_base), *sorted(local, key=_base))
    for turn in ordered:
        session = turn.scope.session_id
        last = stand.get(session)
        shift = shift_at_once(turn, last)
        if shift is None and last is not None:
            shift = shift_after(turn, last, None)
        placed = shifted(turn, shift or 0)
        if last is None or placed.base > last.position:
            stand[session] = counted(placed)
        found.append(placed)
    return found


def _base(turn: Turn) -> int:
    return turn.base
