"""Webhooks from the commit that keeps an event to the receiver that takes it, over real HTTP and row-level security."""

import asyncio
import itertools
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr

from aftermind import Memory, Settings, errors
from aftermind.api import webhook_courier
from aftermind.db import webhook_deliveries as rows
from aftermind.events.types import MemoryEvent, MemoryUpdateFailed
from aftermind.events.webhooks.http_client import DeliveryRejected, Poster
from aftermind.types import Scope
from aftermind.types.webhook import NewWebhook
from aftermind_tasks.runtime import Runtime, open_runtime
from tests.conformance.bus_contract import ALICE, BOB, completed
from tests.support.certificates import Authority
from tests.support.proxy import proxy_to
from tests.support.servers import Database, psql_async, wait_for_output
from tests.support.waiting import wait_until as wait_until_in
from tests.support.webhook_receiver import Post, Receiver, receiver
from tests.support.workers import environment, workers

UNDELIVERED = "SELECT count(*) FROM aftermind.webhook_deliveries"
QUICK = timedelta(milliseconds=20)
wait_until = partial(wait_until_in, timeout=180)


class Posting:
    """An agent's memory, a courier as the relay, and how to make things happen."""

    def __init__(self, database: Database, redis_url: str, folder: Path, **more: object) -> None:
        self._database, self._stop = database, False
        given: dict[str, Any] = {  # Any: settings
            "database_url": SecretStr(database.app_url),
            "relay_url": SecretStr(database.relay_url),
            "broker_url": SecretStr(redis_url),
            "state_dir": folder,
            "embedder": "hash",
            "webhook_allow_private": True,
            "db_timeout_seconds": 30.0,  # a busy machine is not what is tested here
            "db_connect_timeout_seconds": 30.0,
            **more,
        }
        self.settings = Settings(**given)
        self.memory = Memory(settings=self.settings)
        self.runtime: Runtime | None = None
        self._couriers: list[asyncio.Task[None]] = []

    async def happens(self, *events: MemoryEvent) -> list[MemoryEvent]:
        """Events of a commit, by a worker."""
        runtime = await self.opened()
        async with runtime.db.transaction() as tx:
            return await runtime.events.append(tx, events)

    async def courier(self, count: int = 1) -> None:
        """Start couriers."""
        runtime = await self.opened()
        for _ in range(count):
            running = webhook_courier.run(runtime, until=lambda: self._stop, pause=_short, first_wait=QUICK)
            self._couriers.append(asyncio.create_task(running))

    async def add(self, to: Receiver, **more: Any) -> NewWebhook:  # Any: arguments of `add`
        """A webhook that leads to a receiver."""
        return await self.memory.webhooks.create(to.url, **more)

    async def undelivered(self) -> int:
        """Rows that wait, of everybody."""
        return int(await psql_async(self._database.url, UNDELIVERED))

    async def all_delivered(self) -> None:
        """Wait until no row is left."""
        await wait_for_output(self._database.url, UNDELIVERED, "0", timeout=180, description="all is delivered")

    async def close(self) -> None:
        """End it all."""
        self._stop = True
        await asyncio.gather(*self._couriers)
        await self.memory.close()
        if self.runtime is not None:
            await self.runtime.close()

    async def opened(self) -> Runtime:
        """The runtime of its worker."""
        if self.runtime is None:
            self.runtime = await open_runtime(self.settings, worker="test")
        return self.runtime


async def _short(seconds: float) -> None:
    await asyncio.sleep(0.02)


@pytest.fixture
async def open_posting(database: Database, redis_url: str, tmp_path: Path) -> AsyncIterator[Callable[..., Posting]]:
    """Makes them, with settings of the test's own."""
    async with AsyncExitStack() as stack:

        def make(**more: object) -> Posting:
            made = Posting(database, redis_url, tmp_path / "state", **more)
            stack.push_async_callback(made.close)
            return made

        yield make


@pytest.fixture
async def endpoint() -> AsyncIterator[Receiver]:
    """A stranger's endpoint."""
    async with receiver() as one:
        yield one


def answering(*statuses: int) -> Callable[[Post], int]:
    """Answers by a list; the last one goes on."""
    told = itertools.chain(statuses, itertools.repeat(statuses[-1]))
    return lambda post: next(told)


async def test_an_event_is_posted_signed_to_those_that_want_its_kind(
    open_posting: Callable[..., Posting], endpoint: Receiver
) -> None:
    posting = open_posting()
    made = await posting.add(endpoint, events=["MemoryUpdateCompleted"])
    failed = MemoryUpdateFailed(scope=ALICE, at=completed().at, kind="store", error="x", attempts=1)
    kept = await posting.happens(completed(), failed, completed(BOB))
    await posting.courier()

    await wait_until(lambda: len(endpoint.taken) == 2, description="both are posted")

    posts = {post.headers["webhook-id"]: post for post in endpoint.taken}
    assert set(posts) == {kept[0].id, kept[2].id}
    assert all(post.is_signed_by(made.secret) for post in endpoint.posts)
    body = posts[kept[0].id].json
    assert (body["type"], body["timestamp"]) == ("MemoryUpdateCompleted", kept[0].at.isoformat())
    assert (body["data"]["user_id"], body["data"]["cursor"]) == ("alice", "1")
    assert posts[kept[0].id].headers["content-type"] == "application/json"
    await posting.all_delivered()
    (shown,) = await posting.memory.webhooks.list()
    assert shown.delivered_at is not None
    assert (shown.waiting, shown.failed, shown.is_disabled) == (0, 0, False)


async def test_a_secret_is_told_once_and_lies_sealed(
    open_posting: Callable[..., Posting], endpoint: Receiver, database: Database
) -> None:
    posting = open_posting()
    made = await posting.add(endpoint)

    assert made.secret.startswith("whsec_")
    assert made.secret not in repr(made)
    assert not any(made.secret in repr(shown) for shown in await posting.memory.webhooks.list())
    dump = await psql_async(
        database.url, "SELECT row_to_json(w) FROM aftermind.webhooks w", "SELECT secret FROM aftermind.webhooks"
    )
    assert made.secret[6:] not in dump
    assert made.secret[6:].encode().hex() not in dump


async def test_both_secrets_sign_until_the_rotation_is_over(
    open_posting: Callable[..., Posting], endpoint: Receiver, database: Database
) -> None:
    posting = open_posting()
    made = await posting.add(endpoint)
    before = made.secret

    rotated = await posting.memory.webhooks.rotate_secret(made.webhook.id, overlap=timedelta(hours=1))
    await posting.courier()
    await posting.happens(completed())
    await wait_until(lambda: len(endpoint.taken) == 1, description="it is posted during the overlap")
    await psql_async(
        database.admin_url, "UPDATE aftermind.webhooks SET former_secret_until = now() - interval '1 second'"
    )
    await posting.happens(completed())
    await wait_until(lambda: len(endpoint.taken) == 2, description="it is posted after the overlap")
    leaked = await posting.memory.webhooks.rotate_secret(made.webhook.id, overlap=timedelta())
    await posting.happens(completed())
    await wait_until(lambda: len(endpoint.taken) == 3, description="it is posted after a leak")

    assert rotated is not None
    assert leaked is not None
    secrets = (before, rotated.secret, leaked.secret)
    assert len(set(secrets)) == 3
    signed = [[post.is_signed_by(secret) for secret in secrets] for post in endpoint.posts]
    assert signed == [[True, True, False], [False, True, False], [False, False, True]]
    assert [len(post.headers["webhook-signature"].split(" ")) for post in endpoint.posts] == [2, 1, 1]
    assert rotated.webhook.former_secret_until is not None
    assert leaked.webhook.former_secret_until is None
    assert await posting.memory.webhooks.rotate_secret(made.webhook.id, namespace="globex") is None
    for wrong in (timedelta(seconds=-1), timedelta(days=31)):
        with pytest.raises(errors.InvalidWebhook, match="overlap"):
            await posting.memory.webhooks.rotate_secret(made.webhook.id, overlap=wrong)


async def test_a_row_that_is_no_event_is_dropped_and_holds_up_no_delivery(
    open_posting: Callable[..., Posting], endpoint: Receiver, database: Database
) -> None:
    posting = open_posting()
    made = await posting.add(endpoint)
    await psql_async(
        database.url,
        "INSERT INTO aftermind.events (namespace, user_id, seq, id, event) VALUES ('default', 'carol', 9, 'odd', '5')",
        "INSERT INTO aftermind.webhook_deliveries (namespace, user_id, seq, webhook_id) "
        f"VALUES ('default', 'carol', 9, '{made.webhook.id}')",
    )
    (kept,) = await posting.happens(completed())
    await posting.courier()

    await wait_until(lambda: endpoint.taken, description="the event is posted")
    await posting.all_delivered()

    assert [post.headers["webhook-id"] for post in endpoint.posts] == [kept.id]


async def test_what_is_not_taken_is_posted_again_with_the_same_id(
    open_posting: Callable[..., Posting], endpoint: Receiver
) -> None:
    posting = open_posting()
    endpoint.answer = answering(500, 429, 302, 200)
    await posting.add(endpoint)
    (kept,) = await posting.happens(completed())
    await posting.courier()

    await wait_until(lambda: endpoint.taken, description="it is taken in the end")
    await posting.all_delivered()

    assert [post.status for post in endpoint.posts] == [500, 429, 302, 200]
    assert {post.headers["webhook-id"] for post in endpoint.posts} == {kept.id}
    (shown,) = await posting.memory.webhooks.list()
    assert (shown.failing_since, shown.reason) == (None, None)


async def test_a_redirect_is_not_followed(open_posting: Callable[..., Posting], endpoint: Receiver) -> None:
    posting = open_posting()
    async with receiver() as elsewhere:
        endpoint.answer, endpoint.more = answering(302), f"Location: {elsewhere.url}\r\n"
        await posting.add(endpoint)
        await posting.happens(completed())
        await posting.courier()
        await wait_until(lambda: len(endpoint.posts) >= 3, description="it is tried again where it was to go")

        assert elsewhere.connections == 0


async def test_a_webhook_that_fails_is_seen_whatever_its_namespace(
    open_posting: Callable[..., Posting], endpoint: Receiver, database: Database
) -> None:
    posting = open_posting()
    await posting.add(endpoint, namespace="hooks")
    await psql_async(database.url, "UPDATE aftermind.webhooks SET failing_since = now() WHERE namespace = 'hooks'")

    health = await posting.memory.health()

    found = next(part for part in health.parts if part.name == "webhooks")
    assert (found.state, "1 failing" in found.detail) == ("degraded", True)


async def test_a_receiver_that_is_away_for_long_is_disabled_and_gets_everything_when_enabled(
    open_posting: Callable[..., Posting], endpoint: Receiver
) -> None:
    posting = open_posting(webhook_patience_hours=0.5 / 3600)
    endpoint.answer = answering(500)
    made = await posting.add(endpoint)
    kept = await posting.happens(*(completed() for _ in range(5)))
    await posting.courier()

    async def disabled() -> bool:
        return (await posting.memory.webhooks.list())[0].is_disabled

    await wait_until(disabled, description="it is disabled")
    (shown,) = await posting.memory.webhooks.list()
    assert shown.reason == "HTTP 500"
    health = await posting.memory.health()
    told = next(part for part in health.parts if part.name == "webhooks")
    assert (told.state, told.needed) == ("degraded", False)
    assert "1 disabled" in told.detail
    posted = len(endpoint.posts)
    kept += await posting.happens(completed())
    await asyncio.sleep(0.3)
    assert len(endpoint.posts) == posted

    endpoint.answer = answering(200)
    assert await posting.memory.webhooks.enable(made.webhook.id)
    await wait_until(lambda: len(endpoint.taken) == 6, description="all of them arrive")
    assert {post.headers["webhook-id"] for post in endpoint.taken} == {event.id for event in kept}


async def test_a_receiver_that_is_gone_is_disabled_at_once(
    open_posting: Callable[..., Posting], endpoint: Receiver
) -> None:
    posting = open_posting()
    endpoint.answer = answering(410)
    await posting.add(endpoint)
    await posting.happens(completed(), completed())
    await posting.courier()

    async def disabled() -> bool:
        return (await posting.memory.webhooks.list())[0].is_disabled

    await wait_until(disabled, description="it is disabled")
    assert (await posting.memory.webhooks.list())[0].waiting == 2


async def test_an_event_that_one_receiver_never_takes_is_given_up_and_holds_up_no_other(
    open_posting: Callable[..., Posting], endpoint: Receiver
) -> None:
    posting = open_posting(webhook_patience_hours=0.5 / 3600)
    bad, *good = await posting_events(posting, endpoint, count=20)

    async def given_up() -> bool:
        await posting.happens(completed())  # others go on being taken
        return (await posting.memory.webhooks.list())[0].failed == 1

    endpoint.answer = lambda post: 400 if post.headers["webhook-id"] == bad.id else 200
    await posting.courier()
    await wait_until(given_up, description="it is given up")

    (shown,) = await posting.memory.webhooks.list()
    assert not shown.is_disabled
    await wait_until(
        lambda: {event.id for event in good} <= {post.headers["webhook-id"] for post in endpoint.taken},
        description="every other event is taken",
    )


async def test_an_event_that_is_late_at_its_first_post_is_posted_again(
    open_posting: Callable[..., Posting], endpoint: Receiver
) -> None:
    posting = open_posting(webhook_patience_hours=0.5 / 3600)
    late, *_ = await posting_events(posting, endpoint, count=2)
    await asyncio.sleep(0.6)  # as if no courier had run for longer than the patience
    refused = []

    def answer(post: Post) -> int:
        if post.headers["webhook-id"] == late.id and not refused:
            refused.append(post)
            return 500
        return 200

    endpoint.answer = answer
    await posting.courier()

    await wait_until(lambda: len(endpoint.taken) == 2, description="both are taken")
    assert len(refused) == 1


async def posting_events(posting: Posting, endpoint: Receiver, *, count: int) -> list[MemoryEvent]:
    """A webhook, and events for it."""
    await posting.add(endpoint)
    return await posting.happens(*(completed() for _ in range(count)))


async def test_a_slow_receiver_holds_up_no_other(open_posting: Callable[..., Posting], endpoint: Receiver) -> None:
    posting = open_posting()
    async with receiver() as slow:
        slow.pause = 2.0
        await posting.add(slow)
        await posting.add(endpoint)
        await posting.happens(*(completed() for _ in range(200)))
        await posting.courier()

        await wait_until(lambda: len(endpoint.taken) == 200, description="the quick one has all")

        assert len(slow.taken) < 100
        assert slow.most_at_once <= webhook_courier.POSTS_EACH


async def test_what_a_courier_took_with_it_is_posted_by_another(
    open_posting: Callable[..., Posting], endpoint: Receiver, database: Database
) -> None:
    posting = open_posting()
    (kept,) = await posting_events(posting, endpoint, count=1)
    assert posting.runtime is not None
    async with posting.runtime.db.transaction() as tx:  # a courier claims it, and is killed
        (claimed,) = await rows.claim(tx, token=uuid4(), lease=timedelta(seconds=30), limit=8, each=8)
    assert claimed.event_id == kept.id
    await posting.courier()
    await asyncio.sleep(0.2)
    assert not endpoint.posts

    await psql_async(database.url, "UPDATE aftermind.webhook_deliveries SET due_at = now()")
    await wait_until(lambda: endpoint.taken, description="another one posts it")


async def test_the_result_of_a_post_is_written_when_the_database_answers_again(
    open_posting: Callable[..., Posting], endpoint: Receiver, database: Database
) -> None:
    async with proxy_to(database.relay_url) as proxy:
        cut = threading.Event()

        def outage(post: Post) -> int:
            if not cut.is_set():
                cut.set()
                proxy.reset()
            return 200

        endpoint.answer = outage
        relay = SecretStr(proxy.url(database.relay_url))
        posting = open_posting(relay_url=relay, db_timeout_seconds=2.0, db_connect_timeout_seconds=2.0)
        await posting.add(endpoint)
        await posting.happens(completed(), completed(BOB))
        await posting.courier()
        await wait_until(lambda: len(endpoint.taken) == 2, description="both are posted")
        await asyncio.sleep(1.0)
        assert await posting.undelivered() > 0, "the database was unavailable"
        proxy.let_pass()

        await posting.all_delivered()
        await posting.close()

    assert len(endpoint.posts) == 2, "no courier had to post again"


async def test_a_result_that_cannot_be_written_delays_no_other(
    open_posting: Callable[..., Posting], endpoint: Receiver
) -> None:
    posting = open_posting()
    await posting.add(endpoint)
    await posting.happens(completed(), completed(BOB))
    runtime = await posting.opened()
    async with runtime.db.transaction() as tx:
        found = await rows.claim(tx, token=uuid4(), lease=timedelta(seconds=30), limit=8, each=8)
    courier = webhook_courier.Courier(runtime=runtime, poster=Poster())
    courier.note_result(found[0], DeliveryRejected("a text that Postgres refuses: \x00"))
    courier.note_result(found[1], None)

    await courier.commit_results()
    await courier.close()

    assert await posting.undelivered() == 1


async def test_several_couriers_post_everything_once_while_nothing_fails(
    open_posting: Callable[..., Posting], endpoint: Receiver
) -> None:
    posting = open_posting()
    await posting.add(endpoint)
    await posting.courier(3)
    kept = [event for _ in range(10) for event in await posting.happens(*(completed() for _ in range(50)))]

    await posting.all_delivered()

    assert sorted(post.headers["webhook-id"] for post in endpoint.posts) == sorted(event.id for event in kept)


async def test_a_name_that_changes_its_mind_is_not_connected_to(
    open_posting: Callable[..., Posting], endpoint: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: public when the webhook is made, this machine when it is posted to."""
    posting = open_posting(webhook_allow_private=False)
    await posting.opened()
    port = int(endpoint.url.rsplit(":", 1)[1].split("/")[0])
    real, told = socket.getaddrinfo, ["93.184.216.34"]

    def resolve(host: Any, *rest: Any, **more: Any) -> Any:  # Any: those of socket.getaddrinfo
        if host == "rebinding.example":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (told[0], port))]
        return real(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    await posting.memory.webhooks.create(f"https://rebinding.example:{port}/hook")
    told[0] = "127.0.0.1"
    await posting.happens(completed())
    await posting.courier()

    async def refused() -> bool:
        return (await posting.memory.webhooks.list())[0].reason is not None

    await wait_until(refused, description="it is refused")
    assert "public internet" in str((await posting.memory.webhooks.list())[0].reason)
    assert endpoint.connections == 0


async def test_a_certificate_has_to_be_good_and_of_that_name(
    open_posting: Callable[..., Posting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority.cert, authority.key)
    posting = open_posting()
    async with receiver(tls) as endpoint:
        made = await posting.add(endpoint)
        await posting.happens(completed())
        await posting.courier()

        async def refused() -> bool:
            return "CERTIFICATE_VERIFY_FAILED" in str((await posting.memory.webhooks.list())[0].reason)

        await wait_until(refused, description="an unknown authority is refused")
        assert not endpoint.posts

        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
        await posting.courier()
        await wait_until(lambda: endpoint.taken, description="a known one is trusted")
        assert endpoint.taken[0].is_signed_by(made.secret)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "169.254.169.254", "[::1]", "2130706433", "10.1.2.3"])
async def test_a_private_target_is_refused_when_the_webhook_is_made(
    host: str, open_posting: Callable[..., Posting]
) -> None:
    posting = open_posting(webhook_allow_private=False)

    with pytest.raises(errors.InvalidWebhook, match="public internet"):
        await posting.memory.webhooks.create(f"https://{host}/hook")
    assert await posting.memory.webhooks.list() == []


async def test_a_tenant_neither_sees_nor_touches_nor_hears_another(
    open_posting: Callable[..., Posting], endpoint: Receiver
) -> None:
    posting = open_posting()
    hooks = posting.memory.webhooks
    async with receiver() as others:
        mine = await hooks.create(endpoint.url, namespace="acme")
        await hooks.create(others.url, namespace="globex")
        await posting.happens(completed(Scope(namespace="acme", user_id="alice")))
        await posting.courier()
        await wait_until(lambda: endpoint.taken, description="the right one hears it")
        await posting.all_delivered()

        assert others.connections == 0
    assert [each.url for each in await hooks.list(namespace="globex")] == [others.url]
    assert await hooks.get(mine.webhook.id, namespace="globex") is None
    assert not await hooks.delete(mine.webhook.id, namespace="globex")
    assert not await hooks.enable(mine.webhook.id, namespace="globex")
    assert await hooks.get(mine.webhook.id, namespace="acme") is not None


async def test_what_is_removed_or_forgotten_is_not_posted(
    open_posting: Callable[..., Posting], endpoint: Receiver
) -> None:
    posting = open_posting()
    made = await posting.add(endpoint)
    await posting.happens(completed(), completed(BOB))
    await posting.memory.forget(user_id="alice")
    assert await posting.undelivered() == 1
    assert await posting.memory.webhooks.delete(made.webhook.id)
    assert await posting.undelivered() == 0
    assert not await posting.memory.webhooks.delete(made.webhook.id)
    await posting.happens(completed())

    await posting.courier()
    await asyncio.sleep(0.2)
    assert not endpoint.posts


async def test_a_webhook_that_cannot_be_is_refused(open_posting: Callable[..., Posting], endpoint: Receiver) -> None:
    hooks = open_posting().memory.webhooks

    with pytest.raises(errors.InvalidWebhook, match="MemoryUpdateCompleted"):
        await hooks.create(endpoint.url, events=["MemoryRecallStarted"])
    with pytest.raises(errors.InvalidWebhook, match="description"):
        await hooks.create(endpoint.url, description="x" * 501)
    with pytest.raises(errors.InvalidWebhook, match="UUID"):
        await hooks.delete("first")
    for _ in range(50):
        await hooks.create(endpoint.url)
    with pytest.raises(errors.InvalidWebhook, match="as many as it may"):
        await hooks.create(endpoint.url)


async def test_a_turn_that_real_workers_store_is_told_to_a_webhook(
    open_posting: Callable[..., Posting], endpoint: Receiver, database: Database, redis_url: str, tmp_path: Path
) -> None:
    posting = open_posting()
    made = await posting.add(endpoint, events=["MemoryUpdateCompleted"])
    env = environment(
        database.relay_url,
        redis_url,
        AFTERMIND_WEBHOOK_ALLOW_PRIVATE="true",
        AFTERMIND_STATE_DIR=str(tmp_path / "state"),
    )

    with workers(env, tmp_path):
        receipt = await posting.memory.remember("I moved to Oslo.", user_id="alice", session_id="s1")
        await wait_until(lambda: endpoint.taken, description="the receiver is told")

    (post,) = endpoint.taken
    assert post.is_signed_by(made.secret)
    assert post.json["data"]["job_id"] == str(receipt.job_id)
    assert b"Oslo" not in post.body
