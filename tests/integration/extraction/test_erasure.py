"""What is forgotten is gone from every place where it lay, and what was on its way for it writes nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from aftermind import Message, errors
from aftermind.db.postgres_transaction import pg
from aftermind.events.types import MemoryUpdateStarted
from aftermind.ledger.protocol import Failure, ModelUsage
from aftermind.receipt import Receipt, StepState
from aftermind.types import EpisodeId, Job, JobKind, JobState, Lease, Scope
from aftermind.types.replay import JobFilter
from aftermind.wire.turn_encoding import decode_turn
from aftermind_tasks import job_events
from tests.support.learning import Learning
from tests.support.scripted_openai import ScriptedOpenAI
from tests.support.waiting import wait_until

Opened = Callable[..., AbstractAsyncContextManager[Learning]]
SECRET = "xyzzy4711"
PIN = f"My PIN is {SECRET}."
AT_ONCE = {"summary_quiet_seconds": 0.0, "profile_quiet_seconds": 0.0}
FAILURE = Failure(reason_code="x", error_class="X", error="the database refused it", fingerprint="f")

# Every row of every table as text, but for the queries of replay plans, which name nobody's words.
_TABLES = text("SELECT table_name FROM information_schema.tables WHERE table_schema = 'aftermind'")


async def places(learnt: Learning, needle: str) -> set[str]:
    """The tables in which a text is found."""
    found = set()
    async with learnt.owner.transaction(read_only=True) as tx:
        for row in await pg(tx).rows(_TABLES):
            table = row.table_name
            counted = await pg(tx).row(
                text(f"SELECT count(*) AS hits FROM aftermind.{table} AS t WHERE t::text LIKE :needle"),
                needle=f"%{needle}%",
            )
            raw = await pg(tx).row(
                text("SELECT count(*) AS hits FROM aftermind.jobs WHERE position(CAST(:needle AS bytea) IN raw) > 0"),
                needle=needle.encode(),
            )
            if counted is not None and counted.hits:
                found.add(table)
            if raw is not None and raw.hits:
                found.add("jobs.raw")
    return found


def told(provider: ScriptedOpenAI) -> None:
    provider.script.facts = {PIN: [{"subject": "user", "predicate": "pin", "object": SECRET}]}
    provider.script.summary = f"They told {SECRET}."


async def everywhere(learnt: Learning, user: str) -> Receipt:
    """Put the secret wherever a secret can be; the turn that holds it."""
    receipt = await learnt.learn(user, [PIN, "I like tea."])
    await learnt.memory.remember(PIN, user_id=user, session_id="s1", save={"history"})  # accepted, not stored yet
    dead = await learnt.memory.remember([PIN, "Green, mostly."], user_id=user, session_id="s1")
    leases = await learnt.ledger.claim(JobKind.STORE, worker="w", for_=timedelta(seconds=30), ids=[dead.job_id])
    await learnt.ledger.mark_dead(None, leases[0], FAILURE)
    return receipt


async def test_a_user_who_is_forgotten_is_in_no_table_any_more(opened: Opened, provider: ScriptedOpenAI) -> None:
    told(provider)
    async with opened(**AT_ONCE) as learnt:
        await everywhere(learnt, "gone")
        await learnt.memory.blocks.set("human", f"knows {SECRET}", user_id="gone")
        assert await places(learnt, SECRET) >= {"episodes", "facts", "summaries", "blocks", "jobs.raw"}

        await learnt.memory.forget(user_id="gone")
        await learnt.settle()
        taken = await learnt.memory.export(user_id="gone")

        assert await places(learnt, SECRET) == set()
        assert not any((taken.episodes, taken.facts, taken.blocks, taken.summaries, taken.jobs, taken.extraction))
        assert taken.profile is None


@pytest.mark.parametrize("how", ["session", "before", "ids"])
async def test_a_part_that_is_forgotten_is_in_no_table_any_more(
    how: str, opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    told(provider)
    async with opened(**AT_ONCE) as learnt:
        receipt = await everywhere(learnt, user)
        provider.script.summary = "They told what they like."
        await learnt.learn(user, ["I like jazz."], session="s2")
        pending = [each.id for each in await learnt.memory.history(user_id=user) if SECRET in each.content]
        buried = await learnt.memory.dead_letters.list(JobFilter(namespace="default", user_id=user))
        forgets: dict[str, Callable[[], Awaitable[object]]] = {
            "session": lambda: learnt.memory.forget(user_id=user, session_id="s1"),
            "before": lambda: learnt.memory.forget(user_id=user, before=datetime.now(UTC)),
            "ids": lambda: learnt.memory.forget(
                user_id=user, ids=[*receipt.episode_ids, *pending, *_first_messages(buried)]
            ),
        }

        await forgets[how]()
        await learnt.settle()

        assert await places(learnt, SECRET) == set()
        left = [each.content for each in await learnt.memory.history(user_id=user)]
        assert SECRET not in "".join(left)
        assert ("I like jazz." in left) is (how != "before")


def _first_messages(jobs: Sequence[Job]) -> list[EpisodeId]:
    return [decode_turn(job.raw or b"").episode_ids[0] for job in jobs]


async def test_an_extraction_on_its_way_for_something_forgotten_writes_nothing(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    told(provider)
    async with opened() as learnt:
        provider.script.latency_seconds = 0.5
        receipt = await learnt.memory.remember([PIN, "I like tea."], user_id=user, session_id="s1")
        working = asyncio.create_task(learnt.settle())
        await wait_until(lambda: provider.calls.by_kind.get("AnsweredExtraction"), description="the model is asked")
        provider.script.latency_seconds = 0.0
        await learnt.memory.forget(user_id=user, ids=receipt.episode_ids[:1])
        await working

        assert await learnt.memory.facts.history(user_id=user) == []
        assert [each.content for each in await learnt.memory.history(user_id=user)] == ["I like tea."]
        assert await places(learnt, SECRET) == set()


async def events_of(learnt: Learning, user: str) -> list[str]:
    async with learnt.owner.transaction(read_only=True) as tx:
        rows = await pg(tx).rows(text("SELECT id FROM aftermind.events WHERE user_id = :user"), user=user)
    return [row.id for row in rows]


async def test_a_job_that_begins_while_its_user_is_forgotten_leaves_no_event(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as learnt:
        announce, begun = job_events.started, list[Job]()

        async def forget_first(runtime: Any, leases: Sequence[Lease]) -> None:
            mine = [lease.job for lease in leases if lease.job.kind in job_events.MODEL_KINDS]
            if mine and not begun:
                await learnt.memory.forget(user_id="gone")
            begun.extend(mine)
            await announce(runtime, leases)

        monkeypatch.setattr(job_events, "started", forget_first)
        await learnt.memory.remember("I like tea.", user_id="gone", session_id="s1")
        await learnt.settle()

        assert begun
        assert await events_of(learnt, "gone") == []


async def test_the_event_of_a_job_that_ends_during_a_forget_is_forgotten_too(opened: Opened) -> None:
    async with opened() as learnt:
        receipt = await learnt.memory.remember("I like tea.", user_id="gone", session_id="s1")
        leases = await learnt.ledger.claim(JobKind.STORE, worker="w", for_=timedelta(seconds=30), ids=[receipt.job_id])
        event = MemoryUpdateStarted(
            id="e1", scope=Scope(user_id="gone"), at=datetime.now(UTC), job_id=str(receipt.job_id), kind="store"
        )
        async with learnt.database.transaction(namespace="default") as tx:
            assert await learnt.ledger.hold(tx, leases) == {lease.job.id for lease in leases}
            await learnt.memory._parts.events.append(tx, [event])
            forgetting = asyncio.create_task(learnt.memory.forget(user_id="gone"))
            await wait_until(lambda: is_waiting(learnt), description="the forget waits for the job")
        await forgetting

        assert await events_of(learnt, "gone") == []


async def test_the_note_of_a_restored_job_is_erased_by_a_forget_that_waited_for_the_restore(
    opened: Opened, user: str
) -> None:
    async with opened(summary_quiet_seconds=3600.0) as learnt:
        await learnt.learn(user, ["I like tea."])
        wanted = JobFilter(namespace="default", user_id=user)
        done = await learnt.memory.job_admin.apply("discard", wanted, note=SECRET, actor="ops")
        async with learnt.database.transaction(namespace="default") as tx:
            restored = await learnt.memory._parts.job_operations.restore(tx, wanted, actor="ops")
            forgetting = asyncio.create_task(learnt.memory.forget(user_id=user))
            await wait_until(lambda: is_waiting(learnt), description="the forget waits for the restored jobs")
        await forgetting

        assert done.changed == restored.total() > 0
        assert await places(learnt, SECRET) <= {"audit_log"}


async def is_waiting(learnt: Learning) -> bool:
    async with learnt.owner.transaction(read_only=True) as tx:
        found = await pg(tx).rows(text("SELECT 1 FROM pg_locks WHERE NOT granted"))
    return bool(found)


_LATE = text("UPDATE aftermind.jobs SET created_at = clock_timestamp() + interval '1 minute' WHERE user_id = :user")
_STATES = text("SELECT session_id, kind, state FROM aftermind.jobs WHERE user_id = :user AND session_id IS NOT NULL")


async def test_a_job_that_an_effect_under_way_put_in_during_the_forget_goes_too(opened: Opened, user: str) -> None:
    """Its transaction began after the tombstone got its time, and ended before the forget had the user's row."""
    async with opened(summary_quiet_seconds=3600.0) as learnt:
        for session in ("s1", "s2"):
            await learnt.learn(user, ["I like tea."], session=session)
        async with learnt.owner.transaction() as tx:
            await pg(tx).execute(_LATE, {"user": user})

        await learnt.memory.forget(user_id=user, session_id="s1")

        async with learnt.owner.transaction(read_only=True) as tx:
            found = [tuple(row) for row in await pg(tx).rows(_STATES, user=user)]
        waits = {session for session, kind, state in found if kind == "summarise" and state == "queued"}
        assert waits == {"s2"}


async def test_the_answer_that_waits_for_a_retry_goes_with_what_it_drew_on(
    opened: Opened, provider: ScriptedOpenAI, user: str
) -> None:
    told(provider)
    async with opened(extract_quiet_seconds=60.0, extract_max_wait_seconds=60.0) as learnt:
        receipt = await learnt.learn(user, [PIN])
        [job] = await learnt.ledger.jobs(kinds=[JobKind.EXTRACT])
        await learnt.due(job.id)
        [lease] = await learnt.ledger.claim(JobKind.EXTRACT, worker="w", for_=timedelta(seconds=30))
        kept = {"extraction": {"claims": [SECRET]}, "episodes": [str(each) for each in receipt.episode_ids]}
        await learnt.ledger.save_answer(lease, kept, spent=ModelUsage())
        await learnt.ledger.retry(lease, FAILURE, after=timedelta(seconds=0))
        assert "jobs" in await places(learnt, SECRET)

        await learnt.memory.forget(user_id=user, ids=receipt.episode_ids)

        found = await learnt.ledger.job(job.id)
        assert found is not None
        assert found.answer is None
        await learnt.settle()
        assert provider.calls.by_kind == {}, "there is nothing left to ask about"


async def test_an_idempotency_key_can_be_used_again_after_its_user_was_forgotten(opened: Opened, user: str) -> None:
    async with opened(extractor="off") as learnt:
        for _ in range(2):
            await learnt.memory.remember("I like tea.", user_id=user, idempotency_key="once")
            await learnt.settle()
        before = await learnt.memory.history(user_id=user)
        await learnt.memory.forget(user_id=user)
        again = await learnt.memory.remember("I like tea.", user_id=user, idempotency_key="once")
        await learnt.settle()

        await again.stored(timeout=180)
        after = await learnt.memory.history(user_id=user)

    assert [each.content for each in before] == [each.content for each in after] == ["I like tea."]


@pytest.mark.parametrize("by", ["id", "time"])
async def test_a_turn_that_was_forgotten_by_id_or_time_stays_so_when_it_is_repeated(
    opened: Opened, user: str, by: str
) -> None:
    said: dict[str, Any] = {"user_id": user, "idempotency_key": "once"}  # Any: arguments of several calls
    async with opened(extractor="off") as learnt:
        memory = learnt.memory
        first = await memory.remember("I like tea.", **said)
        await learnt.settle()
        chosen = {"ids": first.episode_ids} if by == "id" else {"before": datetime.now(UTC) + timedelta(days=1)}
        await memory.forget(user_id=user, **chosen)  # type: ignore[arg-type]
        again = await memory.remember("I like tea.", **said)

        while_it_waits = await memory.history(user_id=user), (await memory.recall("tea", user_id=user)).text
        await learnt.settle()
        states = [(await each.status()).stored for each in (first, again)]
        with pytest.raises(errors.Forgotten):
            await again.stored(timeout=180)
        later = await memory.history(user_id=user)
        await memory.forget(user_id=user)
        reused = await memory.remember("I like tea.", **said)
        await learnt.settle()
        state = (await reused.status()).stored
        [episode] = await memory.history(user_id=user)

    assert while_it_waits == ([], "")
    assert states == [StepState.FORGOTTEN] * 2
    assert later == []
    assert (state, episode.content, episode.pending) == (StepState.DONE, "I like tea.", False)


async def test_a_repeated_turn_does_not_show_what_was_forgotten_of_it(opened: Opened, user: str) -> None:
    turn = [Message.user("I like tea."), Message.assistant("Noted.")]
    async with opened(extractor="off") as learnt:
        first = await learnt.memory.remember(turn, user_id=user, idempotency_key="once")
        await learnt.settle()
        await learnt.memory.forget(user_id=user, ids=first.episode_ids[:1])
        again = await learnt.memory.remember(turn, user_id=user, idempotency_key="once")

        shown = await learnt.memory.history(user_id=user)
        state = (await again.status()).stored

    assert [each.content for each in shown] == ["Noted."]
    assert state is StepState.DONE


async def test_an_export_has_everything_that_is_there(opened: Opened, provider: ScriptedOpenAI, user: str) -> None:
    told(provider)
    async with opened(**AT_ONCE) as learnt:
        await everywhere(learnt, user)
        await learnt.memory.blocks.set("human", "short answers", user_id=user)
        taken = await learnt.memory.export(user_id=user, vectors=True)

    assert {each.content for each in taken.episodes} == {PIN, "I like tea."}
    assert sum(each.pending for each in taken.episodes) == 1
    assert set(taken.vectors) == {each.id for each in taken.episodes if not each.pending}
    assert [(fact.predicate, fact.object) for fact in taken.facts] == [("pin", SECRET)]
    assert [block.name for block in taken.blocks] == ["human"]
    assert [summary.text for summary in taken.summaries] == [f"They told {SECRET}."]
    assert taken.profile is not None
    assert "turns_seen" in taken.profile.traits
    assert {job.state for job in taken.jobs} == {JobState.QUEUED, JobState.DEAD}
    assert any(SECRET.encode() in (job.raw or b"") for job in taken.jobs if job.state is JobState.DEAD)
    assert len(taken.extraction) == 2
    assert {each.kind for each in taken.spending} == {JobKind.EXTRACT, JobKind.SUMMARISE, JobKind.PROFILE}
