"""What integrations of agent loops share, with both kinds of memory."""

from aftermind import sync
from aftermind.integrations.conversations import recalled_text, remember_run
from aftermind.integrations.framework_store_urls import MemoryPlace


async def test_a_memory_without_await_serves_a_framework_with_an_event_loop() -> None:
    memory = sync.Memory("inmemory")
    await remember_run(memory, [("user", "I live in Oslo.")], user_id="ann")

    assert "I live in Oslo." in await recalled_text(memory, "Where do I live?", user_id="ann")
    place = MemoryPlace(memory)
    assert len(await place.memory.history(user_id="ann")) == 1
    await place.close()
