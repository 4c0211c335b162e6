"""Turns as `remember()` makes them, and a publisher on a server of the test's own."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from aftermind import errors
from aftermind.outbox.factory import make_publisher, remember_link
from aftermind.outbox.publish_or_spool import Publisher
from aftermind.settings import Settings
from aftermind.types import LeaseToken, Message, Scope, Turn
from aftermind.types.message import new_ids
from aftermind.wire.pending import ClaimedTurn, Offer, Pending, PendingLimits
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from aftermind.wire.turn_encoding import encode_turn
from tests.support.waiting import wait_until

ROOMY = PendingLimits(turns=10_000, size_bytes=2**30, age=timedelta(hours=1), turns_of_user=1_000)


def turn_of(
    user: str | None = "alice",
    *texts: str,
    session: str | None = "s1",
    base: int | None = None,
    namespace: str = "default",
) -> Turn:
    """A turn of that user; the texts are what was said, by turns of user and assistant."""
    said = texts or ("I like tea.",)
    job_id, episode_ids = new_ids(len(said))
    now = datetime.now(UTC)
    return Turn(
        job_id=job_id,
        scope=Scope(namespace=namespace, user_id=user, session_id=session),
        remembered_at=now,
        base=int(now.timestamp() * 1e6) if base is None else base,
        messages=tuple(Message.user(text) if i % 2 == 0 else Message.assistant(text) for i, text in enumerate(said)),
        episode_ids=episode_ids,
    )


def offer(turn: Turn, *, is_spooled: bool = False) -> Offer:
    """The turn on its way in."""
    return Offer(turn=turn, payload=encode_turn(turn), is_spooled=is_spooled)


def texts_of(turns: tuple[Turn, ...] | list[Turn]) -> list[str]:
    """What was said first in each, in order."""
    return [turn.messages[0].content for turn in turns]


async def claim(
    pending: Pending,
    *,
    turns: int = 100,
    lease: float = 30.0,
    size_bytes: int = 2**23,
    max_lost: int = 3,
    alone: bool = True,
    large: bool = True,
    except_namespaces: Sequence[str] = (),
) -> list[ClaimedTurn]:
    """A claim as a worker makes it."""
    return await pending.claim(
        worker="w1",
        token=LeaseToken(uuid4()),
        for_=timedelta(seconds=lease),
        turns=turns,
        size_bytes=size_bytes,
        max_lost=max_lost,
        alone=alone,
        large=large,
        except_namespaces=except_namespaces,
    )


async def lose(pending: Pending, leases: int) -> None:
    """Let what is pending lose so many leases, as where workers die."""

    async def runnable() -> bool:
        backlog = await pending.backlog()
        return backlog.runnable == backlog.turns

    for _ in range(leases):
        while await claim(pending, lease=0.5):
            pass
        await wait_until(runnable, description="the leases have run out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The write path of one agent process, and a look at what Redis holds."""

    publisher: Publisher
    pending: Pending
    link: RedisLink
    settings: Settings

    async def remember(self, user: str | None = "alice", *texts: str, session: str | None = "s1") -> Turn:
        """Hand a turn over as `Memory.remember` does; the turn."""
        turn = turn_of(user, *texts, session=session, base=self.publisher.positions.take(max(len(texts), 1)))
        await self.publisher.send(turn)
        return turn

    async def seen(self, user: str | None = "alice") -> list[str]:
        """What recall would merge of Redis for the user, oldest first."""
        return texts_of((await self.pending.read(Scope(user_id=user), limit=1_000)).turns)

    async def all_seen(self, count: int, user: str | None = "alice") -> list[str]:
        """The same, once there are so many: for a Redis that comes back, beside which a read may still fail."""

        async def whole() -> list[str]:
            try:
                found = await self.seen(user)
            except errors.RedisUnavailable:  # it joined an attempt to connect that began before Redis was there
                return []
            return found if len(found) >= count else []

        return await wait_until(whole, description=f"{count} turns are pending")


@asynccontextmanager
async def agent_on(
    url: str,
    state_dir: Path,
    *,
    broker: str | None = None,
    **changed: Any,  # Any: settings by name
) -> AsyncIterator[Agent]:
    """An agent's write path to that Redis, which is the broker too where none is named."""
    settings = Settings(state_dir=state_dir, **changed)
    link = remember_link(settings, url)
    publisher = make_publisher(settings, broker=broker or url, link=link)
    try:
        yield Agent(
            publisher=publisher, pending=Pending(link, Keys(settings.redis_prefix)), link=link, settings=settings
        )
    finally:
        await publisher.close()
        await link.close()
