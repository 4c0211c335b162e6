"""What one hostile tenant, who stays within every limit, costs another: latencies beside it over latencies alone.

    python -m benchmarks.noisy_neighbour --json FILE      (--quick: about a minute; --lane NAME: that attack alone)

The processes are those of `aftermind up`: a worker per queue group and a reconciler, with the offline extractor and the
hash embedder, on an embedded stack with a replica. The victim is an agent process of one namespace: it remembers turns
with a fact, waits until each is stored and its fact extracted, and recalls all the while. The hostile agent process
writes under another namespace. Its client runs at a low priority, in a session of its own, because it stands for a
machine of its own; whatever it makes the shared servers and workers do is not reniced.

Alone and beside the hostile tenant are measured in turns, so that both meet the same machine; then beside a process
that only computes, as much as the hostile client did. Each attack is one lane. CPU seconds are reported by process.
"""

import argparse
import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil

from aftermind import AftermindError, Memory
from aftermind.cli import worker
from aftermind.cli.stack_processes import GROUPS
from aftermind.db import migrate
from aftermind.stack import Endpoints, Stack
from aftermind.stack.run_without_root import dying_with_parent
from benchmarks.common import Report, arguments, embedded_stack, percentile, redis_facts
from benchmarks.harness.cpu import ProcessGroups
from benchmarks.harness.fleet import Fleet, Member
from benchmarks.harness.hostile_tenant import ATTACKS, PLACES, name_of
from benchmarks.harness.run_settings import environment

ROOT = Path(__file__).resolve().parent.parent
MAX_RATIO = 3.0
LANES = tuple(map(name_of, ATTACKS))
ROUNDS, SECONDS = 3, 20.0
QUICK_ROUNDS, QUICK_SECONDS = 1, 15.0
START_SECONDS = 60.0  # of the hostile process, which has the lowest priority
# The most time between two rounds for what the hostile tenant left to be done, and the load that counts as none.
IDLE_SECONDS, IDLE_CORES = 120.0, 0.15
SETTLE_SECONDS = 2.0  # of the hostile tenant's work before the victim is measured beside it
STORE_PAUSE_SECONDS, RECALL_PAUSE_SECONDS = 0.2, 0.1
WAITS = ("store", "embedded", "facts", "recall")
CLIENT = "hostile client"
SESSION_NICE = "10"  # a ninth of the weight of the others where a core is short; with 19 a busy machine starves it
COMPUTE = """
import time
while True:
    until = time.process_time() + {share} * 0.05
    while time.process_time() < until:
        sum(range(1_000))
    time.sleep((1 - {share}) * 0.05)
"""
WAIT_SECONDS = 120.0  # a victim that waits longer counts with this; it bounds the run
SETTINGS = {
    # The default waits 5 s for a burst to end, which would hide what the neighbour adds to a fact's way.
    "AFTERMIND_EXTRACT_QUIET_SECONDS": "0.2",
    "AFTERMIND_EXTRACT_MAX_WAIT_SECONDS": "1",
    "AFTERMIND_EMBEDDER": "hash",
    "AFTERMIND_EXTRACTOR": "rules",
}


class Victim:
    """An agent of another namespace, and how long it waits. Milliseconds."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._numbers = itertools.count()
        self.waits: dict[str, list[float]] = {what: [] for what in WAITS}
        self.seconds = 0.0  # for which it was measured
        self.cpu: dict[str, float] = {}  # seconds of each group of processes meanwhile
        self.degraded: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    async def measure(self, seconds: float, groups: ProcessGroups) -> None:
        """Remember and recall for that long, then wait for the facts of every turn."""
        began, before = time.monotonic(), groups.seconds()
        until = began + seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._recall(until))
            while time.monotonic() < until:
                group.create_task(self._remember(next(self._numbers)))
                await asyncio.sleep(STORE_PAUSE_SECONDS)
            for name, spent in groups.since(before).items():
                self.cpu[name] = self.cpu.get(name, 0.0) + spent
            self.seconds += time.monotonic() - began

    async def _remember(self, number: int) -> None:
        started = time.perf_counter()
        user = f"victim-{number % 20}"
        receipt = await self._memory.remember(
            f"I moved to {PLACES[number % 5]} in spring {number}.", user_id=user, session_id=str(number)
        )
        await self._note("store", started, receipt.stored(timeout=WAIT_SECONDS))
        await asyncio.gather(
            self._note("embedded", started, receipt.embedded(timeout=WAIT_SECONDS)),
            self._note("facts", started, receipt.extracted(timeout=WAIT_SECONDS)),
        )

    async def _recall(self, until: float) -> None:
        for number in itertools.count():
            if time.monotonic() > until:
                return
            started = time.perf_counter()
            block = await self._memory.recall("Where do I live?", user_id=f"victim-{number % 20}")
            self.waits["recall"].append((time.perf_counter() - started) * 1_000)
            if block.degraded is not None:
                self.degraded[re.sub("[0-9.]+", "#", block.degraded)] += 1
            await asyncio.sleep(RECALL_PAUSE_SECONDS)

    async def _note(self, what: str, started: float, waiting: Awaitable[object]) -> None:
        try:
            await waiting
        except (TimeoutError, AftermindError) as exc:  # it counts with the time it waited
            self.failed[f"{what}: {type(exc).__name__}: {exc}"] += 1
        self.waits[what].append((time.perf_counter() - started) * 1_000)


@asynccontextmanager
async def _hostile(
    env: Mapping[str, str], lanes: Sequence[str], counts: dict[str, list[int]], groups: ProcessGroups
) -> AsyncIterator[None]:
    """The hostile process for the block; adds up what it got through and what was refused, by attack."""
    argv = [
        *dying_with_parent("KILL"),
        "nice",
        "-n",
        "19",
        sys.executable,
        "-m",
        "benchmarks.harness.hostile_tenant",
        json.dumps({"seconds": 600, "lanes": lanes}),
    ]
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=ROOT, env=dict(env), stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None  # a pipe
    try:
        async with asyncio.timeout(START_SECONDS):
            json.loads(await process.stdout.readline())
        groups.roots[CLIENT] = process.pid
        _set_session_nice(process.pid, SESSION_NICE)
        await asyncio.sleep(SETTLE_SECONDS)
        _set_session_nice(process.pid, SESSION_NICE)  # its processes for texts too
        yield
    finally:
        groups.roots.pop(CLIENT, None)
        with suppress(psutil.NoSuchProcess):
            _set_session_nice(process.pid, "0")  # it has to close and report in time
        process.terminate()
        try:
            async with asyncio.timeout(20):
                answer, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            answer, _ = await process.communicate()
        for attack, numbers in json.loads(answer or b"{}").items():
            before = counts.setdefault(attack, [0, 0])
            before[0], before[1] = before[0] + numbers[0], before[1] + numbers[1]


async def _measure(
    stack: Stack, at: Endpoints, folder: Path, report: Report, *, lanes: Sequence[str], rounds: int, seconds: float
) -> None:
    await migrate.apply(at.postgres_url, dimension=384)
    replicas = json.dumps(list(at.replica_urls))
    env = environment(
        {
            **SETTINGS,
            "AFTERMIND_DATABASE_URL": at.app_url,
            "AFTERMIND_RELAY_URL": at.relay_url,
            "AFTERMIND_REPLICA_URLS": replicas,
            "AFTERMIND_BROKER_URL": at.redis_url,
            "AFTERMIND_REDIS_URL": at.redis_url,
            "AFTERMIND_STATE_DIR": str(folder / "state"),
        },
        root=ROOT,
    )
    members = [
        Member(name=name, argv=tuple(worker.worker_argv(list(queues), loglevel="INFO")), env=env)
        for name, queues in GROUPS.items()
    ]
    members.append(Member(name="reconciler", argv=tuple(worker.reconciler_argv()), env=env))
    counts: dict[str, list[int]] = {}
    left: list[float] = []
    os.environ.update({name: value for name, value in env.items() if name.startswith("AFTERMIND_")})
    async with Fleet(members, root=ROOT, logs=folder / "logs") as fleet, Memory(namespace="victim") as memory:
        warm = Victim(memory)
        servers = {each.name: each.pid for each in stack.status() if each.pid is not None}
        groups = ProcessGroups({**{name: fleet.pid(name) for name in fleet.names}, **servers})
        await warm.measure(SETTLE_SECONDS, groups)
        alone, beside, computing = Victim(memory), Victim(memory), Victim(memory)
        for _ in range(rounds):
            await alone.measure(seconds, groups)
            async with _hostile({**env, "AFTERMIND_STATE_DIR": str(folder / "hostile")}, lanes, counts, groups):
                await beside.measure(seconds, groups)
            left.append(await _idle(groups))
            cores = sum(spent for name, spent in beside.cpu.items() if name.startswith(CLIENT)) / beside.seconds
            with _computing(min(1.0, cores)):
                await computing.measure(seconds, groups)
        restarts = fleet.starts - len(members)
    for what in WAITS:
        quiet, loud, busy = (percentile(victim.waits[what], 0.99) for victim in (alone, beside, computing))
        report.add(f"victim_{what}_p99_ratio", round(loud / quiet, 2), at_most=MAX_RATIO)
        report.add(f"victim_{what}_p99_alone_ms", round(quiet, 1))
        report.add(f"victim_{what}_p99_beside_ms", round(loud, 1))
        quiet_p50, loud_p50 = (percentile(victim.waits[what], 0.5) for victim in (alone, beside))
        note = f"{quiet_p50:.1f} to {loud_p50:.1f} ms"
        report.add(f"victim_{what}_p50_ratio", round(loud_p50 / quiet_p50, 2), note=note)
        report.add(f"victim_{what}_p99_ratio_to_client_load", round(loud / busy, 2))
    for name, victim in (("alone", alone), ("beside", beside), ("computing", computing)):
        report.add(f"victim_failed_{name}", victim.failed.total(), at_most=0)
        note = f"of {len(victim.waits['recall'])}"
        report.add(f"victim_degraded_recalls_{name}", victim.degraded.total(), note=note)
        report.details[f"failed_{name}"] = dict(victim.failed)
        report.details[f"degraded_{name}"] = dict(victim.degraded)
    report.add("worker_restarts", restarts, at_most=0)
    report.add("cores_used_before_next_round", round(max(left), 2), note=f"after at most {IDLE_SECONDS:g} s")
    for name in beside.cpu:
        quiet, loud = (victim.cpu.get(name, 0.0) / victim.seconds for victim in (alone, beside))
        report.add(f"cores_of_{name}", round(loud, 3), note=f"with the hostile tenant; alone {quiet:.3f}")
    report.details["cpu_seconds"] = {
        name: {
            "of_seconds": round(victim.seconds, 1),
            **{group: round(spent, 2) for group, spent in victim.cpu.items()},
        }
        for name, victim in (("alone", alone), ("beside", beside), ("computing", computing))
    }
    report.details["attacks"] = {name: {"done": done, "refused": no} for name, (done, no) in counts.items()}
    for name in lanes:
        done, no = counts.get(name, (0, 0))
        report.add(f"attack_{name}", done + no, at_least=rounds, note=f"calls, {no} of them refused")


def _set_session_nice(pid: int, nice: str) -> None:
    """Give the sessions of a process and its descendants a priority.

    Linux shares the CPU among sessions first (autogroups), and compares the priorities of processes within each.
    """
    for each in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with suppress(OSError):
            Path(f"/proc/{each.pid}/autogroup").write_text(nice)


@contextmanager
def _computing(cores: float) -> Iterator[None]:
    """A client that only computes, as much as the hostile client did, and with the same priority."""
    argv = [*dying_with_parent("KILL"), "nice", "-n", "19", sys.executable, "-c", COMPUTE.format(share=cores)]
    with subprocess.Popen(argv, start_new_session=True) as process:
        _set_session_nice(process.pid, SESSION_NICE)
        try:
            yield
        finally:
            process.kill()


async def _idle(groups: ProcessGroups) -> float:
    """Wait until the hostile tenant's work is done, so that the next round begins quiet; the cores still used."""
    cores = 0.0
    until = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < until:
        before = groups.seconds()
        await asyncio.sleep(1)
        cores = sum(groups.since(before).values())
        if cores < IDLE_CORES:
            break
    return cores


def _lanes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lane", action="append", choices=LANES, help="this attack alone; may be repeated")


def main() -> int:
    """Measure, print, write."""
    given = arguments(__doc__ or "", more=_lanes)
    lanes = given.lane or LANES
    report = Report(title="A hostile neighbour within every limit")
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if given.quick else (ROUNDS, SECONDS)
    with embedded_stack(replica=True) as (stack, at), tempfile.TemporaryDirectory(prefix="aftermind-bench-") as folder:
        report.facts |= {**redis_facts(at.redis_url), "extract_quiet_s": 0.2, "rounds": rounds, "seconds": seconds}
        asyncio.run(_measure(stack, at, Path(folder), report, lanes=lanes, rounds=rounds, seconds=seconds))
    return report.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
