"""What a replay may replace: the operator's models, messages that pass the border; and what an override may not do."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from aftermind import Memory, Settings, errors
from aftermind.db.postgres_transaction import pg
from aftermind.ledger.protocol import Failure
from aftermind.ledger.replay_overrides import OverrideRules
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.llm import factory
from aftermind.types import JobId, JobKind, Lease
from aftermind.types.replay import ItemState, JobFilter, ReplayMode
from aftermind_tasks import job_handlers
from aftermind_tasks.job_runner import Tally, perform
from aftermind_tasks.runtime import Runtime, open_runtime
from tests.support.replay_engine import SteppedReplays
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai
from tests.support.servers import Database
from tests.support.waiting import PATIENCE_SECONDS

SAID = "I moved to Oslo, and I like fjords."
LEASE = timedelta(seconds=30)
BROKEN = Failure(reason_code="bug:X", error_class="X", error="it broke", fingerprint="x")


@pytest.fixture
def model() -> Iterator[ScriptedOpenAI]:
    """A model that finds a fact."""
    with scripted_openai() as server:
        server.script.facts = {SAID: [{"subject": "user", "predicate": "likes", "object": "fjords"}]}
        yield server


@pytest.fixture
async def runtime(
    database: Database, redis_url: str, model: ScriptedOpenAI, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Runtime]:
    """A worker's runtime."""
    for name, value in {
        "AFTERMIND_DATABASE_URL": database.relay_url,
        "AFTERMIND_REDIS_URL": redis_url,
        "AFTERMIND_ACCEPT": "postgres",
        "AFTERMIND_EMBEDDER": "hash",
        "AFTERMIND_EXTRACTOR": "openai:scripted",
        "AFTERMIND_EXTRACT_QUIET_SECONDS": "0",
        "AFTERMIND_REPLAY_MODELS": '["allowed"]',
        "OPENAI_API_KEY": "k",
        "OPENAI_BASE_URL": model.url,
    }.items():
        monkeypatch.setenv(name, value)
    opened = await open_runtime(Settings(), worker="test")
    rules = OverrideRules(extractors=factory.replayable(opened.settings))
    opened.replays = SteppedReplays(opened.db, rules=rules)
    yield opened
    await opened.close()


async def claimed(runtime: Runtime, kind: JobKind, *, replays: bool = False) -> list[Lease]:
    return await runtime.ledger.claim(kind, worker="test", for_=LEASE, limit=10, replays=replays)


async def work(runtime: Runtime, kind: JobKind, *, replays: bool = False) -> Tally:
    """What a worker does at a bell."""
    leases = await claimed(runtime, kind, replays=replays)
    assert leases, f"no {kind} could be claimed"
    return await perform(runtime, job_handlers.handler(kind), leases)


async def learned(runtime: Runtime, memory: Memory) -> None:
    """A turn that was stored and mined."""
    await memory.remember(SAID, user_id="alice", session_id="s1")
    await work(runtime, JobKind.STORE)
    await work(runtime, JobKind.EXTRACT)


def asked(mode: ReplayMode = ReplayMode.REEXTRACT, **overrides: Any) -> NewPlan:  # Any: what a tenant may send
    return NewPlan(name="p", reason="r", actor="a", mode=mode, overrides=overrides)


EXTRACTIONS = JobFilter(kinds=(JobKind.EXTRACT,), namespace="default")


@pytest.mark.parametrize(
    "overrides",
    [
        {"extractor": "os:system"},
        {"extractor": "openai:gpt-huge"},
        {"extractor": ["rules"]},
        {"model": "gpt-huge"},
        {"model": 5},
        {"model": {"a": 1}},
        {"instructions": "x" * 4_001},
        {"instructions": 5},
        {"reextract": False},
        {"episodes": []},
        {"messages": []},
        {"traceparent": "x"},
    ],
)
async def test_an_override_that_is_not_the_operators_is_refused_when_the_plan_is_made(
    runtime: Runtime, overrides: dict[str, Any]
) -> None:
    async with Memory() as memory:
        await learned(runtime, memory)

        with pytest.raises(errors.InvalidFilter, match="overrides"):
            await memory.replays.create(EXTRACTIONS, asked(**overrides))
        assert await memory.replays.list() == []


async def test_what_the_operator_allows_may_be_named(runtime: Runtime) -> None:
    async with Memory() as memory:
        await learned(runtime, memory)

        for overrides in ({"model": "scripted"}, {"model": "allowed"}, {"extractor": "rules"}, {"instructions": "Go."}):
            assert (await memory.replays.create(EXTRACTIONS, asked(**overrides))).overrides == overrides
        with pytest.raises(errors.InvalidFilter, match="retry"):
            await memory.replays.create(EXTRACTIONS, asked(ReplayMode.RETRY, model="allowed"))


@pytest.mark.parametrize("override", ['{"extractor": "os:system"}', '{"model": "gpt-huge"}', '{"model": 7}'])
async def test_an_override_that_gets_into_a_payload_pauses_nobody_else(runtime: Runtime, override: str) -> None:
    """As another program with the ledger's login, or a plan of before the operator changed the list, leaves it."""
    async with Memory() as memory:
        await learned(runtime, memory)
        assert runtime.replays is not None
        plan = await runtime.replays.create(EXTRACTIONS, asked(model="allowed"))
        async with runtime.db.transaction() as tx:
            await pg(tx).execute(
                text("UPDATE aftermind.replay_plans SET overrides = CAST(:given AS jsonb)"), {"given": override}
            )
        await runtime.replays.start(plan.id)
        await runtime.replays.step(plan.id)

        tally = await work(runtime, JobKind.EXTRACT, replays=True)

        assert (tally.dead, tally.pause) == (1, None)
        assert await runtime.providers.gate.states() == [] or all(
            each.why is None for each in await runtime.providers.gate.states()
        )


@pytest.mark.parametrize(("status", "ends"), [("401", "dead"), ("429", "retried"), ("500", "retried")])
async def test_a_model_that_a_tenant_chose_shuts_no_gate_however_it_ends(
    runtime: Runtime, model: ScriptedOpenAI, status: str, ends: str
) -> None:
    async with Memory() as memory:
        await learned(runtime, memory)
        assert runtime.replays is not None
        plan = await runtime.replays.create(EXTRACTIONS, asked(model="allowed"))
        await runtime.replays.start(plan.id)
        await runtime.replays.step(plan.id)
        model.script.key = "another" if status == "401" else None
        model.script.plan = [status] * 10 if status != "401" else []

        tally = await work(runtime, JobKind.EXTRACT, replays=True)
        model.script.key, model.script.plan = None, []

        assert tally.counts() == {ends: 1}
        assert tally.pause is None
        assert [each.why for each in await runtime.providers.gate.states() if each.why] == []
        await memory.remember(SAID, user_id="bob", session_id="s1")
        await work(runtime, JobKind.STORE)
        assert (await work(runtime, JobKind.EXTRACT)).done == 1, "the next tenant's extraction runs at once"


async def buried(runtime: Runtime, memory: Memory, said: object = "I live in Olso.") -> JobId:
    """A dead letter of a turn."""
    await memory.remember(said, user_id="alice", session_id="s1")  # type: ignore[arg-type]
    (lease,) = await claimed(runtime, JobKind.STORE)
    await runtime.ledger.mark_dead(None, lease, BROKEN)
    return lease.job.id


async def replayed(runtime: Runtime, memory: Memory, job_id: JobId, **overrides: Any) -> None:  # Any: as above
    """Run a plan with an edit to its end."""
    plan = await memory.replays.create(JobFilter(ids=(job_id,)), asked(ReplayMode.EDITED, **overrides))
    assert runtime.replays is not None
    await runtime.replays.start(plan.id)
    await runtime.replays.step(plan.id)
    for lease in await claimed(runtime, JobKind.STORE, replays=True):
        await perform(runtime, job_handlers.handler(JobKind.STORE), [lease])
    await runtime.replays.step(plan.id)
    (item,) = await runtime.replays.list_items(plan.id)
    assert item.state is ItemState.DONE


async def test_the_receipt_of_a_dead_turn_follows_what_replays_it(runtime: Runtime) -> None:
    async with Memory() as memory:
        receipt = await memory.remember("I live in Olso.", user_id="alice", session_id="s1")
        (lease,) = await claimed(runtime, JobKind.STORE)
        await runtime.ledger.mark_dead(None, lease, BROKEN)
        with pytest.raises(errors.JobDead):
            await receipt.stored(timeout=PATIENCE_SECONDS)

        await replayed(runtime, memory, receipt.job_id, messages=[{"role": "user", "content": "I live in Oslo."}])

        await receipt.stored(timeout=PATIENCE_SECONDS)
        status = await memory.jobs.status(receipt.job_id, user_id="alice")
        assert status == await receipt.status()


async def test_a_dead_turn_is_stored_with_the_messages_that_it_was_edited_to(runtime: Runtime) -> None:
    async with Memory() as memory:
        job_id = await buried(runtime, memory)
        edit = [{"role": "user", "content": "I live in Oslo."}, {"role": "assistant", "content": "Noted."}]

        await replayed(runtime, memory, job_id, messages=edit)

        history = await memory.history(user_id="alice", session_id="s1")
        assert [(each.role, each.content) for each in history] == [
            ("user", "I live in Oslo."),
            ("assistant", "Noted."),
        ]
        letter = await memory.dead_letters.get(job_id)
        assert letter is not None
        assert b"Olso" in (letter.raw or b""), "the letter stays as it was"
        plan = (await memory.replays.list())[0]
        assert plan.overrides == {}, "what the user said lies with the user's own rows"


async def test_bytes_that_nobody_can_read_are_replaced_by_messages(runtime: Runtime) -> None:
    async with Memory() as memory:
        job_id = await buried(runtime, memory)
        async with runtime.db.transaction() as tx:
            await pg(tx).execute(text("UPDATE aftermind.jobs SET raw = '\\x00ff'"))

        await replayed(runtime, memory, job_id, messages=[{"role": "user", "content": "I live in Oslo."}])

        assert [each.content for each in await memory.history(user_id="alice")] == ["I live in Oslo."]


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ("text", errors.InvalidFilter),
        ([], errors.InvalidFilter),
        ([{"role": "root", "content": "x"}], errors.InvalidMessage),
        ([{"role": "user", "content": 5}], errors.InvalidMessage),
        ([{"role": "user", "content": "x" * 300_000}], errors.InvalidMessage),
    ],
)
async def test_edited_messages_pass_the_border_of_new_ones(
    runtime: Runtime, messages: object, error: type[Exception]
) -> None:
    async with Memory() as memory:
        job_id = await buried(runtime, memory)

        with pytest.raises(error):
            await memory.replays.create(JobFilter(ids=(job_id,)), asked(ReplayMode.EDITED, messages=messages))


async def test_an_edit_is_for_one_letter_and_for_kinds_that_it_means_something_to(runtime: Runtime) -> None:
    async with Memory() as memory:
        first = await buried(runtime, memory)
        second = await buried(runtime, memory, "I have a cat.")
        message = [{"role": "user", "content": "I live in Oslo."}]

        with pytest.raises(errors.InvalidFilter, match="one job"):
            await memory.replays.create(JobFilter(ids=(first, second)), asked(ReplayMode.EDITED, messages=message))
        with pytest.raises(errors.InvalidFilter, match="store job"):
            await memory.replays.create(JobFilter(ids=(first,)), asked(ReplayMode.EDITED, model="allowed"))


async def test_an_edit_goes_with_what_is_forgotten(runtime: Runtime, database: Database) -> None:
    async with Memory() as memory:
        job_id = await buried(runtime, memory)
        edit = [{"role": "user", "content": "I live in Oslo."}]
        plan = await memory.replays.create(JobFilter(ids=(job_id,)), asked(ReplayMode.EDITED, messages=edit))

        await memory.forget(user_id="alice")
        assert runtime.replays is not None
        await runtime.replays.start(plan.id)
        await runtime.replays.step(plan.id)

        async with runtime.db.transaction(read_only=True) as tx:
            (row,) = await pg(tx).rows(text("SELECT count(*) AS left FROM aftermind.jobs WHERE edited IS NOT NULL"))
        assert row.left == 0
        assert [each.state for each in await runtime.replays.list_items(plan.id)] == [ItemState.SKIPPED]
        assert await memory.history(user_id="alice") == []


async def test_a_dead_extraction_comes_back_by_another_model(runtime: Runtime, model: ScriptedOpenAI) -> None:
    async with Memory() as memory:
        await memory.remember(SAID, user_id="alice", session_id="s1")
        await work(runtime, JobKind.STORE)
        (lease,) = await claimed(runtime, JobKind.EXTRACT)
        await runtime.ledger.mark_dead(None, lease, BROKEN)
        plan = await memory.replays.create(JobFilter(ids=(lease.job.id,)), asked(ReplayMode.EDITED, model="allowed"))
        assert runtime.replays is not None
        await runtime.replays.start(plan.id)
        await runtime.replays.step(plan.id)

        assert (await work(runtime, JobKind.EXTRACT, replays=True)).done == 1

        (fact,) = await memory.facts.query(user_id="alice")
        assert fact.extractor.startswith("openai:allowed:")
