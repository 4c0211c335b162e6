"""Webhooks on every store: signed posts of stored events, tried again, with secrets that rotate."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from aftermind import Memory, Settings, errors
from aftermind.types.webhook import Webhook
from tests.conformance.conftest import Operated
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.webhook_receiver import Receiver, receiver


@pytest.fixture
async def endpoint() -> AsyncIterator[Receiver]:
    """An endpoint that accepts every post."""
    async with receiver() as made:
        yield made


async def stored(memory: Memory, said: str = "I live in Oslo.") -> str:
    """The id of a turn that was stored."""
    receipt = await memory.remember(said, user_id="alice", session_id="s1")
    await receipt.stored(timeout=PATIENCE_SECONDS)
    return str(receipt.job_id)


def accepted(endpoint: Receiver, job_id: str) -> Callable[[], bool]:
    return lambda: any(post.json["data"].get("job_id") == job_id for post in endpoint.taken)


async def only(memory: Memory) -> Webhook:
    (found,) = await memory.webhooks.list()
    return found


async def test_a_stored_event_is_posted_signed_and_without_content(operated: Operated, endpoint: Receiver) -> None:
    memory = operated.memory
    made = await memory.webhooks.create(endpoint.url, events=["MemoryUpdateCompleted"], description="ours")
    job_id = await stored(memory)
    await wait_until(accepted(endpoint, job_id), description="the event is posted")

    async def none_waits() -> bool:
        return (await only(memory)).waiting == 0

    await wait_until(none_waits, description="the delivery is recorded")
    post = next(each for each in endpoint.taken if each.json["data"]["job_id"] == job_id)
    (event,) = [
        each
        for each in await memory.past_events(user_id="alice")
        if each.event == "MemoryUpdateCompleted" and each.job_id == job_id
    ]
    assert post.is_signed_by(made.secret)
    assert (post.json["type"], post.headers["webhook-id"]) == ("MemoryUpdateCompleted", event.id)
    assert post.json["data"]["cursor"] == event.cursor
    assert b"Oslo" not in post.body
    assert {each.json["type"] for each in endpoint.taken} == {"MemoryUpdateCompleted"}
    hook = await only(memory)
    assert (hook.id, hook.description, hook.failed, hook.reason) == (made.webhook.id, "ours", 0, None)
    assert hook.delivered_at is not None


async def test_a_post_that_failed_is_repeated_and_the_webhook_is_well_again(
    operated: Operated, endpoint: Receiver
) -> None:
    memory = operated.memory
    endpoint.answer = lambda post: 500
    made = await memory.webhooks.create(endpoint.url, events=["MemoryUpdateCompleted"])
    job_id = await stored(memory)

    async def is_failing() -> bool:
        return (await only(memory)).failing_since is not None

    await wait_until(is_failing, description="the webhook fails")
    failing = await only(memory)
    endpoint.answer = lambda post: 200
    assert await memory.webhooks.enable(made.webhook.id)
    await wait_until(accepted(endpoint, job_id), description="the event is posted again")

    async def is_well() -> bool:
        return (await only(memory)).failing_since is None

    await wait_until(is_well, description="the webhook is well")
    assert failing.waiting >= 1
    assert "500" in (failing.reason or "")
    ids = [each.headers["webhook-id"] for each in endpoint.posts if each.json["data"]["job_id"] == job_id]
    assert len(ids) >= 2
    assert len(set(ids)) == 1, "one event has one id, however often it is posted"


async def test_a_receiver_that_is_gone_is_disabled_and_its_events_wait(operated: Operated, endpoint: Receiver) -> None:
    memory = operated.memory
    endpoint.answer = lambda post: 410
    made = await memory.webhooks.create(endpoint.url, events=["MemoryUpdateCompleted"])
    job_id = await stored(memory)

    async def is_disabled() -> bool:
        return (await only(memory)).is_disabled

    await wait_until(is_disabled, description="the webhook is disabled")
    endpoint.answer = lambda post: 200
    assert (await only(memory)).waiting == 1
    assert await memory.webhooks.enable(made.webhook.id)
    await wait_until(accepted(endpoint, job_id), description="the event is posted after all")


async def test_both_secrets_sign_until_the_overlap_ends(operated: Operated, endpoint: Receiver) -> None:
    memory = operated.memory
    first = await memory.webhooks.create(endpoint.url)
    second = await memory.webhooks.rotate_secret(first.webhook.id, overlap=timedelta(hours=1))
    assert second is not None
    await wait_until(accepted(endpoint, await stored(memory)), description="posted")
    both = endpoint.taken[-1]
    third = await memory.webhooks.rotate_secret(first.webhook.id, overlap=timedelta())
    assert third is not None
    last_job = await stored(memory, "I like tea.")
    await wait_until(accepted(endpoint, last_job), description="posted")
    last = next(post for post in endpoint.taken if post.json["data"].get("job_id") == last_job)

    assert [both.is_signed_by(each.secret) for each in (first, second)] == [True, True]
    assert [last.is_signed_by(each.secret) for each in (first, second, third)] == [False, False, True]


async def test_a_webhook_is_of_one_namespace_and_is_deleted_with_its_deliveries(
    operated: Operated, endpoint: Receiver
) -> None:
    memory = operated.memory
    made = await memory.webhooks.create(endpoint.url)
    assert await memory.webhooks.list(namespace="elsewhere") == []
    assert not await memory.webhooks.delete(made.webhook.id, namespace="elsewhere")
    receipt = await memory.remember("I live in Oslo.", user_id="alice", namespace="elsewhere")
    await receipt.stored(timeout=PATIENCE_SECONDS)

    assert await memory.webhooks.delete(made.webhook.id)

    assert await memory.webhooks.list() == []
    assert await memory.webhooks.rotate_secret(made.webhook.id) is None
    assert not await memory.webhooks.enable(made.webhook.id)
    assert endpoint.posts == []


async def test_bad_addresses_and_kinds_are_refused(operated: Operated) -> None:
    for url, kinds in (("ftp://example.com", []), ("https://example.com/hook", ["NoSuchEvent"])):
        with pytest.raises(errors.InvalidWebhook):
            await operated.memory.webhooks.create(url, events=kinds)
    assert await operated.memory.webhooks.list() == []


async def test_what_waits_is_posted_when_the_store_is_opened_again(tmp_path: Path, endpoint: Receiver) -> None:
    settings = Settings(state_dir=tmp_path / "state", embedder="off", extractor="off", webhook_allow_private=True)
    endpoint.answer = lambda post: 410
    async with Memory(f"sqlite:{tmp_path}/bot.db", settings=settings) as memory:
        made = await memory.webhooks.create(endpoint.url)
        job_id = await stored(memory)

        async def is_disabled() -> bool:
            return (await only(memory)).is_disabled

        await wait_until(is_disabled, description="the webhook is disabled")
    endpoint.answer = lambda post: 200

    async with Memory(f"sqlite:{tmp_path}/bot.db", settings=settings) as memory:
        assert (await only(memory)).waiting > 0
        assert await memory.webhooks.enable(made.webhook.id)
        await wait_until(accepted(endpoint, job_id), description="the event is posted")
        assert next(each for each in endpoint.taken).is_signed_by(made.secret)

    (tmp_path / "state" / "webhook.key").unlink()
    async with Memory(f"sqlite:{tmp_path}/bot.db", settings=settings) as memory:
        with pytest.raises(errors.KeyFileLost):
            await memory.webhooks.create(endpoint.url)
