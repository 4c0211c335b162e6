"""Posts events to webhooks: claims what is due, signs it, and says what came of it. As many couriers as there are
reconcilers and understudies work side by side; a claim lasts a little longer than a post may take.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import uuid4

import orjson

from aftermind import errors
from aftermind.db import webhooks
from aftermind.db.base import Transaction
from aftermind.events import sealing, signing
from aftermind.events.posting import POST_SECONDS, Poster, Refusal
from aftermind.events.sealing import Sealer
from aftermind.ledger.backoff import backoff
from aftermind.types.webhook import Delivery, WebhookId
from aftermind_tasks.runtime import Runtime
from aftermind_workers import metrics

log = logging.getLogger(__name__)

POSTS = 32  # on their way at once, of one courier
POSTS_EACH = 8  # of them to one webhook, so that a slow one leaves room for the others
LEASE = timedelta(seconds=POST_SECONDS * 2)
LOOK_SECONDS = 1.0  # between looks for what is due, where nothing was
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=5), timedelta(hours=1)
LONGEST_PAUSE = timedelta(minutes=10)  # of a webhook that fails: how late it may be noticed that it is mended
GRACE_SECONDS = 5.0  # for posts on their way when the process stops


@dataclass(slots=True)
class Courier:
    """One courier between its looks."""

    runtime: Runtime
    poster: Poster
    first_wait: timedelta = FIRST_WAIT
    _posts: set[asyncio.Task[None]] = field(default_factory=set)
    _busy: Counter[WebhookId] = field(default_factory=Counter)
    _ended: list[tuple[Delivery, Refusal | None]] = field(default_factory=list)
    _sealer: Sealer | None = None

    async def look(self) -> int:
        """Keep what came of posts, claim what is due and begin to post it; how many. Raises `Unavailable`."""
        await self.keep()
        room = POSTS - len(self._posts)
        if room <= 0:
            return 0
        busy = [each for each, count in self._busy.items() if count >= POSTS_EACH]
        async with self.runtime.db.transaction() as tx:
            found = await webhooks.claim(tx, token=uuid4(), lease=LEASE, limit=room, each=POSTS_EACH, busy=busy)
        for delivery in found:
            self._busy[delivery.webhook_id] += 1
            task = asyncio.get_running_loop().create_task(self._deliver(delivery))
            self._posts.add(task)
            task.add_done_callback(self._posts.discard)
        return len(found)

    async def keep(self) -> None:
        """Commit what came of posts since the last time, all of it at once; forgets none, whatever it raises.

        Where it comes too late, a claim has run out and another courier posts again: at least once.
        """
        ended, self._ended = self._ended, []
        if not ended:
            return
        try:
            async with self.runtime.db.transaction() as tx:
                await webhooks.hold(tx, [delivery for delivery, _ in ended])
                for delivery, refusal in ended:
                    if refusal is not None:
                        await self._refused(tx, delivery, refusal)
                # Last: a webhook that takes anything is well.
                await webhooks.delivered(tx, [delivery for delivery, refusal in ended if refusal is None])
        except BaseException:
            self._ended = [*ended, *self._ended]
            raise

    async def settle(self, seconds: float) -> None:
        """Wait until a post has ended, at most so long."""
        if self._posts:
            await asyncio.wait(self._posts, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Let posts end that are on their way; what does not is claimed again by another."""
        if self._posts:
            await asyncio.wait(self._posts, timeout=GRACE_SECONDS)
        for task in self._posts:
            task.cancel()
        with suppress(errors.Unavailable):
            await self.keep()
        await self.poster.close()

    @property
    def is_posting(self) -> bool:
        """Whether anything is on its way."""
        return bool(self._posts)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            await self._post(delivery)
        except Refusal as exc:
            metrics.WEBHOOK_POSTS.labels(outcome="refused").inc()
            self._ended.append((delivery, exc))
        except errors.UnknownPayload as exc:  # no event: no endpoint is the worse for it, and nobody waits behind it
            metrics.WEBHOOK_POSTS.labels(outcome="unreadable").inc()
            log.error("event not understood", extra={"webhook": str(delivery.webhook_id), "error": str(exc)})
            self._ended.append((delivery, None))
        except errors.InvalidSettings as exc:  # our key, not the tenant's endpoint: nobody is disabled for it
            log.error("webhook cannot be signed", extra={"webhook": str(delivery.webhook_id), "error": str(exc)})
        except Exception:  # the edge: one delivery must not end the courier; its claim runs out
            log.exception("webhook delivery failed", extra={"webhook": str(delivery.webhook_id)})
        else:
            metrics.WEBHOOK_POSTS.labels(outcome="taken").inc()
            self._ended.append((delivery, None))
        finally:
            self._busy[delivery.webhook_id] -= 1
            self._busy += Counter()  # forgets those at zero

    async def _post(self, delivery: Delivery) -> None:
        self._sealer = self._sealer or sealing.sealer(self.runtime.settings)
        secret = self._sealer.open(delivery.sealed, sealing.bound(delivery.namespace, delivery.webhook_id))
        body = message(delivery)
        headers = signing.headers(secret, delivery.event_id, int(time.time()), body)
        await self.poster.post(delivery.url, body, headers)

    async def _refused(self, tx: Transaction, delivery: Delivery, refusal: Refusal) -> None:
        asked = refusal.retry_after or timedelta()
        is_disabled = await webhooks.refused(
            tx,
            delivery,
            str(refusal),
            wait=max(self._wait(delivery.attempts, LONGEST_WAIT), asked),
            pause=max(self._wait(delivery.failures + 1, LONGEST_PAUSE), asked),
            patience=timedelta(hours=self.runtime.settings.webhook_patience_hours),
            is_gone=refusal.is_gone,
        )
        told = {"webhook": str(delivery.webhook_id), "attempts": delivery.attempts, "error": str(refusal)}
        log.warning("webhook disabled" if is_disabled else "webhook refused", extra=told)

    def _wait(self, attempt: int, cap: timedelta) -> timedelta:
        return backoff(attempt, base=self.first_wait, cap=cap, random=random.random)


def message(delivery: Delivery) -> bytes:
    """What is posted: the kind, when it happened, and the event with its cursor. Raises `UnknownPayload`."""
    if not isinstance(delivery.event, Mapping):
        raise errors.UnknownPayload("event", type(delivery.event).__name__)
    event = {**delivery.event, "cursor": str(delivery.seq)}
    return orjson.dumps({"type": event.get("event"), "timestamp": event.get("at"), "data": event})


async def run(
    runtime: Runtime,
    *,
    until: Callable[[], bool],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    first_wait: timedelta = FIRST_WAIT,
) -> None:
    """Look and post, until told to stop."""
    poster = Poster(allow_private=runtime.settings.webhook_allow_private)
    courier = Courier(runtime=runtime, poster=poster, first_wait=first_wait)
    try:
        while not until():
            try:
                begun = await courier.look()
            except errors.Unavailable as exc:
                log.warning("courier waits", extra={"error": str(exc)})
                begun = 0
            except Exception:  # the edge of the loop: an error of one look must not end the delivering
                log.exception("courier look failed")
                begun = 0
            if courier.is_posting:
                await courier.settle(LOOK_SECONDS)
            elif not begun:
                await pause(LOOK_SECONDS)
    finally:
        await courier.close()
