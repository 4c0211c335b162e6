"""A model provider that answers by script, over real HTTP."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from aftermind.llm.openai.client import Client
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai


@pytest.fixture
def provider() -> Iterator[ScriptedOpenAI]:
    """The provider, with an empty script."""
    with scripted_openai() as server:
        yield server


@pytest.fixture
async def reach(provider: ScriptedOpenAI) -> AsyncIterator[Callable[..., Client]]:
    """Ways to reach it, with a deadline of two seconds: `reach(api_key=…)`. Closed after the test."""
    made: list[Client] = []

    def make(**changed: object) -> Client:
        given: dict[str, object] = {"api_key": "right", "base_url": provider.url, "timeout": 2.0} | changed
        made.append(Client(**given))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        await each.close()


@pytest.fixture
def client(reach: Callable[..., Client]) -> Client:
    """One that works."""
    return reach()
