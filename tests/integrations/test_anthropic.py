"""Anthropic's memory tool: every reply is compared with that of the SDK's own tool on files."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.tools import BetaAsyncAbstractMemoryTool
from anthropic.lib.tools._beta_builtin_memory_tool import BetaLocalFilesystemMemoryTool
from anthropic.lib.tools._beta_functions import ToolError

import aftermind.sync
from aftermind import Memory, Settings
from aftermind.integrations.anthropic import AftermindMemoryTool, AsyncAftermindMemoryTool
from tests.attacks.corpus import attacks
from tests.integrations.freshness import read_elsewhere, standing_replica
from tests.integrations.pages import run_examples
from tests.support.servers import Database

# Each runs on what the ones before it have left.
COMMANDS: list[dict[str, Any]] = [
    {"command": "view", "path": "/memories"},
    {"command": "view", "path": "/memories/none.txt"},
    {"command": "create", "path": "/memories/a.txt", "file_text": "one\ntwo\nthree"},
    {"command": "create", "path": "/memories/a.txt", "file_text": "again"},
    {"command": "create", "path": "/memories/deep/er/b.md", "file_text": "x" * 1_536},
    {"command": "create", "path": "/memories/deep", "file_text": "a directory"},
    {"command": "create", "path": "/memories/empty", "file_text": ""},
    {"command": "create", "path": "/memories/.hidden", "file_text": "h"},
    {"command": "create", "path": "/memories/crlf.txt", "file_text": "a\r\nb\r\n"},
    {"command": "create", "path": "/elsewhere/a.txt", "file_text": ""},
    {"command": "view", "path": "/memories"},
    {"command": "view", "path": "/memories/deep"},
    {"command": "view", "path": "/memories/a.txt"},
    {"command": "view", "path": "/memories/empty"},
    {"command": "view", "path": "/memories/crlf.txt"},
    {"command": "view", "path": "/memories/a.txt", "view_range": [2, 3]},
    {"command": "view", "path": "/memories/a.txt", "view_range": [2, -1]},
    {"command": "view", "path": "/memories/a.txt", "view_range": [3, 9]},
    {"command": "str_replace", "path": "/memories/a.txt", "old_str": "two", "new_str": "zwei\ndeux"},
    {"command": "str_replace", "path": "/memories/a.txt", "old_str": "five", "new_str": "5"},
    {"command": "str_replace", "path": "/memories/a.txt", "old_str": "e", "new_str": "E"},
    {"command": "str_replace", "path": "/memories/none.txt", "old_str": "a", "new_str": "b"},
    {"command": "str_replace", "path": "/memories/deep", "old_str": "a", "new_str": "b"},
    {"command": "insert", "path": "/memories/a.txt", "insert_line": 0, "insert_text": "zero\n"},
    {"command": "insert", "path": "/memories/a.txt", "insert_line": 5, "insert_text": "last"},
    {"command": "insert", "path": "/memories/a.txt", "insert_line": 50, "insert_text": "far"},
    {"command": "insert", "path": "/memories/empty", "insert_line": 0, "insert_text": "first"},
    {"command": "insert", "path": "/memories/crlf.txt", "insert_line": 1, "insert_text": "between"},
    {"command": "insert", "path": "/memories/none.txt", "insert_line": 0, "insert_text": "x"},
    {"command": "insert", "path": "/memories/deep", "insert_line": 0, "insert_text": "x"},
    {"command": "view", "path": "/memories/a.txt"},
    {"command": "view", "path": "/memories/empty"},
    {"command": "view", "path": "/memories/crlf.txt"},
    {"command": "rename", "old_path": "/memories/a.txt", "new_path": "/memories/new/c.txt"},
    {"command": "rename", "old_path": "/memories/none.txt", "new_path": "/memories/d.txt"},
    {"command": "rename", "old_path": "/memories/empty", "new_path": "/memories/new/c.txt"},
    {"command": "rename", "old_path": "/memories/deep", "new_path": "/memories/moved"},
    {"command": "rename", "old_path": "/memories", "new_path": "/memories/x"},
    {"command": "view", "path": "/memories"},
    {"command": "delete", "path": "/memories/none.txt"},
    {"command": "delete", "path": "/memories"},
    {"command": "delete", "path": "/memories/empty"},
    {"command": "delete", "path": "/memories/moved"},
    {"command": "view", "path": "/memories/moved"},
    {"command": "view", "path": "/memories/../../etc/passwd"},
]
DIRECTORY_SIZE = re.compile(r"^\S+\t(?=\S*/$|/memories(?:/deep)?$)", re.MULTILINE)  # a file system's own


def reply(tool: Any, fields: dict[str, Any]) -> str:
    try:
        return str(tool.call(fields))
    except ToolError as exc:
        return f"error: {exc}"


def test_every_reply_is_that_of_the_sdks_own_tool(tmp_path: Path) -> None:
    theirs = BetaLocalFilesystemMemoryTool(base_path=str(tmp_path))
    with aftermind.sync.Memory("inmemory") as memory:
        ours = AftermindMemoryTool(memory, user_id="alice")
        for fields in COMMANDS:
            wanted, found = reply(theirs, fields), reply(ours, fields)
            assert DIRECTORY_SIZE.sub("", found) == DIRECTORY_SIZE.sub("", wanted), fields

        assert ours.to_dict() == theirs.to_dict()
        assert ours.clear_all_memory() == theirs.clear_all_memory()
        assert memory.blocks.list(user_id="alice") == []


async def test_a_file_is_read_by_another_process_while_the_replica_replays_nothing(
    memory: Memory, settings: Settings, database: Database
) -> None:
    code = """
        from aftermind.integrations.anthropic import AsyncAftermindMemoryTool
        tool = AsyncAftermindMemoryTool(memory, user_id="alice")
        return await tool.call({"command": "view", "path": "/memories/a.txt"})
    """
    tool = AsyncAftermindMemoryTool(memory, user_id="alice")
    async with standing_replica(database):
        await tool.call({"command": "create", "path": "/memories/a.txt", "file_text": "Oslo"})
        elsewhere = await read_elsewhere(settings, code)

    assert elsewhere == "Here's the content of /memories/a.txt with line numbers:\n     1\tOslo"
    assert isinstance(tool, BetaAsyncAbstractMemoryTool)


async def test_edits_at_the_same_time_are_all_applied(memory: Memory) -> None:
    tool = AsyncAftermindMemoryTool(memory)
    await tool.call({"command": "create", "path": "/memories/a", "file_text": ""})

    await asyncio.gather(
        *(
            tool.call({"command": "insert", "path": "/memories/a", "insert_line": 0, "insert_text": f"line {number}"})
            for number in range(8)
        )
    )

    block = await memory.blocks.get("/memories/a")
    assert block is not None
    assert sorted(block.content.split("\n")) == ["", *(f"line {number}" for number in range(8))]


async def test_users_do_not_see_each_others_files(memory: Memory) -> None:
    hers, his = (AsyncAftermindMemoryTool(memory, user_id=user) for user in ("alice", "bob"))
    await hers.call({"command": "create", "path": "/memories/a", "file_text": "hers"})

    assert "/memories/a" not in str(await his.call({"command": "view", "path": "/memories"}))
    with pytest.raises(ToolError, match="65,536"):
        await his.call({"command": "create", "path": "/memories/big", "file_text": "x" * 70_000})


async def test_attacks_come_back_as_numbered_lines_only(memory: Memory) -> None:
    tool = AsyncAftermindMemoryTool(memory)
    for number, attack in enumerate(attacks()):
        path = f"/memories/{number}"
        await tool.call({"command": "create", "path": path, "file_text": attack.text})
        shown = str(await tool.call({"command": "view", "path": path})).split("\n")
        assert shown[0] == f"Here's the content of {path} with line numbers:"
        assert all(re.match(rf" *{line}\t", text) for line, text in enumerate(shown[1:], start=1))


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    (shown,) = run_examples("anthropic.md", tmp_path)

    assert "I live in Oslo." in shown
