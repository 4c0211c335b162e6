"""Remember a turn, and recall it for the next question. `Memory()` uses what `aftermind up` started."""

import asyncio

from aftermind import Memory, Message


async def main() -> None:
    async with Memory("inmemory") as memory:
        turn = [Message.user("I prefer dark mode."), Message.assistant("Noted.")]
        receipt = await memory.remember(turn, user_id="alice", session_id="monday")

        # Included immediately, also before a worker has stored it:
        block = await memory.recall("What theme do I like?", user_id="alice", session_id="tuesday", token_budget=500)
        print(block.text)

        await receipt.stored(timeout=10)  # optional; needed here because the script ends
        print(await receipt.status())


asyncio.run(main())
