"""A server's clock between its answers."""

import time

import pytest

from aftermind.wire.server_clock import ServerClock


def test_it_is_unread_before_the_first_answer_and_continues_after_it() -> None:
    clock = ServerClock()
    assert clock.now_ms() is None

    clock.read(1_000_000, took=0.01)
    time.sleep(0.05)

    first = clock.now_ms()
    assert first is not None
    assert 1_000_040 <= first < 1_010_000


def test_an_answer_that_took_longer_does_not_set_it_back() -> None:
    clock = ServerClock()
    clock.read(1_000_000, took=0.01)
    clock.read(999_900, took=0.11)

    found = clock.now_ms()
    assert found is not None
    assert found >= 1_000_000


def test_the_time_of_an_answer_that_was_read_late_is_not_used() -> None:
    clock = ServerClock()

    clock.read(1_000_000, took=3.0)

    assert clock.now_ms() is None


def test_a_server_whose_clock_was_set_back_is_followed() -> None:
    clock = ServerClock()
    clock.read(1_000_000, took=0.01)

    clock.read(990_000, took=0.01)

    found = clock.now_ms()
    assert found is not None
    assert 990_000 <= found < 991_000


@pytest.mark.parametrize("step", [-5.0, 5.0])
def test_a_clock_of_the_host_that_jumped_makes_it_unread_until_the_next_answer(
    monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    clock = ServerClock()
    clock.read(1_000_000, took=0.01)
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + step)
    assert clock.now_ms() is None

    clock.read(900_000, took=0.01)

    found = clock.now_ms()
    assert found is not None
    assert 900_000 <= found < 910_000
