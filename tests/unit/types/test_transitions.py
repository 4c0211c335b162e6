"""Which state of a job may follow which: the whole table, written out once more by hand."""

from itertools import product

import pytest

from aftermind import errors
from aftermind.types import JobState
from aftermind.types.job import TRANSITIONS, check_transition

LEGAL = {
    "queued": "running dead discarded forgotten",
    "running": "done retrying queued dead discarded forgotten running",
    "retrying": "running dead discarded forgotten queued",
    "done": "forgotten",
    "dead": "replayed discarded forgotten",
    "replayed": "forgotten",
    "discarded": "queued dead replayed forgotten",
    "forgotten": "",
}


@pytest.mark.parametrize(("before", "after"), list(product(JobState, JobState)))
def test_a_job_goes_where_it_may_and_nowhere_else(before: JobState, after: JobState) -> None:
    if after.value in LEGAL[before.value].split():
        check_transition(before, after)
    else:
        with pytest.raises(errors.Bug, match=f"from {before} to {after}"):
            check_transition(before, after)


def test_every_unfinished_state_leads_to_an_end() -> None:
    for state in JobState:
        reached, ahead = set[JobState](), {state}
        while ahead:
            reached |= ahead
            ahead = {after for each in ahead for after in TRANSITIONS[each]} - reached
        assert JobState.FORGOTTEN in reached
        assert state.is_final or JobState.DONE in reached


def test_nothing_that_is_forgotten_comes_back() -> None:
    assert not TRANSITIONS[JobState.FORGOTTEN]
