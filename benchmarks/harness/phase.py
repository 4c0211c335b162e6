"""One leg of the run: servers, workers, load and faults; then quiet, replay, quiet again, and the comparison."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.harness import checker, evidence, history, planted_bugs, quiescence, replay
from benchmarks.harness.checker import Findings
from benchmarks.harness.fault_schedule import Fault, FaultKind
from benchmarks.harness.faults import RECONCILER, Striker
from benchmarks.harness.fleet import GRACE, Fleet, LoadProcess, Member, client
from benchmarks.harness.history import now
from benchmarks.harness.model import ModelServer, model_server
from benchmarks.harness.planted_bugs import Plant
from benchmarks.harness.run_settings import Erasing, Load, Pace, Reading, environment
from benchmarks.harness.servers import Site
from tests.support.waiting import wait_until

MODELS_NAME = "models-0"  # the worker of model calls and of replay
STORE, MODELS = "memory.store", "memory.embed,memory.extract,memory.replay"
START = 120.0  # seconds within which a process is ready; it takes 2, and more on a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class LegResult:
    """What one leg showed. `left` is what was still to be done when the wait for quiet was over."""

    findings: Findings
    dead_letters: int
    kills: int
    faults: dict[str, int]
    drained_seconds: float
    left: quiescence.Left
    model_calls: dict[str, int]
    stop_seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """What to run: a pace, a schedule, how many workers, and what is planted in them."""

    pace: Pace
    faults: Sequence[Fault]
    plant: Plant | None = None
    stores: int = 2
    models: int = 1
    model_seconds: float = 0.0  # latency of every model call
    replica_seconds: float = 0.0  # by which the replica replays late, all along
    drain_seconds: float = 180.0  # without any progress
    drain_at_most: float = 600.0  # seconds, whatever the progress; it bounds the run, and what is left is reported
    replays: bool = True  # whether the dead letters are brought back
    replayer_kills: int = 0
    erases: bool = False  # whether users of their own are erased all along
    is_beside_hostile: bool = False  # whether a hostile tenant uses every legal limit all along


async def run(leg: Leg, site: Site, *, root: Path) -> LegResult:
    """The whole of it."""
    planted_env = planted_bugs.environment(leg.plant)
    async with AsyncExitStack() as stack:
        base = environment({**leg.pace.settings(), **planted_env, **history.clock()}, root=root)
        model = await stack.enter_async_context(model_server(root=root, env=base))
        await model.slow_down(leg.model_seconds)
        await stack.enter_async_context(site.late_replica(leg.replica_seconds))
        env = {**base, **model.settings()}
        fleet = await stack.enter_async_context(_fleet(leg, site, env, root=root))
        agents = {**env, **site.settings(site.agents_door)}
        clients = _Clients(leg, site, agents, root=root)
        striker = Striker(site, fleet, model_faults=model.misbehave)
        try:
            await clients.start()
            await striker.run(leg.faults)
            await asyncio.sleep(max(0.0, clients.until - now()))
            return await _finish(leg, site, model, clients, striker, fleet)
        finally:
            await clients.stop()


async def _finish(
    leg: Leg, site: Site, model: ModelServer, clients: "_Clients", striker: Striker, fleet: Fleet
) -> LegResult:
    drained, left = await _quiet(leg, site)
    before = await evidence.read(site.database.url)
    if leg.replays:
        await model.mend()
        await replay.replay_all(
            site.database.url, kill=lambda: fleet.kill(MODELS_NAME), kills=leg.replayer_kills, timeout=leg.drain_seconds
        )
        _, left = await _quiet(leg, site)
    await clients.stop()
    findings = checker.compare(
        history.remembered(site.folder),
        history.recalled(site.folder),
        striker.strikes,
        await evidence.read(site.database.url),
        erased=history.erased(site.folder),
        damaged=striker.damaged,
    )
    return LegResult(
        findings=findings,
        dead_letters=before.dead_letters,
        kills=striker.kills,
        faults={str(kind): count for kind, count in striker.counts.items()},
        drained_seconds=drained,
        left=left,
        model_calls=(await model.calls())["by_kind"],
        stop_seconds=striker.stop_seconds,
    )


async def _quiet(leg: Leg, site: Site) -> tuple[float, quiescence.Left]:
    spools = site.folder / "state" / "spool"
    return await quiescence.wait_for_quiet(
        site.database.url, site.redis_url, spools, timeout=leg.drain_seconds, at_most=leg.drain_at_most
    )


@asynccontextmanager
async def _fleet(leg: Leg, site: Site, env: dict[str, str], *, root: Path) -> AsyncIterator[Fleet]:
    """Store workers, one for models, and a reconciler; ready when the block begins."""
    workers = {**env, **site.settings(site.workers_door)}
    program = (sys.executable, "-m", "benchmarks.harness.worker_app")
    flags = ("--without-gossip", "--without-mingle", "--loglevel", "INFO")
    queues = {**{f"store-{n}": STORE for n in range(leg.stores)}, **{f"models-{n}": MODELS for n in range(leg.models)}}
    members = [
        Member(name=name, argv=(*program, *flags, "-Q", names, "-n", f"{name}@%h"), env=workers)
        for name, names in queues.items()
    ]
    if planted_bugs.has_reconciler(leg.plant):
        members.append(Member(name=RECONCILER, argv=program, env=workers))
    logs = site.folder / "logs"
    async with Fleet(members, root=root, logs=logs, grace=0.0 if leg.plant else GRACE) as fleet:
        for name in queues:
            await wait_until(partial(is_ready, logs / f"{name}.log"), timeout=START, description=f"{name} is ready")
        yield fleet


def is_ready(log: Path) -> bool:
    """Whether a Celery worker has said so in its log."""
    return " ready." in log.read_text(errors="replace")


class _Clients:
    """The load's processes."""

    def __init__(self, leg: Leg, site: Site, env: dict[str, str], *, root: Path) -> None:
        self._leg, self._pace, self._site, self._env, self._root = leg, leg.pace, site, env, root
        self._running: list[LoadProcess] = []
        self.until = 0.0

    async def start(self) -> None:
        """Producers and a reader; all of them have begun when it returns."""
        folder = str(self._site.folder)
        for number in range(self._pace.producers):
            load = Load(
                producer=number,
                folder=folder,
                seconds=self._pace.seconds,
                rate=self._pace.rate / self._pace.producers,
                lanes=self._pace.lanes,
            )
            skew = self._pace.skews[number % len(self._pace.skews)] if self._pace.skews else 0.0
            self._start("producer", number, json.dumps(asdict(load)), more=skewed(skew))
        reading = Reading(reader=0, folder=folder, rate=self._pace.recalls, seed=self._pace.seed)
        self._start("reader", 0, json.dumps(asdict(reading)))
        if self._leg.erases:
            erasing = Erasing(eraser=0, folder=folder, seconds=self._pace.seconds)
            self._start("eraser", 0, json.dumps(asdict(erasing)))
        if self._leg.is_beside_hostile:
            env = {**self._env, "AFTERMIND_STATE_DIR": str(self._site.folder / "hostile")}
            self._start("hostile_tenant", 0, json.dumps({"seconds": self._pace.seconds}), more=env, nice=19)
        for each in self._running:
            await wait_until(each.has_begun, timeout=START, description=f"{each.log.stem} has begun")
        self.until = now() + self._pace.seconds

    async def stop(self) -> None:
        """SIGTERM, and the end; raises where one of them broke. Safe to repeat."""
        running, self._running = self._running, []
        await asyncio.gather(*(each.stop() for each in running))

    def _start(
        self, module: str, number: int, spec: str, *, more: Mapping[str, str] | None = None, nice: int = 0
    ) -> None:
        self._running.append(
            client(
                f"benchmarks.harness.{module}",
                spec,
                name=f"{module}-{number}",
                env={**self._env, **(more or {})},
                root=self._root,
                logs=self._site.folder / "logs",
                nice=nice,
            )
        )


def skewed(seconds: float) -> dict[str, str]:
    """The environment of a process whose wall clock is wrong by so much, by libfaketime. Its other clocks are right."""
    if not seconds:
        return {}
    library = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
    if library is None:
        raise FileNotFoundError("clock skew needs libfaketime: apt-get install faketime")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{seconds:+g}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Else threads wait seconds for the interpreter's lock, and nearly every turn goes to the spool.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


def count(results: Sequence[LegResult], *kinds: FaultKind) -> int:
    """How often faults of these kinds struck in all legs."""
    return sum(result.faults.get(str(kind), 0) for result in results for kind in kinds)
