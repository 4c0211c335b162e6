"""Selects the lines of a block: the greatest expected value within a token budget."""

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise

from aftermind.recall.render import (
    CLOSING,
    INDENT,
    OPENING,
    SECTIONS,
    as_text,
    closing_tag,
    continues,
    day_heading,
    label,
    opening_tag,
    render,
)
from aftermind.types import BlockLine

Order = tuple[float, int]  # a time or number, and the position of those with the same one
TurnWord = tuple[type, Hashable, str]  # the kind of what has it, the turn, and the word
CountEach = Callable[[Sequence[str]], Sequence[int]]  # tokens of each text: together they take a fraction of the time

LARGEST_SHARE = 0.5  # of the budget: of a long text no more is taken, however good it is
MOST_CHARACTERS = 16  # of a token in any text worth reading: a document of 256 KiB need not be counted to be too long
CHARACTERS = 4  # of a token in running text: of more text, not all can fit
LONG_CHARACTERS = 600  # a turn longer than a paragraph is worth having in part; of a short one the next one is better
PASSAGE_TOKENS = 200  # of a long text that are used for its passage first; more follows if there is space
LEAST_TOKENS = 24  # of a shortened chunk: below it a few words without their sentence are left
# Value is compared per token to this power: 1 is the greedy knapsack, 0 the order of the values. From 0.5 to 1 blocks
# of 500 and 1,000 tokens hold the same within 0.005; 0 holds 0.01 less.
COST_POWER = 0.7
REPEATED = 0.3  # share of its value that a chunk keeps if the block has its content: a fact, or its turn
# Of its words: "lives in Oslo" repeats "I live in Oslo now, since May", and "has pet Dot" not "I have a cat named Dot".
MOSTLY = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One line of a block. `shortened` returns the line of a long text with less of it, None for other texts.

    `value` is its expected value for the query, `order` its position in the section. `tells` are words of turns that
    it has; `repeats` are those that make it superfluous, where others have them. `key` identifies it for the caller.
    """

    key: int
    line: BlockLine
    value: float
    order: Order
    tells: frozenset[TurnWord] = frozenset()
    repeats: frozenset[TurnWord] = frozenset()
    shortened: Callable[[int], BlockLine] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A block within its budget. `chunks` are those in it as they are shown, the most valuable first."""

    text: str
    tokens: int
    chunks: tuple[Chunk, ...]
    lines: tuple[BlockLine, ...]


@dataclass(slots=True)
class _Filling:
    """A block while it is filled.

    `section_tokens` are those of a section's tags, `day_tokens` of a date, `label_tokens` of a speaker's name, as far
    as a line without it is shorter.
    """

    left: int
    section_tokens: Mapping[str, int]
    day_tokens: int
    label_tokens: Mapping[str, int]
    taken: list[Chunk] = field(default_factory=list)
    headed: set[tuple[str, str]] = field(default_factory=set)  # sections and their days that are paid for
    words: set[TurnWord] = field(default_factory=set)

    def marginal(self, chunk: Chunk) -> float:
        """What the chunk adds to those taken."""
        return chunk.value * (1 - known_share(chunk, self.words) * (1 - REPEATED))

    def heading(self, chunk: Chunk) -> int:
        """Tokens of the section and the day, where the chunk is the first of them."""
        section, day = chunk.line.section, chunk.line.day
        tokens = 0 if (section, "") in self.headed else self.section_tokens[section]
        return tokens + self.day_tokens if day and (section, day) not in self.headed else tokens

    def take(self, chunk: Chunk, tokens: int) -> None:
        self.left -= tokens
        self.taken.append(chunk)
        self.headed |= {(chunk.line.section, ""), (chunk.line.section, chunk.line.day)}
        self.words |= chunk.tells

    def saved(self) -> int:
        """Tokens of the speakers' names that are not written because the line before has the same one."""
        lines = _in_order(self.taken)
        return sum(self.label_tokens[line.speaker] for before, line in pairwise(lines) if continues(before, line))


def known_share(chunk: Chunk, words: Set[TurnWord]) -> float:
    """How much of the chunk others have, by its words: all of it, if they have `MOSTLY`."""
    if words.isdisjoint(chunk.repeats):
        return 0.0
    known = len({word for *_, word in chunk.repeats & words}) / len({word for *_, word in chunk.repeats})
    return min(1.0, known / MOSTLY)


def fit(chunks: Sequence[Chunk], budget: int, count_each: CountEach, *, largest: float = LARGEST_SHARE) -> Fitted:
    """Select chunks by value per token while they fit, and render them in their order; never more than `budget` tokens.

    Sums over lines only approximate the tokens of the whole text, so the whole is counted at the end, and the last
    selected chunks are removed until it fits. A budget too small for any chunk gives an empty text. Where all chunks
    fit, no line is counted alone. Of a long text at most `largest` of the budget is taken.
    """
    characters = sum(len(chunk.line.text) for chunk in chunks)
    if characters <= CHARACTERS * budget and (everything := fit_all(chunks, budget, count_each)) is not None:
        return everything
    taken = _taken(chunks, budget, max(int(budget * largest), LEAST_TOKENS), count_each)
    while taken:
        if (found := fit_all(taken, budget, count_each)) is not None:
            return found
        taken.pop()
    return Fitted(text="", tokens=0, chunks=(), lines=())


def fit_all(chunks: Sequence[Chunk], budget: int, count_each: CountEach) -> Fitted | None:
    """All of these chunks as a block; None if it exceeds the budget."""
    lines = _in_order(chunks)
    text = render(lines)
    (tokens,) = count_each([text]) if text else (0,)
    if tokens > budget:
        return None
    return Fitted(
        text=text, tokens=tokens, chunks=tuple(sorted(chunks, key=lambda each: -each.value)), lines=tuple(lines)
    )


def _in_order(chunks: Sequence[Chunk]) -> list[BlockLine]:
    return [each.line for each in sorted(chunks, key=lambda each: (SECTIONS.index(each.line.section), each.order))]


_Waiting = tuple[float, int, float, int, Chunk]  # less for a better one, place, value, tokens, chunk


def _taken(chunks: Sequence[Chunk], budget: int, largest: int, count_each: CountEach) -> list[Chunk]:
    filling, counted = _counted(chunks, budget, count_each)
    whole: dict[int, Chunk] = {}
    heap: list[_Waiting] = []
    for place, (chunk, tokens) in enumerate(zip(chunks, counted, strict=True)):
        left = filling.left - filling.heading(chunk)
        most = left if chunk.shortened is None else min(left, largest)
        fitting = _fitting(chunk, tokens, most, count_each)
        if fitting is not None:
            whole[chunk.key] = chunk
            heap.append((-_worth(chunk.value, fitting[1]), place, chunk.value, fitting[1], fitting[0]))
    rest = _fill(filling, heap)
    if rest and (saved := filling.saved()):
        filling.left += saved
        _fill(filling, rest)
    for place, chunk in enumerate(filling.taken):
        filling.taken[place], filling.left = _widened(chunk, whole[chunk.key], filling.left, largest, count_each)
    return filling.taken


def _fill(filling: _Filling, heap: list[_Waiting]) -> list[_Waiting]:
    """Lazy greedy: what is taken makes others worth less or the same, so only the best of the heap is valued again.

    Returns those that do not fit.
    """
    rest = []
    heapify(heap)
    while heap and filling.left > 0:
        waiting = heappop(heap)
        _, place, valued, tokens, chunk = waiting
        marginal = filling.marginal(chunk)
        if marginal < valued:
            heappush(heap, (-_worth(marginal, tokens), place, marginal, tokens, chunk))
        elif (needed := tokens + filling.heading(chunk)) <= filling.left:
            filling.take(chunk, needed)
        else:
            rest.append(waiting)
    return [*rest, *heap]


def _counted(chunks: Sequence[Chunk], budget: int, count_each: CountEach) -> tuple[_Filling, list[int]]:
    """An empty block, and the tokens of each chunk's line, counted in one pass; a line too long for any is not read."""
    tags = [opening_tag(section) + closing_tag(section) for section in SECTIONS]
    speakers = list({chunk.line.speaker for chunk in chunks if chunk.line.speaker})
    longest = MOST_CHARACTERS * budget
    lines = [as_text(chunk.line) if len(chunk.line.text) <= longest else "" for chunk in chunks]
    frame = [OPENING, CLOSING, day_heading("2000-01-01"), f"x\n{INDENT}x", "x\nx", *tags, *map(label, speakers)]
    opening, closing, day, indented, apart, *rest = count_each([*frame, *lines])
    sections, labels = rest[: len(tags)], rest[len(tags) : len(tags) + len(speakers)]
    filling = _Filling(
        left=budget - opening - closing,
        section_tokens=dict(zip(SECTIONS, sections, strict=True)),
        day_tokens=day,
        label_tokens={name: max(tokens - (indented - apart), 0) for name, tokens in zip(speakers, labels, strict=True)},
    )
    tokens = rest[len(tags) + len(speakers) :]
    return filling, [each if line else budget + 1 for each, line in zip(tokens, lines, strict=True)]


def _worth(value: float, tokens: int) -> float:
    return float(value / max(tokens, 1) ** COST_POWER)


def _widened(taken: Chunk, whole: Chunk, left: int, most: int, count_each: CountEach) -> tuple[Chunk, int]:
    """A long text with as much of it as fits at the end, and the tokens left then."""
    if taken is whole or left < LEAST_TOKENS:
        return taken, left
    had, needed = count_each([as_text(taken.line), as_text(whole.line)[: MOST_CHARACTERS * (most + 1)]])
    fitting = _fitting(whole, needed, min(had + left, max(most, had)), count_each, passage=False)
    if fitting is None or fitting[1] <= had:
        return taken, left
    return fitting[0], left + had - fitting[1]


def _fitting(
    chunk: Chunk, tokens: int, most: int, count_each: CountEach, *, passage: bool = True
) -> tuple[Chunk, int] | None:
    """The chunk and its `tokens`, shortened where it is long; None where not even that helps.

    Of a long text a `passage` is enough at first: it competes with other turns by that.
    """
    first = min(most, PASSAGE_TOKENS) if passage and chunk.shortened is not None else most
    if tokens <= first:
        return chunk, tokens
    if chunk.shortened is None or first < LEAST_TOKENS:
        return None
    low, high = 0, 4 * first  # characters: a token is hardly ever longer than four in running text
    while low < high:
        middle = (low + high + 1) // 2
        if count_each([as_text(chunk.shortened(middle))])[0] <= first:
            low = middle
        else:
            high = middle - 1
    if low < LEAST_TOKENS:
        return None
    line = chunk.shortened(low)
    return replace(chunk, line=line), count_each([as_text(line)])[0]
