"""What fits into so many tokens: the most valuable first, whatever escaping and tags cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aftermind.recall.render import CLOSING, OPENING, closing_of, opening_of, render

Count = Callable[[str], int]

SHORTEN_BELOW = 0.5  # of the budget: no single chunk may take more, however good it is
MOST_CHARACTERS = 16  # of a token in any text worth reading: a document of 256 KiB need not be counted to be too long
LONG_CHARACTERS = 600  # a turn longer than a paragraph is worth having in part; of a short one the next one is better
LEAST_TOKENS = 24  # of a shortened chunk: below it a few words without their sentence are left


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One line of a block. `shortened` gives the line with less of its text, for one that is too long whole.

    `value` decides what is in, `order` where it stands in its section. `key` gives it back to the caller.
    """

    key: int
    section: str
    line: str
    value: float
    order: float
    shortened: Callable[[int], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A block within its budget. `chunks` are those in it as they are shown, the most valuable first."""

    text: str
    tokens: int
    chunks: tuple[Chunk, ...]


def fit(chunks: Sequence[Chunk], budget: int, count: Count) -> Fitted:
    """Take chunks by value while they fit, and render them in their order; never more than `budget` tokens.

    Sums of lines are only near the tokens of the whole, so the whole is counted at the end, and what is worth least
    goes until it fits. A budget too small for any chunk gives an empty text.
    """
    taken = _taken(chunks, budget, count)
    while taken:
        lines = sorted(taken, key=lambda each: each.order)
        text = render([(each.section, each.line) for each in lines])
        tokens = count(text)
        if tokens <= budget:
            return Fitted(text=text, tokens=tokens, chunks=tuple(taken))
        taken.pop()
    return Fitted(text="", tokens=0, chunks=())


def _taken(chunks: Sequence[Chunk], budget: int, count: Count) -> list[Chunk]:
    left = budget - count(OPENING) - count(CLOSING)
    taken: list[Chunk] = []
    sections: set[str] = set()
    for chunk in sorted(chunks, key=lambda each: -each.value):
        frame = 0 if chunk.section in sections else count(opening_of(chunk.section)) + count(closing_of(chunk.section))
        fitting = _fitting(chunk, min(left - frame, max(int(budget * SHORTEN_BELOW), LEAST_TOKENS)), count)
        if fitting is None:
            continue
        fitted, tokens = fitting
        left -= frame + tokens
        sections.add(chunk.section)
        taken.append(fitted)
        if left < LEAST_TOKENS // 2:
            break
    return taken


def _fitting(chunk: Chunk, most: int, count: Count) -> tuple[Chunk, int] | None:
    """The chunk and its tokens, shortened where it is long; None where not even that helps."""
    if len(chunk.line) <= MOST_CHARACTERS * most and (tokens := count(chunk.line)) <= most:
        return chunk, tokens
    if chunk.shortened is None or most < LEAST_TOKENS or len(chunk.line) < LONG_CHARACTERS:
        return None
    low, high = 0, 4 * most  # characters: a token is hardly ever longer than four in running text
    while low < high:
        middle = (low + high + 1) // 2
        if count(chunk.shortened(middle)) <= most:
            low = middle
        else:
            high = middle - 1
    if low < LEAST_TOKENS:
        return None
    line = chunk.shortened(low)
    return Chunk(key=chunk.key, section=chunk.section, line=line, value=chunk.value, order=chunk.order), count(line)


def cut(text: str, characters: int) -> str:
    """The beginning of a text, to the end of a word, with an ellipsis where something is missing."""
    if len(text) <= characters:
        return text
    head = text[:characters]
    word = head.rsplit(None, 1)[0] if " " in head[len(head) // 2 :] else head
    return f"{word.rstrip()} \N{HORIZONTAL ELLIPSIS}"
