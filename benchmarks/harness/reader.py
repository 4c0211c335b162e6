"""Recalls that run all along: each asks for a turn that some producer was told is kept, and looks whether it is there.

Run as `python -m benchmarks.harness.reader SPEC`, where SPEC is the JSON of `Reading`. It learns what was acknowledged
from the producers' files: another process than the one that remembered, as behind a load balancer.
"""

import asyncio
import json
import random
import signal
import sys
from functools import partial
from pathlib import Path

from aftermind import AftermindError, Memory, RecallBlock
from benchmarks.harness import messages
from benchmarks.harness.history import History, Recalled, Remembered, Tail, now
from benchmarks.harness.run_settings import Reading
from tests.support.waiting import wait_until

LANES = 4
# Newest acknowledged turns among which a recall chooses: such as are still pending, such as were just stored, or any.
FRESH, RECENT = 12, 150
LONGEST_CALL = 10.0  # seconds; recall() promises one
LONGEST_START = 30.0


class Reader:
    """Recalls for one process."""

    def __init__(self, reading: Reading, memory: Memory, history: History) -> None:
        self._reading, self._memory, self._history = reading, memory, history
        self._rng = random.Random(reading.seed)
        self._tail = Tail(Path(reading.folder), "producer-*.jsonl")
        self._acknowledged: list[Remembered] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Recall at the wanted rate until told to stop."""
        while not stop.is_set():
            await asyncio.sleep(LANES / self._reading.rate)
            self._acknowledged.extend(entry for entry in self._tail.read() if entry.type == "ok")
            if self._acknowledged:
                self._history.append(await self._recall(self._chosen()))

    def _chosen(self) -> Remembered:
        newest = self._rng.choice((FRESH, RECENT, len(self._acknowledged)))
        return self._rng.choice(self._acknowledged[-newest:])

    async def _recall(self, turn: Remembered) -> Recalled:
        began = now()
        try:
            async with asyncio.timeout(LONGEST_CALL):
                block = await self._memory.recall(f"note {turn.marker}", user_id=turn.user)
        except (AftermindError, TimeoutError) as exc:
            return _entry("error", turn, began, why=f"{type(exc).__name__}: {exc}")
        if _holds(block, turn.marker):
            kind = "ok" if block.degraded is None else "degraded"
        else:
            kind = "stale" if block.degraded is None else "degraded"
        return _entry(kind, turn, began, served_by=str(block.served_by), why=block.degraded or "")


def _holds(block: RecallBlock, marker: str) -> bool:
    return marker in messages.markers_in(block.text)


def _entry(kind: str, turn: Remembered, began: float, *, served_by: str = "", why: str = "") -> Recalled:
    entry = {"marker": turn.marker, "user": turn.user, "began": began, "ended": now(), "acknowledged": turn.at}
    return Recalled(**{**entry, "type": kind, "served_by": served_by, "why": why})  # type: ignore[arg-type]


async def read(reading: Reading) -> None:
    """Recall until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    memory = Memory()
    with History(Path(reading.folder) / f"reader-{reading.reader}.jsonl") as history:
        # What a readiness probe does: nobody is served before the first recall is whole.
        await wait_until(partial(_is_whole, memory), timeout=LONGEST_START, description="a first recall is whole")
        print(json.dumps({"begun": True}), flush=True)  # noqa: T201
        reader = Reader(reading, memory, history)
        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES):
                lanes.create_task(reader.run(stop))
        await memory.close()


async def _is_whole(memory: Memory) -> bool:
    return (await memory.recall("ready", user_id="nobody")).degraded is None


if __name__ == "__main__":
    asyncio.run(read(Reading(**json.loads(sys.argv[1]))))
