"""Checks what a caller gives as feedback."""

from collections.abc import Iterable
from uuid import UUID

from aftermind import errors
from aftermind.types import Episode, Fact, RecallBlock
from aftermind.types.feedback import MAX_IDS, Feedback


def checked(block: RecallBlock | None, helpful: Iterable[UUID | str], unhelpful: Iterable[UUID | str]) -> Feedback:
    """The feedback, about episodes and facts of the block if there is one. Raises `InvalidFeedback`."""
    given = Feedback(helpful=_ids("helpful", helpful), unhelpful=_ids("unhelpful", unhelpful))
    every = (*given.helpful, *given.unhelpful)
    if not every:
        raise errors.InvalidFeedback("helpful", (), "name at least one id, here or as unhelpful.")
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


def _ids(field: str, given: Iterable[UUID | str]) -> tuple[UUID, ...]:
    if isinstance(given, str | UUID):
        raise errors.InvalidFeedback(field, given, "it is a list of ids.")
    try:
        return tuple(dict.fromkeys(each if isinstance(each, UUID) else UUID(each) for each in given))
    except (ValueError, AttributeError, TypeError) as exc:
        raise errors.InvalidFeedback(field, given, "these are ids of episodes and facts.") from exc
