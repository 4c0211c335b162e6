"""Working text of a user that agents and tools edit. A stale edit is refused."""

import asyncio

from aftermind import Memory
from aftermind.errors import BlockConflict


async def main() -> None:
    async with Memory("inmemory") as memory:
        seen = await memory.blocks.set("todo", "buy milk", user_id="alice")
        await memory.blocks.append("todo", "call Nora", user_id="alice")
        try:
            await memory.blocks.set("todo", "nothing", user_id="alice", expected_version=seen.version)
        except BlockConflict as conflict:
            print(conflict)
        print((await memory.recall("What do I have to do?", user_id="alice")).text)


asyncio.run(main())
