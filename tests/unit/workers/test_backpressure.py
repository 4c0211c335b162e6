"""When work is not claimed, and when it is rung for again."""

from contextlib import ExitStack
from datetime import timedelta
from itertools import pairwise

from aftermind.types import JobKind
from aftermind_workers.fair_share import Places
from aftermind_workers.outage_pauses import LONGEST, ClaimPause, Gates
from aftermind_workers.reconciler import LONGEST_SILENCE, RingBackoff

PAUSE = timedelta(seconds=2)


def test_a_gate_is_open_until_an_outage_shuts_it() -> None:
    gate = ClaimPause()
    assert gate.wait(100.0) == 0

    gate.shut(100.0, PAUSE)

    assert gate.wait(100.5) == 1.5
    assert gate.wait(102.0) == 0


def test_each_outage_in_a_row_doubles_the_wait_up_to_a_bound() -> None:
    gate = ClaimPause()

    waits = []
    for _ in range(20):
        gate.shut(0.0, PAUSE)
        waits.append(gate.wait(0.0))

    assert waits[:2] == [2, 4]
    assert max(waits) == LONGEST.total_seconds()


def test_a_success_forgets_the_outages() -> None:
    gate = ClaimPause()
    gate.shut(0.0, PAUSE)
    gate.shut(0.0, PAUSE)

    gate.opened()
    gate.shut(0.0, PAUSE)

    assert gate.wait(0.0) == 2


def test_a_pause_that_a_person_has_to_end_is_taken_as_long_as_it_is() -> None:
    gate = ClaimPause()

    gate.shut(0.0, timedelta(minutes=10))

    assert gate.wait(0.0) == 600


def test_one_kind_that_waits_does_not_hold_up_another() -> None:
    gates = Gates()

    gates.gate(JobKind.EXTRACT).shut(0.0, PAUSE)

    assert gates.gate(JobKind.EMBED).wait(0.0) == 0


def test_nothing_is_rung_for_where_nothing_waits() -> None:
    assert not RingBackoff().is_due(10.0, 0, first=2.0)


def test_work_that_does_not_move_is_rung_for_ever_more_seldom_up_to_a_bound() -> None:
    ringing = RingBackoff()

    rung = [second for second in range(60) if ringing.is_due(float(second), 5, first=1.0)]

    gaps = [later - earlier for earlier, later in pairwise(rung)]
    assert gaps[:2] == [1, 2]
    assert max(gaps) == LONGEST_SILENCE


def test_work_that_moves_is_rung_for_at_the_first_wait_again() -> None:
    ringing = RingBackoff()
    for second in range(20):
        ringing.is_due(float(second), 5, first=1.0)

    assert ringing.is_due(100.0, 4, first=1.0)

    assert ringing.is_due(101.0, 4, first=1.0)


def test_a_namespace_holds_as_many_places_as_are_free_and_leaves_room_for_others() -> None:
    places, held = Places(32), ExitStack()

    def fill(namespace: str) -> int:
        count = 0
        while namespace not in places.full_namespaces():
            held.enter_context(places.hold(namespace))
            count += 1
        return count

    assert fill("loud") == 16
    assert fill("second") == 8
    assert places.free == 8

    held.close()
    assert places.free == 32
    assert places.full_namespaces() == []
