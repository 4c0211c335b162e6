"""The harness's own processes: a fault ends with its time, so that what a run measures is not the harness."""

import sys
from pathlib import Path

import psutil

from benchmarks.harness.fleet import Fleet, Member
from tests.support.waiting import wait_until

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


async def test_a_member_that_is_killed_while_frozen_is_started_again_and_runs(tmp_path: Path) -> None:
    member = Member(name="one", argv=SLEEPER, env={})
    async with Fleet([member], root=tmp_path, logs=tmp_path / "logs", grace=0.0) as fleet:
        first = fleet.pid("one")

        with fleet.frozen(["one"]) as frozen:
            fleet.kill("one")
            await wait_until(lambda: fleet.pid("one") != first, description="a successor is started")
            await frozen.breathe()
        second = psutil.Process(fleet.pid("one"))

        assert second.status() != psutil.STATUS_STOPPED
