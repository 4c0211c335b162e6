"""The order of a session: positions that follow each other, whoever counted them.

A turn gets its base where it is accepted. Each place counts a session for itself and says where it began
(`counted_from`): Redis with the first turn that it has of the session, an agent that Redis does not answer with its own
first. Turns that are counted from the same base are in the order of their bases, whichever is stored first. Turns that
are counted from elsewhere come after what is stored: a place that begins lower, because its clock is behind or Redis
was emptied, is shifted past it, and all that it counts with it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from aftermind.types.message import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The newest episode of a session: its position, from where it was counted, and by how much it was shifted."""

    position: int
    counted_from: int | None = None
    shift: int = 0


def shift_at_once(turn: Turn, newest: Counted | None) -> int | None:
    """By how much the turn is shifted behind the newest; None where that takes to know how others of its place were."""
    if turn.counted_from is None:
        return 0 if newest is None or turn.base > newest.position else newest.position + 1 - turn.base
    if newest is None:
        return 0
    if newest.counted_from == turn.counted_from:
        return newest.shift
    return 0 if turn.counted_from > newest.position else None


def shift_after(turn: Turn, newest: Counted, former: int | None) -> int:
    """The same where others of its place were shifted by `former`, or none of them is stored (None)."""
    assert turn.counted_from is not None
    if former is None:
        return newest.position + 1 - turn.counted_from
    return max(former, newest.position + 1 - turn.base)


def shifted(turn: Turn, shift: int) -> Turn:
    """The turn at its place."""
    return turn if not shift else replace(turn, base=turn.base + shift, shift=shift)


def counted(turn: Turn) -> Counted:
    """How the session stands once the turn, at its place, is stored."""
    last = turn.base + len(turn.messages) - 1
    return Counted(position=last, counted_from=turn.counted_from, shift=turn.shift)


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
