"""How many model calls background learning makes, what they take, and whether a fact is lost or late.

`burst`: twenty turns in ten seconds in each of several sessions, through Redis, Postgres and real workers. `trickle`: a
turn a minute for an hour, by an injected clock, in one process. The model is a scripted server that answers only from
the turns in its prompt, so a turn that no call shows is a fact lost.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import text

from aftermind import Memory, Message
from aftermind.db import migrate
from aftermind.db.engine import PostgresDatabase
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.db.postgres_transaction import pg
from aftermind.events.inmemory import LocalBus
from aftermind.ledger.inmemory.ledger import InMemoryLedger
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.llm import factory
from aftermind.settings import Settings
from aftermind.stack import Endpoints
from aftermind.stores.inmemory import InMemoryStore
from aftermind.types import Fact, JobKind, Role, Scope, Turn
from aftermind.types.message import new_ids
from aftermind.wire import queues
from aftermind.wire.turn_encoding import encode_turn
from aftermind_tasks.inmemory import open_work
from benchmarks.common import Report, arguments, embedded_stack, percentile
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai
from tests.support.waiting import wait_until
from tests.support.workers import environment, workers

TURNS, SECONDS = 20, 10.0  # of a burst
MODEL_SECONDS = 1.0  # of every call, which is what a small hosted model takes
DIMENSION = 256
CALLS = {"AnsweredExtraction": "extraction", "AnsweredSummary": "summary", "AnsweredProfile": "profile"}
ALL_TIME = date(2000, 1, 1)
MODELS = {"embedder": "openai:scripted", "extractor": "openai:scripted", "embedding_dimension": DIMENSION}

# What waits for a quiet hour is not waited for: the calls are made, and counted, at once.
_DUE = text("UPDATE aftermind.jobs SET run_at = now() WHERE state IN ('queued', 'retrying')")
_LEFT = text("SELECT count(*) AS jobs FROM aftermind.jobs WHERE state IN ('queued', 'retrying', 'running')")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A turn of a user, and the fact that it holds."""

    user: str
    text: str
    predicate: str
    object: str

    @property
    def claim(self) -> dict[str, Any]:  # Any: JSON of the model's answer
        """What a good model draws from it."""
        cardinality = "single" if self.predicate == "lives_in" else "multi"
        given = {"subject": "user", "predicate": self.predicate, "object": self.object, "cardinality": cardinality}
        return {**given, "quote": self.text}

    def messages(self, *, at: datetime | None = None) -> list[Message]:
        """The turn: what the user says, and an answer."""
        answer = f"Good to know about {self.object}; is there anything else I should keep in mind about it?"
        return [
            Message(role=Role.USER, content=self.text, occurred_at=at),
            Message(role=Role.ASSISTANT, content=answer, occurred_at=at),
        ]


@dataclass(slots=True, kw_only=True)
class CallCost:
    """What one way of talking cost."""

    turns: int
    calls: Mapping[str, int] = field(default_factory=dict)
    tokens: int = 0
    lost: int = 0
    waits: Sequence[float] = ()

    def figures(self) -> dict[str, Any]:  # Any: numbers and a table of numbers
        """Per hundred turns. Embedding calls stand beside: they are not of a language model."""
        share = 100 / self.turns
        named = {CALLS[name]: round(count * share, 1) for name, count in self.calls.items() if name in CALLS}
        return {
            "calls_per_100_turns": round(sum(named.values()), 1),
            "tokens_per_100_turns": round(self.tokens * share),
            "fact_latency_p95_s": round(percentile(self.waits, 0.95), 2) if self.waits else None,
            "by_kind": named,
            "embedding_calls_per_100_turns": round(self.calls.get("embeddings", 0) * share, 1),
            "turns": self.turns,
        }


def conversation(user: str, turns: int) -> list[Reply]:
    """A fact a turn: likings that add up, and every fifth turn a home that takes the place of the one before."""
    said = []
    for number in range(turns):
        if number % 5 == 4:
            place = f"Town {number} of {user}"
            said.append(Reply(user=user, text=f"I have moved to {place}.", predicate="lives_in", object=place))
        else:
            thing = f"tune {number} of {user}"
            said.append(Reply(user=user, text=f"By the way, I like {thing}.", predicate="likes", object=thing))
    return said


def lost(said: Sequence[Reply], believed: Mapping[str, Sequence[Fact]]) -> int:
    """Turns whose fact is not among those that are believed of any time, exactly once."""
    rows = [
        (user, fact.predicate, fact.object)
        for user, facts in believed.items()
        for fact in facts
        if not fact.superseded_at
    ]
    return sum(rows.count((each.user, each.predicate, each.object)) != 1 for each in said)


@contextmanager
def scripted(said: Sequence[Reply]) -> Iterator[ScriptedOpenAI]:
    """A model that knows these turns, when it is shown them."""
    with scripted_openai() as model:
        model.script.facts = {each.text: [each.claim] for each in said}
        yield model


# a burst, on real servers


async def burst(ends: Endpoints, logs: Path, *, sessions: int) -> CallCost:
    """Twenty turns in ten seconds in each session, by real workers."""
    talks = [conversation(f"user-{number}", TURNS) for number in range(sessions)]
    said = [each for talk in talks for each in talk]
    await migrate.apply(ends.postgres_url, dimension=DIMENSION)
    with scripted(said) as model:
        model.script.latency_seconds = MODEL_SECONDS
        env = _environment(ends, model)
        on = ",".join([queues.STORE, queues.EMBED, queues.EXTRACT, queues.REPLAY])
        with workers(env, logs, count=1, on=on):
            outcome = await _talked(ends, talks)
            await _settled(ends)
            outcome.lost = lost(said, await _history(ends, talks))
            outcome.calls, outcome.tokens = dict(model.calls.by_kind), await _tokens(ends)
    return outcome


async def _talked(ends: Endpoints, talks: Sequence[Sequence[Reply]]) -> CallCost:
    async with _memory(ends) as memory:
        await (await memory.remember("Hello.", user_id="warm", save={"history"})).stored(timeout=60)
        waits = await asyncio.gather(*(_one_session(memory, talk) for talk in talks))
    return CallCost(turns=sum(map(len, talks)), waits=[wait for each in waits for wait in each])


async def _one_session(memory: Memory, talk: Sequence[Reply]) -> list[float]:
    """Say it; for each fact the seconds from the end of the burst until it is believed."""
    for each in talk:
        started = time.monotonic()
        await memory.remember(each.messages(), user_id=each.user, session_id="burst")
        await asyncio.sleep(max(0.0, SECONDS / TURNS - (time.monotonic() - started)))
    ended = time.monotonic()
    seen: dict[str, float] = {}

    async def all_there() -> bool:
        for fact in await memory.facts.history(user_id=talk[0].user):
            seen.setdefault(fact.object, time.monotonic() - ended)
        return {each.object for each in talk} <= set(seen)

    await wait_until(all_there, timeout=60, description="every fact of the burst is believed")
    return [seen[each.object] for each in talk]


async def _settled(ends: Endpoints) -> None:
    """Let everything run that waits for its time, until nothing is left."""
    database = _database(ends)

    async def nothing_left() -> bool:
        async with database.transaction() as tx:
            await pg(tx).execute(_DUE)
            row = await pg(tx).row(_LEFT)
        return row is not None and row.jobs == 0

    await wait_until(nothing_left, timeout=60, description="all jobs are done")
    await database.close()


async def _history(ends: Endpoints, talks: Sequence[Sequence[Reply]]) -> dict[str, list[Fact]]:
    async with _memory(ends) as memory:
        return {talk[0].user: await memory.facts.history(user_id=talk[0].user) for talk in talks}


async def _tokens(ends: Endpoints) -> int:
    """As the ledger has counted them, without those of embeddings."""
    database = _database(ends)
    rows = await PostgresLedger(database).spending("default", since=ALL_TIME)
    await database.close()
    return sum(row.spent.tokens_in + row.spent.tokens_out for row in rows if row.kind is not JobKind.EMBED)


def _database(ends: Endpoints) -> PostgresDatabase:
    return PostgresDatabase(ends.relay_url, application_name="model-calls")


def _memory(ends: Endpoints) -> Memory:
    return Memory(ends.app_url, broker=ends.redis_url, settings=Settings(embedder="off"))


def _environment(ends: Endpoints, model: ScriptedOpenAI) -> dict[str, str]:
    named = {f"AFTERMIND_{name.upper()}": str(value) for name, value in MODELS.items()}
    named |= {"AFTERMIND_RELAY_URL": ends.relay_url, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": model.url}
    return environment(ends.app_url, ends.redis_url, **named)


# a trickle, by an injected clock


class ClockedDatabase(MemoryDatabase):
    """Tables in this process, whose time passes when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """The injected time."""
        return self.time


@dataclass(slots=True, kw_only=True)
class Trickle:
    """One user who says something once a minute, and the work that follows it second by second."""

    model: ScriptedOpenAI
    said: Sequence[Reply]
    db: ClockedDatabase = field(default_factory=ClockedDatabase)
    store: InMemoryStore = field(default_factory=InMemoryStore)
    waits: dict[str, float] = field(default_factory=dict)

    async def run(self) -> CallCost:
        """An hour or so of it, and a quiet hour behind it for what waits."""
        ledger = InMemoryLedger(self.db)
        settings = Settings(OPENAI_API_KEY="k", OPENAI_BASE_URL=self.model.url, **MODELS)
        models = {
            name: getattr(factory, name)(settings) for name in ("embedder", "extractor", "summariser", "profiler")
        }
        work = open_work(
            settings=settings, db=self.db, store=self.store, ledger=ledger, events=LocalBus(self.db), **models
        )
        spoken: dict[str, datetime] = {}
        for each in self.said:
            spoken[each.object] = self.db.time
            await self._say(ledger, each)
            for _ in range(60):
                await self._second(work, spoken)
        for _ in range(3_600):
            await self._second(work, spoken)
        rows = await ledger.spending("default", since=ALL_TIME)
        tokens = sum(row.spent.tokens_in + row.spent.tokens_out for row in rows if row.kind is not JobKind.EMBED)
        for each_model in models.values():
            await each_model._client.close()
        return CallCost(
            turns=len(self.said),
            calls=dict(self.model.calls.by_kind),
            tokens=tokens,
            lost=lost(self.said, {self.said[0].user: await self._facts()}),
            waits=list(self.waits.values()),
        )

    async def _say(self, ledger: InMemoryLedger, each: Reply) -> None:
        messages = each.messages(at=self.db.time)
        job_id, episode_ids = new_ids(len(messages))
        turn = Turn(
            job_id=job_id,
            scope=Scope(user_id=each.user, session_id="trickle"),
            remembered_at=self.db.time,
            base=int(self.db.time.timestamp() * 1e6),
            messages=tuple(messages),
            episode_ids=episode_ids,
        )
        async with self.db.transaction() as tx:
            await ledger.accept(tx, turn, encode_turn(turn))

    async def _second(self, work: Any, spoken: Mapping[str, datetime]) -> None:  # Any: what `open_work` gives
        while await work():
            pass
        for fact in await self._facts():
            if fact.object in spoken:
                waited = (self.db.time - spoken[fact.object]).total_seconds()
                self.waits.setdefault(fact.object, waited + MODEL_SECONDS)
        self.db.time += timedelta(seconds=1)

    async def _facts(self) -> list[Fact]:
        async with self.db.transaction(read_only=True) as tx:
            return await self.store.facts(tx, Scope(user_id=self.said[0].user), history=True)


async def trickle(*, turns: int) -> CallCost:
    """A turn a minute."""
    said = conversation("slow", turns)
    with scripted(said) as model:
        return await Trickle(model=model, said=said).run()


def main() -> int:
    """Run, show, write; 1 where a target was missed."""
    options = arguments(__doc__ or "")
    report = Report(title="model_calls: what learning costs in model calls")
    with embedded_stack() as (stack, ends):
        os.environ["AFTERMIND_STATE_DIR"] = str(stack.logs.parent / "state")
        quick = asyncio.run(burst(ends, stack.logs, sessions=3 if options.quick else 8))
    slow = asyncio.run(trickle(turns=20 if options.quick else 60))
    report.details |= {"burst": quick.figures(), "trickle": slow.figures()}
    report.add("facts_lost", quick.lost + slow.lost, at_most=0)
    report.add("burst_calls_per_100_turns", report.details["burst"]["calls_per_100_turns"], at_most=15)
    report.add("burst_tokens_per_100_turns", report.details["burst"]["tokens_per_100_turns"])
    report.add("burst_fact_latency_p95_s", report.details["burst"]["fact_latency_p95_s"], at_most=10)
    report.add("trickle_calls_per_100_turns", report.details["trickle"]["calls_per_100_turns"])
    report.add("trickle_tokens_per_100_turns", report.details["trickle"]["tokens_per_100_turns"])
    report.add("trickle_fact_latency_p95_s", report.details["trickle"]["fact_latency_p95_s"], at_most=30)
    worst = max(*quick.waits, *slow.waits)
    report.add("fact_latency_p95_s", round(percentile([*quick.waits, *slow.waits], 0.95), 2), note=f"worst {worst:.1f}")
    report.facts |= {"model_s": MODEL_SECONDS, "burst": f"{TURNS} turns in {SECONDS:g} s"}
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
