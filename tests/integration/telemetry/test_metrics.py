"""What Prometheus is told: by the service of everything, by a worker of itself, by an agent of its own calls."""

import asyncio
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from aftermind import Memory, errors
from aftermind.settings import Settings
from aftermind.stack.ports import choose
from aftermind.wire import queues
from tests.support.scrape import scrape
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database
from tests.support.service import service
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

ALL = ",".join((queues.STORE, queues.EMBED, queues.EXTRACT))
TOKEN = "scrape-scrape-scrape"
BRISK = {
    "AFTERMIND_METRICS_TOKEN": TOKEN,
    "AFTERMIND_EXTRACT_QUIET_SECONDS": "0.2",
    "AFTERMIND_RECONCILE_SECONDS": "0.5",
}


@pytest.mark.long
async def test_the_service_sums_up_what_two_workers_have_counted(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "metrics").mkdir()
    with scripted_openai() as model:
        model.script.facts = {"I like fjords.": [{"subject": "user", "predicate": "likes", "object": "fjords"}]}
        asked = {
            "AFTERMIND_EMBEDDER": "openai:text-embedding-3-small",
            "AFTERMIND_EMBEDDING_DIMENSION": "384",
            "AFTERMIND_EXTRACTOR": "openai:gpt-5-mini",
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": model.url,
            "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics"),
        }
        env = environment(database.relay_url, redis_url, **BRISK, **asked)
        async with Memory(database.app_url, broker=redis_url) as memory:
            with service(env, tmp_path) as url, workers(env, tmp_path, count=2, on=ALL):
                receipts = [await memory.remember("I like fjords.", user_id=f"u{n}") for n in range(20)]
                for receipt in receipts:
                    await receipt.extracted(timeout=180)

                # a worker counts after its commit, which is what the receipts have seen
                seen = await wait_until(
                    lambda: _with(url, {'aftermind_jobs_total{kind="extract",outcome="done"}': 20.0}),
                    timeout=180,
                    description="all is counted",
                )

    assert seen['aftermind_jobs_total{kind="store",outcome="done"}'] == 20
    assert seen['aftermind_freshness_seconds_count{stage="stored"}'] == 20
    assert seen['aftermind_freshness_seconds_count{stage="embedded"}'] == 20
    assert seen['aftermind_freshness_seconds_count{stage="mined"}'] == 20
    assert seen['aftermind_model_calls_total{kind="extract",model="gpt-5-mini"}'] == 20
    assert seen['aftermind_model_tokens_total{direction="in",kind="extract",model="gpt-5-mini"}'] > 0
    assert seen['aftermind_model_cost_usd_total{kind="extract",model="gpt-5-mini"}'] > 0
    assert seen['aftermind_runnable_jobs{kind="store"}'] == 0
    assert seen['aftermind_oldest_runnable_seconds{kind="embed"}'] == 0
    assert seen['aftermind_component_up{component="store"}'] == 1
    assert "u7" not in " ".join(seen), "no label names an owner"


async def test_a_scrape_tells_what_lies_about_and_since_when(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    told = {"AFTERMIND_REPLICA_URLS": f'["{database.app_replica_urls[0]}"]', "AFTERMIND_METRICS_TOKEN": TOKEN}
    env = environment(database.relay_url, redis_url, **told)
    async with Memory(database.app_url, broker=redis_url) as memory:
        await memory.remember("one", user_id="a")
        await memory.remember("two", user_id="b")

        with service(env, tmp_path) as url:
            await asyncio.to_thread(scrape, url, TOKEN)
            refused = await asyncio.to_thread(
                httpx.get, f"{url}/metrics", headers={"Authorization": "Bearer am_x"}, trust_env=False, timeout=10
            )
            assert refused.status_code == 401
            assert "AFTERMIND_METRICS_TOKEN" in refused.text
            assert "Until the first API key exists, the local token" in refused.text
            assert "api-keys create" not in refused.text
            seen = await wait_until(
                lambda: _with(url, {'aftermind_runnable_jobs{kind="store"}': 2.0}), description="two turns are seen"
            )

        assert seen["aftermind_pending_turns"] == 2
        assert seen["aftermind_pending_bytes"] > 0
        assert seen['aftermind_oldest_runnable_seconds{kind="store"}'] > 0
        assert seen[f'aftermind_waiting_bells{{queue="{queues.STORE}"}}'] >= 1
        assert seen['aftermind_dead_letters{kind="store"}'] == 0
        assert [value for name, value in seen.items() if name.startswith("aftermind_replica_serving")] == [1]
        assert [name for name in seen if name.startswith("aftermind_replica_lag_seconds")]


async def test_a_pause_is_a_degraded_component(database: Database, redis_url: str, tmp_path: Path) -> None:
    env = environment(database.relay_url, redis_url, AFTERMIND_METRICS_TOKEN=TOKEN)
    async with Memory(database.relay_url, broker=redis_url) as memory:
        with service(env, tmp_path) as url:
            before = await asyncio.to_thread(scrape, url, TOKEN)
            await memory.job_admin.pause(kind="embed", namespace=None, reason="a new model", actor="ops")
            await wait_until(
                lambda: _with(url, {'aftermind_component_degraded{component="pauses"}': 1.0}),
                description="the pause is exported",
            )

    assert before['aftermind_component_degraded{component="pauses"}'] == 0
    assert before['aftermind_component_degraded{component="store"}'] == 0


async def test_a_replica_that_does_not_answer_is_down_and_has_no_lag(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    more = {"AFTERMIND_REPLICA_URLS": '["postgresql://reader@127.0.0.1:1/none"]', "AFTERMIND_METRICS_TOKEN": TOKEN}
    with service(environment(database.relay_url, redis_url, **more), tmp_path) as url:
        seen = await asyncio.to_thread(scrape, url, TOKEN)

    assert [value for name, value in seen.items() if 'component_up{component="replica' in name] == [0]
    assert [name for name in seen if name.startswith("aftermind_replica_lag_seconds")] == []


async def test_a_worker_answers_a_scrape_of_its_own(database: Database, redis_url: str, tmp_path: Path) -> None:
    port = choose(1)[0]
    told = {'aftermind_jobs_total{kind="store",outcome="done"}': 1.0}
    bells = 'aftermind_bells_total{outcome="work",queue="memory.store"}'
    with workers(environment(database.relay_url, redis_url, AFTERMIND_METRICS_PORT=str(port)), tmp_path):
        async with Memory(database.app_url, broker=redis_url) as memory:
            receipt = await memory.remember("one", user_id="a")
            await receipt.stored(timeout=180)
        await wait_until(
            lambda: _with(f"http://127.0.0.1:{port}", told).get(bells, 0) >= 1,
            description="the worker has counted its job, and then the bell that it came by",
        )


async def test_an_agent_counts_in_the_registry_that_it_names() -> None:
    mine, other = CollectorRegistry(), CollectorRegistry()
    async with (
        Memory("inmemory", metrics=mine) as one,
        Memory("inmemory", metrics=mine) as two,  # a second memory of the process shares the instruments
        Memory("inmemory", metrics=other),
        Memory("inmemory"),
    ):
        await one.remember("I moved to Oslo.", user_id="u")
        await two.remember("I moved to Rome.", user_id="u")
        await one.recall("Where do I live?", user_id="u")

    assert mine.get_sample_value("aftermind_remember_seconds_count", {"outcome": "accepted"}) == 2
    assert mine.get_sample_value("aftermind_recall_seconds_count", {"served_by": "process"}) == 1
    assert mine.get_sample_value("aftermind_recalls_degraded_total") == 0
    assert other.get_sample_value("aftermind_remember_seconds_count", {"outcome": "accepted"}) is None


async def test_a_turn_that_was_refused_is_counted_by_its_error() -> None:
    registry = CollectorRegistry()
    settings = Settings(pending_max_turns=1)
    async with Memory("inmemory", settings=settings, metrics=registry) as memory:
        with pytest.raises(errors.QueueFull):
            await asyncio.gather(*(memory.remember("again", user_id="u") for _ in range(50)))

    refused = registry.get_sample_value("aftermind_remember_refused_total", {"error": "QueueFull"})
    assert refused is not None
    assert refused >= 1


def _with(url: str, wanted: dict[str, float]) -> dict[str, float]:
    """The scrape, once it says what is wanted; else nothing."""
    try:
        seen = dict(scrape(url, TOKEN))
    except httpx.TransportError:  # a worker answers once it has come up
        return {}
    print({name: seen.get(name) for name in wanted})  # noqa: T201  # shown where the test fails
    return seen if all(seen.get(name) == value for name, value in wanted.items()) else {}
