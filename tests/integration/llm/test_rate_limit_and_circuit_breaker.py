"""Budgets and breakers of model providers are those of all processes together."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from aftermind import errors
from aftermind.llm.rate_limit_and_circuit_breaker import FAILURES, LARGE_TOKENS, ProviderLimiter, early
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from tests.support.resource_cleanup import closing
from tests.support.waiting import wait_until

DEAD = errors.ModelUnavailable("p", "no answer within 60 s")


@pytest.fixture
async def links(redis_url: str) -> AsyncIterator[list[RedisLink]]:
    """Two processes' connections."""
    made = [RedisLink(redis_url, timeout=2.0, name=f"gate-{number}") for number in range(2)]
    yield made
    for link in made:
        await link.close()


def gates(links: list[RedisLink], **budgets: int) -> list[ProviderLimiter]:
    """The gate of each process."""
    made = [ProviderLimiter(**budgets) for _ in links]
    for gate, link in zip(made, links, strict=True):
        gate.bind(link, Keys())
    return made


async def fail(
    gate: ProviderLimiter, times: int, error: errors.AftermindError = DEAD, *, tokens: int = LARGE_TOKENS
) -> None:
    """So many calls in a row that end so."""
    for _ in range(times):
        await gate.report("p", error, tokens=tokens)


async def admitted(gate: ProviderLimiter, *, tokens: int = 0) -> bool:
    """Whether a call was let through."""
    try:
        await gate.admit("p", tokens=tokens)
    except errors.ProviderPaused:
        return False
    return True


async def test_requests_of_a_minute_are_shared(links: list[RedisLink]) -> None:
    one, other = gates(links, requests_per_minute=10)

    for gate in (one, other) * 5:
        await gate.admit("p")

    with pytest.raises(errors.ProviderPaused, match="budget") as caught:
        await one.admit("p")
    assert timedelta(seconds=4) < caught.value.wait < timedelta(seconds=7)  # a tenth of a minute gives the next place


async def test_tokens_are_a_budget_of_their_own_and_nothing_is_taken_by_a_refusal(links: list[RedisLink]) -> None:
    one, other = gates(links, tokens_per_minute=1_000)

    await one.admit("p", tokens=900)
    with pytest.raises(errors.ProviderPaused, match="budget"):
        await other.admit("p", tokens=500)

    await other.admit("p", tokens=90)


async def test_a_call_larger_than_the_budget_goes_when_the_budget_is_whole(links: list[RedisLink]) -> None:
    one, _ = gates(links, tokens_per_minute=1_000)

    await one.admit("p", tokens=5_000)

    with pytest.raises(errors.ProviderPaused):
        await one.admit("p", tokens=10)


async def test_failures_in_a_row_shut_the_gate_for_every_process(links: list[RedisLink]) -> None:
    one, other = gates(links)

    await fail(one, FAILURES - 1)
    await other.admit("p")
    await fail(one, 1)

    with pytest.raises(errors.ProviderPaused, match="one after the other"):
        await other.admit("p")
    await other.admit("another provider")


async def test_a_success_between_them_forgets_the_failures(links: list[RedisLink]) -> None:
    one, other = gates(links)

    await fail(one, FAILURES - 1)
    await other.report("p", None)
    await fail(one, FAILURES - 1)

    await other.admit("p")


async def test_failures_of_large_calls_pause_large_calls_alone_until_a_call_succeeds(links: list[RedisLink]) -> None:
    one, other = gates(links)

    await fail(one, FAILURES, tokens=LARGE_TOKENS + 1)

    assert await admitted(other, tokens=LARGE_TOKENS)
    with pytest.raises(errors.ProviderPaused, match="large calls") as caught:
        await other.admit("p", tokens=LARGE_TOKENS + 1)
    assert caught.value.is_large_only
    await other.report("p", None)
    assert await admitted(one, tokens=LARGE_TOKENS + 1)


async def test_an_outage_pauses_large_calls_with_all_others(links: list[RedisLink]) -> None:
    one, other = gates(links)

    await fail(one, FAILURES)

    assert not await admitted(other)
    assert not await admitted(other, tokens=LARGE_TOKENS + 1)


@pytest.mark.parametrize(
    "error",
    [errors.RateLimited("p", timedelta(seconds=30)), errors.ModelKeyRefused("p", "the key was refused (401)")],
    ids=["retry-after", "refused key"],
)
async def test_what_a_provider_answers_to_a_large_call_about_all_holds_for_all(
    links: list[RedisLink], error: errors.AftermindError
) -> None:
    one, other = gates(links)

    await one.report("p", error, tokens=LARGE_TOKENS + 1)

    assert not await admitted(other)


async def test_a_retry_after_holds_for_every_process(links: list[RedisLink]) -> None:
    one, other = gates(links)

    await fail(one, 1, errors.RateLimited("p", timedelta(seconds=3)))

    with pytest.raises(errors.ProviderPaused, match="limits our rate") as caught:
        await other.admit("p")
    assert caught.value.wait == pytest.approx(timedelta(seconds=3), abs=timedelta(seconds=0.5))


async def test_after_the_wait_one_call_finds_out_how_it_is(links: list[RedisLink]) -> None:
    one, other = gates(links)
    await fail(one, 1, errors.RateLimited("p", timedelta(milliseconds=50)))

    await wait_until(lambda: admitted(one), description="the wait is over")

    with pytest.raises(errors.ProviderPaused):
        await other.admit("p")
    await one.report("p", None)

    await other.admit("p")


async def test_a_refused_key_is_said_by_name(links: list[RedisLink]) -> None:
    one, other = gates(links)
    await one.admit("p")

    await fail(one, 1, errors.ModelKeyRefused("p", "the key was refused (401)"))

    [state] = await other.states()
    assert (state.provider, state.why) == ("p", "it refuses our key, or none is set")


ANSWERS = pytest.mark.parametrize(
    "error",
    [errors.BadModelAnswer("p", "x"), errors.BadModelRequest("p", 400, "x"), errors.ModelRefused("p", "x")],
    ids=["unusable answer", "bad request", "policy"],
)


@ANSWERS
async def test_a_call_that_tests_a_paused_provider_ends_the_pause_by_any_answer(
    links: list[RedisLink], error: errors.AftermindError
) -> None:
    one, other = gates(links)
    await fail(one, FAILURES, errors.ModelUnavailable("p", "down"))
    with pytest.raises(errors.ProviderPaused):
        await other.admit("p")

    with early():
        await other.admit("p")
        await other.report("p", error)

    for _ in range(3):
        await one.admit("p")
    assert [state.why for state in await one.states()] == [None]


@ANSWERS
async def test_what_is_wrong_with_a_request_is_not_held_against_the_provider(
    links: list[RedisLink], error: errors.AftermindError
) -> None:
    one, other = gates(links)

    await fail(one, FAILURES * 2, error)

    await other.admit("p")


async def test_without_redis_every_call_is_let_through(links: list[RedisLink]) -> None:
    async with closing(RedisLink("redis://127.0.0.1:1/0", timeout=0.2, name="away")) as away:
        [gate] = gates([away], requests_per_minute=1)

        for _ in range(3):
            await gate.admit("p")
            await gate.report("p", DEAD)


async def test_calls_that_were_on_their_way_when_the_breaker_opened_do_not_keep_it_open_for_longer(
    links: list[RedisLink],
) -> None:
    one, other = gates(links)

    await fail(one, FAILURES)
    await fail(other, 20)

    [state] = await one.states()
    assert state.wait_seconds <= 5


async def test_a_question_finds_out_before_the_jobs_that_a_provider_is_well_again(links: list[RedisLink]) -> None:
    one, other = gates(links)
    await fail(one, FAILURES)

    with early():
        assert await admitted(one)
        assert not await admitted(other)  # one a second, of all processes
    assert not await admitted(one)
    await one.report("p", None)

    assert await admitted(other)


async def test_a_question_waits_for_a_retry_after_like_everybody(links: list[RedisLink]) -> None:
    one, _ = gates(links)

    await one.report("p", errors.RateLimited("p", timedelta(seconds=30)))

    with early():
        assert not await admitted(one)
