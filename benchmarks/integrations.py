"""What each integration adds to a turn over calling `Memory` directly: milliseconds, the median of its turns.

    python benchmarks/integrations.py --json FILE      (--quick: 40 turns each in place of 200)

Each framework runs in its environment of `make test-integrations`; one that is not installed is left out. A turn reads
and writes memory as the framework does around a model call. What is counted is the time of the turn outside of the
methods of `Memory`, and for frameworks that call memory in an agent's run, less the same run without memory. The CPU
time of the same is in the notes: on a busy machine the clock also counts the turns of other processes. The store is
Postgres; no worker runs.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that it runs as a file, too

from aftermind import Memory  # noqa: E402

Turn = Callable[[str, str], Awaitable[object]]  # of a user, with a text
Made = tuple[Turn, Turn | None]  # a turn with memory, and the same without it if the framework has a part in it

TURNS, QUICK_TURNS, WARM_UP = 200, 40, 10
TURNS_OF_A_USER = 5
# What Memory does within them is not counted. On a busy machine its defaults end calls, and with them the run.
PATIENT = {
    f"AFTERMIND_{name}_SECONDS": "60"
    for name in ("RECALL_BUDGET", "REMEMBER_BUDGET", "REDIS_TIMEOUT", "DB_TIMEOUT", "DB_CONNECT_TIMEOUT")
}
TARGET_MS = 1.0
ENVIRONMENTS = {
    "langgraph": "langgraph",
    "langchain": "langgraph",
    "mcp": "mcp",
    "openai_agents": "openai-agents",
    "pydantic_ai": "agents",
    "strands": "agents",
    "google_adk": "agents",
    "llama_index": "agents",
    "anthropic": "agents",
    "agent_framework": "agents",
    "crewai": "crewai",
    "loomflow": "loomflow",
    "tframex": "tframex",
    "upsonic": "upsonic",
    "definable": "definable",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds by the clock, and of CPU of the whole process."""

    wall: float = 0.0
    cpu: float = 0.0

    @classmethod
    def now(cls) -> "Cost":
        return cls(time.perf_counter(), time.process_time())

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: "Cost") -> "Cost":
        return Cost(self.wall - other.wall, self.cpu - other.cpu)


class Stopwatch:
    """What is spent while at least one call of a memory runs."""

    def __init__(self, memory: Memory) -> None:
        self.spent, self._running, self._began = Cost(), 0, Cost()
        parts = (memory, memory.items, memory.facts, memory.blocks, memory.checkpoints)
        for part in parts:
            for name in dir(type(part)):
                method = getattr(part, name)
                if not name.startswith("_") and asyncio.iscoroutinefunction(method):
                    setattr(part, name, partial(self._timed, method))

    async def _timed(self, method: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        if self._running == 0:
            self._began = Cost.now()
        self._running += 1
        try:
            return await method(*args, **options)
        finally:
            self._running -= 1
            if self._running == 0:
                self.spent += Cost.now() - self._began


def main() -> None:
    """Run, print, and exit with 1 where a target was missed."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--of", choices=ENVIRONMENTS)
    parser.add_argument("--turns", type=int, default=TURNS)
    inside, _ = parser.parse_known_args()
    if inside.of:  # in the framework's environment
        sys.stdout.write(json.dumps(asyncio.run(_measure(inside.of, inside.turns))))
        return
    from benchmarks import common

    asked = common.arguments(__doc__ or "")
    turns = QUICK_TURNS if asked.quick else TURNS
    report = common.Report(title="What integrations add to a turn", facts={"turns": turns})
    with common.embedded_stack() as (_, endpoints), tempfile.TemporaryDirectory() as state:
        from aftermind.db import migrate

        asyncio.run(migrate.apply(endpoints.postgres_url))
        places = {"AFTERMIND_DATABASE_URL": endpoints.app_url, "AFTERMIND_BROKER_URL": endpoints.redis_url}
        environ = {**os.environ, **PATIENT, **places, "AFTERMIND_STATE_DIR": state, "AFTERMIND_EMBEDDER": "hash"}
        for name, environment in ENVIRONMENTS.items():
            python = ROOT / ".integrations" / environment / "bin" / "python"
            if not python.exists():
                report.add(f"{name}_added_ms", None, note=f"left out: `make .integrations/{environment}/.installed`")
                continue
            argv = [str(python), __file__, "--of", name, "--turns", str(turns)]
            done = subprocess.run(argv, env=environ, check=True, stdout=subprocess.PIPE, timeout=1_800)
            figures = json.loads(done.stdout.splitlines()[-1])
            note = "CPU {added_cpu_ms:.2f} ms; turn {turn_ms:.2f}, in Memory {memory_ms:.2f}".format(**figures)
            sys.stderr.write(f"{name}: {figures}\n")
            report.add(f"{name}_added_ms", round(figures["added_ms"], 3), at_most=TARGET_MS, note=note)
            report.details[name] = figures
    sys.exit(report.finish(asked.json))


async def _measure(name: str, turns: int) -> dict[str, float]:
    async with Memory(namespace=name) as memory:
        watch = Stopwatch(memory)
        turn, bare = await globals()[f"_{name}"](memory)
        measured: list[tuple[Cost, Cost, Cost]] = []  # a turn, what of it was in Memory, and the turn without memory
        for number in range(turns + WARM_UP):
            user, text = f"user-{number // TURNS_OF_A_USER}", f"I live in place {number} and like tea."
            watch.spent = Cost()
            took = await _cost(turn(user, text))
            within = watch.spent
            measured.append((took, within, await _cost(bare(user, text)) if bare else Cost()))
    del measured[:WARM_UP]
    added = [took - within - without for took, within, without in measured]
    return {
        "added_ms": 1_000 * statistics.median(each.wall for each in added),
        "added_cpu_ms": 1_000 * statistics.median(each.cpu for each in added),
        "turn_ms": 1_000 * statistics.median(took.wall for took, _, _ in measured),
        "memory_ms": 1_000 * statistics.median(within.wall for _, within, _ in measured),
        "without_ms": 1_000 * statistics.median(without.wall for _, _, without in measured),
    }


async def _langgraph(memory: Memory) -> Made:
    from aftermind.integrations.langgraph import AftermindStore

    store = AftermindStore(memory, user_label=1)

    async def turn(user: str, text: str) -> None:
        await store.asearch(("memories", user), limit=5)
        await store.aput(("memories", user), text, {"text": text})

    return turn, None


async def _langchain(memory: Memory) -> Made:
    from langchain_core.messages import AIMessage, HumanMessage

    from aftermind.integrations.langchain import AftermindChatMessageHistory

    async def turn(user: str, text: str) -> None:
        history = AftermindChatMessageHistory(memory, "s1", user_id=user)
        await history.aget_messages()
        await history.aadd_messages([HumanMessage(text), AIMessage("Noted.")])

    return turn, None


async def _mcp(memory: Memory) -> Made:
    from mcp import Client
    from mcp.server.mcpserver import MCPServer

    from aftermind.integrations.mcp import make_server

    plain = MCPServer("plain")

    @plain.tool()  # type: ignore[untyped-decorator, unused-ignore]  # typed where the framework is installed
    async def add_memory(text: str) -> dict[str, str]:
        return {"receipt_id": text}

    @plain.tool()  # type: ignore[untyped-decorator, unused-ignore]
    async def recall(query: str) -> str:
        return query

    ours, other = Client(make_server(memory, user_id="alice")), Client(plain)
    await ours.__aenter__()  # until the process ends
    await other.__aenter__()

    async def turn(user: str, text: str, client: Any = ours) -> None:
        await client.call_tool("recall", {"query": text})
        await client.call_tool("add_memory", {"text": text})

    return turn, partial(turn, client=other)


async def _openai_agents(memory: Memory) -> Made:
    from aftermind.integrations.openai_agents import AftermindSession

    async def turn(user: str, text: str) -> None:
        session = AftermindSession("s1", memory, user_id=user)
        await session.get_items()
        await session.add_items([{"role": "user", "content": text}, {"role": "assistant", "content": "Noted."}])

    return turn, None


async def _pydantic_ai(memory: Memory) -> Made:
    from pydantic_ai import Agent
    from pydantic_ai.models.test import TestModel

    from aftermind.integrations.pydantic_ai import AftermindMemory

    model = TestModel(custom_output_text="Noted.")
    ours = Agent(model, deps_type=str, capabilities=[AftermindMemory(memory, user_id=lambda ctx: ctx.deps)])
    bare = Agent(model, deps_type=str)
    return lambda user, text: ours.run(text, deps=user), lambda user, text: bare.run(text, deps=user)


async def _strands(memory: Memory) -> Made:
    from aftermind.integrations.strands import AftermindMemoryStore

    async def turn(user: str, text: str) -> None:
        store = AftermindMemoryStore(memory, user_id=user, session_id="s1")
        await store.search(text)
        await store.add_messages([{"role": "user", "content": [{"text": text}]}])

    return turn, None


async def _google_adk(memory: Memory) -> Made:
    from google.adk.events import Event
    from google.genai import types

    from aftermind.integrations.google_adk import AftermindMemoryService

    service = AftermindMemoryService(memory)

    async def turn(user: str, text: str) -> None:
        await service.search_memory(app_name="app", user_id=user, query=text)
        said = Event(author="user", content=types.Content(role="user", parts=[types.Part(text=text)]))
        await service.add_events_to_memory(app_name="app", user_id=user, events=[said], session_id="s1")

    return turn, None


async def _llama_index(memory: Memory) -> Made:
    from llama_index.core.llms import ChatMessage

    from aftermind.integrations.llama_index import AftermindMemoryBlock

    async def turn(user: str, text: str) -> None:
        block = AftermindMemoryBlock(memory=memory, user_id=user)
        said = [ChatMessage(role="user", content=text)]
        await block.aget(said, session_id="s1")
        await block.aput(said, session_id="s1")

    return turn, None


async def _anthropic(memory: Memory) -> Made:
    from aftermind.integrations.anthropic import AsyncAftermindMemoryTool

    async def turn(user: str, text: str) -> None:
        tool = AsyncAftermindMemoryTool(memory, user_id=user)
        await tool.call({"command": "view", "path": "/memories"})
        path = f"/memories/{text[16:20].strip()}.md"
        await tool.call({"command": "create", "path": path, "file_text": text})

    return turn, None


async def _agent_framework(memory: Memory) -> Made:
    from agent_framework import Agent, BaseChatClient, ChatResponse, Message

    from aftermind.integrations.agent_framework import AftermindProvider

    class Answers(BaseChatClient):  # type: ignore[misc]  # of a library without types here
        def _inner_get_response(self, **options: Any) -> Any:
            async def answer() -> Any:
                return ChatResponse(messages=[Message("assistant", ["Noted."])])

            return answer()

    provider = AftermindProvider(memory, user_id=lambda session: session.state["user"])
    ours, bare = Agent(Answers(), context_providers=[provider]), Agent(Answers())

    async def turn(user: str, text: str, agent: Any = ours) -> None:
        session = agent.create_session()
        session.state["user"] = user
        await agent.run(text, session=session)

    return turn, partial(turn, agent=bare)


async def _crewai(memory: Memory) -> Made:
    from crewai.memory.types import MemoryRecord

    from aftermind.integrations.crewai import AftermindStorage

    async def turn(user: str, text: str) -> None:
        storage = AftermindStorage(memory, user_id=user)
        await storage.asearch([0.5, 1.0], limit=5)
        await storage.asave([MemoryRecord(content=text, embedding=[1.0, 0.5])])

    return turn, None


async def _loomflow(memory: Memory) -> Made:
    from loomflow.core.types import Episode

    from aftermind.integrations.loomflow import AftermindMemory

    ours = AftermindMemory(memory)

    async def turn(user: str, text: str) -> None:
        await ours.recall(text, user_id=user)
        await ours.remember(Episode(session_id="s1", user_id=user, input=text, output="Noted."))

    return turn, None


async def _tframex(memory: Memory) -> Made:
    from tframex.models.primitives import Message

    from aftermind.integrations.tframex import AftermindMemoryStore

    async def turn(user: str, text: str) -> None:
        store = AftermindMemoryStore(memory, session_id="s1", user_id=user)
        await store.get_history(limit=10)
        await store.add_message(Message(role="user", content=text))

    return turn, None


async def _upsonic(memory: Memory) -> Made:
    from upsonic.messages.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
    from upsonic.run.agent.output import AgentRunOutput
    from upsonic.run.base import RunStatus

    from aftermind.integrations import upsonic

    async def turn(user: str, text: str) -> None:
        ours = upsonic.Memory(memory, session_id="s1", user_id=user, full_session_memory=True)
        await ours.prepare_inputs_for_task()
        said = [ModelRequest(parts=[UserPromptPart(text)]), ModelResponse(parts=[TextPart("Noted.")])]
        run = AgentRunOutput(run_id=f"{user}-{text}", agent_id="a", status=RunStatus.completed, messages=said)
        await ours.save_session_async(run)

    return turn, None


async def _definable(memory: Memory) -> Made:
    from definable.models.message import Message

    from aftermind.integrations.definable import CognitiveMemory

    ours = CognitiveMemory(memory)

    async def turn(user: str, text: str) -> None:
        await ours.recall(text, user_id=user, session_id="s1")
        said = [Message(role="user", content=text), Message(role="assistant", content="Noted.")]
        await ours.store_messages(said, user_id=user, session_id="s1")

    return turn, None


async def _cost(work: Awaitable[object]) -> Cost:
    began = Cost.now()
    await work
    return Cost.now() - began


if __name__ == "__main__":
    main()
