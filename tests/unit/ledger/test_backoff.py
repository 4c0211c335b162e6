"""The wait before the next try: grows, is capped, and keeps jobs apart that failed together."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from aftermind.ledger.backoff import backoff

BASE, CAP = timedelta(seconds=1), timedelta(seconds=600)
attempts = st.integers(min_value=1, max_value=10_000)
drawn = st.floats(min_value=0, max_value=1)


def test_the_longest_waits_double_up_to_the_cap() -> None:
    waits = [backoff(attempt, base=BASE, cap=CAP, random=lambda: 1.0).total_seconds() for attempt in range(1, 13)]

    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]


@given(attempts, drawn)
def test_a_wait_lies_between_half_and_all_of_what_it_has_grown_to(attempt: int, luck: float) -> None:
    longest = backoff(attempt, base=BASE, cap=CAP, random=lambda: 1.0)

    assert longest / 2 <= backoff(attempt, base=BASE, cap=CAP, random=lambda: luck) <= longest <= CAP


@given(attempts, drawn, drawn)
def test_a_later_wait_is_never_half_as_short_as_an_earlier_one_could_be(
    attempt: int, luck: float, later_luck: float
) -> None:
    earlier = backoff(attempt, base=BASE, cap=CAP, random=lambda: luck)

    assert backoff(attempt + 1, base=BASE, cap=CAP, random=lambda: later_luck) >= earlier / 2
