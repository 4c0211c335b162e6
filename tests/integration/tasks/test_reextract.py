"""Facts drawn anew by another prompt: the old are superseded, a shadow run only says what would change."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from aftermind import Memory
from aftermind.db.postgres_transaction import pg
from aftermind.ledger.postgres.dead_letters import DeadLetters
from aftermind.ledger.replay_overrides import OverrideRules
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.llm import factory
from aftermind.settings import Settings
from aftermind.types import Fact, JobKind, JobState, Message, Scope, Turn
from aftermind.types.message import new_ids
from aftermind.types.replay import JobFilter, ReplayMode
from aftermind.wire.turn_encoding import encode_turn
from aftermind_tasks import job_handlers
from aftermind_tasks.job_runner import Tally, perform
from aftermind_tasks.runtime import Runtime, open_runtime
from tests.support.replay_engine import SteppedReplays
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai
from tests.support.servers import Database

ALICE = Scope(user_id="alice", session_id="s1")
SAID = "I moved to Oslo, and I like fjords."
LEASE = timedelta(seconds=30)
REEXTRACT = NewPlan(
    name="p",
    reason="a better prompt",
    actor="ops",
    mode=ReplayMode.REEXTRACT,
    overrides={"instructions": "Places too."},
)


@pytest.fixture
def model() -> Iterator[ScriptedOpenAI]:
    """The model server: at first it finds one fact only."""
    with scripted_openai() as server:
        server.script.facts = {SAID: [{"subject": "user", "predicate": "likes", "object": "fjords"}]}
        yield server


@pytest.fixture
async def runtime(
    database: Database, redis_url: str, model: ScriptedOpenAI, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Runtime]:
    """A worker's runtime."""
    for name, value in {
        "AFTERMIND_DATABASE_URL": database.url,
        "AFTERMIND_ALLOW_OWNER": "true",  # the tests read and change rows themselves, through the runtime's database
        "AFTERMIND_REDIS_URL": redis_url,
        "AFTERMIND_EMBEDDER": "hash",
        "AFTERMIND_EXTRACTOR": "openai:scripted",
        "AFTERMIND_EXTRACT_QUIET_SECONDS": "0",
        "OPENAI_API_KEY": "k",
        "OPENAI_BASE_URL": model.url,
    }.items():
        monkeypatch.setenv(name, value)
    opened = await open_runtime(Settings(), worker="test")
    rules = OverrideRules(extractors=factory.replayable(opened.settings))
    opened.replays = SteppedReplays(opened.db, rules=rules)
    yield opened
    await opened.close()


async def remember(runtime: Runtime, said: str = SAID) -> None:
    """Store a turn, and mine it."""
    job_id, episode_ids = new_ids(1)
    now = datetime.now(UTC)
    turn = Turn(
        job_id=job_id,
        scope=ALICE,
        remembered_at=now,
        base=int(now.timestamp() * 1e6),
        messages=(Message.user(said),),
        episode_ids=episode_ids,
    )
    async with runtime.db.transaction() as tx:
        await runtime.ledger.accept(tx, turn, encode_turn(turn))
    await work(runtime, JobKind.STORE)
    await work(runtime, JobKind.EXTRACT)


async def work(runtime: Runtime, kind: JobKind, *, replays: bool = False) -> Tally:
    """What a worker does at a bell."""
    leases = await runtime.ledger.claim(kind, worker="test", for_=LEASE, limit=10, replays=replays)
    assert leases, f"no {kind} could be claimed"
    return await perform(runtime, job_handlers.handler(kind), leases)


async def facts(runtime: Runtime) -> list[Fact]:
    """Every row, believed or not."""
    async with runtime.db.transaction(read_only=True) as tx:
        return await runtime.store.facts(tx, ALICE.owner, history=True)


async def test_the_new_facts_take_the_place_of_the_old_in_one_step(runtime: Runtime, model: ScriptedOpenAI) -> None:
    assert runtime.replays is not None
    await remember(runtime)
    model.script.facts = {SAID: [{"subject": "user", "predicate": "lives_in", "object": "Oslo"}]}
    plan = await runtime.replays.create(JobFilter(kinds=(JobKind.EXTRACT,)), REEXTRACT)
    await runtime.replays.start(plan.id)
    await runtime.replays.step(plan.id)

    assert (await work(runtime, JobKind.EXTRACT, replays=True)).done == 1

    rows = {fact.object: fact for fact in await facts(runtime)}
    assert rows["fjords"].superseded_at is not None
    assert (rows["Oslo"].superseded_at, rows["Oslo"].strength) == (None, 1)
    assert rows["Oslo"].extractor.startswith("openai:scripted:")
    assert "+" in rows["Oslo"].extractor, "the instructions are part of the version"


async def test_what_a_user_took_back_is_not_brought_back(
    runtime: Runtime, database: Database, redis_url: str, model: ScriptedOpenAI
) -> None:
    assert runtime.replays is not None
    await remember(runtime)
    [fjords] = await facts(runtime)
    async with Memory(database.app_url, broker=redis_url) as memory:
        assert await memory.facts.retract(fjords, user_id="alice")
    model.script.facts[SAID].append({"subject": "user", "predicate": "lives_in", "object": "Oslo"})
    plan = await runtime.replays.create(JobFilter(kinds=(JobKind.EXTRACT,)), REEXTRACT)
    await runtime.replays.start(plan.id)
    await runtime.replays.step(plan.id)

    await work(runtime, JobKind.EXTRACT, replays=True)

    assert [fact.object for fact in await facts(runtime) if not fact.superseded_at] == ["Oslo"]


async def test_what_is_found_again_is_neither_doubled_nor_stronger(runtime: Runtime) -> None:
    assert runtime.replays is not None
    await remember(runtime)
    plan = await runtime.replays.create(JobFilter(kinds=(JobKind.EXTRACT,)), REEXTRACT)
    await runtime.replays.start(plan.id)
    await runtime.replays.step(plan.id)

    await work(runtime, JobKind.EXTRACT, replays=True)

    assert [(fact.object, fact.strength, fact.superseded_at) for fact in await facts(runtime)] == [("fjords", 1, None)]


async def test_a_shadow_run_says_what_would_change_and_writes_nothing(runtime: Runtime, model: ScriptedOpenAI) -> None:
    assert runtime.replays is not None
    await remember(runtime)
    before = await facts(runtime)
    model.script.facts = {SAID: [{"subject": "user", "predicate": "lives_in", "object": "Oslo"}]}
    plan = await runtime.replays.create(JobFilter(kinds=(JobKind.EXTRACT,)), REEXTRACT)

    await runtime.replays.dry_run(plan.id)
    await work(runtime, JobKind.SHADOW, replays=True)

    [shadow] = await runtime.replays.dry_run_results(plan.id)
    assert (shadow.state, shadow.added, shadow.superseded) == (
        JobState.DONE,
        ("user lives in Oslo",),
        ("user likes fjords",),
    )
    assert await facts(runtime) == before


async def test_what_was_mined_by_a_job_that_is_pruned_can_be_mined_anew(
    runtime: Runtime, model: ScriptedOpenAI
) -> None:
    assert runtime.replays is not None
    await remember(runtime)
    model.script.facts = {SAID: [{"subject": "user", "predicate": "lives_in", "object": "Oslo"}]}
    await runtime.ledger.prune(older_than=timedelta(0), limit=100)
    assert await runtime.ledger.jobs(kinds=[JobKind.EXTRACT]) == []

    plan = await runtime.replays.create(JobFilter(namespace="default", user_id="alice"), REEXTRACT)
    await runtime.replays.start(plan.id)
    await runtime.replays.step(plan.id)
    await work(runtime, JobKind.EXTRACT, replays=True)
    again = await runtime.replays.create(JobFilter(namespace="default"), REEXTRACT)

    assert plan.size == 1
    assert {fact.object for fact in await facts(runtime) if not fact.superseded_at} == {"Oslo"}
    assert again.size == 1, "only the job that had the last word about an episode has a part in it"


async def test_another_extractor_draws_the_facts_anew(runtime: Runtime) -> None:
    assert runtime.replays is not None
    await remember(runtime)
    by_rules = replace(REEXTRACT, overrides={"extractor": "rules"})
    plan = await runtime.replays.create(JobFilter(), by_rules)
    await runtime.replays.start(plan.id)
    await runtime.replays.step(plan.id)

    await work(runtime, JobKind.EXTRACT, replays=True)

    believed = [fact for fact in await facts(runtime) if not fact.superseded_at]
    assert {fact.extractor.partition(":")[0] for fact in believed} <= {"rules", "openai"}
    assert any(fact.extractor.startswith("rules") for fact in believed)


async def test_a_dead_extraction_is_replayed_when_the_model_is_well_again(
    runtime: Runtime, model: ScriptedOpenAI
) -> None:
    assert runtime.replays is not None
    model.script.plan = ["schema"] * 4
    await remember(runtime)
    await work_retries(runtime)
    dead = DeadLetters(runtime.db)
    [letter] = await dead.list(JobFilter())
    assert letter.reason_code == "llm_bad_answer"

    plan = await runtime.replays.create(JobFilter(), NewPlan(name="p", reason="well again", actor="ops"))
    await runtime.replays.start(plan.id)
    await runtime.replays.step(plan.id)
    await work(runtime, JobKind.EXTRACT, replays=True)

    assert [fact.object for fact in await facts(runtime)] == ["fjords"]
    assert await dead.list(JobFilter()) == []


async def work_retries(runtime: Runtime) -> None:
    """The second try of the extraction, at once."""
    async with runtime.db.transaction() as tx:
        await pg(tx).execute(text("UPDATE aftermind.jobs SET run_at = now() WHERE state = 'retrying'"))
    await work(runtime, JobKind.EXTRACT)


async def test_undo_reaches_what_was_drawn_anew(runtime: Runtime, model: ScriptedOpenAI) -> None:
    assert runtime.replays is not None
    order, true = "Cousin Mallory praises BrandX.", {"subject": "user", "predicate": "likes", "object": "fjords"}
    model.script.facts, model.script.orders = {SAID: [true]}, [order]
    await remember(runtime)
    await remember(runtime, order)  # into the same session; each was mined by itself
    # One batch of both, as a replay of a dead extraction of a session has it.
    async with runtime.db.transaction() as tx:
        await pg(tx).execute(text("DELETE FROM aftermind.extractions"))
        await pg(tx).execute(text("UPDATE aftermind.jobs SET state = 'dead' WHERE kind = 'extract'"))
    plan = await runtime.replays.create(JobFilter(kinds=(JobKind.EXTRACT,)), REEXTRACT)
    await runtime.replays.start(plan.id)
    await runtime.replays.step(plan.id)
    await work(runtime, JobKind.EXTRACT, replays=True)
    twisted = {fact.predicate for fact in await facts(runtime) if fact.superseded_at is None}
    assert "despises" in twisted, "the model has turned the meaning of the other message"

    async with Memory(settings=runtime.settings) as memory:
        (poison,) = [each for each in await memory.history(user_id="alice") if each.content == order]
        await memory.undo(poison.id, user_id="alice")
        assert await memory.facts.query(user_id="alice") == []
        await work(runtime, JobKind.EXTRACT)

        assert {(fact.predicate, fact.object) for fact in await memory.facts.query(user_id="alice")} == {
            ("likes", "fjords")
        }
