"""An agent's process under load: numbered turns, each call written down before it is made and after it has returned.

Run as `python -m benchmarks.harness.producer SPEC`, where SPEC is the JSON of `Load`. Stops sending after its time,
then stays until SIGTERM, because what it has spooled to disk is its own to send.
"""

import asyncio
import itertools
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from aftermind import AftermindError, Memory, Message
from benchmarks.harness import messages
from benchmarks.harness.history import History, Remembered, now
from benchmarks.harness.run_settings import Load

SESSIONS = 2  # of each user; a lane goes from one to the other, so order within a session is not order of the calls
LONGEST_CALL = 10.0  # seconds; remember() promises half of one, and a call that outlasts this has broken the promise


class Lane:
    """One conversation after the other: each call waits for the one before, so the order sent is the order meant."""

    def __init__(self, memory: Memory, history: History, load: Load, numbers: Iterator[int], lane: int) -> None:
        self._memory, self._history, self._load, self._numbers = memory, history, load, numbers
        self._user = f"user-{load.producer}-{lane}"

    async def run(self, until: float) -> None:
        """Keep the pace until the time is over; calls that took long are not made up for."""
        pause = self._load.lanes / self._load.rate
        due = now()
        for turn in itertools.count():
            due = max(due + pause, now() - pause)
            await asyncio.sleep(max(0.0, due - now()))
            if now() > until:
                return
            await self._remember(next(self._numbers), f"session-{turn // 5 % SESSIONS}")

    async def _remember(self, number: int, session: str) -> None:
        before = Remembered(
            type="invoke",
            marker=messages.marker_of(self._load.producer, number),
            user=self._user,
            session=session,
            number=number,
            at=now(),
            fact=messages.object_of(self._load.producer, number),
        )
        self._history.append(before)
        self._history.append(await self._called(before))

    async def _called(self, before: Remembered) -> Remembered:
        message = Message.user(messages.content_of(self._load.producer, before.number))
        try:
            async with asyncio.timeout(LONGEST_CALL):
                receipt = await self._memory.remember([message], user_id=before.user, session_id=before.session)
        except (AftermindError, TimeoutError) as exc:  # nobody knows whether it was taken
            return _ended(before, "info", why=f"{type(exc).__name__}: {exc}")
        return _ended(before, "ok", spooled=receipt.spooled, job=str(receipt.job_id))


def _ended(before: Remembered, kind: str, *, spooled: bool = False, job: str = "", why: str = "") -> Remembered:
    at = now()
    return Remembered(
        type="ok" if kind == "ok" else "info",
        marker=before.marker,
        user=before.user,
        session=before.session,
        number=before.number,
        fact=before.fact,
        at=at,
        took=at - before.at,
        spooled=spooled,
        job=job,
        why=why,
    )


async def produce(load: Load) -> None:
    """Send for the load's time, then wait for SIGTERM with the memory open."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(json.dumps({"begun": True}), flush=True)  # noqa: T201
    memory = Memory()
    numbers = itertools.count()
    with History(Path(load.folder) / f"producer-{load.producer}.jsonl") as history:
        until = now() + load.seconds
        async with asyncio.TaskGroup() as lanes:
            for lane in range(load.lanes):
                lanes.create_task(Lane(memory, history, load, numbers, lane).run(until))
        await stop.wait()
        await memory.close()


if __name__ == "__main__":
    asyncio.run(produce(Load(**json.loads(sys.argv[1]))))
