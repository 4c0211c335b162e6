"""Stores whose jobs run in the agent's process: what a turn, an answer and a recall take on each."""

import asyncio
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

from aftermind import Agent, Memory, Message, Settings
from aftermind.testing import ScriptedChatModel
from benchmarks.common import Report, arguments, embedded_stack, percentile

MESSAGES_OF_A_TURN = 20  # of the user whose recalls are measured
TASKS = 100  # that remember at the same time
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


def main() -> int:
    """Run it."""
    given = arguments(__doc__ or "")
    report = Report(title="Stores in the agent's process")
    with tempfile.TemporaryDirectory() as text, embedded_stack() as (_, endpoints):
        folder = Path(text)
        urls = {
            "inmemory": "inmemory",
            "sqlite": f"sqlite:{folder}/bot.db",
            "json": f"json:{folder}/bot",
            "redis": endpoints.redis_url,
        }
        for name, url in urls.items():
            asyncio.run(measure(report, name, url, folder, quick=given.quick))
    return report.finish(given.json)


if __name__ == "__main__":
    sys.exit(main())
