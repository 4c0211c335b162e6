"""What a worker does once an effect is committed."""

from pathlib import Path

import httpx

from aftermind import Memory
from aftermind.stack.ports import choose
from tests.integration.workers.test_every_queue import ALL, BRISK
from tests.support.scrape import scrape
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

KINDS = ("store", "extract")


async def test_a_committed_effect_is_done_though_its_lease_is_gone_before_it_is_told(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    """A commit ends the lease; the heartbeat that finds it so must not cancel what follows, nor count a lost lease."""
    port = choose(1)[0]
    quick = {"AFTERMIND_LEASE_SECONDS": "10", "AFTERMIND_HEARTBEAT_SECONDS": "0.2"}
    env = environment(database.relay_url, redis_url, AFTERMIND_METRICS_PORT=str(port), **quick, **BRISK)

    def counted() -> dict[str, float]:
        try:
            seen = scrape(f"http://127.0.0.1:{port}")
        except httpx.TransportError:  # a worker answers once it has come up
            return {}
        jobs = {name: value for name, value in seen.items() if name.startswith("aftermind_jobs_total")}
        return jobs if len(jobs) == len(KINDS) else {}

    with workers(env, tmp_path, on=ALL, app="tests.support.slow_model_worker"):
        async with Memory(database.app_url, broker=redis_url) as memory:
            receipt = await memory.remember("I live in Oslo.", user_id="ann", session_id="s")
            await receipt.extracted(timeout=180)
        seen = await wait_until(counted, description="both jobs are counted")

    assert seen == {f'aftermind_jobs_total{{kind="{kind}",outcome="done"}}': 1.0 for kind in KINDS}
