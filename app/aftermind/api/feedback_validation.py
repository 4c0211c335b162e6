"""Checks what a caller gives as feedback."""

from collections.abc import Iterable
from uuid import UUID

from aftermind import errors
from aftermind.types import Episode, Fact, Match, RecallBlock
from aftermind.types.feedback import MAX_IDS, Feedback

Judged = UUID | str | Match  # an id of an episode or a fact, or the match that shows it


def checked(block: RecallBlock | None, helpful: Iterable[Judged], unhelpful: Iterable[Judged]) -> Feedback:
    """The feedback, about episodes and facts of the block if there is one. Raises `InvalidFeedback`."""
    given = Feedback(helpful=_ids("helpful", helpful), unhelpful=_ids("unhelpful", unhelpful))
    every = (*given.helpful, *given.unhelpful)
    if not every:
        raise errors.InvalidFeedback("helpful", (), "name at least one id or match, here or as unhelpful.")
    if len(every) > MAX_IDS:
        raise errors.InvalidFeedback("helpful", f"{len(every)} ids", f"one feedback has at most {MAX_IDS}.")
    if both := set(given.helpful) & set(given.unhelpful):
        raise errors.InvalidFeedback("unhelpful", str(min(both)), "it is helpful, too; name it once.")
    if block is not None:
        if not isinstance(block, RecallBlock):
            raise errors.InvalidFeedback("block", block, "it is what recall() returned, or None.")
        shown = {match.item.id for match in block.matches if isinstance(match.item, Episode | Fact)}
        for id_ in every:
            if id_ not in shown:
                raise errors.InvalidFeedback("id", str(id_), "the block shows no such episode or fact.")
    return given


def _ids(field: str, given: Iterable[Judged]) -> tuple[UUID, ...]:
    if isinstance(given, str | UUID | Match):
        raise errors.InvalidFeedback(field, given, "it is a list of ids or matches.")
    try:
        return tuple(dict.fromkeys(map(_id, given)))
    except (ValueError, AttributeError, TypeError) as exc:
        raise errors.InvalidFeedback(field, given, "these are ids of episodes and facts, or matches.") from exc


def _id(judged: Judged) -> UUID:
    if isinstance(judged, Match):
        if not isinstance(judged.item, Episode | Fact):
            raise TypeError
        return judged.item.id
    return judged if isinstance(judged, UUID) else UUID(judged)
