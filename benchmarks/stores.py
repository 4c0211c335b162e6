"""Stores whose jobs run in the agent's process: what a turn, an answer and a recall take on each.

    python -m benchmarks.stores [--stores NAME …] [--data FILE] [--quick] [--json FILE]

`--data` names conversations with questions, as `benchmarks.recall_quality` takes them: recall@10 on each store, and on
Postgres. The turns go through `remember`, and the store is closed and opened again before the questions, so that they
are asked of what the journal has.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from time import perf_counter

from aftermind import Agent, Memory, Message, Settings
from aftermind.db import migrate
from aftermind.evaluation.measures import mean
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.llm.protocols import embedder_identity
from aftermind.stack import Endpoints
from aftermind.testing import ScriptedChatModel
from aftermind.types import EpisodeId
from benchmarks.common import Report, arguments, embedded_stack, percentile
from benchmarks.recall_quality import Conversation, ask, by_memory, read_conversation, store_episodes

MESSAGES_OF_A_TURN = 20  # of the user whose recalls are measured
TASKS = 100  # that remember at the same time
STORES = ("inmemory", "sqlite", "json", "redis", "sql")
RECALL_TOLERANCE = 0.01  # of recall@10, from that of Postgres
WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in ("a", "en", "ir", "o", "un") for c in ("da", "li", "mo", "to")]


def sentences(count: int, seed: int) -> list[str]:
    """Texts of 15 words each, the same in each run."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=15)) for _ in range(count)]


async def remember_one_by_one(memory: Memory, texts: Sequence[str]) -> list[float]:
    """Milliseconds until each turn is accepted; its jobs run between two."""
    taken = []
    for text in texts:
        began = perf_counter()
        receipt = await memory.remember(text, user_id="single")
        taken.append((perf_counter() - began) * 1e3)
        await receipt.stored(timeout=60)
    return taken


async def answers_held(memory: Memory, texts: Sequence[str]) -> list[float]:
    """Milliseconds from the model's answer until the caller has it."""
    answered: list[float] = []

    def reply(messages: Sequence[Mapping[str, object]]) -> str:
        answered.append(perf_counter())
        return "Noted."

    agent = Agent("You are helpful.", model=ScriptedChatModel(reply), memory=memory)
    held = []
    for text in texts:
        await agent.arun(text, user_id="agent", session_id="s")
        held.append((perf_counter() - answered[-1]) * 1e3)
    return held


async def turns_per_second(memory: Memory, texts: Sequence[str]) -> float:
    """Turns of many users at the same time, until all of them are stored."""
    receipts = []
    free = asyncio.Semaphore(TASKS)

    async def remember(number: int, text: str) -> None:
        async with free:
            receipts.append(await memory.remember(text, user_id=f"user {number % TASKS}", session_id="s"))

    began = perf_counter()
    await asyncio.gather(*(remember(number, text) for number, text in enumerate(texts)))
    for receipt in receipts:
        await receipt.stored(timeout=120)
    return len(texts) / (perf_counter() - began)


async def recalls(memory: Memory, episodes: int, rounds: int) -> list[float]:
    """Milliseconds of each recall of a user with this many episodes."""
    user, texts = f"{episodes} episodes", sentences(episodes, seed=episodes)
    for start in range(0, episodes, MESSAGES_OF_A_TURN):
        turn = [Message.user(text) for text in texts[start : start + MESSAGES_OF_A_TURN]]
        await (await memory.remember(turn, user_id=user, session_id=f"s{start // 200}")).stored(timeout=60)
    taken = []
    for text in [texts[0], *random.Random(1).sample(texts, rounds)]:
        began = perf_counter()
        await memory.recall(" ".join(text.split()[:4]), user_id=user)
        taken.append((perf_counter() - began) * 1e3)
    return taken[1:]  # the first one reads every text


async def measure(report: Report, name: str, url: str, folder: Path, *, quick: bool) -> None:
    """The figures of one store."""
    settings = Settings(state_dir=folder / "state", embedder="hash", extractor="off")
    sizes = {"recall_1k_p50_ms": 1_000} if quick else {"recall_1k_p50_ms": 1_000, "recall_10k_p50_ms": 10_000}
    async with Memory(url, settings=settings) as memory:
        await remember_one_by_one(memory, sentences(5, seed=0))  # imports, tables
        taken = await remember_one_by_one(memory, sentences(100, seed=1))
        report.add(f"{name}_remember_p50_ms", percentile(taken, 0.5))
        report.add(f"{name}_answer_held_ms", percentile(await answers_held(memory, sentences(50, seed=2)), 0.5))
        rate = await turns_per_second(memory, sentences(1_000 if quick else 5_000, seed=3))
        report.add(f"{name}_turns_per_s", rate, at_least=1_000 if name in ("inmemory", "sqlite") else None)
        for figure, episodes in sizes.items():
            p50 = percentile(await recalls(memory, episodes, rounds=20), 0.5)
            bound = 100.0 if name == "sqlite" and episodes == 10_000 else None
            report.add(f"{name}_{figure}", p50, at_most=bound)


async def recall_in_process(url: str, conversations: Sequence[Conversation], folder: Path) -> float:
    """recall@10 of a store whose jobs run in this process."""
    async with Memory(url, settings=_patient(folder / "recall")) as memory:
        stored = [await remember_conversation(memory, each) for each in conversations]
        await memory.close()  # the next call opens it again
        return await recall_at_10(memory, stored)


async def recall_in_postgres(at: Endpoints, conversations: Sequence[Conversation], folder: Path) -> float:
    """recall@10 of Postgres, with the episodes as the store job writes them."""
    embedder = HashEmbedder()
    await migrate.apply(at.postgres_url, embedder=embedder_identity(embedder))
    await store_episodes(at.postgres_url, conversations, embedder)
    async with Memory(at.app_url, broker=at.redis_url, redis=at.redis_url, settings=_patient(folder)) as memory:
        return await recall_at_10(memory, conversations)


async def recall_at_10(memory: Memory, conversations: Sequence[Conversation]) -> float:
    """The mean share of the evidence among the first ten turns."""
    return mean([each for *_, each in await ask(conversations, by_memory(memory, load=["history"]))])["recall@10"]


async def remember_conversation(memory: Memory, conversation: Conversation) -> Conversation:
    """Store its sessions, a turn each; the conversation with the ids that its episodes got."""
    ids: dict[EpisodeId, EpisodeId] = {}
    for session, group in groupby(conversation.episodes, key=lambda each: each.scope.session_id):
        said = list(group)
        messages = [
            Message(role=each.role, content=each.content, name=each.name, occurred_at=each.occurred_at) for each in said
        ]
        receipt = await memory.remember(messages, user_id=conversation.owner.user_id, session_id=session)
        await receipt.embedded(timeout=60)
        ids |= dict(zip((each.id for each in said), receipt.episode_ids, strict=True))
    return replace(
        conversation,
        episodes=[replace(each, id=ids[each.id]) for each in conversation.episodes],
        questions=[
            replace(each, evidence=frozenset(ids[id_] for id_ in each.evidence)) for each in conversation.questions
        ],
    )


def _patient(folder: Path) -> Settings:
    budgets = {"recall_budget_seconds": 10.0, "query_embedding_budget_seconds": 10.0}
    return Settings(state_dir=folder, embedder="hash", extractor="off", **budgets)


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, metavar="FILE", help="conversations with questions, as JSON")
    parser.add_argument("--stores", nargs="+", metavar="NAME", choices=STORES, default=STORES, help="only these")


def main() -> int:
    """Run it."""
    given = arguments(__doc__ or "", more=_more)
    conversations = (
        [] if given.data is None else [read_conversation(each) for each in json.loads(given.data.read_text())]
    )
    report = Report(title="Stores in the agent's process")
    with tempfile.TemporaryDirectory() as text, embedded_stack() as (_, endpoints):
        folder = Path(text)
        urls = {
            "inmemory": "inmemory",
            "sqlite": f"sqlite:{folder}/bot.db",
            "json": f"json:{folder}/bot",
            "redis": endpoints.redis_url,
            "sql": f"sql+{endpoints.postgres_url.replace('postgresql://', 'postgresql+asyncpg://', 1)}",
        }
        for name in given.stores:
            asyncio.run(measure(report, name, urls[name], folder, quick=given.quick))
        if conversations:
            of_postgres = asyncio.run(recall_in_postgres(endpoints, conversations, folder))
            report.add("postgresql_recall@10", of_postgres)
            least = of_postgres - RECALL_TOLERANCE
            for name in given.stores:
                found = asyncio.run(recall_in_process(urls[name], conversations, folder))
                report.add(f"{name}_recall@10", found, at_least=least, at_most=of_postgres + RECALL_TOLERANCE)
    return report.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
