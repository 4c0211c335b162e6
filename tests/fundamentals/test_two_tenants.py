"""Two tenants with users of the same names, over the whole public face: random calls, and not one foreign row.

`make isolation` makes 10,000 of them; the suite a few hundred.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from aftermind import ItemWrite, Memory, RecallBlock, Settings, errors
from aftermind.receipt import Receipt
from aftermind.types import JobId, JobKind, NewJob, Scope
from aftermind.types.replay import JobFilter
from tests.support.servers import psql

CALLS_OF_A_PLAN = 50
PLANS = int(os.environ.get("ISOLATION_CALLS", "400")) // CALLS_OF_A_PLAN
TENANTS = ("acme", "globex")
USERS = ("alice", "bob", None)
WORDS = ("pottery", "Oslo", "the bus", "lemon cake", "night shift")
HEARD = 0.05  # seconds of listening to events


def canary(tenant: str) -> str:
    """A word that only this tenant says."""
    return f"canary{tenant}"


@dataclass(slots=True)
class World:
    """A memory as an agent opens it, and the ids that each tenant was given: the other one tries them too."""

    memory: Memory
    runner: asyncio.Runner
    calls: int = 0
    episodes: dict[str, list[UUID]] = field(default_factory=lambda: {tenant: [] for tenant in TENANTS})
    facts: dict[str, list[UUID]] = field(default_factory=lambda: {tenant: [] for tenant in TENANTS})
    receipts: dict[str, list[Receipt]] = field(default_factory=lambda: {tenant: [] for tenant in TENANTS})


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the face by one tenant. `number` chooses among what there is to choose from."""

    action: str
    tenant: str
    user: str | None
    word: str
    number: int

    @property
    def other(self) -> str:
        """The other tenant."""
        return TENANTS[1 - TENANTS.index(self.tenant)]

    @property
    def who(self) -> dict[str, str | None]:
        """Whose memory is asked for."""
        return {"namespace": self.tenant, "user_id": self.user}

    @property
    def text(self) -> str:
        """What the tenant says."""
        return f"I like {self.word}, says {canary(self.tenant)}"

    def pick(self, found: dict[str, list[UUID]], tenant: str) -> UUID:
        """An id of a tenant's, or one that nobody has."""
        ids = found[tenant]
        return ids[self.number % len(ids)] if ids else UUID(int=self.number)


Action = Callable[[World, Call], Awaitable[object]]


async def _remember(world: World, call: Call) -> object:
    accept = "postgres" if call.number % 4 == 0 else "redis"
    receipt = await world.memory.remember(call.text, **call.who, session_id="s", accept=accept)  # type: ignore[arg-type]
    world.episodes[call.tenant] += receipt.episode_ids
    world.receipts[call.tenant].append(receipt)
    return receipt


async def _add_fact(world: World, call: Call) -> object:
    fact = await world.memory.facts.add("user", f"likes {call.number % 5}", call.text, **call.who)
    world.facts[call.tenant].append(fact.id)
    return fact


async def _foreign_ids(world: World, call: Call) -> object:
    """Ids of the other tenant's: nothing is shown, nothing changes."""
    memory, fact = world.memory, call.pick(world.facts, call.other)
    assert await memory.facts.why(str(fact), **call.who) is None
    assert await memory.facts.retract(str(fact), **call.who) is False
    assert await memory.facts.correct(str(fact), "mine?", **call.who) is None
    forgot = await memory.forget(**call.who, ids=[str(call.pick(world.episodes, call.other))])
    assert not sum(forgot.rows.values())
    receipts = world.receipts[call.other]
    if receipts:
        job = receipts[call.number % len(receipts)].job_id
        own = Memory(settings=memory.settings, namespace=call.tenant)
        try:
            assert await own.dead_letters.get(job) is None
            assert await own.dead_letters.discard(JobFilter(ids=(job,)), note="mine?", actor=call.tenant) == 0
        finally:
            await own.close()
    return forgot


async def _dead(world: World, call: Call) -> object:
    own = Memory(settings=world.memory.settings, namespace=call.tenant)
    try:
        everything = JobFilter(ids=tuple(each.job_id for rs in world.receipts.values() for each in rs[-20:]))
        return [
            *await own.dead_letters.list(JobFilter()),
            *await own.dead_letters.list(everything),
            await own.dead_letters.groups(JobFilter()),
        ]
    finally:
        await own.close()


async def _events(world: World, call: Call) -> object:
    heard: list[object] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(HEARD):
            async for event in world.memory.events(**call.who, after="0"):
                assert event.scope is not None
                assert event.scope.namespace == call.tenant
                heard.append(event)
    return heard


async def _block(world: World, call: Call) -> object:
    blocks = world.memory.blocks
    if call.number % 3 == 0:
        return await blocks.set("human", call.text, **call.who)
    if call.number % 3 == 1:
        return await blocks.append("human", call.text, **call.who)
    return await blocks.delete("human", **call.who)


async def _write_item(world: World, call: Call) -> object:
    value = None if call.number % 5 == 0 else {"text": call.text}
    write = ItemWrite(path=("notes",), key=str(call.number % 3), value=value, vectors=[[1.0, call.number]])
    return await world.memory.items.write([write], **call.who)


async def _status(world: World, call: Call) -> object:
    receipts = world.receipts[call.tenant]
    return await receipts[call.number % len(receipts)].status() if receipts else None


ACTIONS: dict[str, Action] = {
    "remember": _remember,
    "remember more": _remember,
    "recall": lambda w, c: w.memory.recall(c.word, **c.who),
    "recall by words": lambda w, c: w.memory.recall(canary(c.other), **c.who, mode="lexical"),
    "recall by vector": lambda w, c: w.memory.recall(f"says {canary(c.other)}", **c.who, mode="vector"),
    "recall the newest": lambda w, c: w.memory.recall(c.word, **c.who, mode="recency"),
    "recall in session": lambda w, c: w.memory.recall(c.word, **c.who, in_session="s", roles=["user"]),
    "recall scored": lambda w, c: w.memory.recall_scored(c.word, **c.who),
    "explain": lambda w, c: w.memory.explain(c.word, **c.who, in_session="s"),
    "history": lambda w, c: w.memory.history(**c.who),
    "get": lambda w, c: w.memory.get(*(str(c.pick(w.episodes, each)) for each in TENANTS), **c.who),
    "search": lambda w, c: w.memory.search(**c.who, limit=1_000),
    "context": lambda w, c: w.memory.context_window(500, **c.who),
    "sessions": lambda w, c: w.memory.sessions(**c.who),
    "summary": lambda w, c: w.memory.summary(**c.who, session_id="s"),
    "profile": lambda w, c: w.memory.profile(**c.who),
    "progress": lambda w, c: w.memory.progress(**c.who),
    "export": lambda w, c: w.memory.export(**c.who),
    "learned": lambda w, c: w.memory.extraction(**c.who),
    "spending": lambda w, c: w.memory.spending(**c.who),
    "facts": lambda w, c: w.memory.facts.query(**c.who),
    "all facts": lambda w, c: w.memory.facts.history(**c.who),
    "add a fact": _add_fact,
    "why": lambda w, c: w.memory.facts.why(str(c.pick(w.facts, c.tenant)), **c.who),
    "blocks": lambda w, c: w.memory.blocks.list(**c.who),
    "a block": lambda w, c: w.memory.blocks.get("human", **c.who),
    "edit a block": _block,
    "write an item": _write_item,
    "items": lambda w, c: w.memory.items.search(**c.who, vector=[1.0, 0.0]),
    "an item": lambda w, c: w.memory.items.get((("notes",), "1"), **c.who),
    "events": _events,
    "dead letters": _dead,
    "status": _status,
    "foreign ids": _foreign_ids,
    "forget a turn": lambda w, c: w.memory.forget(**c.who, ids=[str(c.pick(w.episodes, c.tenant))]),
    "forget a user": lambda w, c: w.memory.forget(**c.who) if c.number % 10 == 0 else w.memory.health(),
    "replay plans": lambda w, c: _refused_or_nothing(w),
}


async def _refused_or_nothing(world: World) -> object:
    """Plans are of every tenant's jobs: an agent's role sees none and can make none."""
    assert await world.memory.replays.list() == []
    return None


@pytest.fixture(scope="module")
def world(settings: Settings, workers: None) -> Iterator[World]:
    as_agent = settings.model_copy(update={"relay_url": None})
    with asyncio.Runner() as runner:
        memory = Memory(settings=as_agent)
        yield World(memory=memory, runner=runner)
        runner.run(memory.close())


PLAN = st.lists(
    st.builds(
        Call,
        action=st.sampled_from(sorted(ACTIONS)),
        tenant=st.sampled_from(TENANTS),
        user=st.sampled_from(USERS),
        word=st.sampled_from(WORDS),
        number=st.integers(0, 1_000),
    ),
    min_size=CALLS_OF_A_PLAN,
    max_size=CALLS_OF_A_PLAN,
)


@pytest.mark.timeout(900)
@hypothesis_settings(
    max_examples=PLANS,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # what was stored stays from plan to plan, so a smaller plan proves nothing
)
@given(plan=PLAN)
def test_two_tenants_never_meet(world: World, plan: list[Call]) -> None:
    for call in plan:
        answer = world.runner.run(ACTIONS[call.action](world, call))
        world.calls += 1
        shown = repr(replace(answer, query="") if isinstance(answer, RecallBlock) else answer)
        assert canary(call.other) not in shown, f"{call} was shown what {call.other} said"
        foreign = {str(id_) for id_ in world.episodes[call.other][-50:]}
        assert not [id_ for id_ in foreign if id_ in shown], f"{call} was shown an id of {call.other}"


def test_after_all_of_it_each_row_is_where_it_belongs(world: World, settings: Settings) -> None:
    assert settings.database_url is not None
    url = settings.database_url.get_secret_value()
    rows = {
        tenant: psql(
            url,
            f"""
            SELECT set_config('aftermind.namespace', '{tenant}', false);
            SELECT (SELECT count(*) FROM aftermind.episodes), (SELECT count(*) FROM aftermind.facts),
                   (SELECT count(*) FROM aftermind.episodes WHERE content LIKE '%{canary(other)}%'),
                   (SELECT count(*) FROM aftermind.facts WHERE object LIKE '%{canary(other)}%'),
                   (SELECT count(*) FROM aftermind.blocks WHERE content LIKE '%{canary(other)}%'),
                   (SELECT count(*) FROM aftermind.items WHERE content LIKE '%{canary(other)}%'),
                   (SELECT count(*) FROM aftermind.summaries WHERE text LIKE '%{canary(other)}%'),
                   (SELECT count(*) FROM aftermind.jobs WHERE encode(raw, 'escape') LIKE '%{canary(other)}%')
            """,
        ).splitlines()[-1]
        for tenant, other in (TENANTS, TENANTS[::-1])
    }

    for tenant, counted in rows.items():
        episodes, facts, *foreign = (int(each) for each in counted.split("|"))
        assert episodes + facts > 0, f"{tenant} has nothing: nothing was tried"
        assert foreign == [0] * 6, f"{tenant} holds what the other said"


def test_a_turn_cannot_be_handed_over_for_another_tenant_by_its_job_id(world: World) -> None:
    """The ledger answers for its own tenant's jobs, whoever knows an id."""

    async def ask() -> None:
        receipt = await world.memory.remember("Mine.", namespace="acme", user_id="alice")
        await receipt.stored(timeout=180)
        ledger = world.memory._parts.ledger
        scope = world.memory._parts.scope(namespace="globex", user_id="alice")
        assert await ledger.job(receipt.job_id, owner=scope) is None
        assert await ledger.follow_ups(receipt.job_id, owner=scope) == {}
        assert await ledger.job(JobId(uuid4()), owner=scope) is None
        with pytest.raises(errors.NotAllowed):
            await _enqueue_across(world, scope)

    world.runner.run(ask())


async def _enqueue_across(world: World, mine: Scope) -> None:
    theirs = NewJob(id=JobId(uuid4()), kind=JobKind.FORGET, scope=replace(mine, namespace="acme"), effect_key="x")
    async with world.memory._parts.db.transaction(namespace=mine.namespace) as tx:
        await world.memory._parts.ledger.enqueue(tx, [theirs])
