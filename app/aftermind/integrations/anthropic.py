"""Anthropic's memory tool: the files of Claude are blocks of the user. Replies are those of the SDK's own tool."""

from collections.abc import Callable
from typing import Any

from aftermind import errors
from aftermind.api import blocking_portal
from aftermind.api.blocking_portal import to_async
from aftermind.integrations.anthropic_paths import ROOT, check_directories, to_block_name, within
from aftermind.integrations.framework_imports import extra
from aftermind.memory import Memory
from aftermind.sync import Memory as SyncMemory
from aftermind.types import Block

with extra("anthropic"):
    from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool
    from anthropic.lib.tools._beta_functions import ToolError

MAX_LINES = 999_999


class AsyncAftermindMemoryTool(BetaAsyncAbstractMemoryTool):
    """The memory tool for `AsyncAnthropic`. A file is a block, of at most 64 KiB; its path has at most 128 bytes.

    Two edits of one file at the same time are both applied. Errors are `ToolError`s for the model to read.
    """

    def __init__(
        self,
        memory: Memory | SyncMemory,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        cache_control: Any = None,  # Any: a parameter of the SDK
    ) -> None:
        super().__init__(cache_control=cache_control)
        self.blocks = to_async(memory).blocks
        self._whose: dict[str, Any] = {"user_id": user_id, "namespace": namespace}

    async def execute(self, command: Any) -> Any:
        """Run a command. Raises `ToolError`."""
        try:
            return await super().execute(command)
        except errors.InvalidBlock as exc:
            raise ToolError(str(exc)) from exc

    async def view(self, command: Any) -> str:
        """A file with line numbers, or the files of a directory."""
        path = to_block_name(command.path)
        block = await self.blocks.get(path, **self._whose)
        if block is None:
            return await self._list(command.path, path)
        lines = block.content.split("\n")
        if len(lines) > MAX_LINES:
            raise ToolError(f"File {command.path} exceeds maximum line limit of {MAX_LINES:,} lines.")
        first, last = 1, len(lines)
        if command.view_range and len(command.view_range) == 2:
            first = max(1, command.view_range[0])
            last = len(lines) if command.view_range[1] == -1 else command.view_range[1]
        return f"Here's the content of {command.path} with line numbers:\n" + _numbered(lines, first, last)

    async def create(self, command: Any) -> str:
        """A new file."""
        path = to_block_name(command.path)
        names = await self._names()
        if path == ROOT or within(path, names):
            raise ToolError(f"File {command.path} already exists")
        check_directories(command.path, path, names)
        try:
            await self.blocks.set(path, command.file_text, expected_version=0, **self._whose)
        except errors.BlockConflict as exc:
            raise ToolError(f"File {command.path} already exists") from exc
        return f"File created successfully at: {command.path}"

    async def str_replace(self, command: Any) -> str:
        """Replace a text that occurs once."""
        at = 0

        def replaced(content: str) -> str:
            nonlocal at
            count = content.count(command.old_str)
            if count == 0:
                raise ToolError(
                    f"No replacement was performed, old_str `{command.old_str}` did not appear verbatim in "
                    f"{command.path}."
                )
            if count > 1:
                raise ToolError(
                    f"No replacement was performed. Multiple occurrences of old_str `{command.old_str}` in lines: "
                    f"{_lines_of(content, command.old_str)}. Please ensure it is unique"
                )
            at = content[: content.find(command.old_str)].count("\n") + 1
            return content.replace(command.old_str, command.new_str or "")

        lines = (await self._edit(command.path, replaced)).split("\n")
        head = "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
        return head + _numbered(lines, max(1, at - 2), min(len(lines), at + 2))

    async def insert(self, command: Any) -> str:
        """Insert a line."""

        def inserted(content: str) -> str:
            lines = content.removesuffix("\n").split("\n") if content else []
            if not 0 <= command.insert_line <= len(lines):
                raise ToolError(
                    f"Invalid `insert_line` parameter: {command.insert_line}. "
                    f"It should be within the range [0, {len(lines)}]."
                )
            lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
            text = "\n".join(lines)
            return text if text.endswith("\n") else text + "\n"

        await self._edit(command.path, inserted)
        return f"The file {command.path} has been edited."

    async def delete(self, command: Any) -> str:
        """Delete a file, or a directory with its files."""
        path = to_block_name(command.path)
        if path == ROOT:
            raise ToolError("Cannot delete the /memories directory itself")
        if not await self.blocks.delete(path, **self._whose):
            below = await self._below(path)
            if not below:
                raise ToolError(f"The path {command.path} does not exist")
            for block in below:
                await self.blocks.delete(block.name, **self._whose)
        return f"Successfully deleted {command.path}"

    async def rename(self, command: Any) -> str:
        """Rename a file, or a directory with all its files."""
        old, new = to_block_name(command.old_path), to_block_name(command.new_path)
        if old == ROOT:
            raise ToolError("Cannot rename the /memories directory itself")
        while True:
            names = await self._names()
            moved = within(old, names)
            if new == ROOT or within(new, names):
                raise ToolError(f"The destination {command.new_path} already exists")
            if not moved:
                raise ToolError(f"The path {command.old_path} does not exist")
            if new.startswith(old + "/"):
                raise ToolError(f"Cannot rename {command.old_path} to {command.new_path}, which is inside of it")
            check_directories(command.new_path, new, names)
            try:
                await self.blocks.rename({each: new + each.removeprefix(old) for each in moved}, **self._whose)
            except (errors.BlockConflict, errors.NotThere):
                continue  # one of the files was edited, created or deleted in between
            return f"Successfully renamed {command.old_path} to {command.new_path}"

    async def clear_all_memory(self) -> str:
        """Delete every file."""
        for block in await self._below(ROOT):
            await self.blocks.delete(block.name, **self._whose)
        return "All memory cleared"

    async def _edit(self, path: str, change: Callable[[str], str]) -> str:
        """Change a file's text; again if another edit was faster."""
        name = to_block_name(path)
        while True:
            block = await self.blocks.get(name, **self._whose)
            if block is None:
                if name == ROOT or await self._below(name):
                    raise ToolError(f"The path {path} is not a file.")
                raise ToolError(f"The path {path} does not exist. Please provide a valid path.")
            changed = change(block.content)
            try:
                await self.blocks.set(name, changed, expected_version=block.version, **self._whose)
            except errors.BlockConflict:
                continue
            return changed

    async def _names(self) -> list[str]:
        return [each.name for each in await self.blocks.list(**self._whose)]

    async def _below(self, path: str) -> list[Block]:
        return [each for each in await self.blocks.list(**self._whose) if each.name.startswith(path + "/")]

    async def _list(self, shown: str, path: str) -> str:
        below = await self._below(path)
        if not below and path != ROOT:
            raise ToolError(f"The path {shown} does not exist. Please provide a valid path.")
        sizes: dict[tuple[str, ...], int] = {}
        for block in below:
            labels = block.name.removeprefix(path + "/").split("/")
            if any(label.startswith(".") for label in labels):
                continue
            for level in range(1, len(labels)):
                directory = (*labels[: level - 1], labels[level - 1] + "/")
                sizes[directory] = sizes.get(directory, 0) + _size(block)
            sizes[tuple(labels)] = _size(block)
        lines = [f"{_units(sum(map(_size, below)))}\t{shown}"]
        ordered = sorted(sizes, key=lambda each: [label.rstrip("/") for label in each])
        lines += [f"{_units(sizes[each])}\t{shown}/{'/'.join(each)}" for each in ordered if len(each) <= 2]
        head = f"Here're the files and directories up to 2 levels deep in {shown}, excluding hidden items:"
        return "\n".join([head, *lines])


def _blocking(name: str) -> Callable[["AftermindMemoryTool", Any], str]:
    def run(self: "AftermindMemoryTool", command: Any) -> str:
        return str(blocking_portal.call(lambda: getattr(self.files, name)(command)))

    return run


class AftermindMemoryTool(BetaAbstractMemoryTool):
    """The memory tool for `Anthropic`, the blocking client: see `AsyncAftermindMemoryTool`."""

    def __init__(self, memory: Memory | SyncMemory, *, cache_control: Any = None, **whose: str | None) -> None:
        super().__init__(cache_control=cache_control)
        self.files = AsyncAftermindMemoryTool(memory, **whose)

    def execute(self, command: Any) -> Any:
        """Run a command. Raises `ToolError`."""
        return blocking_portal.call(lambda: self.files.execute(command))

    def clear_all_memory(self) -> str:
        """Delete every file."""
        return blocking_portal.call(self.files.clear_all_memory)

    view, create, str_replace = _blocking("view"), _blocking("create"), _blocking("str_replace")
    insert, delete, rename = _blocking("insert"), _blocking("delete"), _blocking("rename")


def _numbered(lines: list[str], first: int, last: int) -> str:
    shown = enumerate(lines[first - 1 : last], start=first)
    return "\n".join(f"{number:>6}\t{line}" for number, line in shown)


def _lines_of(content: str, text: str) -> str:
    places, start = [], 0
    while (found := content.find(text, start)) != -1:
        places.append(content[:found].count("\n") + 1)
        start = found + 1
    return ", ".join(map(str, places))


def _size(block: Block) -> int:
    return len(block.content.encode())


def _units(size: int) -> str:
    """Bytes as `ls -h` shows them: 512B, 1.5K, 4K."""
    unit = 0 if size == 0 else min((size.bit_length() - 1) // 10, 3)
    value = size / 1024**unit
    return f"{int(value) if value == int(value) else f'{value:.1f}'}{'BKMG'[unit]}"
