"""What a turn costs a store of one process does not grow with the turns before it, and finished jobs are pruned."""

from collections.abc import Iterator
from typing import Any

import pytest

from aftermind import Memory, Settings
from aftermind.db.inmemory_database import SHARED, Rows, mem
from aftermind.ledger.inmemory import ledger
from aftermind.types import JobState

pytestmark = pytest.mark.asyncio


class CountingTable(Rows):
    """A table that counts the rows that are looked at."""

    rows_read = 0

    def __getitem__(self, key: Any) -> Any:
        CountingTable.rows_read += 1
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        CountingTable.rows_read += 1
        return super().get(key, default)

    def values(self) -> Any:
        CountingTable.rows_read += len(self)
        return super().values()

    def items(self) -> Any:
        CountingTable.rows_read += len(self)
        return super().items()

    def __iter__(self) -> Iterator[Any]:
        CountingTable.rows_read += len(self)
        return super().__iter__()


async def rows_read_by_a_turn(memory: Memory, number: int) -> int:
    CountingTable.rows_read = 0
    await (await memory.remember(f"I have {number} cats.", user_id="ann", session_id="s")).stored(timeout=180)
    return CountingTable.rows_read


async def test_a_turn_looks_at_no_more_jobs_after_hundreds_than_after_a_few() -> None:
    settings = Settings(extractor="off")
    async with Memory("inmemory", settings=settings) as memory:
        async with memory._parts.db.transaction() as tx:
            mem(tx).database.partition(SHARED).tables["jobs"] = CountingTable(SHARED, "jobs")
        first = [await rows_read_by_a_turn(memory, number) for number in range(10)]
        for number in range(10, 400):
            await memory.remember(f"I have {number} cats.", user_id="ann", session_id="s")
        last = [await rows_read_by_a_turn(memory, number) for number in range(400, 410)]

        assert sum(last[1:]) <= 1.5 * sum(first[1:])


async def test_finished_jobs_are_pruned_and_their_episodes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_FINISHED_JOBS", 50)
    settings = Settings(extractor="off")
    async with Memory("inmemory", settings=settings) as memory:
        for number in range(200):
            receipt = await memory.remember(f"I have {number} cats.", user_id="ann")
            await receipt.stored(timeout=180)

        assert len(await memory._parts.ledger.jobs(limit=10_000)) <= 50
        assert len(await memory.history(user_id="ann", limit=1_000)) == 200


async def test_jobs_that_an_erasure_ended_are_pruned_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MAX_FINISHED_JOBS", 50)
    settings = Settings(extractor="rules", extract_quiet_seconds=3_600, extract_max_wait_seconds=3_600)
    async with Memory("inmemory", settings=settings) as memory:
        for number in range(100):
            receipt = await memory.remember("I like tea.", user_id="ann", session_id=str(number))
            await receipt.stored(timeout=180)
        assert len(await memory._parts.ledger.jobs(states=[JobState.QUEUED], limit=10_000)) == 100

        await memory.forget(user_id="ann")
        await (await memory.remember("I like tea.", user_id="bob")).stored(timeout=180)

        assert len(await memory._parts.ledger.jobs(limit=10_000)) <= 50 + 1  # and the extraction of bob's turn
