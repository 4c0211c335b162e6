"""Stories of several sessions, told to a memory whose model answers by script: what is believed at which moment."""

from pathlib import Path

import pytest

from aftermind.facts.predicates import folded
from tests.support.learning import Learning, learning
from tests.support.scripted_openai import ScriptedOpenAI
from tests.support.servers import Database, Servers
from tests.support.stories import Belief, Story, stories

STORIES = stories()


async def believed(learnt: Learning, user: str, belief: Belief) -> list[str]:
    facts = await learnt.memory.facts.query(user_id=user, as_of=belief.at)
    about = [fact for fact in facts if folded(fact.subject) == folded(belief.subject)]
    return sorted(folded(fact.object) for fact in about if fact.predicate == belief.predicate)


@pytest.mark.parametrize("story", STORIES, ids=[story.name for story in STORIES])
async def test_what_is_believed_at_each_moment_is_what_a_careful_reader_would_believe(
    story: Story,
    shared_database: Database,
    servers: Servers,
    tmp_path: Path,
    provider: ScriptedOpenAI,
    user: str,
) -> None:
    provider.script.facts = story.script

    async with learning(shared_database, servers.redis_url, tmp_path, provider) as learnt:
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
