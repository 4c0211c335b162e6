"""`memory.blocks`: named working texts of a user, edited by agents and tools."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

from aftermind import errors
from aftermind.api.memory_services import Parts
from aftermind.db.database_protocol import Transaction
from aftermind.types import Block, Scope

BLOCK_BYTES = 65_536  # sixteen thousand tokens: more than any prompt should carry of one block
NAME_BYTES = 128


class Blocks:
    """The blocks of a user. Every call raises `InvalidScope`, `InvalidBlock` and `StoreUnavailable`.

    `expected_version` protects an edit: `BlockConflict` if another edit was faster. 0 means "must not exist yet".
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def list(self, *, user_id: str | None = None, namespace: str | None = None) -> list[Block]:
        """Every block, by name."""
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        async with self._parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:
            return await self._parts.store.blocks(tx, owner)

    async def get(self, name: str, *, user_id: str | None = None, namespace: str | None = None) -> Block | None:
        """One block, or None."""
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        async with self._parts.db.transaction(namespace=owner.namespace, read_only=True) as tx:
            return await self._parts.store.block(tx, owner, _name(name))

    async def set(
        self,
        name: str,
        content: str,
        *,
        description: str | None = None,
        user_id: str | None = None,
        namespace: str | None = None,
        expected_version: int | None = None,
    ) -> Block:
        """Create a block or replace its whole text; the stored one. `description` None leaves it as it is."""

        def change(found: Block | None) -> tuple[str, str]:
            return content, description if description is not None else (found.description if found else "")

        return await self._edit(name, change, user_id, namespace, expected_version)

    async def append(
        self,
        name: str,
        content: str,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        expected_version: int | None = None,
    ) -> Block:
        """Add a line at the end, creating the block where there is none; the stored one."""

        def change(found: Block | None) -> tuple[str, str]:
            if found is None or not found.content:
                return content, found.description if found else ""
            return f"{found.content}\n{content}", found.description

        return await self._edit(name, change, user_id, namespace, expected_version)

    async def replace(
        self,
        name: str,
        old: str,
        new: str,
        *,
        user_id: str | None = None,
        namespace: str | None = None,
        expected_version: int | None = None,
    ) -> Block:
        """Replace the only occurrence of `old`; returns the stored block.

        Raises `InvalidBlock` if there is no such block, or `old` does not occur exactly once.
        """

        def change(found: Block | None) -> tuple[str, str]:
            if found is None:
                raise errors.InvalidBlock("name", name, "there is no such block; create it by set().")
            count = found.content.count(old) if old else 0
            if count != 1:
                why = f"it occurs {count} times in block {name!r} and must occur once. Quote more of the text."
                raise errors.InvalidBlock("old", old, why)
            return found.content.replace(old, new), found.description

        return await self._edit(name, change, user_id, namespace, expected_version)

    async def delete(self, name: str, *, user_id: str | None = None, namespace: str | None = None) -> bool:
        """Remove a block; whether there was one."""
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        checked = _name(name)
        return await self._parts.effects.commit(owner, lambda tx: self._parts.store.delete_block(tx, owner, checked))

    async def rename(
        self, names: Mapping[str, str], *, user_id: str | None = None, namespace: str | None = None
    ) -> tuple[Block, ...]:
        """Give blocks new names, all of them or none; the stored ones.

        Raises `NotThere` for a name without a block, and `BlockConflict` for a new name that exists already.
        """
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        checked = {_name(old): _name(new) for old, new in names.items()}
        return await self._parts.effects.commit(owner, lambda tx: self._rename(tx, owner, checked))

    async def _rename(self, tx: Transaction, owner: Scope, names: Mapping[str, str]) -> tuple[Block, ...]:
        await self._parts.store.tombstones(tx, [owner])  # holds a forget of this user off until the end
        renamed = []
        for old, new in names.items():
            found = await self._parts.store.block(tx, owner, old)
            if found is None:
                raise errors.NotThere("block", old)
            # Written first: that locks the row, or raises if an edit was faster, which the deletion would lose.
            await self._parts.store.put_block(tx, found, expected_version=found.version)
            await self._parts.store.delete_block(tx, owner, old)
            moved = dataclasses.replace(found, name=new, version=1, updated_at=datetime.now(UTC))
            renamed.append(await self._parts.store.put_block(tx, moved, expected_version=0))
        return tuple(renamed)

    async def _edit(
        self,
        name: str,
        change: Callable[[Block | None], tuple[str, str]],
        user_id: str | None,
        namespace: str | None,
        expected_version: int | None,
    ) -> Block:
        """Read, change, write if the version is unchanged; once more if another edit was faster."""
        owner = self._parts.scope(namespace=namespace, user_id=user_id)
        checked = _name(name)
        tries = 1 if expected_version is not None else 5
        while True:
            tries -= 1
            try:
                return await self._parts.effects.commit(owner, self._editing(owner, checked, change, expected_version))
            except errors.BlockConflict:
                if not tries:
                    raise

    def _editing(
        self,
        owner: Scope,
        name: str,
        change: Callable[[Block | None], tuple[str, str]],
        expected_version: int | None,
    ) -> Callable[[Transaction], Awaitable[Block]]:
        async def edit(tx: Transaction) -> Block:
            await self._parts.store.tombstones(tx, [owner])  # holds a forget of this user off until the end
            found = await self._parts.store.block(tx, owner, name)
            content, description = change(found)
            version = found.version if found else 0
            block = Block(
                scope=owner,
                name=name,
                content=_content(content),
                version=version + 1,
                updated_at=datetime.now(UTC),
                description=_content(description),
            )
            expected = version if expected_version is None else expected_version
            return await self._parts.store.put_block(tx, block, expected_version=expected)

        return edit


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.strip() or "\x00" in name:
        raise errors.InvalidBlock("name", name, "a block's name is text, not empty, without NUL.")
    if len(name.encode("utf-8", "replace")) > NAME_BYTES:
        raise errors.InvalidBlock("name", name, f"a block's name has at most {NAME_BYTES} UTF-8 bytes.")
    return name


def _content(content: object) -> str:
    if not isinstance(content, str):
        raise errors.InvalidBlock("content", content, f"it is text, not {type(content).__name__}.")
    try:
        size = len(content.encode())
    except UnicodeEncodeError as exc:
        raise errors.InvalidBlock("content", content, "it must be valid Unicode; this has a lone surrogate.") from exc
    if size > BLOCK_BYTES:
        raise errors.InvalidBlock("content", f"{size} bytes", f"a block has at most {BLOCK_BYTES:,} bytes.")
    return content.replace("\x00", "")
