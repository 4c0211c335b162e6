"""Run the Python of one page of a framework's documentation: `python snippet_page.py NAME PAGE RESULT [--theirs]`.

The snippets of a page run in order and share their names, as a reader would put them together. Imports of the
framework become imports of our drop-in where that has the name; with `--theirs` they stay. Models of other providers
become one of OpenAI. RESULT is JSON with the error of each snippet, null where there is none, and how many turns
Aftermind was handed.
"""

import ast
import asyncio
import importlib
import inspect
import json
import os
import re
import signal
import sys
import textwrap
import threading
from pathlib import Path
from types import FrameType
from typing import Any

FENCE = re.compile(r"^([ \t]*)```(?:python|py)\b[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
SECONDS = int(os.environ.get("SNIPPET_SECONDS", "25"))  # for one snippet
# Models of providers that the scripted server does not stand for, and the one that a page then uses.
OTHER_MODEL = re.compile(r"(anthropic/|claude-|gemini|google/)[\w./-]+")
MODELS = {"loomflow": "gpt-4.1-mini", "upsonic": "openai/gpt-4o"}
# What pages use and do not define, by framework.
NAMES = {
    "definable": """
from definable.agents import Agent
from definable.memory import CognitiveMemory, InMemoryStore, SQLiteMemoryStore
from definable.models.openai import OpenAIChat
store = InMemoryStore()
memory = CognitiveMemory(store=store)
model = OpenAIChat(id="gpt-4o-mini")
agent = Agent(model=model, memory=memory)
""",
    "loomflow": """
from datetime import datetime
from loomflow import Agent, tool
agent = Agent("Be brief.", model="gpt-4.1-mini")
""",
    "tframex": """
import os
from datetime import datetime, timedelta
from tframex import BaseMemoryStore, InMemoryMemoryStore, LLMAgent, Message, OpenAIChatLLM, TFrameXApp
llm = OpenAIChatLLM(model_name="gpt-4o", api_base_url=os.environ["OPENAI_BASE_URL"], api_key="key")
app = TFrameXApp(default_llm=llm)
memory = InMemoryMemoryStore()
message = user_message = system_message = Message(role="user", content="I live in Oslo.")
""",
    "upsonic": """
from upsonic import Agent, Chat, Task
from upsonic.storage import InMemoryStorage, Memory
storage = InMemoryStorage()
memory = Memory(storage, session_id="s1", user_id="u1", full_session_memory=True)
agent = Agent("openai/gpt-4o")
chat = Chat(session_id="s1", user_id="u1", agent=Agent("openai/gpt-4o"), storage=storage)
""",
}


def main(name: str, page: Path, result: Path, *, theirs: bool) -> None:
    """Run every snippet of a page, and write their errors."""
    loop, names = asyncio.new_event_loop(), {"__name__": "__main__"}
    run_in_new_loop = asyncio.run

    def run_in_loop(work: Any, **options: Any) -> Any:
        """One loop for the page, as in a notebook: a provider's client, which frameworks cache, belongs to its loop.

        Threads have loops of their own, among them the one in which blocking calls of Aftermind run.
        """
        is_main = threading.current_thread() is threading.main_thread()
        return loop.run_until_complete(work) if is_main else run_in_new_loop(work, **options)

    asyncio.run = run_in_loop
    turns = count_turns()
    signal.signal(signal.SIGALRM, _expired)
    drop_in = None if theirs else drop_in_of(name)
    run(NAMES[name], names, loop, name, drop_in)
    errors: list[str | None] = []
    for snippet in snippets(page):
        try:
            signal.setitimer(signal.ITIMER_REAL, SECONDS, 5)  # again: a snippet may catch the error
            run(snippet, names, loop, name, drop_in)
            errors.append(None)
        except BaseException as exc:
            errors.append(f"{type(exc).__name__}: {exc}"[:300])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        result.write_text(json.dumps({"errors": errors, "turns": len(turns)}))


def count_turns() -> list[None]:
    """A list that grows with each turn that Aftermind is handed."""
    from aftermind import Memory

    turns: list[None] = []
    remember = Memory.remember

    async def counted(self: Memory, *args: Any, **options: Any) -> Any:
        turns.append(None)
        return await remember(self, *args, **options)

    Memory.remember = counted  # type: ignore[method-assign]
    return turns


def snippets(page: Path) -> list[str]:
    """The Python of a page."""
    return [textwrap.dedent(found[2]) for found in FENCE.finditer(page.read_text())]


def drop_in_of(name: str) -> Any:  # Any: a module, or what stands for one
    """What has the names of our drop-in."""
    module = importlib.import_module(f"aftermind.integrations.{name}")
    if name != "tframex":
        return module
    from uuid import uuid4

    from aftermind import Memory

    memory = Memory("inmemory")

    class InMemoryMemoryStore(module.AftermindMemoryStore):  # type: ignore[name-defined,misc]
        """With the parameters of TFrameX's own, each a session of its own."""

        def __init__(self, max_history_size: int | None = None) -> None:
            super().__init__(memory, session_id=uuid4().hex, user_id="reader", window_size=max_history_size)

    class Names:
        pass

    Names.InMemoryMemoryStore = InMemoryMemoryStore  # type: ignore[attr-defined]
    return Names


def run(code: str, names: dict[str, Any], loop: asyncio.AbstractEventLoop, name: str, drop_in: Any) -> None:
    """Run one snippet, and then its `main` or tests if it only defines them."""
    tree: Any = ast.parse(code)
    tree = ast.fix_missing_locations(Replacements(name, drop_in).visit(tree))
    defined = [each.name for each in tree.body if isinstance(each, ast.AsyncFunctionDef)]
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    program = compile(tree, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if drop_in is not None:
        names["_drop_in"] = drop_in
    found = eval(program, names)
    if inspect.iscoroutine(found):
        loop.run_until_complete(found)
    for function in defined:
        if (function == "main" or function.startswith("test_")) and function not in called:
            loop.run_until_complete(names[function]())


class Replacements(ast.NodeTransformer):
    """Imports of the framework's names as those of the drop-in, where there is one and it has them; models."""

    def __init__(self, name: str, drop_in: Any) -> None:
        self._name, self._drop_in = name, drop_in

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if self._drop_in is None or (node.module or "").partition(".")[0] != self._name:
            return node
        ours = [each for each in node.names if hasattr(self._drop_in, each.name)]
        kept = [each for each in node.names if each not in ours]
        taken = [ast.parse(f"{each.asname or each.name} = _drop_in.{each.name}").body[0] for each in ours]
        return taken + ([ast.ImportFrom(module=node.module, names=kept, level=0)] if kept else [])

    def visit_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, str) and self._name in MODELS and OTHER_MODEL.fullmatch(node.value):
            return ast.Constant(MODELS[self._name])
        return node


def _expired(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"the snippet did not end within {SECONDS} s.")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), theirs="--theirs" in sys.argv)
    os._exit(0)  # threads of a framework that never end would hold the process
