"""Remembers, forgets and recalls for users of its own: what was forgotten is never seen again, what came later is kept.

Run as `python -m benchmarks.harness.eraser SPEC`, where SPEC is the JSON of `Erasing`. Its users are its own, so that a
turn that is missing is never one that another process waits for.
"""

import asyncio
import itertools
import json
import signal
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from aftermind import AftermindError, Memory, Message, Receipt
from aftermind.errors import Forgotten
from benchmarks.harness import messages
from benchmarks.harness.history import Erased, History, now
from benchmarks.harness.run_settings import Erasing

LONGEST_CALL = 10.0  # seconds; remember() and recall() promise a tenth of it, forget() waits for a lease of trust
RECEIPT_SECONDS = 60.0
PRODUCER = 9  # in the markers: no producer has it


@dataclass(slots=True)
class _Turn:
    entry: Erased
    waiting: "asyncio.Task[str]" = field(repr=False)


class Lane:
    """One user. Each step waits for the one before, so that before and after are what a caller would call so."""

    def __init__(self, memory: Memory, numbers: "itertools.count[int]", lane: int, pause: float) -> None:
        self._memory, self._numbers, self._pause = memory, numbers, pause
        self._user = f"eraser-{lane}"
        self._living: list[_Turn] = []
        self.ended: list[_Turn] = []

    async def run(self, until: float) -> None:
        """Rounds of remember, forget, recall until the time is over; then one turn more, which stays."""
        while now() < until:
            for _ in range(3):
                await self._remember()
            await self._forget()
            await self._recall()
            await asyncio.sleep(self._pause)
        await self._remember()
        self.ended += [_Turn(replace(turn.entry, kept=not turn.entry.why), turn.waiting) for turn in self._living]

    async def _remember(self) -> None:
        number = next(self._numbers)
        marker = messages.marker_of(PRODUCER, number)
        text = f"This is note {marker} of my diary."
        try:
            async with asyncio.timeout(LONGEST_CALL):
                receipt = await self._memory.remember([Message.user(text)], user_id=self._user, session_id="erased")
        except (AftermindError, TimeoutError):  # whether it was accepted is unknown
            return
        self._living.append(_Turn(Erased(marker=marker), asyncio.create_task(_ending(receipt))))

    async def _forget(self) -> None:
        try:
            async with asyncio.timeout(LONGEST_CALL):
                await self._memory.forget(user_id=self._user)
        except (AftermindError, TimeoutError) as exc:  # it may have erased or not: these turns prove nothing more
            self._living = [_Turn(replace(turn.entry, why=f"{exc}"), turn.waiting) for turn in self._living]
            return
        known = [turn for turn in self._living if not turn.entry.why]
        self.ended += [turn for turn in self._living if turn.entry.why]
        self.ended += [_Turn(replace(turn.entry, forgotten=True), turn.waiting) for turn in known]
        self._living = []

    async def _recall(self) -> None:
        try:
            async with asyncio.timeout(LONGEST_CALL):
                block = await self._memory.recall("note of my diary", user_id=self._user)
        except (AftermindError, TimeoutError):
            return
        shown = set(messages.markers_in(block.text))
        self.ended = [
            _Turn(replace(turn.entry, seen=turn.entry.seen + 1), turn.waiting)
            if turn.entry.forgotten and turn.entry.marker in shown
            else turn
            for turn in self.ended
        ]


async def _ending(receipt: Receipt) -> str:
    try:
        await receipt.stored(timeout=RECEIPT_SECONDS)
    except Forgotten:
        return "forgotten"
    except (AftermindError, TimeoutError):
        return "unknown"
    return "done"


async def erase(erasing: Erasing) -> None:
    """Run the lanes for the given time, wait for SIGTERM, then write down how every turn ended."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(json.dumps({"begun": True}), flush=True)  # noqa: T201
    memory = Memory()
    numbers = itertools.count()
    lanes = [Lane(memory, numbers, lane, erasing.pause) for lane in range(erasing.lanes)]
    until = now() + erasing.seconds
    async with asyncio.TaskGroup() as group:
        for lane in lanes:
            group.create_task(lane.run(until))
    await stop.wait()
    with History(Path(erasing.folder) / f"eraser-{erasing.eraser}.jsonl") as history:
        for turn in (turn for lane in lanes for turn in lane.ended):
            ending = turn.waiting.result() if turn.waiting.done() else "unknown"
            turn.waiting.cancel()
            history.append(replace(turn.entry, receipt=ending))
    await memory.close()


if __name__ == "__main__":
    asyncio.run(erase(Erasing(**json.loads(sys.argv[1]))))
