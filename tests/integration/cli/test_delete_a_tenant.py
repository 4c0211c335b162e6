"""The steps of "Delete a tenant" in docs/security.md, while another transaction holds a user of the tenant."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import asyncpg

from aftermind import Memory, Settings
from tests.support.dead_letters import Letters
from tests.support.fork_server import run_module
from tests.support.servers import Database


async def test_a_tenant_is_deleted_and_a_user_that_failed_is_named_and_forgotten_by_a_repeated_call(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AFTERMIND_")}
    env |= {
        "AFTERMIND_DATABASE_URL": database.app_url,
        "AFTERMIND_RELAY_URL": database.relay_url,
        "AFTERMIND_MIGRATOR_URL": database.url,
        "AFTERMIND_BROKER_URL": redis_url,
        "AFTERMIND_STATE_DIR": str(tmp_path),
        "AFTERMIND_DB_TIMEOUT_SECONDS": "2",
        "COLUMNS": "160",
    }

    async def run(*arguments: str, code: int = 0) -> Any:  # Any: JSON
        done = await asyncio.to_thread(run_module, ["aftermind.cli", *arguments, "--json"], env=env)
        assert done.returncode == code, done.stderr + done.stdout
        return json.loads(done.stdout)

    settings = Settings(state_dir=tmp_path, relay_url=database.relay_url, embedder="hash", extractor="rules")
    async with Memory(database.app_url, broker=redis_url, redis=redis_url, settings=settings) as memory:
        for user in ("ann", "bob", None):
            await memory.facts.add("user", "likes", "tea", user_id=user, namespace="acme")
        await memory.facts.add("user", "likes", "tea", user_id="eve", namespace="other")
        await memory.groups.add("team", "ann", namespace="acme")
        waiting = await memory.remember("I live in Oslo.", user_id="tom", namespace="acme")  # no worker runs
    await run("api-keys", "create", "shop", "--namespace", "acme")
    await run("webhooks", "create", "https://1.1.1.1/", "--namespace", "acme")
    await run("retention", "set", "--namespace", "acme", "--max-age", "90d")
    holder = await asyncpg.connect(database.url)
    try:
        [letter] = await Letters(holder).mark_dead(namespace="acme", user="zoe")

        for family, remove in (("api-keys", "revoke"), ("webhooks", "delete")):
            for each in await run(family, "list", "--namespace", "acme"):
                await run(family, remove, each["id"], "--namespace", "acme")
        await run("retention", "clear", "--namespace", "acme")
        async with holder.transaction():
            await holder.execute("SELECT 1 FROM aftermind.users WHERE user_id = 'bob' FOR UPDATE")
            first = await run("forget", "--all-users", "--namespace", "acme", "--note", "REQ-77", "--yes", code=1)
        left = await run("users", "--namespace", "acme")
        again = await run("forget", "--all-users", "--namespace", "acme", "--note", "REQ-77", "--yes")
        payload = await holder.fetchval("SELECT payload FROM aftermind.jobs WHERE id = $1", letter)
    finally:
        await holder.close()
    async with Memory(database.app_url, broker=redis_url, redis=redis_url, settings=settings) as memory:
        pending = await memory.history(user_id="tom", namespace="acme")

    assert first == {"namespace": "acme", "forgotten": 5, "failed": ["bob"]}
    assert (payload, pending, waiting.spooled) == ("{}", [], False)
    assert [each["user_id"] for each in left] == ["bob"]
    assert again == {"namespace": "acme", "forgotten": 1, "failed": []}
    assert await run("users", "--namespace", "acme") == []
    assert await run("users", "--namespace", "other") != []
    tenants = {each["namespace"]: each for each in await run("tenants")}
    assert (tenants["acme"]["users"], tenants["acme"]["dead_letters"], tenants["other"]["users"]) == (6, 0, 1)
