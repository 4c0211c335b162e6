"""Erasure, order, expiry and receipts are right while the clocks of agents, workers and the service are wrong."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from aftermind import Memory, Settings
from aftermind.wire import queues
from tests.support.agent_client import AgentProcess, agent_process
from tests.support.servers import Database, psql_async
from tests.support.service import local_token, service
from tests.support.skewed_clock import SkewedClock, libfaketime
from tests.support.valkey import Valkey
from tests.support.waiting import NeverHappened, wait_until
from tests.support.workers import environment, workers

pytestmark = pytest.mark.usefixtures("impatient_with_redis")

SECOND, HOUR = 1.0, 3_600.0
PATIENCE = 60.0
SHARED = {
    "AFTERMIND_AUDIT_KEY": "one audit key on every host",
    "AFTERMIND_LEASE_SECONDS": "5",
    "AFTERMIND_HEARTBEAT_SECONDS": "1",
    "AFTERMIND_RECONCILE_SECONDS": "0.5",
}


@pytest.fixture(autouse=True)
def library() -> None:
    libfaketime()


@dataclass
class Hosts:
    """Agents on hosts whose clocks differ, and what is expected of the turns that they remember."""

    env: dict[str, str]
    folder: Path
    database: Database
    valkey: Valkey
    clocks: dict[str, SkewedClock] = field(default_factory=dict)
    agents: dict[str, AgentProcess] = field(default_factory=dict)
    expected: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def host(self, name: str, skew: float) -> dict[str, str]:
        """The environment of processes on a host of that name."""
        (self.folder / name).mkdir(exist_ok=True)
        self.clocks[name] = SkewedClock(self.folder / f"{name}.clock", skew)
        return self.clocks[name].environment({**self.env, "AFTERMIND_STATE_DIR": str(self.folder / name)})

    async def start_agent(self, stack: AsyncExitStack, name: str, skew: float) -> None:
        env = self.host(name, skew)
        self.agents[name] = await stack.enter_async_context(agent_process(env, self.folder / f"{name}.log"))
        assert abs(await self.agents[name].do("time") - time.time() - skew) < SECOND / 2, "the clock is skewed"

    async def remember(self, name: str, text: str, accept: str) -> None:
        """One turn of a host, in the session of all; `spool`: while Redis does not answer."""
        if accept == "spool":
            with self.valkey.frozen():
                assert await self.agents[name].do("remember", text=text)
            await wait_until(lambda: self.is_sent(name), timeout=PATIENCE, description="the spool is sent")
        else:
            await self.agents[name].do("remember", text=text, accept=accept)
        self.expected.append(text)

    def is_sent(self, name: str) -> bool:
        return not list((self.folder / name / "spool").glob("*.spool"))

    async def forget(self, name: str) -> None:
        await self.agents[name].do("forget", session="")
        self.forgotten += self.expected
        self.expected = []
        await self.shows_nothing_forgotten()

    async def shows_nothing_forgotten(self) -> None:
        """No host recalls or lists what was forgotten."""
        for name, agent in self.agents.items():
            block = await agent.do("recall", text="What is remembered of the cello?")
            listed = await agent.do("history")
            assert listed == self.expected, f"history on {name}"
            assert not [text for text in self.forgotten if text in block["text"]], f"recall on {name}"

    async def stored(self) -> list[str]:
        query = "SELECT content FROM aftermind.episodes WHERE user_id = 'alice' ORDER BY position"
        return (await psql_async(self.database.url, query)).splitlines()

    async def is_settled(self) -> None:
        """Every turn is stored or gone, and the receipts of every host say which."""

        async def is_stored() -> bool:
            return await self.stored() == self.expected

        with suppress(NeverHappened):  # the comparison below shows both lists
            await wait_until(is_stored, timeout=PATIENCE, description="all is stored")
        assert await self.stored() == self.expected

        async def states() -> dict[str, str]:
            return {text: state for each in self.agents.values() for text, state in await each.do("receipts")}

        async def have_ended() -> bool:
            return "waiting" not in (await states()).values()

        await wait_until(have_ended, timeout=PATIENCE, description="every receipt has ended")
        ended = await states()
        assert {text for text, state in ended.items() if state == "done"} >= set(self.expected) & ended.keys()
        assert set(ended.values()) <= {"done", "forgotten"}
        assert await self.stored() == self.expected
        await self.shows_nothing_forgotten()


@pytest.fixture
def hosts(database: Database, valkey: Valkey, tmp_path: Path) -> Hosts:
    env = environment(database.relay_url, valkey.url, **SHARED)
    return Hosts(env, tmp_path, database, valkey)


SKEWS = {"1 s": SECOND, "1 h": HOUR}
ACCEPTS = ("redis", "postgres", "spool")


def matrix(usual: str) -> list[Any]:  # Any: pytest's parameters
    """Every skew and way to accept; `usual` with an hour is in the usual run, the rest in the long one."""
    return [
        pytest.param(skew, accept, marks=[] if (skew, accept) == ("1 h", usual) else pytest.mark.long)
        for skew in SKEWS
        for accept in ACCEPTS
    ]


@pytest.mark.parametrize(("skew", "accept"), matrix("redis"))
async def test_a_forget_covers_what_came_before_it_and_nothing_after_it(hosts: Hosts, skew: str, accept: str) -> None:
    """Pending turns; the host behind forgets what the host ahead remembered, then the other way round."""
    async with AsyncExitStack() as stack:
        await hosts.start_agent(stack, "ahead", SKEWS[skew])
        await hosts.start_agent(stack, "behind", -SKEWS[skew])
        for forgetter, other in (("behind", "ahead"), ("ahead", "behind")):
            await hosts.remember(other, f"{other} plays the cello before {forgetter} forgets.", accept)
            await hosts.remember(forgetter, f"{forgetter} plays the cello before it forgets.", accept)
            await hosts.forget(forgetter)
        for name in ("behind", "ahead", "behind"):
            await hosts.remember(name, f"{name} plays cello number {len(hosts.expected)} at last.", accept)
        await hosts.shows_nothing_forgotten()

        worker = hosts.host("worker", SKEWS[skew])
        with workers(worker, hosts.folder):
            await hosts.is_settled()


@pytest.mark.parametrize(("skew", "accept"), matrix("postgres"))
async def test_a_forget_covers_what_is_stored_whatever_the_clocks(hosts: Hosts, skew: str, accept: str) -> None:
    """Stored turns, by a worker whose clock is behind."""
    worker = hosts.host("worker", -SKEWS[skew])
    async with AsyncExitStack() as stack:
        await hosts.start_agent(stack, "ahead", SKEWS[skew])
        await hosts.start_agent(stack, "behind", -SKEWS[skew])
        with workers(worker, hosts.folder):
            for forgetter, other in (("behind", "ahead"), ("ahead", "behind")):
                await hosts.remember(other, f"{other} plays the cello before {forgetter} forgets.", accept)
                await hosts.is_settled()
                await hosts.forget(forgetter)
            for name in ("behind", "ahead", "behind"):
                await hosts.remember(name, f"{name} plays cello number {len(hosts.expected)} at last.", accept)
            await hosts.is_settled()


async def test_turns_that_wait_in_the_ledger_keep_their_order_when_redis_loses_its_count(hosts: Hosts) -> None:
    """The first turn's worker dies, so it is stored last; the count of each turn restarts, on hosts that differ."""
    async with AsyncExitStack() as stack:
        await hosts.start_agent(stack, "ahead", HOUR)
        await hosts.start_agent(stack, "behind", -HOUR)
        await hosts.remember("ahead", "The cello is first.", "postgres")
        hosts.valkey.wipe()
        await hosts.remember("behind", "The cello is second.", "postgres")
        with hosts.valkey.frozen():
            await hosts.remember("ahead", "The cello is third.", "postgres")
            await hosts.remember("behind", "The cello is fourth.", "postgres")
        await psql_async(
            hosts.database.url,
            "UPDATE aftermind.jobs SET state = 'running', worker = 'dead', token = gen_random_uuid(),"
            " lease_until = clock_timestamp() + interval '8 s'"
            " WHERE id = (SELECT id FROM aftermind.jobs ORDER BY created_at LIMIT 1)",
        )

        with workers(hosts.host("worker", 0.0), hosts.folder):
            await hosts.is_settled()
            await hosts.remember("behind", "The cello is last.", "postgres")
            await hosts.is_settled()


@pytest.mark.long
@pytest.mark.parametrize("accept", ACCEPTS)
@pytest.mark.parametrize("step", [-HOUR, -SECOND, HOUR])
async def test_a_clock_that_steps_in_mid_session_changes_neither_order_nor_erasure(
    hosts: Hosts, step: float, accept: str
) -> None:
    async with AsyncExitStack() as stack:
        await hosts.start_agent(stack, "host", 0.0)
        await hosts.remember("host", "The cello is before the step.", accept)
        hosts.clocks["host"].step(step)
        await hosts.remember("host", "The cello is after the step.", accept)
        await hosts.shows_nothing_forgotten()
        await hosts.forget("host")
        hosts.clocks["host"].step(2 * step)
        await hosts.remember("host", "The cello is after the forget.", accept)
        with workers(hosts.host("worker", HOUR), hosts.folder):
            await hosts.is_settled()
            hosts.clocks["host"].step(3 * step)
            hosts.clocks["worker"].step(-HOUR)
            await hosts.remember("host", "The cello is last.", accept)
            await hosts.is_settled()


@pytest.mark.long
@pytest.mark.parametrize("skew", [-HOUR, HOUR])
async def test_turns_that_were_spooled_before_a_forget_are_dropped_when_they_are_sent(
    hosts: Hosts, skew: float
) -> None:
    """The host whose clock is wrong has turns on its disk while another one forgets; both go on afterwards."""
    async with AsyncExitStack() as stack:
        await hosts.start_agent(stack, "spooling", skew)
        await hosts.start_agent(stack, "other", 0.0)
        await hosts.remember("spooling", "The cello is known to Redis.", "redis")
        await hosts.agents["spooling"].do("history")  # from the primary, which by then has answered it the generation
        hosts.valkey.stop()
        assert await hosts.agents["spooling"].do("remember", text="The cello is on the disk.")
        await hosts.agents["other"].do("forget", session="")
        hosts.forgotten += [*hosts.expected, "The cello is on the disk."]
        hosts.expected = []
        assert await hosts.agents["spooling"].do("remember", text="The cello is on the disk after the forget.")
        hosts.expected.append("The cello is on the disk after the forget.")
        hosts.valkey.start()
        with workers(hosts.host("worker", -skew), hosts.folder, on=queues.STORE):
            await wait_until(lambda: hosts.is_sent("spooling"), timeout=PATIENCE, description="the spool is sent")
            await hosts.remember("other", "The cello is remembered by the other.", "redis")
            await hosts.is_settled()


@pytest.mark.long
async def test_a_memory_of_one_process_outlives_steps_of_its_clock(tmp_path: Path, database: Database) -> None:
    clock = SkewedClock(tmp_path / "clock")
    env = clock.environment(environment("inmemory", "", AFTERMIND_STATE_DIR=str(tmp_path)))
    async with agent_process(env, tmp_path / "agent.log") as agent:
        for number, step in enumerate((0.0, -HOUR, -2 * HOUR)):
            clock.step(step)
            await agent.do("remember", text=f"Cello {number} before.")
        before = await agent.do("history")
        clock.step(-3 * HOUR)
        await agent.do("forget", session="")
        emptied = await agent.do("history")
        for number, step in enumerate((-4 * HOUR, HOUR)):
            clock.step(step)
            await agent.do("remember", text=f"Cello {number} after.")

        async def are_done() -> bool:
            return [state for _, state in await agent.do("receipts")][-2:] == ["done", "done"]

        await wait_until(are_done, timeout=PATIENCE, description="the last turns are stored")
        after = await agent.do("history")

    assert before == ["Cello 0 before.", "Cello 1 before.", "Cello 2 before."]
    assert emptied == []
    assert after == ["Cello 0 after.", "Cello 1 after."]


@pytest.mark.long
@pytest.mark.parametrize("skew", [-HOUR, HOUR])
async def test_the_service_with_a_wrong_clock_forgets_and_remembers_alike(hosts: Hosts, skew: float) -> None:
    env = hosts.host("service", skew)
    with workers(hosts.host("worker", -skew), hosts.folder), service(env, hosts.folder) as url:
        token = local_token(hosts.folder / "service")
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx.AsyncClient(base_url=url, headers=headers, timeout=30, trust_env=False) as client,
            AsyncExitStack() as stack,
        ):

            async def post(content: str) -> str:
                answer = await client.post("/v1/users/alice/turns", json={"messages": content, "session_id": "s"})
                return str(answer.raise_for_status().json()["status_url"])

            await hosts.start_agent(stack, "agent", -skew)
            await hosts.remember("agent", "The agent plays the cello.", "redis")
            await post("Cello.")
            (await client.post("/v1/users/alice/forget", json={"everything": True})).raise_for_status()
            hosts.forgotten += [*hosts.expected, "Cello."]
            hosts.expected = []
            receipt = await post("Tuba.")
            hosts.expected.append("Tuba.")
            await hosts.remember("agent", "The agent plays the tuba.", "redis")
            await hosts.is_settled()
            status = await client.get(receipt)

    assert status.json()["stored"] == "done"


@pytest.mark.long
@pytest.mark.parametrize("skew", [-SECOND, -HOUR, HOUR])
async def test_what_is_said_last_is_true_whatever_the_clocks_of_hosts(hosts: Hosts, skew: float) -> None:
    """By hosts in turn, to Redis, to Postgres and through a spool; only a text that names a time is earlier."""
    hosts.env |= {"AFTERMIND_EXTRACT_QUIET_SECONDS": "0", "AFTERMIND_EXTRACT_MAX_WAIT_SECONDS": "0"}
    settings = Settings(database_url=hosts.database.app_url, redis_url=hosts.valkey.url, state_dir=hosts.folder)
    async with AsyncExitStack() as stack:
        await hosts.start_agent(stack, "wrong", skew)
        await hosts.start_agent(stack, "right", 0.0)
        memory = await stack.enter_async_context(Memory(settings=settings))
        with workers(hosts.host("worker", 0.0), hosts.folder, on=",".join(queues.QUEUES)):
            for accept in ACCEPTS:

                async def homes(user: str = accept) -> list[str]:
                    rows = await memory.facts.query(predicate="lives_in", user_id=user)
                    return [fact.object for fact in rows]

                for host, city in (("right", "Oslo"), ("wrong", "Rome"), ("right", "Lima"), ("wrong", "Graz")):
                    is_spooled = accept == "spool" and host == "wrong"
                    with hosts.valkey.frozen() if is_spooled else nullcontext():
                        mode = "redis" if accept == "spool" else accept
                        said = {"text": f"I live in {city}.", "user": accept, "session": f"{host} {city}"}
                        assert await hosts.agents[host].do("remember", accept=mode, **said) == is_spooled

                    async def is_believed(city: str = city, homes: Callable[[], Awaitable[list[str]]] = homes) -> bool:
                        return await homes() == [city]

                    await wait_until(is_believed, timeout=PATIENCE, description=f"{city} is the home, by {accept}")

            await hosts.agents["wrong"].do(
                "learn", text="I lived in Kyoto until 2010.", user="redis", session="k", accept="redis"
            )
            assert [fact.object for fact in await memory.facts.query(predicate="lives_in", user_id="redis")] == ["Graz"]


@pytest.mark.parametrize("skew", [pytest.param(-HOUR, marks=pytest.mark.long), HOUR])
async def test_keys_expire_by_the_clock_of_the_database_on_every_host(hosts: Hosts, skew: float) -> None:
    settings = Settings(database_url=hosts.database.app_url, redis_url=hosts.valkey.url, state_dir=hosts.folder)
    async with Memory(settings=settings) as memory:
        _, valid = await memory.api_keys.create("valid", expires_at=datetime.now(UTC) + timedelta(minutes=30))
        key, expired = await memory.api_keys.create("expired", expires_at=datetime.now(UTC) + timedelta(minutes=30))
        await psql_async(hosts.database.url, f"UPDATE aftermind.api_keys SET expires_at = now() WHERE id = '{key.id}'")

    async with AsyncExitStack() as stack:
        await hosts.start_agent(stack, "host", skew)
        found = [await hosts.agents["host"].do("is_valid", text=text) for text in (valid, expired)]

    assert found == [True, False]


async def test_what_is_learnt_through_a_host_whose_clock_is_ahead_is_true_at_once(hosts: Hosts) -> None:
    """Stated by a call, and mined from turns that Redis and Postgres accepted."""
    hosts.env |= {"AFTERMIND_EXTRACT_QUIET_SECONDS": "0", "AFTERMIND_EXTRACT_MAX_WAIT_SECONDS": "0"}
    settings = Settings(database_url=hosts.database.app_url, redis_url=hosts.valkey.url, state_dir=hosts.folder)
    async with AsyncExitStack() as stack:
        await hosts.start_agent(stack, "ahead", HOUR)
        ahead = hosts.agents["ahead"]
        memory = await stack.enter_async_context(Memory(settings=settings))

        async def believed(user: str) -> list[str]:
            return [fact.object for fact in await memory.facts.query(predicate="lives_in", user_id=user)]

        await ahead.do("state", text="Oslo", user="stated")
        at_once = await believed("stated")
        await memory.facts.add("user", "lives_in", "Bergen", user_id="stated")
        await ahead.do("state", text="Tromso", user="stated")
        with workers(hosts.host("worker", 0.0), hosts.folder, on=",".join(queues.QUEUES)):
            for accept in ("redis", "postgres"):
                await ahead.do("remember", text="I live in Oslo.", user=accept, accept=accept)
            for accept in ("redis", "postgres"):

                async def is_mined(user: str = accept) -> bool:
                    return bool(await memory.facts.history(user_id=user))

                await wait_until(is_mined, timeout=PATIENCE, description="the turn is mined")
        mined = [await believed(accept) for accept in ("redis", "postgres")]

        assert at_once == ["Oslo"]
        assert await believed("stated") == ["Tromso"]
        assert mined == [["Oslo"], ["Oslo"]]
