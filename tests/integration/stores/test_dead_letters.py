"""Dead letters on stores of one process: listed, grouped, discarded, replayed, and kept over a restart."""

from datetime import timedelta
from pathlib import Path

import pytest

from aftermind import JobFilter, Memory, Settings, errors
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.ledger.inmemory import replays
from aftermind.ledger.inmemory.replays import InMemoryReplays
from aftermind.ledger.protocol import Failure
from aftermind.ledger.replay_protocol import NewPlan
from aftermind.llm.offline.rule_extractor import RuleExtractor
from aftermind.llm.protocols import Extraction, ExtractionRequest, Extractor
from aftermind.receipt import StepState
from aftermind.types import JobKind, JobState
from aftermind.types.replay import ItemState, PlanState, ReplayPlan
from aftermind.wire.turn_encoding import encode_turn
from tests.support.turns import turn_of
from tests.support.waiting import PATIENCE_SECONDS, wait_until

FAILURE = ("reason_code", "error_class", "error", "fingerprint")
RETRY = NewPlan(name="again", reason="the model reads it now", actor="ops", rate=100)


class RefusingModel:
    """An extractor whose model refuses everything."""

    name, version = "refusing", "1"

    async def extract(self, request: ExtractionRequest) -> Extraction:
        raise errors.ModelRefused("refusing", "it must not be read")


@pytest.fixture(params=["inmemory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "inmemory" if request.param == "inmemory" else f"sqlite:{tmp_path}/bot.db"


def memory_at(url: str, folder: Path, extractor: Extractor | None = None) -> Memory:
    settings = Settings(state_dir=folder, embedder="off", extract_quiet_seconds=0.1)
    return Memory(url, extractor=extractor or RefusingModel(), settings=settings)


async def dead_extractions(memory: Memory, users: int) -> None:
    for number in range(users):
        await (await memory.remember("I live in Oslo.", user_id=f"user {number}")).stored(timeout=PATIENCE_SECONDS)
    await are_dead_letters(memory, users)


async def are_dead_letters(memory: Memory, count: int) -> None:
    async def are_dead() -> bool:
        return len(await memory.dead_letters.list(JobFilter())) == count

    await wait_until(are_dead, description="all extractions are dead letters")


async def ended(memory: Memory, plan: ReplayPlan) -> ReplayPlan:
    async def is_over() -> ReplayPlan | None:
        found = await memory.replays.get(plan.id)
        return found if found is not None and found.state is not PlanState.RUNNING else None

    found = await wait_until(is_over, description="the plan runs no more")
    assert found is not None
    return found


async def test_a_dead_letter_is_listed_grouped_shown_and_discarded(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as memory:
        for user in ("alice", "bob"):
            await (await memory.remember("I live in Oslo.", user_id=user)).stored(timeout=PATIENCE_SECONDS)

        async def are_dead() -> bool:
            return len(await memory.dead_letters.list(JobFilter())) == 2

        await wait_until(are_dead, description="both extractions are dead letters")
        (group,) = await memory.dead_letters.groups(JobFilter())
        assert (group.kind, group.reason_code, group.count) == (JobKind.EXTRACT, "policy_blocked", 2)
        of_alice = JobFilter(namespace="default", user_id="alice", kinds=(JobKind.EXTRACT,), error="MUST NOT")
        (job,) = await memory.dead_letters.list(of_alice)
        assert await memory.dead_letters.list(JobFilter(reasons=("other",))) == []
        letter = await memory.dead_letters.get(job.id)
        assert letter is not None
        assert [each.outcome for each in letter.attempts] == ["dead"]

        with pytest.raises(errors.InvalidFilter, match="a reason and an actor"):
            await memory.dead_letters.discard(of_alice, note=" ", actor="ops")
        assert await memory.dead_letters.discard(of_alice, note="not needed", actor="ops") == 1
        assert await memory.dead_letters.discard(of_alice, note="not needed", actor="ops") == 0
        assert [each.scope.user_id for each in await memory.dead_letters.list(JobFilter())] == ["bob"]
    if url == "inmemory":
        return
    async with memory_at(url, tmp_path) as memory:
        assert [each.scope.user_id for each in await memory.dead_letters.list(JobFilter())] == ["bob"]
        (closed,) = await memory.dead_letters.list(JobFilter(states=(JobState.DISCARDED,)))
        assert (closed.id, closed.note) == (job.id, "not needed (ops)")


async def test_a_plan_retries_dead_letters_and_their_receipts_wait_for_it(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with memory_at(url, tmp_path) as memory:
        await dead_extractions(memory, users=3)
        letters = await memory.dead_letters.list(JobFilter())
        plan = await memory.replays.create(JobFilter(kinds=(JobKind.EXTRACT,)), RETRY)
        estimate = await memory.replays.estimate(plan.id)
        assert (plan.state, plan.counts, estimate.items) == (PlanState.DRAFT, {ItemState.WAITING: 3}, 3)
        assert (estimate.by_kind, estimate.model_calls, estimate.refused) == ({JobKind.EXTRACT: 3}, 3, 0)

    async with memory_at(url, tmp_path, RuleExtractor()) as memory:
        await memory.job_admin.pause(kind=JobKind.EXTRACT, reason="so that a job waits", actor="ops")
        receipt = await memory.remember("I like tea.", user_id="user 0")
        await receipt.stored(timeout=PATIENCE_SECONDS)
        started = await memory.replays.start(plan.id)

        async def are_enqueued() -> bool:
            return all(each.state is not ItemState.WAITING for each in await memory.replays.list_items(plan.id))

        await wait_until(are_enqueued, description="each item has a job")
        await memory.job_admin.resume(kind=JobKind.EXTRACT, actor="ops")
        done = await ended(memory, started)
        items = await memory.replays.list_items(plan.id)
        await receipt.extracted(timeout=PATIENCE_SECONDS)
        facts = [await memory.facts.query(user_id=f"user {number}") for number in range(3)]
        jobs = [await memory.dead_letters.get(each.id) for each in letters]

        assert (done.state, done.counts) == (PlanState.DONE, {ItemState.DONE: 3})
        assert [(each.state, each.new_state) for each in items] == [(ItemState.DONE, JobState.DONE)] * 3
        assert all("Oslo" in {fact.object for fact in each} for each in facts)
        assert [each.job.state for each in jobs if each] == [JobState.REPLAYED] * 3
        assert sorted(len(each.successors) for each in jobs if each) == [0, 1, 1]  # one was merged into a waiting job
        assert await memory.dead_letters.list(JobFilter()) == []
        with pytest.raises(errors.ReplayConflict):
            await memory.replays.start(plan.id)


async def test_a_plan_continues_when_the_store_is_opened_again(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/bot.db"
    async with memory_at(url, tmp_path) as memory:
        await dead_extractions(memory, users=3)
        plan = await memory.replays.create(JobFilter(), NewPlan(name="slow", reason="r", actor="ops", rate=0.001))
        await memory.replays.start(plan.id)

        async def is_begun() -> bool:
            found = await memory.replays.get(plan.id)
            return found is not None and found.counts.get(ItemState.FAILED) == 1  # it was refused again

        await wait_until(is_begun, description="the first job was retried")

    async with memory_at(url, tmp_path, RuleExtractor()) as memory:
        found = await ended(memory, await memory.replays.start(plan.id, rate=100))
        (letter,) = await memory.dead_letters.list(JobFilter())  # of the job that was refused again
        again = await ended(memory, await memory.replays.start((await memory.replays.create(JobFilter(), RETRY)).id))

        assert found.counts == {ItemState.FAILED: 1, ItemState.DONE: 2}
        assert again.counts == {ItemState.DONE: 1}
        assert await memory.facts.query(user_id=letter.scope.user_id)
        assert [each.id for each in await memory.replays.list()] == [again.id, plan.id]


async def test_a_plan_pauses_if_too_many_fail_again_and_can_be_aborted(url: str, tmp_path: Path) -> None:
    async with memory_at(url, tmp_path) as memory:
        await dead_extractions(memory, users=12)
        plan = await memory.replays.create(JobFilter(), NewPlan(name="n", reason="r", actor="ops", rate=50))
        paused = await ended(memory, await memory.replays.start(plan.id))
        aborted = await memory.replays.abort(plan.id, note="the model refuses them")

        assert paused.state is PlanState.PAUSED
        assert "failed again, the last by policy_blocked" in (paused.note or "")
        assert (aborted.state, aborted.note) == (PlanState.ABORTED, "the model refuses them")
        await are_dead_letters(memory, 12)  # those that were not retried, and the successors of the others


async def test_of_finished_plans_the_newest_are_kept(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "MAX_FINISHED_PLANS", 2)
    async with memory_at(url, tmp_path) as memory:
        await dead_extractions(memory, users=1)
        draft = await memory.replays.create(JobFilter(), RETRY)
        plans = []
        for _ in range(4):
            plans.append(await memory.replays.create(JobFilter(), RETRY))
            await memory.replays.abort(plans[-1].id, note="not now")
        last = await memory.replays.create(JobFilter(), RETRY)

        assert {each.id for each in await memory.replays.list()} == {draft.id, last.id, plans[2].id, plans[3].id}
        assert await memory.replays.list_items(plans[0].id) == []
        assert len(await memory.replays.list_items(plans[3].id)) == 1


async def test_a_turn_that_died_twice_is_stored_by_its_second_retry(tmp_path: Path) -> None:
    turn, failure = turn_of("alice", "I live in Oslo."), Failure(**dict.fromkeys(FAILURE, "outage"))
    async with memory_at("inmemory", tmp_path) as memory:
        db, ledger = memory._parts.db, memory._parts.ledger
        async with db.transaction() as tx:
            await ledger.dead_letter_turn(tx, turn.job_id, turn.scope.owner, encode_turn(turn), failure)
        assert isinstance(db, MemoryDatabase)
        unheard = InMemoryReplays(db)  # the queue is not woken: its first retry is claimed here
        await unheard.start((await unheard.create(JobFilter(), RETRY)).id)
        await unheard.step()
        (lease,) = await ledger.claim(JobKind.STORE, worker="test", for_=timedelta(seconds=60))
        await ledger.mark_dead(None, lease, failure)

        done = await ended(memory, await memory.replays.start((await memory.replays.create(JobFilter(), RETRY)).id))

        assert done.counts == {ItemState.DONE: 1}
        assert [each.content for each in await memory.history(user_id="alice")] == ["I live in Oslo."]
        status = await memory.jobs.status(turn.job_id, user_id="alice")
        assert status is not None
        assert status.stored == StepState.DONE, "of the turn, by the second job that replays it"
