"""Agents of a tenant that is being moved: each turn is recalled by both, as soon as it was handed over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aftermind import Memory, Receipt, Settings
from tests.support.waiting import PATIENCE_SECONDS, wait_until

USER = "alice"


@dataclass
class Agents:
    """Two agents of one user, in processes of their own as far as placement goes, and what they have seen."""

    namespace: str
    writer: Memory
    reader: Memory
    receipts: list[Receipt] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    spooled: int = 0

    async def talk(self) -> None:
        """One turn, and a recall by each; a turn that is spooled is recalled by its own process alone."""
        number = len(self.receipts)
        word = f"word{number}x"
        receipt = await self.writer.remember(
            f"The keyword is {word}.",
            user_id=USER,
            namespace=self.namespace,
            accept="postgres" if number % 3 == 2 else "redis",
        )
        self.receipts.append(receipt)
        self.spooled += receipt.spooled
        for memory in (self.writer,) if receipt.spooled else (self.writer, self.reader):
            block = await memory.recall(word, user_id=USER, namespace=self.namespace)
            if word not in block.text:
                self.stale.append(f"{word} ({'spooled' if receipt.spooled else 'handed over'}): {block.degraded}")

    async def talk_on(self, description: str) -> None:
        """Wait for some more turns."""
        wanted = len(self.receipts) + 3
        await wait_until(lambda: len(self.receipts) >= wanted, description=description)

    async def wait_until_stored(self) -> None:
        """Every receipt reports it, wherever the tenant is by then."""
        for receipt in self.receipts:
            await receipt.stored(timeout=PATIENCE_SECONDS)


def copied(settings: Settings) -> Settings:
    """The same settings, as another process reads them: what one learns of a move, the other does not."""
    return Settings(**{name: getattr(settings, name) for name in settings.model_fields_set})


@asynccontextmanager
async def talking(settings: Settings, namespace: str) -> AsyncIterator[Agents]:
    """Agents that talk until the block ends, and whose receipts report then that every turn is stored."""
    async with Memory(settings=copied(settings)) as writer, Memory(settings=copied(settings)) as reader:
        agents, ended = Agents(namespace, writer, reader), asyncio.Event()

        async def talk() -> None:
            while not ended.is_set():
                await agents.talk()

        task = asyncio.create_task(talk())
        try:
            yield agents
        finally:
            ended.set()
            await task
        await agents.wait_until_stored()
