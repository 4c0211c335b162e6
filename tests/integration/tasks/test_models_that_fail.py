"""Embedding and extraction while the provider errs: what waits, is tried again, is dead, and is paid once."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from aftermind import Memory, errors
from aftermind.llm.rate_limit_and_circuit_breaker import FAILURES
from aftermind.settings import Settings
from aftermind.types import Job, JobKind, JobState, Lease, Message, Scope, Turn
from aftermind.wire.turn_encoding import encode_turn
from aftermind_tasks import extraction_call, job_handlers
from aftermind_tasks.job_runner import Tally, perform
from aftermind_tasks.runtime import Runtime, open_runtime
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai
from tests.support.servers import Database
from tests.support.turns import turn_of
from tests.support.waiting import wait_until

SAID = "I like fjords."
LEASE = timedelta(seconds=30)
LONG_TEXT = "The weather was mild. " * 1_500


@pytest.fixture
def model() -> Iterator[ScriptedOpenAI]:
    """The provider: it finds one fact in what is said here."""
    with scripted_openai() as server:
        server.script.facts = {SAID: [{"subject": "user", "predicate": "likes", "object": "fjords"}]}
        yield server


@pytest.fixture
async def runtime(
    database: Database, redis_url: str, model: ScriptedOpenAI, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Runtime]:
    """A worker's runtime, quick to try again."""
    for name, value in {
        "AFTERMIND_DATABASE_URL": database.url,
        "AFTERMIND_ALLOW_OWNER": "true",  # the tests read and change rows themselves, through the runtime's database
        "AFTERMIND_REDIS_URL": redis_url,
        "AFTERMIND_EMBEDDER": "openai:text-embedding-3-small",
        "AFTERMIND_EXTRACTOR": "openai:scripted",
        "AFTERMIND_EMBEDDING_DIMENSION": "384",
        "AFTERMIND_EXTRACT_QUIET_SECONDS": "0",
        "AFTERMIND_BACKOFF_BASE_SECONDS": "0.01",
        "AFTERMIND_BACKOFF_CAP_SECONDS": "0.02",
        "AFTERMIND_MODEL_TIMEOUT_SECONDS": "2",
        "OPENAI_API_KEY": "k",
        "OPENAI_BASE_URL": model.url,
    }.items():
        monkeypatch.setenv(name, value)
    opened = await open_runtime(Settings(), worker="test")
    yield opened
    await opened.close()


async def remember(runtime: Runtime, *turns: Turn) -> None:
    """Store turns; their embed and extract jobs wait then."""
    async with runtime.db.transaction() as tx:
        for turn in turns:
            await runtime.ledger.accept(tx, turn, encode_turn(turn))
    await work(runtime, JobKind.STORE)


async def claim(runtime: Runtime, kind: JobKind, *, for_: timedelta = LEASE) -> list[Lease]:
    """What can run now."""
    return await runtime.ledger.claim(kind, worker="test", for_=for_, limit=50)


async def claim_of(runtime: Runtime, namespace: str) -> list[Lease]:
    """Embed jobs of a tenant alone."""
    others = [name for name in ("loud", "quiet") if name != namespace]
    return await runtime.ledger.claim(JobKind.EMBED, worker="test", for_=LEASE, limit=50, except_namespaces=others)


async def work(runtime: Runtime, kind: JobKind) -> Tally:
    """One batch of a kind, as soon as one can run."""
    leases = await wait_until(lambda: claim(runtime, kind), description=f"a {kind} job can run")
    return await perform(runtime, job_handlers.handler(kind), leases)


async def jobs(runtime: Runtime, kind: JobKind) -> list[Job]:
    return await runtime.ledger.jobs(kinds=[kind])


async def counted(runtime: Runtime, owner: Scope) -> dict[str, int]:
    async with runtime.db.transaction(read_only=True) as tx:
        return await runtime.store.counts(tx, owner)


async def test_one_text_that_the_provider_refuses_is_dead_alone(runtime: Runtime, model: ScriptedOpenAI) -> None:
    await remember(runtime, *(turn_of(f"user-{n}", f"text {n}") for n in range(4)))
    model.script.plan = ["400", "ok", "400", "400", "ok"]  # all four; the first half; the second; its first; its second

    tally = await work(runtime, JobKind.EMBED)

    assert (tally.done, tally.dead) == (3, 1)
    dead = await runtime.ledger.jobs(kinds=[JobKind.EMBED], states=[JobState.DEAD])
    assert [job.reason_code for job in dead] == ["llm_bad_request"]
    embedded = [(await counted(runtime, Scope(user_id=f"user-{n}")))["embedded"] for n in range(4)]
    assert sorted(embedded) == [0, 1, 1, 1]


@pytest.mark.parametrize("kind", [JobKind.EMBED, JobKind.EXTRACT])
async def test_a_letter_keeps_what_the_provider_said_apart_from_the_error_which_is_logged(
    runtime: Runtime, model: ScriptedOpenAI, kind: JobKind
) -> None:
    await remember(runtime, turn_of("ann", SAID))
    model.script.plan = ["400"]

    await work(runtime, kind)

    [dead] = await runtime.ledger.jobs(kinds=[kind], states=[JobState.DEAD])
    assert dead.error is not None
    assert dead.error.endswith("answered 400: context_length_exceeded (messages[0].content)")
    assert dead.answer is not None
    assert dead.answer["rejected"] == "The scripted model cannot serve it: context_length_exceeded."
    assert len(dead.answer["episodes"]) == 1, "an erasure of the episode deletes it"
    attempts = await runtime.ledger.attempts(dead.id)
    assert [each.model for each in attempts] == [{"embed": "text-embedding-3-small", "extract": "scripted"}[kind]]


async def test_a_letter_names_a_wrong_address_and_keeps_an_answer_of_another_format(
    runtime: Runtime, model: ScriptedOpenAI
) -> None:
    await remember(runtime, turn_of("ann", SAID))
    host = model.url.removesuffix("/v1")
    lost = Settings(openai_base_url=f"{host}/wrong")
    broken = await open_runtime(lost, worker="broken")

    await work(broken, JobKind.EMBED)
    await broken.close()

    [dead] = await runtime.ledger.jobs(kinds=[JobKind.EMBED], states=[JobState.DEAD])
    assert dead.error is not None
    assert "/wrong/embeddings answered 404" in dead.error
    assert "OPENAI_BASE_URL" in dead.error
    assert dead.answer is not None
    assert dead.answer["rejected"] == "{'detail': 'Not Found'}"


async def test_a_rate_limit_is_waited_out_as_long_as_the_provider_says(runtime: Runtime, model: ScriptedOpenAI) -> None:
    await remember(runtime, turn_of("ann", SAID))
    model.script.plan, model.script.retry_after = ["429"], 60.0

    tally = await work(runtime, JobKind.EMBED)

    assert tally.retried + tally.snoozed == 1
    (job,) = await jobs(runtime, JobKind.EMBED)
    assert job.run_at > datetime.now(UTC) + timedelta(seconds=50)


async def test_a_provider_that_is_down_leaves_the_text_stored_and_the_vector_for_later(
    runtime: Runtime, model: ScriptedOpenAI
) -> None:
    await remember(runtime, turn_of("ann", SAID))
    model.script.plan = ["500", "500"]

    first = await work(runtime, JobKind.EMBED)

    assert first.done == 0
    assert (await counted(runtime, Scope(user_id="ann")))["episodes"] == 1
    while not (await work(runtime, JobKind.EMBED)).done:
        pass
    assert (await counted(runtime, Scope(user_id="ann")))["embedded"] == 1


async def test_a_refused_key_waits_for_a_person_and_burns_no_attempt(runtime: Runtime, model: ScriptedOpenAI) -> None:
    await remember(runtime, turn_of("ann", SAID))
    model.script.key = "another"

    tally = await work(runtime, JobKind.EMBED)

    assert tally.snoozed == 1
    assert tally.pause is not None
    assert tally.pause >= timedelta(seconds=30)
    (job,) = await jobs(runtime, JobKind.EMBED)
    assert (job.state, job.attempts) == (JobState.QUEUED, 0)


async def test_a_model_that_only_answers_garbage_leaves_a_dead_letter_and_no_fact(
    runtime: Runtime, model: ScriptedOpenAI
) -> None:
    await remember(runtime, turn_of("ann", SAID))
    model.script.faults = {"schema": 1.0}

    while not (await work(runtime, JobKind.EXTRACT)).dead:
        pass

    (job,) = await jobs(runtime, JobKind.EXTRACT)
    assert (job.state, job.reason_code, job.attempts) == (JobState.DEAD, "llm_bad_answer", 2)
    assert (await counted(runtime, Scope(user_id="ann")))["facts"] == 0


async def test_garbage_after_an_outage_is_asked_for_again_and_its_letter_names_model_and_cause(
    runtime: Runtime, model: ScriptedOpenAI
) -> None:
    await remember(runtime, turn_of("ann", SAID))
    lease = (await wait_until(lambda: claim(runtime, JobKind.EXTRACT), description="it can run"))[0]
    await runtime.ledger.snooze(lease, after=timedelta(0), why="the provider is paused")
    model.script.plan = ["500"]
    assert not (await work(runtime, JobKind.EXTRACT)).dead
    model.script.faults = {"schema": 1.0}

    assert not (await work(runtime, JobKind.EXTRACT)).dead, "its first unusable answer"
    assert (await work(runtime, JobKind.EXTRACT)).dead == 1

    (job,) = await jobs(runtime, JobKind.EXTRACT)
    attempts = await runtime.ledger.attempts(job.id)
    assert (job.attempts, job.note) == (3, None), "the note was of a pause before"
    assert [each.model for each in attempts if each.outcome != "snoozed"] == ["scripted"] * 3


@pytest.mark.parametrize("kind", [JobKind.EMBED, JobKind.EXTRACT])
async def test_the_page_of_a_proxy_is_a_provider_that_is_away(
    runtime: Runtime, model: ScriptedOpenAI, kind: JobKind
) -> None:
    await remember(runtime, turn_of("ann", SAID))
    model.script.plan = ["page"]

    await work(runtime, kind)

    (job,) = await jobs(runtime, kind)
    assert (job.state, job.reason_code) == (JobState.RETRYING, "llm_unavailable")
    assert "no JSON" in (job.error or "")
    assert (await work(runtime, kind)).done == 1


async def test_an_answer_is_paid_once_though_its_worker_failed_before_it_was_applied(
    runtime: Runtime, model: ScriptedOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remember(runtime, turn_of("ann", SAID))
    write = extraction_call.write

    async def fails(*_: object) -> None:
        raise errors.StoreUnavailable("primary", "restarts")

    monkeypatch.setattr(extraction_call, "write", fails)
    assert (await work(runtime, JobKind.EXTRACT)).snoozed == 1
    monkeypatch.setattr(extraction_call, "write", write)
    assert (await work(runtime, JobKind.EXTRACT)).done == 1

    assert model.calls.by_kind["AnsweredExtraction"] == 1
    assert (await counted(runtime, Scope(user_id="ann")))["facts"] == 1


async def test_a_zombie_that_extracted_meanwhile_changes_nothing(runtime: Runtime, model: ScriptedOpenAI) -> None:
    await remember(runtime, turn_of("ann", SAID))
    lapsed = await claim(runtime, JobKind.EXTRACT, for_=timedelta(milliseconds=10))
    await wait_until(runtime.ledger.expire_leases, description="the first lease has run out")

    assert (await work(runtime, JobKind.EXTRACT)).done == 1
    late = await perform(runtime, job_handlers.handler(JobKind.EXTRACT), lapsed)

    assert (late.done, late.lost) == (0, 1)
    async with runtime.db.transaction(read_only=True) as tx:
        (fact,) = await runtime.store.facts(tx, Scope(user_id="ann"), history=True)
    assert fact.strength == 1


async def test_a_hung_call_ends_at_its_deadline_and_is_tried_again(runtime: Runtime, model: ScriptedOpenAI) -> None:
    await remember(runtime, turn_of("ann", SAID))
    model.script.plan = ["silence"]

    tally = await asyncio.wait_for(work(runtime, JobKind.EXTRACT), 180)

    assert tally.done == 0
    assert tally.dead == 0


async def test_what_the_assistant_said_and_what_gives_orders_is_no_fact_and_says_so(
    runtime: Runtime, model: ScriptedOpenAI
) -> None:
    turn = turn_of("ann", "Hello.", SAID)  # the second is the assistant's
    assert turn.messages[1] == Message.assistant(SAID)
    await remember(runtime, turn)

    assert (await work(runtime, JobKind.EXTRACT)).done == 1

    assert (await counted(runtime, Scope(user_id="ann")))["facts"] == 0
    assert model.calls.shown == [["Hello.", SAID]]


async def test_long_texts_that_time_out_pause_no_short_texts_of_another_tenant(
    runtime: Runtime, model: ScriptedOpenAI
) -> None:
    model.script.silent_from_characters, model.script.silence_seconds = len(LONG_TEXT), 10.0
    long = [turn_of(f"user-{n}", LONG_TEXT, namespace="loud") for n in range(FAILURES + 2)]
    await remember(runtime, *long)
    leases = await claim(runtime, JobKind.EMBED)
    timed_out = [perform(runtime, job_handlers.handler(JobKind.EMBED), [lease]) for lease in leases[:FAILURES]]
    assert [tally.retried for tally in await asyncio.gather(*timed_out)] == [1] * FAILURES

    await remember(runtime, *(turn_of("ann", f"I have {n} cats. " * 30, namespace="quiet") for n in range(40)))
    short = await claim_of(runtime, "quiet")
    tally = await perform(runtime, job_handlers.handler(JobKind.EMBED), [*leases[FAILURES:], *short])

    assert (tally.done, tally.retried + tally.snoozed, tally.pause) == (40, 2, None)
    assert (await counted(runtime, Scope(namespace="quiet", user_id="ann")))["embedded"] == 40


async def test_the_timeline_of_a_job_that_waited_for_a_paused_provider_has_its_reason(
    runtime: Runtime, model: ScriptedOpenAI
) -> None:
    await remember(runtime, turn_of("ann", SAID))
    for _ in range(FAILURES):
        model.script.plan = ["500"]
        assert (await work(runtime, JobKind.EXTRACT)).retried
    assert (await work(runtime, JobKind.EXTRACT)).snoozed == 1, "the provider is paused"

    (job,) = await jobs(runtime, JobKind.EXTRACT)
    async with Memory(settings=runtime.settings) as memory:
        found = await memory.job_admin.timeline(job.id)

    assert found is not None
    assert job.attempts == FAILURES
    (wait,) = [step for step in found.steps if step.name == "extract waited"]
    assert wait.job_id == job.id
    assert re.fullmatch(r"\S+ is paused: .+", str(wait.detail)), wait.detail
