"""Load on a deployment while one of its servers fails over: what was accepted, and what of it is stored."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import asyncpg

from aftermind import Memory, errors
from tests.support.waiting import wait_until

USERS = ("user-0", "user-1", "user-2", "user-3")
PAUSE_SECONDS = 0.02  # between two turns of a user


@dataclass(slots=True)
class Load:
    """Turns of some users, each with a recall after it. `stop` ends it; `accepted` are those that remember() took.

    `bystanders` are other users, whose turns the fault does not concern; `disturbed` are those that it did.
    """

    memory: Memory
    users: Sequence[str] = USERS
    bystanders: Sequence[str] = ()
    accepted: list[str] = field(default_factory=list)
    refused: int = 0
    stale: list[str] = field(default_factory=list)  # accepted turns that the next recall did not show
    degraded_at: list[float] = field(default_factory=list)
    spooled_at: list[float] = field(default_factory=list)
    slowest_s: dict[str, float] = field(default_factory=lambda: {"remember": 0.0, "recall": 0.0})
    disturbed: dict[str, float] = field(default_factory=dict)  # what, and when
    _is_over: bool = False

    async def run(self) -> None:
        """Until `stop`."""
        async with asyncio.TaskGroup() as group:
            for user in (*self.users, *self.bystanders):
                group.create_task(self._talk(user))

    def stop(self) -> None:
        """Let each user finish the current turn."""
        self._is_over = True

    async def reach(self, more: int) -> None:
        """Wait until so many more turns are accepted."""
        wanted = len(self.accepted) + more
        await wait_until(lambda: len(self.accepted) >= wanted, description=f"{more} more turns are accepted")

    async def _talk(self, user: str) -> None:
        number = 0
        while not self._is_over:
            number += 1
            text = f"note {number} of {user}"
            try:
                with self._timed("remember"):
                    receipt = await self.memory.remember(text, user_id=user)
            except errors.Unavailable:
                self.refused += 1
            else:
                self.accepted.append(text)
                if receipt.spooled:
                    self._note(self.spooled_at, user, text)
                await self._recall(user, text, is_pending=not receipt.spooled)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _recall(self, user: str, text: str, *, is_pending: bool) -> None:
        with self._timed("recall"):
            block = await self.memory.recall(text, user_id=user)
        if block.degraded:
            self._note(self.degraded_at, user, f"recall of {text}: {block.degraded}")
        elif is_pending and text not in str(block):
            self.stale.append(text)

    def _note(self, moments: list[float], user: str, what: str) -> None:
        if user in self.bystanders:
            self.disturbed[what] = time.monotonic()
        else:
            moments.append(time.monotonic())

    @contextmanager
    def _timed(self, call: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.slowest_s[call] = max(self.slowest_s[call], time.monotonic() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Counts and durations of one fault. `degraded_s` and `spooled_s`: from the fault to the last such call; the
    slowest calls are of the time after the fault.
    """

    accepted: int
    refused: int
    lost: list[str]
    doubled: list[str]
    stale: list[str]
    disturbed: list[str]
    recall_degraded_s: float
    remember_spooled_s: float
    slowest_remember_s: float
    slowest_recall_s: float


async def survive(
    memory: Memory,
    store_url: str,
    fault: Callable[[Load], Awaitable[None]],
    *,
    turns: int = 100,
    users: Sequence[str] = USERS,
    bystanders: Sequence[str] = (),
) -> Outcome:
    """Run load, cause the fault, run on, and wait until everything accepted is stored.

    `fault` may use the load between its steps. `store_url` is read past Aftermind, as superuser.
    """
    load = Load(memory, users, bystanders)
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        try:
            await load.reach(turns)
            struck = time.monotonic()
            load.slowest_s.update(remember=0.0, recall=0.0)  # a process loads much in its first calls
            await fault(load)
            await load.reach(turns)
        finally:
            load.stop()
    stored = await _stored(store_url, set(load.accepted))
    return Outcome(
        accepted=len(load.accepted),
        refused=load.refused,
        lost=sorted(set(load.accepted) - stored.keys()),
        doubled=sorted(text for text, count in stored.items() if count > 1),
        stale=load.stale,
        disturbed=[what for what, moment in load.disturbed.items() if moment > struck],
        recall_degraded_s=_duration(struck, load.degraded_at),
        remember_spooled_s=_duration(struck, load.spooled_at),
        slowest_remember_s=round(load.slowest_s["remember"], 2),
        slowest_recall_s=round(load.slowest_s["recall"], 2),
    )


async def _stored(url: str, accepted: set[str]) -> Counter[str]:
    """How often each text is stored, once all are or nothing is pending any more."""

    async def read() -> Counter[str]:
        connection = await asyncpg.connect(url, timeout=10)
        try:
            return Counter({row[0]: row[1] for row in await connection.fetch(_COUNTS)})
        finally:
            await connection.close()

    async def are_all() -> bool:
        return accepted <= (await read()).keys()

    with suppress(AssertionError):  # the caller reports what is missing
        await wait_until(are_all, timeout=60, description="everything accepted is stored")
    return await read()


def _duration(since: float, moments: list[float]) -> float:
    return round(max((moment - since for moment in moments if moment > since), default=0.0), 2)


_COUNTS = "SELECT content, count(*) FROM aftermind.episodes GROUP BY 1"
