"""A plan brings back what it froze, at its pace, once each; it stops when told, and when the cause persists."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from aftermind import errors
from aftermind.db.engine import PostgresDatabase
from aftermind.ledger.postgres import replay_plans
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.ledger.replay_protocol import NewPlan, Step
from aftermind.types import JobKind, JobState
from aftermind.types.replay import ItemState, JobFilter, PlanState, ReplayMode, ReplayPlan
from tests.support.dead_letters import Letters
from tests.support.replay_engine import SteppedReplays as Replays
from tests.support.waiting import wait_until

FAST = 1_000.0  # jobs a second: the pace is not what a test waits for


async def running(replays: Replays, wanted: JobFilter | None = None, **values: object) -> ReplayPlan:
    """A plan over all dead letters, started."""
    named = {"name": "plan", "reason": "the model is back", "actor": "ops", "rate": FAST, "concurrency": 100}
    plan = await replays.create(wanted or JobFilter(), NewPlan(**{**named, **values}))  # type: ignore[arg-type]
    return await replays.start(plan.id)


async def step_until(replays: Replays, plan: ReplayPlan, count: int) -> list[Step]:
    """Steps until so many jobs are back."""
    steps = [await replays.step(plan.id)]
    while sum(step.replayed for step in steps) < count:
        await asyncio.sleep(steps[-1].wait_seconds or 0)
        steps.append(await replays.step(plan.id))
    return steps


async def test_each_item_has_exactly_one_successor_with_its_payload(replays: Replays, letters: Letters) -> None:
    old = await letters.mark_dead(7)
    plan = await running(replays)

    await step_until(replays, plan, 7)

    assert await letters.successors() == dict.fromkeys(old, 1)
    rows = await letters.connection.fetch("SELECT payload, raw, attempts FROM aftermind.jobs WHERE state = 'queued'")
    assert {(row["payload"], row["raw"], row["attempts"]) for row in rows} == {('{"episodes": ["e"]}', b"whole", 0)}


async def test_what_dies_after_the_plan_was_made_is_not_in_it(replays: Replays, letters: Letters) -> None:
    await letters.mark_dead(2)
    plan = await running(replays)
    await letters.mark_dead(5)

    await step_until(replays, plan, 2)
    await letters.end("done")
    await replays.step(plan.id)

    found = await replays.get(plan.id)
    assert found is not None
    assert (found.state, found.counts) == (PlanState.DONE, {ItemState.DONE: 2})
    assert (await letters.states())["dead"] == 5


async def test_a_plan_that_fits_nothing_is_refused_and_leaves_nothing(replays: Replays, letters: Letters) -> None:
    with pytest.raises(errors.InvalidFilter, match="no dead letter fits"):
        await running(replays)

    assert await replays.list() == []


async def test_two_plans_over_the_same_letters_bring_each_back_once(replays: Replays, letters: Letters) -> None:
    old = await letters.mark_dead(20)
    plans = [await running(replays) for _ in range(2)]

    for _ in range(6):
        await asyncio.gather(*(replays.step(plan.id) for plan in plans))
        await asyncio.sleep(0.01)

    assert await letters.successors() == dict.fromkeys(old, 1)
    counts = [(await replays.list_items(plan.id, limit=50)) for plan in plans]
    states = sorted(item.state for items in counts for item in items)
    assert states == [ItemState.REPLAYED] * 20 + [ItemState.SKIPPED] * 20


async def test_two_letters_of_one_effect_share_a_successor(replays: Replays, letters: Letters) -> None:
    await letters.mark_dead(2, effect="session-1")
    plan = await running(replays)

    await step_until(replays, plan, 2)

    assert await letters.states() == {"replayed": 2, "queued": 1}
    assert len({item.new_job_id for item in await replays.list_items(plan.id)}) == 1


async def test_an_item_waits_while_a_job_of_its_effect_runs(replays: Replays, letters: Letters) -> None:
    await letters.mark_dead(effect="session-1")
    [live] = await letters.mark_dead(effect="session-1", state="running")
    plan = await running(replays)

    assert (await replays.step(plan.id)).replayed == 0
    await letters.end("done", [live])
    await step_until(replays, plan, 1)

    assert (await letters.states()) == {"replayed": 1, "done": 1, "queued": 1}


async def test_replaying_while_the_cause_persists_does_not_double_the_entry(replays: Replays, letters: Letters) -> None:
    await letters.mark_dead(3)

    for _ in range(4):
        plan = await running(replays)
        await step_until(replays, plan, 3)
        await letters.end("dead")
        await replays.step(plan.id)

    assert (await letters.states())["dead"] == 3


async def test_a_plan_pauses_by_itself_when_too_many_fail_again(replays: Replays, letters: Letters) -> None:
    await letters.mark_dead(100)
    plan = await running(replays, concurrency=20)

    await step_until(replays, plan, 20)
    await letters.end("dead")
    await replays.step(plan.id)

    paused = await replays.get(plan.id)
    assert paused is not None
    assert paused.state is PlanState.PAUSED
    assert "20 of the last 20" in (paused.note or "")
    assert paused.counts == {ItemState.FAILED: 20, ItemState.WAITING: 80}


async def test_a_paused_plan_goes_on_where_it_was(replays: Replays, letters: Letters) -> None:
    old = await letters.mark_dead(10)
    plan = await running(replays, concurrency=4)
    await step_until(replays, plan, 4)

    await replays.pause(plan.id, note="lunch")
    await letters.end("done")
    assert (await replays.step(plan.id)).replayed == 0
    await replays.start(plan.id)
    await step_until(replays, plan, 4)

    assert len(await letters.successors()) == 8
    assert set(await letters.successors()) <= set(old)


async def test_what_waited_stays_a_dead_letter_after_an_abort(replays: Replays, letters: Letters) -> None:
    await letters.mark_dead(10)
    plan = await running(replays, concurrency=3)
    await step_until(replays, plan, 3)

    aborted = await replays.abort(plan.id, note="wrong plan")
    await letters.end("done")
    await replays.step(plan.id)

    assert aborted.state is PlanState.ABORTED
    assert await letters.states() == {"replayed": 3, "done": 3, "dead": 7}
    with pytest.raises(errors.ReplayConflict, match="aborted"):
        await replays.start(plan.id)


async def test_the_pace_is_kept(replays: Replays, letters: Letters) -> None:
    await letters.mark_dead(60)
    plan = await running(replays, rate=40.0)
    loop = asyncio.get_running_loop()
    began = loop.time()

    await step_until(replays, plan, 41)

    assert 0.9 < loop.time() - began < 1.2  # the first at once, then 40 in a second


async def test_a_payload_is_edited_in_the_successor_only(replays: Replays, letters: Letters) -> None:
    [old] = await letters.mark_dead(kind="extract")
    plan = await running(replays, mode=ReplayMode.EDITED, overrides={"model": "gpt-5"})

    await step_until(replays, plan, 1)

    rows = await letters.connection.fetch("SELECT id, payload::text FROM aftermind.jobs")
    payloads = {row["id"]: row["payload"] for row in rows}
    assert payloads.pop(old) == '{"episodes": ["e"]}'
    assert list(payloads.values()) == ['{"model": "gpt-5", "episodes": ["e"], "reextract": true}']


async def test_extractions_that_succeeded_can_be_repeated_too(replays: Replays, letters: Letters) -> None:
    [done] = await letters.mark_dead(kind="extract", state="done")
    await letters.mine(done)
    await letters.mark_dead(kind="embed", state="done")
    await letters.mark_dead(kind="extract", state="done")  # another has had the last word about what it mined
    wanted = JobFilter(namespace="default")
    plan = await running(replays, wanted, mode=ReplayMode.REEXTRACT, overrides={"model": "gpt-5"})

    await step_until(replays, plan, 1)

    assert await letters.states() == {"done": 3, "queued": 1}
    payload = await letters.connection.fetchval("SELECT payload FROM aftermind.jobs WHERE origin_job_id = $1", done)
    assert payload == '{"model": "gpt-5", "episodes": ["e"], "reextract": true}'


async def test_a_dry_run_counts_and_changes_nothing(replays: Replays, letters: Letters) -> None:
    await letters.mark_dead(6, kind="extract", effect=None)
    await letters.mark_dead(kind="embed", effect="one", namespace="other")
    await letters.mark_dead(kind="embed", effect="one", namespace="other", state="queued")
    [priced] = await letters.mark_dead(kind="extract", state="done")
    await letters.connection.execute(
        "INSERT INTO aftermind.job_attempts "
        "(namespace, job_id, number, worker, started_at, tokens_in, tokens_out, cost_usd) "
        "VALUES ('default', $1, 1, 'w', now(), 90, 10, 0.5)",
        priced,
    )
    before = await letters.states()
    plan = await replays.create(JobFilter(), NewPlan(name="p", reason="r", actor="a", rate=2.0))

    estimate = await replays.estimate(plan.id)

    assert (estimate.items, estimate.by_kind) == (7, {JobKind.EXTRACT: 6, JobKind.EMBED: 1})
    assert estimate.namespaces == 2
    assert (estimate.seconds, estimate.model_calls, estimate.tokens, estimate.cost_usd) == (3.5, 7, 600, 3.0)
    assert estimate.unestimated_calls == 1, "no embed job has used tokens"
    assert (estimate.conflicts, estimate.refused) == (1, 0)
    assert await letters.states() == before


async def test_what_was_forgotten_meanwhile_is_skipped_and_said_so(replays: Replays, letters: Letters) -> None:
    gone, kept, forgotten = await letters.mark_dead(3)
    plan = await running(replays)
    await letters.connection.execute("DELETE FROM aftermind.jobs WHERE id = $1", gone)
    await letters.connection.execute("UPDATE aftermind.jobs SET state = 'forgotten' WHERE id = $1", forgotten)

    for _ in range(3):
        await replays.step(plan.id)
        await letters.end("done")

    notes = {item.job_id: (item.state, item.note) for item in await replays.list_items(plan.id)}
    assert notes == {
        gone: (ItemState.SKIPPED, "the job was deleted"),
        kept: (ItemState.DONE, None),
        forgotten: (ItemState.SKIPPED, "it is forgotten"),
    }


DISCARD = "UPDATE aftermind.jobs SET state = 'discarded', action_id = gen_random_uuid(), updated_at = $2 WHERE id = $1"


@pytest.mark.parametrize("is_planned_before", [True, False])
async def test_a_discard_that_commits_while_a_plan_runs_takes_its_job_out(
    replays: Replays, letters: Letters, is_planned_before: bool
) -> None:
    """The step waits for the row; a plan that is created before the commit has the job as a dead letter."""
    kept, discarded = await letters.mark_dead(2)
    begun_at = datetime.now(UTC)
    plan = await running(replays) if is_planned_before else None
    transaction = letters.connection.transaction()
    await transaction.start()
    await letters.connection.execute(DISCARD, discarded, begun_at)
    plan = plan or await running(replays)

    step = asyncio.create_task(replays.step(plan.id))

    async def waits_for_the_row() -> bool:
        return bool(await letters.connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

    await wait_until(waits_for_the_row, description="the step waits for the lock of the row")
    await transaction.commit()
    await step

    found = await replays.get(plan.id)
    assert found is not None
    assert found.counts == {ItemState.REPLAYED: 1, ItemState.DISCARDED: 1}
    assert found.successors == {JobState.QUEUED: 1}
    assert await letters.successors() == {kept: 1}
    assert await letters.states() == {"replayed": 1, "queued": 1, "discarded": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [("reason", " "), ("actor", ""), ("rate", 0.0), ("rate", 1e9), ("concurrency", 0), ("max_failure_share", 1.5)],
)
async def test_values_that_cannot_be_meant_are_refused(
    replays: Replays, letters: Letters, field: str, value: object
) -> None:
    await letters.mark_dead()

    with pytest.raises(errors.InvalidFilter, match=field):
        await running(replays, None, **{field: value})


async def test_live_traffic_never_waits_behind_replays(
    replays: Replays, letters: Letters, postgres: PostgresDatabase
) -> None:
    ledger = PostgresLedger(postgres)
    await letters.mark_dead(5)
    plan = await running(replays)
    await step_until(replays, plan, 5)
    [live] = await letters.mark_dead(state="queued")

    lease = timedelta(seconds=30)
    taken = await ledger.claim(JobKind.EMBED, worker="live", for_=lease, limit=10)
    brought_back = await ledger.claim(JobKind.EMBED, worker="replay", for_=lease, limit=10, replays=True)
    backlog = next(each for each in await ledger.backlog() if each.kind is JobKind.EMBED)

    assert [each.job.id for each in taken] == [live]
    assert len(brought_back) == 5
    assert (backlog.runnable, backlog.replays, backlog.running) == (0, 0, 6)


async def test_of_finished_plans_the_newest_are_kept(
    replays: Replays, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_plans, "MAX_FINISHED_PLANS", 2)
    await letters.mark_dead(1)
    new = NewPlan(name="plan", reason="the model is back", actor="ops")
    draft = await replays.create(JobFilter(), new)
    plans = []
    for _ in range(4):
        plans.append(await replays.create(JobFilter(), new))
        await replays.abort(plans[-1].id, note="not now")
    last = await replays.create(JobFilter(), new)

    assert {each.id for each in await replays.list()} == {draft.id, last.id, plans[2].id, plans[3].id}
    assert await replays.list_items(plans[0].id) == []
    assert len(await replays.list_items(plans[3].id)) == 1
