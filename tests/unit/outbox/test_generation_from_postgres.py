"""The generation of a spooled turn: a number as soon as the primary has answered once."""

import time

import pytest

from aftermind import errors
from aftermind.outbox.generation_from_postgres import GenerationLookup


class Primary:
    """Answers with `number`, or not at all."""

    def __init__(self, number: int | None) -> None:
        self.number, self.calls = number, 0

    async def __call__(self) -> int:
        self.calls += 1
        if self.number is None:
            raise errors.StoreUnavailable("postgres", "it does not answer")
        return self.number


@pytest.mark.parametrize("number", [0, 7])
async def test_no_erasure_yet_is_a_number_too(number: int) -> None:
    """Without one, the clock of the host would decide whether a later erasure covers the turn."""
    lookup = GenerationLookup(Primary(number))

    assert await lookup.number(since=time.monotonic(), timeout=5) == number
    await lookup.task.cancel()


async def test_the_last_answer_is_a_lower_bound_while_the_primary_is_away() -> None:
    primary = Primary(0)
    lookup = GenerationLookup(primary)
    lookup.begin_once()
    assert await lookup.number(since=time.monotonic() - 1, timeout=5) == 0

    primary.number = None

    assert await lookup.number(since=time.monotonic(), timeout=0.05) == 0
    lookup.begin_once()
    assert primary.calls <= 3
    await lookup.task.cancel()
