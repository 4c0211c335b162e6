"""What a turn and a recall cost as the tables grow: turns a second, recall p50, WAL and bytes a turn.

    python -m benchmarks.growth --sizes 100000,1000000      (without --sizes also 3 million: half an hour)
    python -m benchmarks.growth --sizes 1000000 --active 500    (turns of 500 users only, ten of each)
    python -m benchmarks.growth --prepare DIR      (fill the stacks, and leave them there, stopped)
    python -m benchmarks.growth --prepared DIR     (only measure the stacks in DIR, which keep the turns)

Each size has a stack of its own. Episodes are written by COPY, with their vectors and terms; users have 200 each, so
that a larger size has more users, not longer histories. Recalls of the sizes alternate. Then turns of random users go
through `remember` and two store workers, first without and then with `wal_compression`, in rounds that alternate
between the sizes, so that other programs on the machine slow all of them alike. There is a checkpoint before the first
round and none within: the first change of a page after a checkpoint writes the whole page to the WAL, and
`full_pages_share` is the part of the WAL that these pages are. The cost of a turn is CPU time of workers and Postgres,
which other programs on the machine change less than turns a second.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import numpy as np
import psutil
import redis

from aftermind import Memory, Message
from aftermind.db import migrate
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.ranking import spoken
from aftermind.ranking.tokenizer import terms
from aftermind.settings import Settings
from aftermind.stack import Endpoints, Stack
from aftermind.stack.binaries import postgres_bin
from aftermind.stores.postgres.owner_term_keys import hash_terms
from aftermind.types import Scope
from aftermind.types.message import new_ids
from aftermind.wire.queues import STORE
from aftermind.wire.redis_keys import Keys
from benchmarks.common import Report, arguments, embedded_stack, percentile, redis_facts
from benchmarks.ingest import WORKERS, worker_environment, worker_processes
from benchmarks.synthetic import COLUMNS, DIMENSION, Talk, connect

SIZES, QUICK_SIZES = (100_000, 1_000_000, 3_000_000), (2_000, 10_000)
PER_USER = 200  # episodes
TEXTS = 10_000  # different ones; every user has 200 of them in a row
TURNS, QUICK_TURNS = 5_000, 300  # of two messages each, at each size, of all rounds together
ROUNDS, QUICK_ROUNDS = 5, 2
RECALLS, QUICK_RECALLS = 300, 50
WARM_UP = 20  # recalls before the measured ones
COMPRESSION = "pglz"  # the method that every build of Postgres has
POSTGRES = {
    "shared_buffers": "512MB",
    "max_wal_size": "16GB",  # with the next one: no checkpoint but those of the benchmark
    "checkpoint_timeout": "1h",
    "autovacuum": "off",  # its WAL would fall into one measurement or another
}
START = datetime(2025, 1, 1, tzinfo=UTC)
_CHUNK = 20_000  # rows of a COPY
_DERIVED = """
    SELECT indexname, indexdef FROM pg_indexes
    WHERE schemaname = 'aftermind' AND tablename = 'episodes' AND indexname <> 'episodes_pkey'
"""
_POSITION = """
    SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint AS wal, pg_database_size(current_database()) AS disk,
           (SELECT count(*) FROM aftermind.episodes) AS episodes
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The figures of a size. `compressed` are those with `wal_compression`, of as many turns again.

    `full_pages_share` (0..1) is the part of the WAL that is whole pages.
    """

    episodes: int
    turns_per_s: float
    cpu_ms_per_turn: float
    recall_p50_ms: float
    recall_p99_ms: float
    wal_per_turn: float
    full_pages_share: float
    bytes_per_turn: float
    bytes_per_episode: float
    load_s: float
    compressed_turns_per_s: float
    compressed_cpu_ms_per_turn: float
    compressed_wal_per_turn: float
    compressed_full_pages_share: float


class Texts:
    """Turns of conversations with what is computed of each once: its vector and its terms."""

    def __init__(self) -> None:
        talk = Talk(seed=1)
        self.turns = list(talk.turns(TEXTS))
        self.vectors = HashEmbedder(DIMENSION).vectors([spoken(name, text) for _, name, text in self.turns])
        self.words = [terms(text) for _, _, text in self.turns]

    def rows(self, users: int) -> Iterator[tuple[object, ...]]:
        """Each user's episodes in the order of their times, users interleaved as their turns would have come."""
        owners = [Scope(user_id=f"user-{number}") for number in range(users)]
        for place in range(PER_USER):
            moment = START + timedelta(minutes=place)
            for number, owner in enumerate(owners):
                index = (number * PER_USER + place) % TEXTS
                session, name, text = self.turns[index]
                yield (
                    *(owner.namespace, owner.user_column, new_ids(1)[1][0], session, "user", name, text, moment),
                    *(moment, int(moment.timestamp() * 1_000_000), sorted(hash_terms(owner, self.words[index]))),
                    self.vectors[index],
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The stack of a size, loaded."""

    ends: Endpoints
    logs: Path
    users: int
    bytes_per_episode: float
    load_s: float

    @property
    def episodes(self) -> int:
        return self.users * PER_USER


def main() -> int:
    """Measure every size, print, write; 1 where a target was missed."""
    given = arguments(__doc__ or "", more=_add_options)
    sizes = given.sizes or (QUICK_SIZES if given.quick else SIZES)
    turns, recalls, rounds = (QUICK_TURNS, QUICK_RECALLS, QUICK_ROUNDS) if given.quick else (TURNS, RECALLS, ROUNDS)
    texts = Texts()
    if given.prepare:
        _prepare(given.prepare, sizes, texts)
        return 0
    turns = (given.turns or turns) // rounds * rounds
    report = Report(title="Growth: what a turn and a recall cost as the tables grow")
    report.facts |= {**POSTGRES, "workers": WORKERS, "embedder": "hash", "wal_compression": COMPRESSION}
    report.facts |= {"active_users": given.active or "all", "turns": turns, "rounds": rounds}
    with ExitStack() as stacks:
        if given.prepared:
            worlds = [_prepared(stacks, path) for path in _prepared_sizes(given.prepared, given.sizes)]
        else:
            worlds = [
                _load(*stacks.enter_context(embedded_stack(postgres_settings=POSTGRES)), each, texts) for each in sizes
            ]
        latencies = asyncio.run(_recall(worlds, texts, recalls))
        active = [replace(world, users=min(given.active or world.users, world.users)) for world in worlds]
        plain = _store(active, texts, turns // rounds, rounds, compression="off")
        compressed = _store(active, texts, turns // rounds, rounds, compression=COMPRESSION)
        report.facts |= redis_facts(worlds[0].ends.redis_url)
    measured = [_figures(*each) for each in zip(worlds, latencies, plain, compressed, strict=True)]
    for each in measured:
        for name, value in asdict(each).items():
            if name != "episodes":
                report.add(f"{each.episodes} {name}", value)
    if len(measured) > 1:
        least, most = measured[0], measured[-1]
        note = f"{most.episodes:,} / {least.episodes:,} episodes"
        ratios = [large / small for small, large in zip(plain[0].cpu_ms, plain[-1].cpu_ms, strict=True)]
        report.add("cost_per_turn_ratio", statistics.median(ratios), at_most=1.5, note=f"{note}, median of the rounds")
        report.add("recall_p50_ratio", most.recall_p50_ms / least.recall_p50_ms, at_most=1.3, note=note)
        report.add("wal_ratio", most.wal_per_turn / least.wal_per_turn, note=note)
        report.details["cost_per_turn_ratios"] = ratios
    report.details["sizes"] = {str(each.episodes): asdict(each) for each in measured}
    return report.finish(given.json)


def _add_options(parser: argparse.ArgumentParser) -> None:
    def sizes(text: str) -> list[int]:
        found = sorted({int(each) for each in text.split(",")})
        if found[0] < PER_USER:
            raise argparse.ArgumentTypeError(f"{found[0]}: a user has {PER_USER} episodes, so that is the least")
        return found

    parser.add_argument("--sizes", type=sizes, metavar="N,N", help="numbers of episodes, instead of the usual ones")
    parser.add_argument("--active", type=int, metavar="N", help="users that the turns are of (default: all)")
    parser.add_argument("--turns", type=int, metavar="N", help=f"turns at each size (default: {TURNS:,})")
    folder = parser.add_mutually_exclusive_group()
    folder.add_argument("--prepare", type=Path, metavar="DIR", help="only fill the stacks, and leave them in DIR")
    folder.add_argument("--prepared", type=Path, metavar="DIR", help="only measure the stacks that are in DIR")


def _prepare(folder: Path, sizes: Iterable[int], texts: Texts) -> None:
    """Fill the stacks that are not in the folder yet, and stop them."""
    folder.mkdir(parents=True, exist_ok=True)
    for size in sizes:
        done = folder / f"{size}.json"
        if not done.exists():
            with Stack(folder / str(size), replica=False, postgres_settings=POSTGRES) as stack:
                ends = stack.running()
                if ends is None:
                    raise SystemExit(f"the stack in {folder / str(size)} has ended: see {stack.logs}")
                world = _load(stack, ends, size, texts)
            done.write_text(json.dumps({"bytes_per_episode": world.bytes_per_episode, "load_s": world.load_s}))


def _prepared_sizes(folder: Path, wanted: Iterable[int] | None) -> list[Path]:
    """The notes that `_prepare` left, smallest size first."""
    there = {int(path.stem): path for path in folder.glob("*.json")}
    sizes = sorted(there if wanted is None else wanted)
    if not sizes or (missing := set(sizes) - there.keys()):
        raise SystemExit(f"{folder} has the sizes {sorted(there)}{f', not {sorted(missing)}' if sizes else ''}")
    return [there[size] for size in sizes]


def _prepared(stacks: ExitStack, note: Path) -> World:
    """Start a stack that `_prepare` left."""
    stack = Stack(note.with_suffix(""), replica=False, postgres_settings=POSTGRES)
    stacks.callback(stack.down)
    return World(ends=stack.up(), logs=stack.logs, users=int(note.stem) // PER_USER, **json.loads(note.read_text()))


def _load(stack: Stack, ends: Endpoints, size: int, texts: Texts) -> World:
    """Migrate the database of a stack and fill it."""
    asyncio.run(migrate.apply(ends.postgres_url, dimension=DIMENSION))
    users, started = size // PER_USER, time.perf_counter()
    stored = asyncio.run(_write_episodes(ends.postgres_url, users, texts))
    took = time.perf_counter() - started
    return World(ends=ends, logs=stack.logs, users=users, bytes_per_episode=stored / (users * PER_USER), load_s=took)


def _figures(world: World, latencies: list[float], plain: "Stored", compressed: "Stored") -> Measured:
    turns = plain.turns + compressed.turns
    return Measured(
        episodes=world.episodes,
        turns_per_s=statistics.median(plain.turns_per_s),
        cpu_ms_per_turn=statistics.median(plain.cpu_ms),
        recall_p50_ms=percentile(latencies, 0.5),
        recall_p99_ms=percentile(latencies, 0.99),
        wal_per_turn=plain.wal_bytes / plain.turns,
        full_pages_share=plain.full_page_bytes / plain.wal_bytes,
        bytes_per_turn=(plain.disk_bytes + compressed.disk_bytes) / turns,
        bytes_per_episode=world.bytes_per_episode,
        load_s=world.load_s,
        compressed_turns_per_s=statistics.median(compressed.turns_per_s),
        compressed_cpu_ms_per_turn=statistics.median(compressed.cpu_ms),
        compressed_wal_per_turn=compressed.wal_bytes / compressed.turns,
        compressed_full_pages_share=compressed.full_page_bytes / compressed.wal_bytes,
    )


async def _write_episodes(url: str, users: int, texts: Texts) -> int:
    """Write the episodes by COPY, then make their indexes; their bytes on disk, indexes included."""
    connection = await connect(url)
    try:
        derived = await connection.fetch(_DERIVED)
        for index in derived:
            await connection.execute(f'DROP INDEX aftermind."{index["indexname"]}"')
        await connection.execute("ALTER TABLE aftermind.episodes NO FORCE ROW LEVEL SECURITY")  # it refuses COPY
        names = [("default", f"user-{number}") for number in range(users)]
        await connection.executemany("INSERT INTO aftermind.users (namespace, user_id) VALUES ($1, $2)", names)
        rows: list[tuple[object, ...]] = []
        for row in texts.rows(users):
            rows.append(row)
            if len(rows) == _CHUNK:
                await _copy(connection, rows)
                rows = []
        await _copy(connection, rows)
        await connection.execute("ALTER TABLE aftermind.episodes FORCE ROW LEVEL SECURITY")
        await connection.execute("SET maintenance_work_mem = '1GB'")
        for index in derived:
            await connection.execute(index["indexdef"])
        await connection.execute("VACUUM ANALYZE")
        return int(await connection.fetchval("SELECT pg_total_relation_size('aftermind.episodes')"))
    finally:
        await connection.close()


async def _copy(connection: "asyncpg.Connection[asyncpg.Record]", rows: list[tuple[object, ...]]) -> None:
    await connection.copy_records_to_table(
        "episodes", schema_name="aftermind", records=rows, columns=COLUMNS, timeout=600
    )


async def _recall(worlds: list[World], texts: Texts, count: int) -> list[list[float]]:
    """Milliseconds of recalls at each size, each of a random user about one of the user's episodes.

    The sizes take turns, so that other programs on the machine slow all of them alike.
    """
    talk, random = Talk(seed=2), np.random.default_rng(2)
    latencies: list[list[float]] = [[] for _ in worlds]
    async with AsyncExitStack() as memories:
        opened = [await memories.enter_async_context(_memory(world.ends)) for world in worlds]
        for _ in range(WARM_UP + count):
            for world, memory, times in zip(worlds, opened, latencies, strict=True):
                user, place = int(random.integers(world.users)), int(random.integers(PER_USER))
                question = talk.question(texts.turns[(user * PER_USER + place) % TEXTS][2])
                started = time.perf_counter()
                block = await memory.recall(question, user_id=f"user-{user}")
                times.append((time.perf_counter() - started) * 1e3)
                if block.degraded or not block.matches:
                    raise SystemExit(f"a recall found nothing: {block.degraded}")
    return [times[WARM_UP:] for times in latencies]


@dataclass(slots=True, kw_only=True)
class Stored:
    """What the turns of a size took: rate and CPU of each round, the rest of all rounds."""

    turns: int = 0
    turns_per_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    wal_bytes: int = 0
    full_page_bytes: int = 0
    disk_bytes: int = 0


def _store(worlds: list[World], texts: Texts, turns: int, rounds: int, *, compression: str) -> list[Stored]:
    """Checkpoint, then rounds of turns, in each of which the sizes take turns."""
    for world in worlds:
        asyncio.run(_checkpoint(world.ends, compression))
    found = [Stored() for _ in worlds]
    for number in range(rounds):
        for world, stored in zip(worlds, found, strict=True):
            _store_round(world, texts, turns, stored, seed=len(compression) * 100 + number)
    return found


def _store_round(world: World, texts: Texts, turns: int, stored: Stored, *, seed: int) -> None:
    """Hand over turns of random users, then start the workers, and wait until all are stored."""
    asyncio.run(_remember(world, texts, turns, seed=seed))
    before = asyncio.run(_position(world.ends))
    environment = worker_environment(world.ends)
    with worker_processes("aftermind_workers.celery_app", STORE, environment, world.logs) as workers:
        rate, cpu = _drain(world.ends, [worker.pid for worker in workers], before["postmaster"], turns)
    after = asyncio.run(_position(world.ends))
    if after["episodes"] - before["episodes"] != 2 * turns:
        raise SystemExit(
            f"{after['episodes'] - before['episodes']} of {2 * turns} messages are stored: see {world.logs}"
        )
    stored.turns += turns
    stored.turns_per_s.append(rate)
    stored.cpu_ms.append(cpu * 1e3)
    stored.wal_bytes += after["wal"] - before["wal"]
    stored.full_page_bytes += asyncio.run(_full_page_bytes(world.ends, before["wal"], after["wal"]))
    stored.disk_bytes += after["disk"] - before["disk"]


def _drain(ends: Endpoints, workers: list[int], postmaster: int, turns: int) -> tuple[float, float]:
    """Turns a second, and CPU seconds a turn of workers and Postgres, from the first that is stored to the last.

    So the workers' start does not count.
    """
    index = Keys().index()
    client: Any = redis.Redis.from_url(ends.redis_url)  # Any: redis-py's stubs mix sync and async answers
    with client:
        while (left := int(client.zcard(index))) >= turns:
            time.sleep(0.002)
        first, started, used = left, time.perf_counter(), _cpu_seconds([*workers, postmaster])
        while int(client.zcard(index)) > 0:
            time.sleep(0.002)
        took = time.perf_counter() - started
        return first / took, (_cpu_seconds([*workers, postmaster]) - used) / first


def _cpu_seconds(processes: list[int]) -> float:
    """CPU time of these processes and of their children, those that ended included."""
    trees = [psutil.Process(each) for each in processes]
    times = [each.cpu_times() for root in trees for each in (root, *root.children(recursive=True))]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


async def _remember(world: World, texts: Texts, turns: int, *, seed: int) -> None:
    random = np.random.default_rng(seed)
    gate = asyncio.Semaphore(200)

    async def remember(memory: Memory, number: int) -> None:
        user, place = int(random.integers(world.users)), int(random.integers(TEXTS))
        turn = [Message.user(texts.turns[place][2]), Message.assistant(texts.turns[place - 1][2])]
        async with gate:
            await memory.remember(turn, user_id=f"user-{user}", session_id=f"measured-{number % 7}")

    async with _memory(world.ends) as memory:
        await asyncio.gather(*(remember(memory, number) for number in range(turns)))


async def _checkpoint(ends: Endpoints, compression: str) -> None:
    """Compress the WAL of later connections in that way, and write all changed pages."""
    async with _superuser(ends) as connection:
        # Not ALTER SYSTEM: the stack sets it on the command line, which outranks that.
        database = await connection.fetchval("SELECT quote_ident(current_database())")
        await connection.execute(f"ALTER DATABASE {database} SET wal_compression = '{compression}'")
        await connection.execute("CHECKPOINT")


async def _position(ends: Endpoints) -> dict[str, int]:
    """Bytes of WAL since the database was made, bytes on disk, messages stored, and the postmaster's process id."""
    async with _superuser(ends) as connection:
        found = dict(await connection.fetchrow(_POSITION) or {})
        backend = psutil.Process(await connection.fetchval("SELECT pg_backend_pid()"))
        return {**found, "postmaster": backend.ppid()}


async def _full_page_bytes(ends: Endpoints, first: int, last: int) -> int:
    """Bytes of whole pages between two positions in the WAL, as `pg_waldump` counts them."""
    async with _superuser(ends) as connection:
        folder = Path(await connection.fetchval("SHOW data_directory")) / "pg_wal"
    places = [f"--{name}={place >> 32:X}/{place & 0xFFFFFFFF:X}" for name, place in (("start", first), ("end", last))]
    command = [str(postgres_bin() / "pg_waldump"), "--stats", f"--path={folder}", *places]
    listed = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
    # Columns of the last line: records, bytes of records and their share, bytes of whole pages and theirs, sums.
    total = next(line for line in listed.stdout.splitlines() if line.startswith("Total"))
    return int(re.sub(r"\[[^]]*\]", "", total).split()[3])


@asynccontextmanager
async def _superuser(ends: Endpoints) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    database = urlsplit(ends.postgres_url).path
    connection = await asyncpg.connect(urlunsplit(urlsplit(ends.admin_url)._replace(path=database)), timeout=60)
    try:
        yield connection
    finally:
        await connection.close()


def _memory(ends: Endpoints) -> Memory:
    changed = Settings(embedder="hash", extractor="off", recall_budget_seconds=10.0, remember_budget_seconds=10.0)
    return Memory(ends.app_url, broker=ends.redis_url, settings=changed)


if __name__ == "__main__":
    sys.exit(main())
