"""The short form of `benchmarks/nothing_lost.py`: real workers and servers, a stroke of each sort, then the count."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness import phase
from benchmarks.harness.fault_schedule import Fault, FaultKind
from benchmarks.harness.phase import Leg
from benchmarks.harness.run_settings import Pace
from benchmarks.harness.servers import NO_POWER_IS_CUT, site
from tests.support.servers import Servers, start

ROOT = Path(__file__).resolve().parents[2]
PACE = Pace(seconds=6.0, rate=50.0, producers=1, lanes=4, recalls=12.0, lease=3.0)
STORE, MODELS = 0, 1
STROKES = (
    Fault(kind=FaultKind.KILL_WORKER, at=1.0, target=MODELS),
    Fault(kind=FaultKind.FREEZE_IN_POP, at=1.5, lasts=0.5),
    Fault(kind=FaultKind.KILL_REDIS, at=2.5),
    Fault(kind=FaultKind.CUT_WORKERS, at=3.5, lasts=0.5),
    Fault(kind=FaultKind.RESTART_POSTGRES, at=4.5),
)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Servers of this module alone: they are killed."""
    running = start(tmp_path_factory.mktemp("nothing-lost") / "stack", settings=NO_POWER_IS_CUT)
    running.make_template()
    yield running
    running.destroy()


@pytest.mark.long  # 115 s of CPU time each; a tenth of all others together
@pytest.mark.parametrize("accept", ["redis", "postgres"])
async def test_every_acknowledged_turn_is_kept_once_and_in_order(own: Servers, tmp_path: Path, accept: str) -> None:
    async with site(own, tmp_path / "site") as place:
        pace = replace(PACE, accept=accept)
        result = await phase.run(Leg(pace=pace, faults=STROKES, stores=1, replayer_kills=1), place, root=ROOT)

    broken = dict(result.findings.broken)
    broken.pop("degraded_outside_faults", None)  # a matter of time, and of who else uses these cores
    assert not broken, result.findings.examples
    assert result.findings.turns > 100
    assert result.kills >= 2
