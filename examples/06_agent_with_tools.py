"""An agent with memory and a tool. Give `model="gpt-5-mini"` and OPENAI_API_KEY for a real one."""

import asyncio

from aftermind import Agent, Memory, TextDelta, get_run_context
from aftermind.llm.protocols import ToolCall
from aftermind.testing import ScriptedChatModel


def opening_hours(day: str) -> str:
    """Tell when the shop is open on a day of the week."""
    run = get_run_context()
    return f"{day}: 9 to 17, for {run.user_id if run else 'anybody'}"


async def main() -> None:
    model = ScriptedChatModel(
        ToolCall(id="1", name="opening_hours", arguments='{"day": "Monday"}'), "On Monday from 9 to 17."
    )
    async with Memory("inmemory") as memory:
        agent = Agent("You work in a shop.", model=model, memory=memory, tools=[opening_hours])
        async for event in agent.arun_stream("When do you open on Monday?", user_id="alice", session_id="s1"):
            print(event.text if isinstance(event, TextDelta) else event)


asyncio.run(main())
