"""Stories of several sessions, told to a memory whose model answers by script: what is believed at which moment."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from aftermind.facts.predicates import folded
from tests.support.learning import Learning, learning
from tests.support.scripted_openai import ScriptedOpenAI, scripted_openai
from tests.support.servers import Database, Servers
from tests.support.stories import Belief, Story, stories

STORIES = stories()


@pytest.fixture(scope="module")
def provider() -> Iterator[ScriptedOpenAI]:
    """A model provider of the module."""
    with scripted_openai() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def learnt(
    shared_database: Database, servers: Servers, tmp_path_factory: pytest.TempPathFactory, provider: ScriptedOpenAI
) -> AsyncIterator[Learning]:
    """A memory of the module, in which each story has a user of its own."""
    folder = tmp_path_factory.mktemp("state")
    async with learning(shared_database, servers.redis_url, folder, provider) as one:
        yield one


async def believed(learnt: Learning, user: str, belief: Belief) -> list[str]:
    facts = await learnt.memory.facts.query(user_id=user, as_of=belief.at)
    about = [fact for fact in facts if folded(fact.subject) == folded(belief.subject)]
    return sorted(folded(fact.object) for fact in about if fact.predicate == belief.predicate)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("story", STORIES, ids=[story.name for story in STORIES])
async def test_what_is_believed_at_each_moment_is_what_a_careful_reader_would_believe(
    story: Story, learnt: Learning, provider: ScriptedOpenAI, user: str
) -> None:
    provider.script.facts = story.script

    for number, session in enumerate(story.sessions):
        for turn in session:
            await learnt.memory.remember(turn.message, user_id=user, session_id=f"s{number}")
        await learnt.settle()

    for belief in story.beliefs:
        found = await believed(learnt, user, belief)
        assert found == sorted(folded(each) for each in belief.objects), belief


def test_there_are_enough_stories() -> None:
    assert len(STORIES) >= 40
    assert len({story.name for story in STORIES}) == len(STORIES)
