"""Which node serves: a replica that has seen the scope's last write, else the primary, else an empty block in time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from aftermind.db.engine import PostgresDatabase
from aftermind.llm.hash_embedder import HashEmbedder
from aftermind.recall import Query, ReadNode, Recall, Routing
from aftermind.recall.query_embeddings import QueryVectors
from aftermind.settings import Settings
from aftermind.stores.postgres import PostgresStore
from aftermind.stores.postgres.search import READ_SETTINGS, STATE_SECONDS, PostgresSearch
from aftermind.stores.postgres.search_exhaustive import MOST_WHOLE
from aftermind.types import RecallBlock, Scope, ServedBy, Turn, Watermark
from aftermind.types.message import Message, new_ids
from tests.support.resource_cleanup import closing
from tests.support.servers import Database, psql_async, wait_for_output
from tests.support.stored_turns import START, keep, said
from tests.support.waiting import wait_until

ALICE = Scope(user_id="alice", session_id="s1")


class Reading:
    """A recall over the test's own nodes, with the marks that it is told to respect."""

    def __init__(
        self, database: Database, *, primary: str | None = None, replicas: tuple[str, ...] | None = None
    ) -> None:
        self.primary = PostgresDatabase(database.url, session_settings={})
        read = PostgresDatabase(primary or database.url, connect_timeout_seconds=0.5, session_settings=READ_SETTINGS)
        urls = database.replica_urls if replicas is None else replicas
        self.nodes = [
            ReadNode(name=f"replica {n}", database=PostgresDatabase(url, session_settings=READ_SETTINGS))
            for n, url in enumerate(urls)
        ]
        self.databases = [self.primary, read, *(node.database for node in self.nodes)]
        search = PostgresSearch()
        self.routing = Routing(read, self.nodes, search, check=timedelta(seconds=1))
        self.waiting: list[Turn] = []
        self.recall_ = Recall(
            PostgresStore(),
            search,
            self.routing,
            QueryVectors(HashEmbedder()),
            settings=Settings(),
            local_turns=self._local,
        )

    async def recall(self, text: str, *marks: Watermark) -> RecallBlock:
        replica = self.routing.replica
        self.routing.replica = lambda passed, **rest: replica(marks, **rest)  # type: ignore[method-assign]
        try:
            return await self.recall_.recall(Query.checked(text, ALICE))
        finally:
            self.routing.replica = replica  # type: ignore[method-assign]

    async def _local(self, owner: Scope) -> list[Turn]:
        return self.waiting

    async def close(self) -> None:
        await self.recall_.close()
        for database in self.databases:
            await database.close()


@pytest.fixture
async def reading(database: Database) -> AsyncIterator[Reading]:
    made = Reading(database)
    yield made
    await made.close()


async def caught_up(reading: Reading) -> Watermark:
    """A mark that the replica has passed: what is written to the log from now on has nothing to do with the test."""
    mark = await reading.primary.watermark()

    async def has() -> bool:
        return (await reading.recall("x", mark)).served_by is ServedBy.REPLICA

    await wait_until(has, description="the replica has replayed what was written")
    return mark


async def test_a_replica_that_has_seen_the_write_serves(database: Database, reading: Reading) -> None:
    await keep(database.url, [said("I moved to Oslo")])
    mark = await caught_up(reading)

    block = await reading.recall("Where did I move?", mark)

    assert block.served_by is ServedBy.REPLICA
    assert block.replica == "replica 0"
    assert "Oslo" in block.text
    assert block.degraded is None


async def test_replicas_take_turns_and_one_that_is_down_is_passed_over(database: Database) -> None:
    [url] = database.replica_urls
    reading = Reading(database, replicas=(url, url, "postgresql://reader@127.0.0.1:1/none", url))
    try:
        await keep(database.url, [said("I moved to Oslo")])
        await caught_up(reading)
        for _ in range(4):  # one of them finds the replica that is down
            await reading.recall("Oslo")

        served = Counter([(await reading.recall("Oslo")).replica for _ in range(12)])
    finally:
        await reading.close()

    assert set(served) == {"replica 0", "replica 1", "replica 3"}
    assert min(served.values()) >= 3


async def test_a_paused_replica_is_never_served_to_a_scope_that_just_wrote(
    database: Database, reading: Reading
) -> None:
    await keep(database.url, [said("I like tea")])
    await caught_up(reading)
    await psql_async(database.replica_admin_urls[0], "SELECT pg_wal_replay_pause()")
    try:
        for number in range(10):
            await keep(database.url, [said(f"My number is {number}")])
            block = await reading.recall(f"number {number}", await reading.primary.watermark())
            assert f"number is {number}" in block.text
            assert block.served_by is ServedBy.PRIMARY
        other = await reading.recall("tea")  # nobody wrote for this one
        assert other.served_by is ServedBy.REPLICA
    finally:
        await psql_async(database.replica_admin_urls[0], "SELECT pg_wal_replay_resume()")
    await caught_up(reading)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was said to any node, a statement a trip."""
    said: list[str] = []

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:  # Any: the driver's own
        async def noted(self: object, query: str, *rest: Any, **options: Any) -> Any:
            said.append(" ".join(query.split()))
            return await call(self, query, *rest, **options)

        return noted

    for name in ("execute", "fetchrow"):
        monkeypatch.setattr(asyncpg.Connection, name, noting(getattr(asyncpg.Connection, name)))
    return said


@pytest.mark.parametrize(
    ("episodes", "expected"),
    [(1, [2, 1]), (MOST_WHOLE + 1, [3, 2])],  # the first asks for the replica's place, too
    ids=["of little", "of much"],
)
async def test_a_recall_takes_as_few_trips_as_it_can(
    database: Database, reading: Reading, trips: list[str], episodes: int, expected: list[int]
) -> None:
    await keep(database.url, [said(f"I like tea number {number}") for number in range(episodes)])
    mark = await reading.primary.watermark()
    await caught_up(reading)
    await asyncio.sleep(STATE_SECONDS)
    trips.clear()

    told = await reading.recall("tea", mark)
    first, again = len(trips), await reading.recall("tea", mark)

    assert (told.served_by, again.served_by) == (ServedBy.REPLICA, ServedBy.REPLICA)
    assert "I like tea" in told.text
    assert "I like tea" in again.text
    assert [first, len(trips) - first] == expected
    assert "pg_is_in_recovery" in trips[0]
    assert not any(said.startswith(("BEGIN", "COMMIT")) for said in trips)


async def test_a_replica_that_told_enough_is_asked_again_for_a_newer_mark(database: Database, reading: Reading) -> None:
    await keep(database.url, [said("I like tea")])
    await caught_up(reading)
    await psql_async(database.replica_admin_urls[0], "SELECT pg_wal_replay_pause()")
    try:
        assert (await reading.recall("tea")).served_by is ServedBy.REPLICA
        await keep(database.url, [said("I like coffee")])
        newer = await reading.primary.watermark()
        assert (await reading.recall("coffee", newer)).served_by is ServedBy.PRIMARY
    finally:
        await psql_async(database.replica_admin_urls[0], "SELECT pg_wal_replay_resume()")

    replayed = f"SELECT pg_last_wal_replay_lsn() - '0/0' >= {newer.lsn}"
    await wait_for_output(database.replica_admin_urls[0], replayed, "t", description="the replica has replayed it")
    assert (await reading.recall("coffee", newer)).served_by is ServedBy.REPLICA, "it is asked, not what it told before"


async def test_a_mark_of_another_system_or_a_later_timeline_asks_the_primary(
    database: Database, reading: Reading
) -> None:
    await keep(database.url, [said("I like tea")])
    mark = await caught_up(reading)

    later = Watermark(system=mark.system, timeline=mark.timeline + 1, lsn=mark.lsn)
    foreign = Watermark(system=mark.system + 1, timeline=mark.timeline, lsn=mark.lsn)

    assert (await reading.recall("tea", later)).served_by is ServedBy.PRIMARY
    assert (await reading.recall("tea", foreign)).served_by is ServedBy.PRIMARY
    assert (await reading.recall("tea", mark)).served_by is ServedBy.REPLICA


async def test_a_node_that_is_no_replica_any_more_is_left(database: Database) -> None:
    promoted = (database.url,)  # the name leads to a primary
    async with closing(Reading(database, replicas=promoted)) as reading:
        await keep(database.url, [said("I like tea")])

        block = await reading.recall("tea")

        assert block.served_by is ServedBy.PRIMARY
        assert "promoted" in reading.routing.states()["replica 0"]


async def test_a_replica_that_is_down_costs_one_recall_a_little_and_comes_back_by_itself(
    database: Database, unused_tcp_port_factory: Callable[[], int]
) -> None:
    dead = f"postgresql://nobody@127.0.0.1:{unused_tcp_port_factory()}/gone"
    async with closing(Reading(database, replicas=(dead, *database.replica_urls))) as reading:
        await keep(database.url, [said("I like tea")])
        await caught_up(reading)

        block = await reading.recall("tea")

        assert block.served_by is ServedBy.REPLICA
        assert block.replica == "replica 1"
        assert reading.routing.states()["replica 0"] != "serving"
        reading.nodes[0].database = reading.nodes[1].database  # the address answers again

        async def serves() -> bool:
            await reading.recall("tea")
            return reading.routing.states()["replica 0"] == "serving"

        await wait_until(serves, description="the replica is taken back")


async def test_with_the_primary_down_a_replica_goes_on_serving(
    database: Database, unused_tcp_port_factory: Callable[[], int]
) -> None:
    down = f"postgresql://nobody@127.0.0.1:{unused_tcp_port_factory()}/gone"
    async with closing(Reading(database, primary=down)) as reading:
        await keep(database.url, [said("I like tea")])
        await caught_up(reading)

        block = await reading.recall("tea")

        assert block.served_by is ServedBy.REPLICA
        assert "tea" in block.text


async def test_with_nothing_to_read_from_what_is_pending_is_shown_in_bounded_time(
    database: Database, unused_tcp_port_factory: Callable[[], int]
) -> None:
    down = f"postgresql://nobody@127.0.0.1:{unused_tcp_port_factory()}/gone"
    async with closing(Reading(database, primary=down, replicas=())) as reading:
        reading.waiting = [_turn("I moved to Oslo yesterday"), _turn("The weather is fine")]

        began = asyncio.get_running_loop().time()
        block = await reading.recall("Where did I move?")

        assert asyncio.get_running_loop().time() - began < 1.5
        assert block.served_by is ServedBy.NONE
        assert block.degraded is not None
        assert "Oslo" in block.text


async def test_a_turn_that_is_pending_and_stored_is_shown_once(database: Database, reading: Reading) -> None:
    turn = _turn("I moved to Oslo yesterday")
    await keep(database.url, list(turn.episodes()))
    reading.waiting = [turn, turn, _turn("And I like kayaks")]

    block = await reading.recall("Oslo kayaks", await reading.primary.watermark())

    assert block.text.count("Oslo") == 1
    assert block.text.count("kayaks") == 1


def _turn(*texts: str) -> Turn:
    job, ids = new_ids(len(texts))
    return Turn(
        job_id=job,
        scope=ALICE,
        remembered_at=START,
        base=1_800_000_000_000_000,
        messages=tuple(Message.user(text) for text in texts),
        episode_ids=ids,
    )
