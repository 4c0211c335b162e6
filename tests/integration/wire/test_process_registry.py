"""The registry of running processes: an ended process is not shown as running."""

import asyncio

import orjson
from pydantic import SecretStr

from aftermind import Settings
from aftermind.api.process_registry import SETTINGS, announced_state, list_processes
from aftermind.wire.process_registry import keep_announcing, list_announced
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import PROCESS_SECONDS, SILENT_PROCESS_SECONDS, Keys
from tests.support.waiting import wait_until


async def test_a_process_that_ends_is_removed(link: RedisLink, keys: Keys) -> None:
    async def is_listed() -> bool:
        return "worker one" in await list_announced(link, keys)

    running = asyncio.create_task(keep_announcing(link, keys, "worker one", {}, lambda: ["version=1"]))
    await wait_until(is_listed, description="the process is announced")

    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert not await is_listed()


async def test_a_killed_process_is_not_listed_after_its_last_announcement_has_expired(
    link: RedisLink, keys: Keys
) -> None:
    seconds, _ = await link.call("TIME")
    for name, age in (("fresh", PROCESS_SECONDS - 5), ("killed", PROCESS_SECONDS + 5)):
        entry = b"%d " % ((int(seconds) - age) * 1000) + orjson.dumps({"about": []})
        await link.call("HSET", keys.processes(), name, entry)

    assert set(await list_announced(link, keys)) == {"fresh"}


async def test_a_process_without_a_heartbeat_is_listed_as_silent_for_some_minutes(link: RedisLink, keys: Keys) -> None:
    seconds, _ = await link.call("TIME")
    about = ["version=1", "started=0", "peak_memory_bytes=1"]
    for name, age in (("fresh", 5), ("frozen", PROCESS_SECONDS + 5), ("gone", SILENT_PROCESS_SECONDS + 5)):
        entry = b"%d " % ((int(seconds) - age) * 1000) + orjson.dumps({"about": about})
        await link.call("HSET", keys.processes(), name, entry)

    found = await list_processes(link, keys)

    assert [(each.name, each.is_silent) for each in found] == [("fresh", False), ("frozen", True)]


def test_settings_in_force_have_tables_and_no_secrets() -> None:
    settings = Settings(
        namespace_budgets={"acme": {"tokens_per_day": 1000}},  # type: ignore[dict-item]
        replica_urls=(SecretStr("postgresql://aftermind:hidden@10.0.0.1/x"),),
    )

    found = announced_state(settings)[SETTINGS]

    assert "namespace_budgets={'acme': {'tokens_per_day': 1000}}" in found
    assert not any("hidden" in each or "replica" in each for each in found)
