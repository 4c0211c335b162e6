"""A namespace encrypted, and its key changed, while it is read and written: what fails, what it costs.

    python benchmarks/encryption.py --json FILE      (--quick: 5,000 rows in place of 100,000)

`aftermind encrypt` and `aftermind rotate-keys` run as operators run them. Readers recall and page through histories,
writers store turns and edit blocks; each has a memory, and so a cache of keys, of its own, as processes have. What they
read is compared with what was said; a recall that is degraded, also for being late, counts as failed.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that it runs as a file, too

from aftermind import Memory, errors  # noqa: E402
from aftermind.db.encryption import cipher  # noqa: E402
from aftermind.types import Episode  # noqa: E402
from benchmarks import common  # noqa: E402
from benchmarks.harness import servers  # noqa: E402
from tests.fundamentals.conftest import as_environment  # noqa: E402
from tests.support.learning import learning  # noqa: E402
from tests.support.servers import Database, psql  # noqa: E402
from tests.support.stored_turns import keep, said  # noqa: E402

ROWS, QUICK_ROWS, USERS = 100_000, 5_000, 50
READERS, WRITERS = 3, 2
ALONE = 100  # reads before and after, with nothing else going on
WORDS = ("harbour", "lantern", "meadow", "copper", "violin", "glacier", "saffron", "orchard", "pebble", "thunder")
END = "and that is all."


@dataclass(slots=True)
class Seen:
    """What readers and writers met."""

    reads: int = 0
    failed: int = 0
    wrong: int = 0
    writes: int = 0
    failed_writes: int = 0
    took_ms: list[float] = field(default_factory=list)
    what: set[str] = field(default_factory=set)


def main() -> None:
    """Run, print, and exit with 1 where a target was missed."""
    asked = common.arguments(__doc__ or "", more=_more)
    rows = asked.rows or (QUICK_ROWS if asked.quick else ROWS)
    with tempfile.TemporaryDirectory(prefix="aftermind-encryption-", ignore_cleanup_errors=True) as folder:
        running = servers.up(Path(folder) / "stack")
        try:
            database = running.create_database()
            report = asyncio.run(_run(database, running.redis_url, Path(folder) / "state", rows))
        finally:
            running.stack.destroy()
    sys.exit(report.finish(asked.json))


async def _run(database: Database, redis_url: str, folder: Path, rows: int) -> common.Report:
    report = common.Report(title="Encrypting a namespace in use", facts={"users": USERS, "readers": READERS})
    await _fill(database, rows)
    report.add("rows", rows)
    async with learning(database, redis_url, folder, extractor="off") as learnt, _others(learnt.memory) as others:
        plain = await _alone(learnt.memory)
        report.add("recall_plain_p50_ms", round(common.percentile(plain, 0.5), 2), note="with nothing else going on")
        report.add("mb_plain", _size(database))
        encryption = learnt.memory.encryption
        for name, command in (("encrypt", "encrypt"), ("rotate", "rotate-keys")):
            seen = Seen()
            async with _load(others, learnt.settle, seen):
                began = time.monotonic()
                written = await _changed(command, learnt.memory)
                took = time.monotonic() - began
            key_id = await encryption.key_id() or ""
            report.add(f"{name}_s", round(took, 1), note="with the waits until every process knows of the key")
            report.add(f"{name}_rows", written, at_least=rows)
            report.add(f"{name}_reads", seen.reads, at_least=1)
            report.add(f"{name}_failed_reads", seen.failed, at_most=0, note=", ".join(sorted(seen.what)))
            report.add(f"{name}_wrong_reads", seen.wrong, at_most=0, note="not what was said")
            report.add(f"{name}_read_p50_ms", round(common.percentile(seen.took_ms, 0.5), 2))
            report.add(f"{name}_read_p99_ms", round(common.percentile(seen.took_ms, 0.99), 2))
            report.add(f"{name}_writes", seen.writes, at_least=1)
            report.add(f"{name}_failed_writes", seen.failed_writes, at_most=0)
            report.add(f"{name}_otherwise", _otherwise(database, key_id), at_most=0, note="rows of no or another key")
        report.add("retired", len((await encryption.retire()).dropped), at_least=1, note="old keys deleted")
        psql(database.admin_url, "VACUUM FULL aftermind.episodes")
        report.add("mb_sealed", _size(database), note="after a VACUUM FULL")
        sealed = await _alone(learnt.memory)
        report.add("recall_sealed_p50_ms", round(common.percentile(sealed, 0.5), 2), note="with nothing else going on")
        report.add(
            "found_by_word", await _found(learnt.memory), at_least=USERS, at_most=USERS, note="users whose line is"
        )
    return report


async def _changed(command: str, memory: Memory) -> int:
    """Run the command as operators do, in a process of its own; the rows that it says it wrote."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aftermind.cli", command),
        env={**os.environ, **as_environment(memory.settings)},
        stdout=asyncio.subprocess.PIPE,
    )
    told, _ = await running.communicate()
    found = re.search(r"([\d,]+) rows", told.decode())
    if running.returncode or found is None:
        raise RuntimeError(f"aftermind {command} ended with {running.returncode}: {told.decode()}")
    return int(found[1].replace(",", ""))


async def _fill(database: Database, rows: int) -> None:
    each = rows // USERS
    vector = np.random.default_rng(7).standard_normal(384).astype(np.float32)
    for user in range(USERS):
        lines = [said(_line(user, number), user=f"u{user}", session=f"s{number // 20}") for number in range(each)]
        await keep(database.url, lines, [vector] * each)
    psql(database.admin_url, "VACUUM ANALYZE")


def _line(user: int, number: int) -> str:
    rest = " ".join(WORDS[(number * step + user) % len(WORDS)] for step in (1, 3, 7))
    return f"Line{number}of{user} tells of {rest} at some length, as people do when they talk, {END}"


@asynccontextmanager
async def _others(memory: Memory) -> AsyncIterator[list[Memory]]:
    """Memories with caches of their own, as other processes have."""
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(Memory(settings=memory.settings)) for _ in range(READERS + WRITERS)]


@asynccontextmanager
async def _load(others: list[Memory], settle: Callable[[], Awaitable[None]], seen: Seen) -> AsyncIterator[None]:
    over = asyncio.Event()
    tasks = [asyncio.create_task(_read(memory, seen, over, place)) for place, memory in enumerate(others[:READERS])]
    tasks += [asyncio.create_task(_write(memory, seen, over, place)) for place, memory in enumerate(others[READERS:])]
    tasks.append(asyncio.create_task(_store(settle, over)))
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*tasks)


async def _read(memory: Memory, seen: Seen, over: asyncio.Event, place: int) -> None:
    turn = place
    while not over.is_set():
        user, turn = turn % USERS, turn + READERS
        began = time.perf_counter()
        try:
            if turn % 2:
                shown = [each.content for each in await memory.history(user_id=f"u{user}", limit=100)]
            else:
                block = await memory.recall(f"Line{turn % 50}of{user}", user_id=f"u{user}", load=("history",))
                if block.degraded:
                    raise errors.StoreUnavailable("recall", block.degraded)
                shown = [each.item.content for each in block.matches if isinstance(each.item, Episode)]
                seen.wrong += not any(each.startswith(f"Line{turn % 50}of{user} ") for each in shown)
            seen.wrong += sum(not each.endswith(END) for each in shown)
        except errors.AftermindError as exc:
            seen.failed += 1
            seen.what.add(f"{type(exc).__name__}: {exc}"[:80])
        seen.took_ms.append((time.perf_counter() - began) * 1000)
        seen.reads += 1


async def _write(memory: Memory, seen: Seen, over: asyncio.Event, place: int) -> None:
    number = 0
    while not over.is_set():
        user, number = f"u{(number + place) % USERS}", number + 1
        try:
            await memory.remember(f"Written {number} by {place}, {END}", user_id=user, save={"history"})
            await memory.blocks.set("human", f"Edited {number} by {place}, {END}", user_id=user)
        except errors.AftermindError as exc:
            seen.failed_writes += 1
            seen.what.add(f"{type(exc).__name__}: {exc}"[:80])
        seen.writes += 2
        await asyncio.sleep(0.02)


async def _store(settle: Callable[[], Awaitable[None]], over: asyncio.Event) -> None:
    while not over.is_set():
        await settle()
        await asyncio.sleep(0.05)
    await settle()


async def _alone(memory: Memory) -> list[float]:
    took = []
    for turn in range(ALONE):
        began = time.perf_counter()
        await memory.recall(f"Line{turn % 50}of{turn % USERS}", user_id=f"u{turn % USERS}", load=("history",))
        took.append((time.perf_counter() - began) * 1000)
    return took


async def _found(memory: Memory) -> int:
    found = 0
    for user in range(USERS):
        block = await memory.recall(f"Line7of{user}", user_id=f"u{user}", mode="lexical", load=("history",))
        texts = [each.item.content for each in block.matches if isinstance(each.item, Episode)]
        found += any(each.startswith(f"Line7of{user} ") for each in texts)
    return found


def _otherwise(database: Database, key_id: str) -> int:
    prefix = cipher.key_prefix(key_id)
    tables = (("episodes", "content"), ("blocks", "content"))
    counts = [
        psql(database.url, f"SELECT count(*) FROM aftermind.{table} WHERE NOT starts_with({column}, '{prefix}')")
        for table, column in tables
    ]
    return sum(map(int, counts))


def _size(database: Database) -> float:
    return round(int(psql(database.url, "SELECT pg_total_relation_size('aftermind.episodes')")) / 1e6, 1)


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, help=f"episodes to encrypt (default: {ROWS:,})")


if __name__ == "__main__":
    main()
