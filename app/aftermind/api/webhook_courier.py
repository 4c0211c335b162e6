"""Posts events to webhooks: claims due deliveries, signs them, and records the results. One courier runs in each
reconciler and standby, or in the process that has opened a store of one process. A claim lasts a little longer than a
post may take.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol
from uuid import uuid4

import orjson

from aftermind import errors
from aftermind.db import webhook_deliveries
from aftermind.db.database_protocol import Database, Transaction
from aftermind.db.webhook_protocol import WebhookRows
from aftermind.events.webhooks import signature, signing_secrets
from aftermind.events.webhooks.http_client import POST_SECONDS, DeliveryRejected, Poster
from aftermind.events.webhooks.signing_secrets import Sealer
from aftermind.ledger.backoff import backoff
from aftermind.settings import Settings
from aftermind.telemetry.logger import get_logger
from aftermind.types.webhook import Delivery, WebhookId

log = get_logger(__name__)

POSTS = 32  # concurrent posts of one courier
POSTS_EACH = 8  # of them to one webhook, so that a slow one leaves capacity for the others
CLAIM_LEASE = timedelta(seconds=POST_SECONDS * 2)
POLL_SECONDS = 1.0  # between checks for due deliveries if there were none
FIRST_WAIT, LONGEST_WAIT = timedelta(seconds=5), timedelta(hours=1)
LONGEST_PAUSE = timedelta(minutes=10)  # of a failing webhook: the longest delay until a recovery is noticed
GRACE_SECONDS = 5.0  # for running posts when the process stops


class Host(Protocol):
    """The process of a courier."""

    @property
    def db(self) -> Database:
        """The database of the deliveries."""

    @property
    def settings(self) -> Settings:
        """The settings of the process."""


def _count_nothing(outcome: str) -> None:
    """A process without metrics of posts."""


@dataclass(slots=True)
class Courier:
    """The state of one courier between its checks. `count` is called with the outcome of each post."""

    runtime: Host
    poster: Poster
    first_wait: timedelta = FIRST_WAIT
    rows: WebhookRows = webhook_deliveries
    count: Callable[[str], None] = _count_nothing
    _posts: set[asyncio.Task[None]] = field(default_factory=set)
    _busy: Counter[WebhookId] = field(default_factory=Counter)
    _ended: list[tuple[Delivery, DeliveryRejected | None]] = field(default_factory=list)
    _sealer: Sealer | None = None

    async def dispatch_due(self) -> int:
        """Keep what came of posts, claim what is due and begin to post it; how many. Raises `Unavailable`."""
        await self.commit_results()
        room = POSTS - len(self._posts)
        if room <= 0:
            return 0
        busy = [each for each, count in self._busy.items() if count >= POSTS_EACH]
        async with self.runtime.db.transaction() as tx:
            found = await self.rows.claim(tx, token=uuid4(), lease=CLAIM_LEASE, limit=room, each=POSTS_EACH, busy=busy)
        for delivery in found:
            self._busy[delivery.webhook_id] += 1
            task = asyncio.get_running_loop().create_task(self._deliver(delivery))
            self._posts.add(task)
            task.add_done_callback(self._posts.discard)
        return len(found)

    def note_result(self, delivery: Delivery, refusal: DeliveryRejected | None) -> None:
        """Keep how a post ended until it is committed; None: the receiver took it."""
        self._ended.append((delivery, refusal))

    async def commit_results(self) -> None:
        """Commit the results of posts since the last call, together; keeps them all if it raises.

        If this is too late, a claim has expired and another courier posts again: at least once. A result that cannot be
        written although the database answers is dropped, so that it delays no other.
        """
        while self._ended:
            ended = list(self._ended)
            try:
                await self._commit(ended)
            except errors.Unavailable:
                raise
            except Exception:
                log.exception("results of posts not written", extra={"posts": len(ended)})
                await self._commit_each(ended)
            del self._ended[: len(ended)]

    async def _commit_each(self, ended: Sequence[tuple[Delivery, DeliveryRejected | None]]) -> None:
        for each in ended:
            try:
                await self._commit([each])
            except errors.Unavailable:
                raise
            except Exception:  # its claim expires
                log.exception("result of a post dropped", extra={"webhook": str(each[0].webhook_id)})

    async def _commit(self, ended: Sequence[tuple[Delivery, DeliveryRejected | None]]) -> None:
        async with self.runtime.db.transaction() as tx:
            await self.rows.hold(tx, [delivery for delivery, _ in ended])
            for delivery, refusal in ended:
                if refusal is not None:
                    await self._refused(tx, delivery, refusal)
            # Last: a webhook that takes anything is well.
            await self.rows.delivered(tx, [delivery for delivery, refusal in ended if refusal is None])

    async def settle(self, seconds: float) -> None:
        """Wait until a post has ended, at most so long."""
        if self._posts:
            await asyncio.wait(self._posts, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Let running posts end; another courier claims the others again."""
        if self._posts:
            await asyncio.wait(self._posts, timeout=GRACE_SECONDS)
        for task in self._posts:
            task.cancel()
        with suppress(errors.Unavailable):
            await self.commit_results()
        await self.poster.close()

    @property
    def is_posting(self) -> bool:
        """Whether posts are running."""
        return bool(self._posts)

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            await self._post(delivery)
        except DeliveryRejected as exc:
            self.count("refused")
            self.note_result(delivery, exc)
        # not an event: the endpoint is not blamed, and later deliveries do not wait
        except errors.UnknownPayload as exc:
            self.count("unreadable")
            log.error("event not understood", extra={"webhook": str(delivery.webhook_id), "error": str(exc)})
            self.note_result(delivery, None)
        # the operator's key, not the tenant's endpoint: no webhook is disabled for it
        except errors.InvalidSettings as exc:
            log.error("webhook cannot be signed", extra={"webhook": str(delivery.webhook_id), "error": str(exc)})
        except Exception:  # the edge: one delivery must not end the courier; its claim runs out
            log.exception("webhook delivery failed", extra={"webhook": str(delivery.webhook_id)})
        else:
            self.count("taken")
            self.note_result(delivery, None)
        finally:
            self._busy[delivery.webhook_id] -= 1
            self._busy += Counter()  # forgets those at zero

    async def _post(self, delivery: Delivery) -> None:
        sealer = self._sealer or signing_secrets.opener(self.runtime.settings)
        row = signing_secrets.bound(delivery.namespace, delivery.webhook_id)
        secrets = [sealer.open(each, row) for each in delivery.sealed]
        self._sealer = sealer  # kept once it has opened: a key file may be put there later
        body = message(delivery)
        headers = signature.headers(secrets, delivery.event_id, int(time.time()), body)
        await self.poster.post(delivery.url, body, headers)

    async def _refused(self, tx: Transaction, delivery: Delivery, refusal: DeliveryRejected) -> None:
        asked = refusal.retry_after or timedelta()
        is_disabled = await self.rows.refused(
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
    runtime: Host,
    *,
    until: Callable[[], bool],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    first_wait: timedelta = FIRST_WAIT,
    rows: WebhookRows = webhook_deliveries,
    count: Callable[[str], None] = _count_nothing,
) -> None:
    """Check and post, until stopped. `until` is asked before each check."""
    poster = Poster(allow_private=runtime.settings.webhook_allow_private)
    courier = Courier(runtime=runtime, poster=poster, first_wait=first_wait, rows=rows, count=count)
    try:
        while not until():
            try:
                begun = await courier.dispatch_due()
            except errors.Unavailable as exc:
                log.warning("courier waits", extra={"error": str(exc)})
                begun = 0
            except Exception:  # the edge of the loop: an error of one check must not end the deliveries
                log.exception("webhook delivery round failed")
                begun = 0
            if courier.is_posting:
                await courier.settle(POLL_SECONDS)
            elif not begun:
                await pause(POLL_SECONDS)
    finally:
        await courier.close()
