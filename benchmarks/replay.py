"""Dead letters replayed at a steady pace while the replayer is killed again and again: one successor each, no more.

    python benchmarks/replay.py --json FILE      (--quick: 1,500 letters and 3 kills in place of 10,000 and 20)

One real worker of `memory.replay` brings the letters back and runs their successors, beside the replayer as a process
of its own; each blow is a kill -9 of both at once. Afterwards a second plan is aborted in full run.
"""

import argparse
import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that it runs as a file, too

from benchmarks import common  # noqa: E402
from benchmarks.harness import recovery, servers  # noqa: E402
from benchmarks.harness.recovery import Aborted, Replayed  # noqa: E402
from tests.support.servers import Servers  # noqa: E402

RATE = 50.0  # letters a second
LETTERS, KILLS = 10_000, 20
QUICK_LETTERS, QUICK_KILLS = 1_500, 3  # one blow every ten seconds, as in the whole run
TO_ABORT = 1_000  # letters of the second plan: 20 s of work, aborted after a few


def main() -> None:
    """Run, print, and exit with 1 where a target was missed."""
    asked = common.arguments(__doc__ or "", more=_more)
    letters = asked.letters or (QUICK_LETTERS if asked.quick else LETTERS)
    kills = asked.kills if asked.kills is not None else (QUICK_KILLS if asked.quick else KILLS)
    with tempfile.TemporaryDirectory(prefix="aftermind-replay-", ignore_cleanup_errors=True) as folder:
        running = servers.up(Path(folder) / "stack")
        try:
            replayed, aborted = asyncio.run(_run(running, Path(folder) / "site", letters=letters, kills=kills))
        finally:
            running.stack.destroy()
    sys.exit(_report(replayed, aborted).finish(asked.json))


async def _run(running: Servers, folder: Path, *, letters: int, kills: int) -> tuple[Replayed, Aborted]:
    async with servers.site(running, folder) as place, recovery.replayers(place, root=ROOT) as fleet:
        kill = partial(recovery.kill, fleet)
        replayed = await recovery.replay(place.database.url, letters=letters, rate=RATE, kills=kills, kill=kill)
        return replayed, await recovery.abort(place.database.url, letters=TO_ABORT, rate=RATE)


def _report(replayed: Replayed, aborted: Aborted) -> common.Report:
    report = common.Report(title="Replaying dead letters", facts={"lease_s": recovery.LEASE})
    report.add("dead_letters", replayed.letters)
    report.add("successors", replayed.successors, at_least=replayed.letters, at_most=replayed.letters)
    report.add("duplicated", replayed.duplicated, at_most=0)
    report.add("lost", replayed.lost, at_most=0)
    report.add("unfinished", replayed.unfinished, at_most=0, note="successors that are not done")
    report.add("unembedded", replayed.unembedded, at_most=0, note="episodes that the successors left without a vector")
    report.add("kills", replayed.kills)
    report.add("rate_wanted", RATE)
    report.add("rate_per_s", round(replayed.rate, 2), at_least=0.9 * RATE, at_most=1.1 * RATE)
    report.add("abort_s", round(aborted.seconds, 3), at_most=2.0, note="until the last successor was put in")
    report.add("aborted_waiting", aborted.waiting, at_least=1, note="stayed dead letters")
    report.add("aborted_doubled", aborted.doubled, at_most=0)
    return report


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--letters", type=int, help=f"how many to replay (default: {LETTERS:,})")
    parser.add_argument("--kills", type=int, help=f"blows, spread evenly (default: {KILLS})")


if __name__ == "__main__":
    main()
