"""Does what the schedule says, and writes down when each fault began and ended."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from benchmarks.harness.checker import Strike
from benchmarks.harness.fault_schedule import Fault, FaultKind
from benchmarks.harness.fleet import Fleet
from benchmarks.harness.history import now
from benchmarks.harness.servers import Site, shut

KILLS = (FaultKind.KILL_WORKER, FaultKind.FREEZE_IN_POP, FaultKind.KILL_RECONCILER)
OF_WORKERS = (
    *KILLS,
    FaultKind.GARBAGE_BELLS,
    FaultKind.FREEZE_WORKER,
    FaultKind.FREEZE_AT_WORK,
    FaultKind.STOP_WORKER,
    FaultKind.ROLLING_RESTART,
)
RECONCILER = "reconciler"
POP_TRIES = 20  # for finding a worker in its pop
WORK_TRIES = 600  # for finding a worker at work: a minute or two, while turns are stored and sessions become quiet
GARBAGE = (
    *(b"5", b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"body": 1}'),
    b'{"headers": {"task": "os.system"}, "body": "W10="}',
)

Act = Callable[[Fault], Awaitable[None]]


class Striker:
    """Strikes one site and one fleet. `model_faults` turns the model server's on for so many seconds."""

    def __init__(self, site: Site, fleet: Fleet, *, model_faults: Callable[[float], Awaitable[None]]) -> None:
        self._site, self._fleet, self._model_faults = site, fleet, model_faults
        self.strikes: list[Strike] = []
        self.counts: Counter[FaultKind] = Counter()
        self.stop_seconds: list[float] = []
        self.damaged: set[str] = set()  # markers of the turns whose records were damaged

    @property
    def kills(self) -> int:
        """How often a process of ours was killed without a word."""
        return sum(self.counts[kind] for kind in KILLS)

    async def run(self, faults: Sequence[Fault]) -> None:
        """Strike at each fault's time, counted from now. Faults overlap where the schedule lets them."""
        began = now()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, began + fault.at - now()))
                group.create_task(self._strike(fault))

    async def _strike(self, fault: Fault) -> None:
        began = now()
        await self._acts()[fault.kind](fault)
        self.counts[fault.kind] += 1
        hurts = fault.kind not in OF_WORKERS
        self.strikes.append(Strike(kind=fault.kind, began=began, ended=now(), hurts_recall=hurts))

    def _acts(self) -> Mapping[FaultKind, Act]:
        site = self._site
        return {
            FaultKind.KILL_WORKER: self._kill,
            FaultKind.FREEZE_IN_POP: self._freeze_in_pop,
            FaultKind.FREEZE_WORKER: lambda fault: self._fleet.freeze(self._worker(fault), fault.lasts),
            FaultKind.FREEZE_AT_WORK: self._freeze_at_work,
            FaultKind.STOP_WORKER: self._stop,
            FaultKind.ROLLING_RESTART: self._restart_all,
            FaultKind.KILL_RECONCILER: self._kill_reconciler,
            FaultKind.KILL_REDIS: lambda _: site.kill_redis(),
            FaultKind.FREEZE_REDIS: lambda fault: site.freeze_redis(fault.lasts),
            FaultKind.WIPE_REDIS: lambda _: site.wipe_redis(),
            FaultKind.RESTART_POSTGRES: lambda _: site.restart_postgres(),
            FaultKind.PAUSE_REPLICA: lambda fault: site.pause_replica(fault.lasts),
            FaultKind.RESTART_REPLICA: lambda _: site.restart_replica(),
            FaultKind.CUT_AGENTS: self._cut_agents,
            FaultKind.CUT_WORKERS: self._cut_workers,
            FaultKind.CUT_ALL: self._cut_all,
            FaultKind.GARBAGE_BELLS: lambda _: self._site.push_garbage(GARBAGE),
            FaultKind.DAMAGE_SPOOL: self._damage_spool,
            FaultKind.MODEL_FAULTS: lambda fault: self._model_faults(fault.lasts),
        }

    def _worker(self, fault: Fault) -> str:
        workers = [name for name in self._fleet.names if name != RECONCILER]
        return workers[fault.target % len(workers)]

    async def _kill(self, fault: Fault) -> None:
        self._fleet.kill(self._worker(fault))

    async def _freeze_in_pop(self, fault: Fault) -> None:
        """Redis answers the frozen worker's pop, and nobody ever reads the answer: Celery's own loss.

        All workers of the first one's kind at once, so that it is one of them who is handed the next message; again
        where each was at work when it was frozen.
        """
        kind = self._fleet.names[0].partition("-")[0]
        group = [name for name in self._fleet.names if name.partition("-")[0] == kind]
        with self._fleet.frozen(group) as frozen:
            for _ in range(POP_TRIES):
                if await self._site.waiting_pops():
                    await asyncio.sleep(fault.lasts)
                    break
                await frozen.breathe()
            frozen.kill()

    async def _freeze_at_work(self, fault: Fault) -> None:
        """Its jobs are taken over meanwhile, and it continues with them afterwards."""
        name = self._worker(fault)
        with self._fleet.frozen([name]) as frozen:
            for _ in range(WORK_TRIES):
                if await self._site.running_jobs(self._fleet.pid(name)):
                    await asyncio.sleep(fault.lasts)
                    break
                await frozen.breathe()

    async def _stop(self, fault: Fault) -> None:
        self.stop_seconds.append(await self._fleet.terminate(self._worker(fault)))

    async def _restart_all(self, fault: Fault) -> None:
        for name in self._fleet.names:
            self.stop_seconds.append(await self._fleet.terminate(name))

    async def _kill_reconciler(self, fault: Fault) -> None:
        if RECONCILER in self._fleet.names:
            self._fleet.kill(RECONCILER)

    async def _cut_agents(self, fault: Fault) -> None:
        async with shut(self._site.agents_door, fault.lasts):
            pass

    async def _damage_spool(self, fault: Fault) -> None:
        async with shut(self._site.agents_door, fault.lasts):
            damaged = await asyncio.to_thread(self._site.damage_spool)
            self.damaged |= damaged

    async def _cut_workers(self, fault: Fault) -> None:
        async with shut(self._site.workers_door, fault.lasts):
            pass

    async def _cut_all(self, fault: Fault) -> None:
        for door in (self._site.agents_door, self._site.workers_door):
            door.reset()
            door.let_pass()
