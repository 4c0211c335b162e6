"""Limits that hold for all service processes together, and for each alone while Redis does not answer."""

import time
from pathlib import Path

import httpx
import pytest

from aftermind import Settings, errors
from aftermind.sync import Memory
from aftermind.web.auth import MAX_UNKNOWN_KEYS
from aftermind.web.middleware import BURST_SECONDS
from aftermind.web.shared_rate_limit import SharedRate
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from tests.support.deployed_service import serving

RATE = 0.5


def test_a_keys_rate_is_of_all_processes_together(fresh_settings: Settings, tmp_path: Path) -> None:
    limited = fresh_settings.model_copy(update={"web_rate_per_key": RATE})
    limited.model_fields_set.add("web_rate_per_key")
    with Memory(settings=limited) as memory:
        key = memory.api_keys.create("a test")[1]
    login = {"Authorization": f"Bearer {key}"}

    with serving(limited, tmp_path / "one.log") as one, serving(limited, tmp_path / "two.log") as two:
        began = time.monotonic()
        with httpx.Client(headers=login, timeout=20, trust_env=False) as client:
            answers = [client.get(f"{(one, two)[number % 2]}/v1/whoami") for number in range(20)]
        windows = int((time.monotonic() - began) // BURST_SECONDS) + 2

    admitted = [answer.status_code for answer in answers].count(200)
    assert {answer.status_code for answer in answers} == {200, 429}
    assert admitted <= windows * RATE * BURST_SECONDS
    assert all(int(each.headers["retry-after"]) >= 1 for each in answers if each.status_code == 429)


def test_unknown_keys_are_limited_at_all_processes_together_and_known_ones_are_not(
    fresh_settings: Settings, tmp_path: Path
) -> None:
    with Memory(settings=fresh_settings) as memory:
        key = memory.api_keys.create("another test")[1]
    good = {"Authorization": f"Bearer {key}"}

    with (
        serving(fresh_settings, tmp_path / "one.log") as one,
        serving(fresh_settings, tmp_path / "two.log") as two,
        httpx.Client(timeout=20, trust_env=False) as client,
    ):
        for url in (one, two):
            assert client.get(f"{url}/v1/whoami", headers=good).status_code == 200
        began, refused = time.monotonic(), []
        for number in range(2 * MAX_UNKNOWN_KEYS):
            unknown = {"Authorization": f"Bearer am_{number:012x}_{'x' * 43}"}
            refused.append(client.get(f"{(one, two)[number % 2]}/v1/whoami", headers=unknown).status_code)
        windows = int((time.monotonic() - began) // 60) + 1

        assert set(refused) == {401, 429}
        assert refused.count(401) <= MAX_UNKNOWN_KEYS * windows
        for url in (one, two):
            assert client.get(f"{url}/v1/whoami", headers=good).status_code == 200


async def test_each_process_counts_alone_while_redis_does_not_answer() -> None:
    link = RedisLink("redis://127.0.0.1:1/0", timeout=0.1, name="test")
    shared = SharedRate(link, Keys())
    for _ in range(3):
        await shared.take("a", limit=3, window_seconds=60, what="uses")

    with pytest.raises(errors.TooManyRequests, match="3 uses") as refused:
        await shared.take("a", limit=3, window_seconds=60, what="uses")
    await shared.take("b", limit=3, window_seconds=60, what="uses")
    await shared.close()

    assert 1.0 <= refused.value.retry_after <= 60.0


async def test_two_processes_share_a_window(redis_url: str) -> None:
    one, two = (SharedRate(RedisLink(redis_url, timeout=2.0, name="test"), Keys()) for _ in range(2))
    for process in (one, two, one):
        await process.take("a", limit=3, window_seconds=60, what="uses")

    for process in (one, two):
        with pytest.raises(errors.TooManyRequests):
            await process.take("a", limit=3, window_seconds=60, what="uses")
        await process.close()
