"""Anthropic's memory tool: every reply is compared with that of the SDK's own tool on files."""

import asyncio
import re
from contextlib import suppress
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
from tests.integrations.documentation_pages import run_examples
from tests.integrations.freshness import read_elsewhere, standing_replica
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
# A file system refuses these by errors of its own, whose text the model of the SDK's own tool sees.
REFUSED: list[dict[str, Any]] = [
    {"command": "create", "path": "/memories/a.txt/b", "file_text": "below a file"},
    {"command": "create", "path": "/memories/a.txt/b/c", "file_text": "further below a file"},
    {"command": "rename", "old_path": "/memories/deep", "new_path": "/memories/deep/er/still"},
    {"command": "rename", "old_path": "/memories/deep", "new_path": "/memories/a.txt/deep"},
]
DIRECTORY_SIZE = re.compile(r"^\S+\t(?=\S*/$|/memories(?:/deep)?$)", re.MULTILINE)  # a file system's own


def reply(tool: Any, fields: dict[str, Any]) -> str:
    try:
        return str(tool.call(fields))
    except ToolError as exc:
        return f"error: {exc}"
    except OSError:
        return "refused"


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


def test_no_file_has_the_name_of_a_directory(tmp_path: Path) -> None:
    theirs = BetaLocalFilesystemMemoryTool(base_path=str(tmp_path))
    with aftermind.sync.Memory("inmemory") as memory:
        ours = AftermindMemoryTool(memory, user_id="alice")
        for tool in (theirs, ours):
            for path in ("/memories/a.txt", "/memories/deep/er/b.md"):
                tool.call({"command": "create", "path": path, "file_text": "text"})
        for fields in REFUSED:
            assert reply(theirs, fields) == "refused", fields
            assert reply(ours, fields).startswith("error: "), fields

        shown = {"command": "view", "path": "/memories"}
        assert DIRECTORY_SIZE.sub("", reply(ours, shown)) == DIRECTORY_SIZE.sub("", reply(theirs, shown))


async def test_an_edit_between_the_steps_of_a_rename_is_kept(memory: Memory) -> None:
    tool, edits = AsyncAftermindMemoryTool(memory, user_id="alice"), 0
    await tool.call({"command": "create", "path": "/memories/old/a", "file_text": "text"})
    real = memory.blocks.list

    async def list_and_edit(**whose: Any) -> Any:
        nonlocal edits
        found = await real(**whose)
        block = await memory.blocks.get("/memories/old/a", user_id="alice")
        if block is not None:
            await memory.blocks.set(block.name, block.content + "+", user_id="alice", expected_version=block.version)
            edits += 1
        return found

    memory.blocks.list = list_and_edit  # type: ignore[method-assign]
    await tool.call({"command": "rename", "old_path": "/memories/old", "new_path": "/memories/new"})

    assert edits
    assert [(each.name, each.content) for each in await real(user_id="alice")] == [
        ("/memories/new/a", "text" + "+" * edits)
    ]


async def test_edits_at_the_same_time_as_a_rename_are_kept(memory: Memory) -> None:
    tool = AsyncAftermindMemoryTool(memory, user_id="alice")
    for name in "ab":
        await tool.call({"command": "create", "path": f"/memories/old/{name}", "file_text": name})

    async def edits() -> None:
        for number in range(40):
            with suppress(ToolError):  # it is renamed
                fields = {"path": "/memories/old/a", "insert_line": 0, "insert_text": f"line {number}"}
                await tool.call({"command": "insert", **fields})
                kept.append(f"line {number}")

    kept: list[str] = []
    await asyncio.gather(
        edits(), tool.call({"command": "rename", "old_path": "/memories/old", "new_path": "/memories/new"})
    )

    assert {each.name for each in await memory.blocks.list(user_id="alice")} == {"/memories/new/a", "/memories/new/b"}
    block = await memory.blocks.get("/memories/new/a", user_id="alice")
    assert block is not None
    assert block.content.split("\n")[: len(kept)] == kept[::-1]


async def test_a_rename_moves_all_files_or_none(memory: Memory) -> None:
    tool = AsyncAftermindMemoryTool(memory, user_id="alice")
    paths = ["/memories/d/a", f"/memories/d/{'b' * 110}"]
    for path in paths:
        await tool.call({"command": "create", "path": path, "file_text": "text"})

    with pytest.raises(ToolError, match="128"):
        await tool.call({"command": "rename", "old_path": "/memories/d", "new_path": "/memories/a-longer-name"})

    assert [each.name for each in await memory.blocks.list(user_id="alice")] == paths


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
