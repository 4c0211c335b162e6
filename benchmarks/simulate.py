"""Simulation of a deployment that one machine cannot run: turns per second over Redis servers, workers and databases.

    python benchmarks/simulate.py --rate 50000 --shards 8 --workers 40 --databases 8 --json FILE

A discrete-event simulation. Turns arrive at random (Poisson); each belongs to one Redis server (shard) and one
database. Threads of worker processes claim batches, the shard with the oldest turn first. A batch needs the shard, then
the core of its process, then a fixed time (round trips and the sync of the log), then a core of its database. The costs
come from measurements of this project on two cores, see `Costs`. Nothing fails here; extraction, and embedding by a
model, are not included. Several shards and databases are separate installations, one per group of tenants.
"""

import argparse
import heapq
import math
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that it runs as a file, too

from benchmarks import common  # noqa: E402

TICK_SECONDS = 0.005  # arrivals of one tick are one event; far below the time of a batch
THREADS = 3  # of a store worker; they share the core of their process
BATCH_TURNS = 100  # the default of AFTERMIND_STORE_BATCH_TURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of work per turn, and per batch."""

    redis_accept: float = 45e-6  # one server took 22,000 turns/s
    redis_claim: float = 45e-6  # claim and removal; not measured alone, taken as equal to acceptance
    # Two cores stored 2,370 turns/s with workers and Postgres on them: 0.84 ms of a core each. How it divides between
    # the two was not measured; half each is assumed.
    worker_turn: float = 0.42e-3
    database_turn: float = 0.42e-3
    batch_wait: float = 9e-3  # a turn alone is stored after 10 ms, of which about one is work


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A deployment and its load. `database_cores` is of each database."""

    rate: float
    seconds: float = 20.0
    shards: int = 1
    workers: int = 1
    databases: int = 1
    database_cores: int = 8
    costs: Costs = field(default_factory=Costs)
    seed: int = 1

    def capacities(self) -> dict[str, float]:
        """Turns per second that each part can take if nothing else limits it."""
        cost = self.costs
        batch = cost.batch_wait + BATCH_TURNS * (cost.redis_claim + cost.worker_turn + cost.database_turn)
        return {
            "redis": _rate(self.shards, cost.redis_accept + cost.redis_claim),
            "workers": min(_rate(self.workers, cost.worker_turn), _rate(self.workers * THREADS * BATCH_TURNS, batch)),
            "databases": _rate(self.databases * self.database_cores, cost.database_turn),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Ages in seconds, from arrival to commit. `growth` is of the oldest pending turn, in seconds per second."""

    rate: float  # turns per second that arrive
    stored_per_second: float
    age_p50: float
    age_p99: float
    growth: float
    busy: dict[str, float]  # share of the time, by part

    @property
    def is_stable(self) -> bool:
        """Whether what arrives is stored: no queue grows."""
        return self.growth < 0.01 and self.stored_per_second > 0.95 * self.rate


class _Servers:
    """Identical servers with one queue, first come, first served. `take` returns when the work ends."""

    def __init__(self, count: int = 1) -> None:
        self._free = [0.0] * count
        self.work = 0.0

    def take(self, now: float, seconds: float) -> float:
        self.work += seconds
        end = max(now, self._free[0]) + seconds
        heapq.heapreplace(self._free, end)
        return end


def simulate(plan: Plan) -> Result:
    """Run a plan, and report on its second half: the first fills the queues."""
    run = _Run(plan)
    run.start()
    while run.events and run.events[0][0] <= plan.seconds:
        run.step()
    return run.result()


class _Run:
    """State of a simulation. Events are (time, order, kind, arguments)."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.events: list[tuple[float, int, str, tuple[int, ...]]] = []
        self._count, self._random = 0, Random(plan.seed)
        self._redis = [_Servers() for _ in range(plan.shards)]
        self._cores = [_Servers() for _ in range(plan.workers)]
        self._databases = [_Servers(plan.database_cores) for _ in range(plan.databases)]
        self._pending: list[deque[list[float]]] = [deque() for _ in range(plan.shards)]  # [arrival, turns]
        self._idle: deque[int] = deque(list(range(plan.workers)) * THREADS)
        self._batches: dict[int, list[list[float]]] = {}
        self._ages: list[tuple[float, float]] = []  # age, turns; of commits in the second half
        self._oldest: list[tuple[float, float]] = []  # time, age of the oldest turn that is not committed

    def start(self) -> None:
        """Plan the first arrivals."""
        self._at(0.0, "arrive", 0)

    def step(self) -> None:
        """Handle the next event."""
        now, _, kind, arguments = heapq.heappop(self.events)
        getattr(self, f"_{kind}")(now, *arguments)

    def result(self) -> Result:
        """What the second half shows."""
        half, plan = self.plan.seconds / 2, self.plan
        stored = sum(turns for _, turns in self._ages)
        ages = sorted(self._ages)
        growth = (self._age_near(plan.seconds) - self._age_near(half)) / half
        parts = {"redis": self._redis, "workers": self._cores, "databases": self._databases}
        cores = {"redis": 1, "workers": 1, "databases": plan.database_cores}
        busy = {
            name: min(sum(each.work for each in servers) / (len(servers) * cores[name] * plan.seconds), 1.0)
            for name, servers in parts.items()
        }
        return Result(
            rate=plan.rate,
            stored_per_second=stored / half,
            age_p50=_weighted(ages, 0.50),
            age_p99=_weighted(ages, 0.99),
            growth=growth,
            busy=busy,
        )

    def _arrive(self, now: float, tick: int) -> None:
        mean = self.plan.rate * TICK_SECONDS / self.plan.shards
        for shard, server in enumerate(self._redis):
            turns = _poisson(self._random, mean)
            if turns:
                self._at(server.take(now, turns * self.plan.costs.redis_accept), "accept", shard, tick, turns)
        self._at((tick + 1) * TICK_SECONDS, "arrive", tick + 1)
        oldest = [each[0] for queue in self._pending for each in list(queue)[:1]]
        oldest += [batch[0][0] for batch in self._batches.values()]
        self._oldest.append((now, now - min(oldest, default=now)))

    def _accept(self, now: float, shard: int, tick: int, turns: int) -> None:
        self._pending[shard].append([tick * TICK_SECONDS, turns])
        self._dispatch(now)

    def _dispatch(self, now: float) -> None:
        while self._idle:
            shard = min(
                (n for n, queue in enumerate(self._pending) if queue),
                key=lambda n: self._pending[n][0][0],
                default=None,
            )
            if shard is None:
                return
            worker, cost, batch = self._idle.popleft(), self.plan.costs, self._claim(shard)
            turns = sum(each[1] for each in batch)
            self._count += 1
            self._batches[self._count] = batch
            claimed = self._redis[shard].take(now, turns * cost.redis_claim)
            self._at(claimed, "compute", self._count, worker, shard)

    def _claim(self, shard: int) -> list[list[float]]:
        batch: list[list[float]] = []
        room, queue = float(BATCH_TURNS), self._pending[shard]
        while queue and room > 0:
            taken = min(room, queue[0][1])
            batch.append([queue[0][0], taken])
            room -= taken
            queue[0][1] -= taken
            if not queue[0][1]:
                queue.popleft()
        return batch

    def _compute(self, now: float, batch: int, worker: int, shard: int) -> None:
        seconds = sum(each[1] for each in self._batches[batch]) * self.plan.costs.worker_turn
        ready = self._cores[worker].take(now, seconds)
        self._at(ready + self.plan.costs.batch_wait, "commit", batch, worker, shard)

    def _commit(self, now: float, batch: int, worker: int, shard: int) -> None:
        seconds = sum(each[1] for each in self._batches[batch]) * self.plan.costs.database_turn
        database = self._databases[shard % self.plan.databases]
        self._at(database.take(now, seconds), "finish", batch, worker)

    def _finish(self, now: float, batch: int, worker: int) -> None:
        for arrived, turns in self._batches.pop(batch):
            if now >= self.plan.seconds / 2:
                self._ages.append((now - arrived, turns))
        self._idle.append(worker)
        self._dispatch(now)

    def _at(self, time: float, kind: str, *arguments: int) -> None:
        self._count += 1
        heapq.heappush(self.events, (time, self._count, kind, arguments))

    def _age_near(self, time: float) -> float:
        ages = [age for at, age in self._oldest if abs(at - time) <= self.plan.seconds / 20]
        return sum(ages) / max(len(ages), 1)


def _rate(servers: int, seconds: float) -> float:
    return servers / seconds if seconds else math.inf


def _poisson(random: Random, mean: float) -> int:
    """How many arrive, by the normal approximation for more than a few."""
    if mean > 30:
        return max(0, round(random.gauss(mean, mean**0.5)))
    count, left = 0, random.expovariate(1.0)
    while left < mean:
        count, left = count + 1, left + random.expovariate(1.0)
    return count


def _weighted(ages: list[tuple[float, float]], share: float) -> float:
    left = share * sum(turns for _, turns in ages)
    for age, turns in ages:
        left -= turns
        if left <= 0:
            return age
    return 0.0


def main() -> None:
    """Run, print, and exit with 1 if the queue grows."""
    asked = common.arguments(__doc__ or "", more=_more)
    plan = Plan(
        rate=asked.rate,
        seconds=5.0 if asked.quick else 20.0,
        shards=asked.shards,
        workers=asked.workers,
        databases=asked.databases,
        database_cores=asked.database_cores,
    )
    result = simulate(plan)
    report = common.Report(title=f"{plan.rate:,.0f} turns/s (simulated)")
    for part, capacity in plan.capacities().items():
        report.add(f"{part}_capacity", round(capacity), note=f"turns/s; busy {result.busy[part]:.0%}")
    report.add("stored_per_second", round(result.stored_per_second), at_least=0.95 * plan.rate)
    report.add("age_p50_ms", result.age_p50 * 1000)
    report.add("age_p99_ms", result.age_p99 * 1000)
    report.add("age_growth", result.growth, at_most=0.01, note="seconds per second")
    sys.exit(report.finish(asked.json))


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=50_000.0, help="turns per second")
    for name, default in (("shards", 8), ("workers", 40), ("databases", 8), ("database-cores", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)


if __name__ == "__main__":
    main()
