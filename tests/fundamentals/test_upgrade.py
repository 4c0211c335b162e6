"""An upgrade while the previous release's agents and workers continue: nothing is lost, doubled or dead-lettered.

This tree is the previous release; see `tests.support.releases` for the next one, and the one after it.
"""

import os
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest
from pydantic import SecretStr

from aftermind import Settings
from aftermind.wire import queues
from tests.fundamentals.conftest import QUICK, as_environment
from tests.support.agent_client import AgentProcess
from tests.support.deployment import Deployment
from tests.support.releases import PREVIOUS, Release, next_release, release_after
from tests.support.servers import Database

pytestmark = pytest.mark.long

ALL = ",".join(queues.QUEUES)
ADDED = "SELECT count(*) > 0 AND bool_and(channel = 'chat') FROM aftermind.episodes"
RENAMED = "SELECT count(*) > 0 AND bool_and(mined_by = extractor) FROM aftermind.extractions"
COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = 'aftermind.extractions'::regclass AND attnum > 0"
CONSTRAINT = "SELECT convalidated FROM pg_constraint WHERE conname = 'facts_confidence'"


@pytest.fixture
def coming(tmp_path: Path) -> Release:
    """The next release, whose processes really run its code."""
    release = next_release(tmp_path / "next")
    assert all(file.startswith(str(tmp_path)) for file in release.imported_files(tmp_path))
    return release


@pytest.fixture
def deployment(database: Database, redis_url: str, tmp_path: Path) -> Deployment:
    """A database with the schema of this tree, a Redis, and nothing that runs on them yet."""
    settings = Settings(
        database_url=SecretStr(database.app_url),
        relay_url=SecretStr(database.relay_url),
        migrator_url=SecretStr(database.url),
        replica_urls=tuple(map(SecretStr, database.app_replica_urls)),
        broker_url=SecretStr(redis_url),
        embedder="hash",
        extractor="rules",
        state_dir=tmp_path / "state",
        summary_quiet_seconds=0.5,
        profile_quiet_seconds=0.5,
        recall_budget_seconds=30.0,  # the subject is the upgrade, not a busy machine
        query_embedding_budget_seconds=30.0,
        **QUICK,  # type: ignore[arg-type]  # by their own names
    )
    environment = {**os.environ, **as_environment(settings)}
    return Deployment(database=database, settings=settings, environment=environment, folder=tmp_path)


async def learn(agents: list[AgentProcess], user: str) -> None:
    """Each agent hands over a turn, sees it stored, embedded and mined, and recalls what both said."""
    for agent in agents:
        await agent.do("learn", user=user, text=f"I like tea of the {agent.name} agent.", accept="postgres")
    likes = {f"tea of the {agent.name} agent" for agent in agents}
    for agent in agents:
        assert {object_ for _, object_ in await agent.do("facts", user=user)} == likes
        recalled = await agent.do("recall", user=user, text="Which tea do I like?")
        assert recalled["degraded"] is None
        assert all(like in recalled["text"] for like in likes)


async def learn_across(here: Deployment, agents: list[AgentProcess]) -> None:
    """Let users learn until workers of either release have mined what workers of the other one stored."""
    for number in count():
        await learn(agents, f"user {number}")
        if {("previous", "newer"), ("newer", "previous")} <= await here.stored_and_mined_by():
            return


async def test_agents_and_workers_of_two_releases_share_an_expanded_schema_and_the_next_one_contracts_it(
    deployment: Deployment, coming: Release, tmp_path: Path
) -> None:
    here = deployment
    after = release_after(tmp_path / "after")

    async with AsyncExitStack() as previous:
        old = await previous.enter_async_context(here.running(PREVIOUS, on=ALL))
        await here.stored(5)
        expanded = await here.migrate(coming)
        await here.stored(len(old.acknowledged) + 5)
        async with here.running(coming, on=ALL) as new:
            await learn_across(here, [old.agent, new.agent])
            await previous.aclose()
            mixed = [await here.ask(ADDED), await here.ask(RENAMED), await here.ask(CONSTRAINT)]
            contracted = await here.migrate(after)
            await here.stored(len(old.acknowledged + new.acknowledged) + 5)
            await learn([new.agent], "after the contraction")
            await new.stop()
            acknowledged = sorted(old.acknowledged + new.acknowledged)
            await here.stored(len(acknowledged))
            await here.settled()
            history, vectors = await new.agent.do("history"), await new.agent.do("vectors")

    assert (expanded, contracted) == ("0004_pre_confidence", "0006_post_confidence")
    assert mixed == ["t", "t", "f"]
    assert [await here.ask(ADDED), await here.ask(CONSTRAINT)] == ["t", "t"]
    assert "extractor" not in (await here.ask(COLUMNS)).split()
    assert sorted(history) == acknowledged, "each acknowledged turn once"
    assert vectors == [len(acknowledged), len(acknowledged)]
    assert await here.states() == {"done"}
    assert here.errors() == []
