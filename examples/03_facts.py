"""What is learnt: facts with two times. A new home ends the old one, and history keeps both."""

import asyncio
from datetime import UTC, datetime

from aftermind import Memory


async def main() -> None:
    async with Memory("inmemory") as memory:
        march, june = datetime(2025, 3, 1, tzinfo=UTC), datetime(2025, 6, 1, tzinfo=UTC)
        await memory.facts.add("user", "lives_in", "Bergen", user_id="alice", valid_from=march)
        await memory.facts.add("user", "lives_in", "Oslo", user_id="alice", valid_from=june)

        (now,) = await memory.facts.query(user_id="alice", predicate="lives_in")
        (then,) = await memory.facts.query(user_id="alice", as_of=datetime(2025, 4, 1, tzinfo=UTC))
        print(f"now: {now.object}, in April: {then.object}")

        for row in await memory.facts.history("user", "lives_in", user_id="alice"):
            print(row.text, row.valid_from, row.valid_to)


asyncio.run(main())
