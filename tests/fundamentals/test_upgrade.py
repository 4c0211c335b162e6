"""An upgrade while the former release's agents and workers go on: nothing lost, twice or out of order, no letter dead.

The former release is an earlier commit's code in processes of its own; see `tests.support.former`.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aftermind import Settings
from aftermind.db.failures import HEAD
from tests.fundamentals.conftest import QUICK, as_environment
from tests.support.deployment import AgentProcess, Deployment, Telling
from tests.support.former import NEW, Release, former
from tests.support.servers import Servers

pytestmark = pytest.mark.long

STORE, REST = "memory.store", "memory.embed,memory.extract,memory.replay"
ALL = f"{STORE},{REST}"
# Of the former release, once a process: a `SELECT facts.*` that it had prepared meets the columns that 0010 adds, and a
# `RETURNING jobs.*` those that 0022 adds. The job is tried again. This release names the columns that it reads.
OUTDATED_PLANS = ("NotSupportedError at asyncpg.py", '"error_class":"NotSupportedError"')


@pytest.fixture
def old(tmp_path: Path) -> Release:
    """The former release's code, which really is what its processes run."""
    release = former(tmp_path / "former")
    assert all(file.startswith(str(tmp_path)) for file in release.files(tmp_path))
    assert not any(file.startswith(str(tmp_path)) for file in NEW.files(tmp_path))
    return release


@pytest.fixture
async def deployment(own_servers: Callable[..., Servers], tmp_path: Path) -> Deployment:
    """Servers on which nothing was migrated yet."""
    servers = await asyncio.to_thread(own_servers, migrated=False)
    at = servers.endpoints
    settings = Settings(
        database_url=at.app_url,
        relay_url=at.relay_url,
        migrator_url=at.postgres_url,
        replica_urls=at.replica_urls,
        allow_owner=False,
        broker_url=at.redis_url,
        embedder="hash",
        extractor="rules",
        state_dir=tmp_path / "state",
        summary_quiet_seconds=0.5,
        profile_quiet_seconds=0.5,
        **QUICK,
    )
    environment = {**os.environ, **as_environment(settings)}
    return Deployment(servers=servers, settings=settings, environment=environment, folder=tmp_path)


async def learn(agents: list[AgentProcess], user: str) -> None:
    """Each agent tells a turn to Redis and one to Postgres, sees them stored, embedded and mined, and what all told."""
    for agent in agents:
        await agent.do("learn", user=user, text=f"I like tea of the {agent.release.name} agent.", accept="redis")
        await agent.do("learn", user=user, text=f"I like rye of the {agent.release.name} agent.", accept="postgres")
    for agent in agents:
        found = {object_ for _, object_ in await agent.do("facts", user=user)}
        assert found == {f"{what} of the {each.release.name} agent" for each in agents for what in ("tea", "rye")}
        recalled = await agent.do("recall", user=user, text="Which tea do I like?")
        assert recalled["degraded"] is None
        for each in agents:
            assert f"tea of the {each.release.name} agent" in recalled["text"]


@pytest.mark.timeout(300)
async def test_agents_and_workers_of_both_releases_go_on_through_an_upgrade(
    deployment: Deployment, old: Release
) -> None:
    here = deployment
    before = await here.migrate(old)

    async with here.agent(old) as former_agent, here.agent(NEW) as new_agent:
        both, telling = [former_agent, new_agent], Telling([former_agent])
        async with telling.going_on():
            with here.workers(old, ALL):
                await here.stored(20)
                after = await here.migrate(NEW)
                await here.stored(len(telling.told) + 20)  # by former workers, on the new schema
                telling.agents.append(new_agent)
                with here.workers(NEW, ALL):
                    await here.works(NEW)
                    await learn(both, "of everybody")
            with here.workers(old, STORE), here.workers(NEW, REST):
                await learn(both, "stored by former")
            with here.workers(NEW, STORE), here.workers(old, REST):
                await learn(both, "stored by new")
        with here.workers(NEW, ALL):
            await here.stored(len(telling.told))
            await here.settled()
        seen = [await agent.do("history") for agent in both]
        without = await here.facts_without_words()
        await here.migrate(NEW)

    assert before < after == HEAD
    # As sets: workers of the former release place turns by its agents' clocks, those of this one behind what is stored.
    assert [sorted(history) for history in seen] == [sorted(telling.told)] * 2, "each acknowledged turn once"
    assert await here.vectors("ann") == (len(telling.told), len(telling.told))
    assert await here.done_by("stored by former") == {"store": {"former"}, "extract": {"new"}}
    assert await here.done_by("stored by new") == {"store": {"new"}, "extract": {"former"}}
    assert here.states() == {"done"}
    assert without > 0, "former workers learned facts, and know of no words of facts"
    assert await here.facts_without_words() == 0
    tolerated = [line for line in here.errors() if "-former-" in line and any(map(line.__contains__, OUTDATED_PLANS))]
    assert [line for line in here.errors() if line not in tolerated] == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", ["forget", "forget a session", "undo"])
async def test_what_a_former_agent_takes_away_does_not_come_back_with_what_new_workers_learn(
    deployment: Deployment, old: Release, how: str
) -> None:
    """Claims are kept by the new release alone: the former one's statements do not name their table."""
    here, said = deployment, "I live in Gotham."
    await here.migrate(old)
    await here.migrate(NEW)

    async with here.agent(old) as former_agent, here.agent(NEW) as new_agent:
        with here.workers(NEW, ALL):
            await new_agent.do("learn", user="eve", text=said)
            await new_agent.do("learn", user="ben", text=said)
            assert await former_agent.do("facts", user="eve") == [["lives_in", "Gotham"]]
            if how == "undo":
                await former_agent.do("undo", user="eve", text=said)
            else:
                await former_agent.do("forget", user="eve", session="s" if how == "forget a session" else "")
            left = await here.claims("eve")
            await new_agent.do("learn", user="eve", text="I live in Rome.")

            facts = [await agent.do("facts", user="eve") for agent in (former_agent, new_agent)]

        assert left == ()
        assert facts == [[["lives_in", "Rome"]]] * 2
        assert [claim.object for claim in await here.claims("ben")] == ["Gotham"], "somebody else's stay"
    assert here.errors() == []
