"""One trace from `remember` through queue and worker to the model call; and nothing at all where it is off."""

from pathlib import Path

import pytest
import redis
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aftermind import Memory
from aftermind.settings import Settings
from aftermind.telemetry import tracing
from aftermind.wire import queues
from tests.support.collector import Collector, collector
from tests.support.scripted_openai import scripted_openai
from tests.support.servers import Database
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

ALL = ",".join((queues.STORE, queues.EMBED, queues.EXTRACT))
SAID = "I like fjords more than anybody knows."
WORKER_SPANS = {"aftermind.store": 1, "aftermind.embed": 1, "aftermind.extract": 1, "aftermind.model": 2}

# A process may set its tracer provider once.
_exporter = InMemorySpanExporter()
_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(_exporter))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(_provider)
    monkeypatch.setattr(tracing, "_tracer", None)  # switched off again after the test
    _exporter.clear()
    return _exporter


@pytest.mark.parametrize("accept", ["redis", "postgres"])
async def test_a_turn_is_one_trace_up_to_the_model_calls_of_the_workers(
    accept: str, spans: InMemorySpanExporter, database: Database, redis_url: str, tmp_path: Path
) -> None:
    with scripted_openai() as model, collector() as collected:
        model.script.facts = {SAID: [{"subject": "user", "predicate": "likes", "object": "fjords"}]}
        told = {
            "AFTERMIND_EMBEDDER": "openai:text-embedding-3-small",
            "AFTERMIND_EMBEDDING_DIMENSION": "384",
            "AFTERMIND_EXTRACTOR": "openai:gpt-5-mini",
            "AFTERMIND_EXTRACT_QUIET_SECONDS": "0.2",
            "AFTERMIND_RECONCILE_SECONDS": "0.5",
            "AFTERMIND_TRACING": "true",
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": model.url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collected.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        settings = Settings(tracing=True, accept=accept)
        async with Memory(database.app_url, broker=redis_url, settings=settings) as memory:
            with workers(environment(database.relay_url, redis_url, **told), tmp_path, on=ALL):
                with trace.get_tracer("the application").start_as_current_span("a request") as request:
                    receipt = await memory.remember(SAID, user_id="ann", session_id="s")
                await receipt.extracted(timeout=180)
                await wait_until(
                    lambda: {name: len(collected.named(name)) for name in WORKER_SPANS} == WORKER_SPANS,
                    description="every span has arrived",
                )

    handed = next(span for span in spans.get_finished_spans() if span.name == "aftermind.remember")
    assert handed.context is not None
    assert handed.parent is not None
    assert handed.parent.span_id == request.get_span_context().span_id, "it stands in the application's own trace"
    ours = [span for name in WORKER_SPANS for span in collected.named(name)]
    assert {span.trace_id for span in ours} == {f"{handed.context.trace_id:032x}"}
    _models_stand_below_their_jobs(collected)
    everything = b"".join(span.raw for span in collected.spans) + handed.to_json().encode()
    assert b"fjords" not in everything, "spans hold ids, counts and names"


async def test_a_recall_says_who_served_it(spans: InMemorySpanExporter) -> None:
    async with Memory("inmemory", settings=Settings(tracing=True)) as memory:
        await memory.recall("Where do I live?", user_id="ann")

    (recalled,) = [span for span in spans.get_finished_spans() if span.name == "aftermind.recall"]
    assert recalled.attributes is not None
    assert recalled.attributes["aftermind.served_by"] == "process"
    assert "live" not in recalled.to_json()


def test_a_batch_stands_in_the_trace_of_each_of_its_jobs(spans: InMemorySpanExporter) -> None:
    tracing.switch_on()
    parents = []
    for _ in range(2):
        with tracing.span("aftermind.remember"):
            parents.append(tracing.carried())

    with tracing.continued("aftermind.embed", [*parents, None, "of a later release"]), tracing.span("aftermind.model"):
        pass

    embeds = [span for span in spans.get_finished_spans() if span.name == "aftermind.embed"]
    (model,) = [span for span in spans.get_finished_spans() if span.name == "aftermind.model"]
    assert {span.context.trace_id for span in embeds if span.context} == {
        int(parent.split("-")[1], 16) for parent in parents if parent
    }
    linked = next(span for span in embeds if span.links)
    assert model.parent is not None
    assert linked.links[0].context.span_id == model.parent.span_id


async def test_switched_off_no_span_is_made_and_no_turn_carries_one(
    spans: InMemorySpanExporter, database: Database, redis_url: str
) -> None:
    async with Memory(database.app_url, broker=redis_url) as memory:
        with trace.get_tracer("the application").start_as_current_span("a request"):
            receipt = await memory.remember(SAID, user_id="ann")
            await memory.recall("Where do I live?", user_id="ann")

    with redis.Redis.from_url(redis_url) as client:
        (key,) = [key for key in client.scan_iter() if str(receipt.job_id).encode() in key]
        assert b'"trace"' not in client.hget(key, "payload")
    assert [span.name for span in spans.get_finished_spans()] == ["a request"]


def _models_stand_below_their_jobs(collected: Collector) -> None:
    jobs = {span.span_id for name in ("aftermind.embed", "aftermind.extract") for span in collected.named(name)}
    assert {span.parent_id for span in collected.named("aftermind.model")} == jobs
