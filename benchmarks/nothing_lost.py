"""Nothing is lost: numbered turns under kills, freezes, restarts and cut networks, and then a count of everything.

    python benchmarks/nothing_lost.py --seconds 120 --json FILE      (--quick: 30 seconds)

Two legs: turns accepted by Redis, with Redis killed and restarted; turns accepted by Postgres, with Redis wiped. In
both, the producers' clocks are a minute ahead and a minute behind, the replica is 300 ms late and at times paused,
users are erased all along, messages that are no doorbells arrive, and a hostile tenant uses every legal limit. Then the
same schedule on plain Celery, and a short leg for each of seven planted faults, which the count has to catch.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that it runs as a file, too

from benchmarks.harness import fault_schedule, mutants, phase, plain_celery, report, servers  # noqa: E402
from benchmarks.harness.phase import Leg, LegResult  # noqa: E402
from benchmarks.harness.planted_bugs import Plant  # noqa: E402
from benchmarks.harness.run_settings import RATE, Pace  # noqa: E402
from tests.support.servers import Servers  # noqa: E402

QUICK, LONG = 30.0, 120.0  # seconds of the first leg
SECOND_LEG = 0.5  # of the first; it shares everything but where turns are accepted
WIPES = 2
REPLAYER_KILLS = 3
SKEWS = (60.0, -60.0)  # seconds, of the producers
LATE_REPLICA = 0.3  # seconds


def main() -> None:
    """Run, print, and exit with 1 where anything was lost or a planted fault went unnoticed."""
    asked = _arguments()
    seconds = QUICK if asked.quick else asked.seconds
    with tempfile.TemporaryDirectory(prefix="nothing-lost-", ignore_cleanup_errors=True) as folder:
        running = servers.up(Path(folder) / "stack")
        try:
            pace = Pace(seconds=seconds, rate=asked.rate, seed=asked.seed, skews=SKEWS)
            found = asyncio.run(_run(running, Path(folder), pace, plants=asked.plants, hostile=asked.hostile))
        finally:
            running.stack.destroy()
    if asked.json:
        Path(asked.json).write_text(json.dumps(report.figures(found), indent=2) + "\n")
    sys.stdout.write(report.table(found))
    sys.exit(0 if report.is_kept(found) else 1)


async def _run(running: Servers, folder: Path, pace: Pace, *, plants: bool, hostile: bool) -> report.RunReport:
    legs = [
        await _leg(running, folder / "redis", pace, wipes=0, hostile=hostile),
        await _leg(running, folder / "postgres", _second(pace), wipes=WIPES, hostile=hostile),
    ]
    _say("plain Celery, same schedule")
    async with servers.site(running, folder / "bare") as place:
        plain = await plain_celery.run(place, pace, root=ROOT)
    caught = []
    for plant in Plant if plants else ():
        _say(f"planted: {plant}")
        caught.append(await mutants.catch(running, plant, folder / plant.name.lower(), root=ROOT))
        _say(f"{caught[-1].seconds:.0f} s: {dict(caught[-1].broken) or caught[-1].error or 'nothing was noticed'}")
    return report.RunReport(legs=tuple(legs), bare=plain, caught=tuple(caught), pace=pace)


async def _leg(running: Servers, folder: Path, pace: Pace, *, wipes: int, hostile: bool) -> LegResult:
    _say(f"{pace.seconds:g} s, turns accepted by {pace.accept}")
    faults = fault_schedule.plan(pace.seconds, seed=pace.seed, lease=pace.lease, wipes=wipes)
    async with servers.site(running, folder) as place:
        planned = Leg(
            pace=pace,
            faults=faults,
            replayer_kills=REPLAYER_KILLS,
            replica_seconds=LATE_REPLICA,
            erases=True,
            is_beside_hostile=hostile,
        )
        result = await phase.run(planned, place, root=ROOT)
    _say(
        f"{result.findings.turns} turns, drained in {result.drained_seconds:.0f} s, left {result.left}: "
        f"{result.findings.broken or 'nothing lost'} {result.findings.examples}"
    )
    return result


def _second(pace: Pace) -> Pace:
    return replace(pace, seconds=max(15.0, pace.seconds * SECOND_LEG), seed=pace.seed + 1, accept="postgres")


def _say(text: str) -> None:
    sys.stderr.write(f"{text} …\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=LONG, help="length of the first leg (default: 120)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:g} seconds")
    parser.add_argument(
        "--rate", type=float, default=RATE, help=f"turns a second (default: {RATE:g}; a slow machine bears less)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the schedule; it is printed with the figures")
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    parser.add_argument("--no-plants", dest="plants", action="store_false", help="leave the planted faults out")
    parser.add_argument("--no-hostile", dest="hostile", action="store_false", help="leave the hostile tenant out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
