"""The simulation of large deployments agrees with what arithmetic gives for simple ones."""

import pytest

from benchmarks.simulate import Costs, Plan, simulate

NOTHING = Costs(redis_accept=0.0, redis_claim=0.0, worker_turn=0.0, database_turn=0.0, batch_wait=0.0)
ONE_MS = {"redis_accept": 1e-3, "redis_claim": 0.0, "worker_turn": 0.0, "database_turn": 0.0, "batch_wait": 0.0}
LIMITS = {
    "redis": {**ONE_MS},
    "workers": {**ONE_MS, "redis_accept": 0.0, "worker_turn": 1e-3},
    "databases": {**ONE_MS, "redis_accept": 0.0, "database_turn": 1e-3},
}


@pytest.mark.parametrize("part", LIMITS)
def test_a_part_that_takes_1000_turns_a_second_is_the_limit_at_1500(part: str) -> None:
    plan = Plan(rate=1_500, seconds=10, database_cores=1, costs=Costs(**LIMITS[part]))

    result = simulate(plan)

    assert plan.capacities()[part] == pytest.approx(1_000)
    assert result.busy[part] == pytest.approx(1.0, abs=0.01)
    assert not result.is_stable
    if part != "redis":  # whose own queue is before the pending turns
        assert result.stored_per_second == pytest.approx(1_000, rel=0.05)
        assert result.growth == pytest.approx(1 / 3, rel=0.2)  # a third of what arrives is left over


@pytest.mark.parametrize("part", LIMITS)
def test_the_same_part_twice_takes_it(part: str) -> None:
    result = simulate(
        Plan(rate=1_500, seconds=10, shards=2, workers=2, databases=2, database_cores=1, costs=Costs(**LIMITS[part]))
    )

    assert result.is_stable
    assert result.busy[part] == pytest.approx(0.75, abs=0.03)
    assert result.stored_per_second == pytest.approx(1_500, rel=0.05)


def test_without_costs_each_turn_is_stored_when_it_arrives() -> None:
    result = simulate(Plan(rate=10_000, seconds=2, costs=NOTHING))

    assert result.age_p99 == 0.0
    assert result.stored_per_second == pytest.approx(10_000, rel=0.05)
