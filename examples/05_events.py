"""Follow what becomes of a turn, live. With the last cursor, a client that comes back misses nothing."""

import asyncio

from aftermind import Memory


async def main() -> None:
    async with Memory("inmemory") as memory:
        events = memory.events(user_id="alice", after="0")
        receipt = await memory.remember("I live in Bergen.", user_id="alice")
        async for event in events:
            print(event.event, event.to_json())
            if event.event == "MemoryUpdateCompleted" and event.job_id == str(receipt.job_id):
                break


asyncio.run(main())
