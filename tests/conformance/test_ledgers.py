"""Every ledger keeps the ledger's promises; and what only several connections can show."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from aftermind.db.engine import PostgresDatabase
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.db.record_store_journals.protocol import AnyJournal
from aftermind.ledger.inmemory import ledger
from aftermind.ledger.inmemory.ledger import InMemoryLedger
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.types import JobKind, Turn
from aftermind.wire.turn_encoding import decode_turn, encode_turn
from tests.conformance.ledger_contract import LedgerContract
from tests.conformance.ledger_fixtures import Rig, ids_of, job
from tests.support.journals import reading_each_time
from tests.support.servers import Database
from tests.support.turns import turn_of

_SHIFT = """
    UPDATE aftermind.jobs SET run_at = run_at - $1::interval, lease_until = lease_until - $1::interval,
           due_by = due_by - $1::interval, created_at = created_at - $1::interval,
           updated_at = updated_at - $1::interval
"""


class MovedDatabase(MemoryDatabase):
    """A database in memory whose clock can be moved."""

    ahead = timedelta(0)

    def now(self) -> datetime:
        """The clock, moved."""
        return datetime.now(UTC) + self.ahead


class TestInMemoryLedger(LedgerContract):
    """The twin."""

    @pytest.fixture
    def rig(self) -> Rig:
        """A ledger in memory."""
        database = MovedDatabase()

        async def pass_time(by: timedelta) -> None:
            database.ahead += by

        return Rig(db=database, ledger=InMemoryLedger(database), pass_time=pass_time)

    async def test_the_order_of_a_session_reads_no_turn_that_it_knows(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = Counter[bytes]()

        def decode(payload: bytes) -> Turn:
            read[payload] += 1
            return decode_turn(payload)

        monkeypatch.setattr(ledger, "decode_turn", decode)
        for number in range(20):
            turn = turn_of("alice", f"said {number}", base=number)
            async with rig.db.transaction() as tx:
                await rig.ledger.accepted_order(tx, [turn.scope])
                assert await rig.ledger.accept(tx, turn, encode_turn(turn))

        assert list(read.values()) == [1], "the first; the others were accepted here"


class TestJournaledLedger(LedgerContract):
    """The in-memory ledger, written by each journal."""

    @pytest.fixture
    async def rig(self, journal: AnyJournal) -> AsyncIterator[Rig]:
        """A ledger that reads its rows back each time."""
        database = reading_each_time(journal, MovedDatabase)

        async def pass_time(by: timedelta) -> None:
            database.ahead += by

        yield Rig(db=database, ledger=InMemoryLedger(database), pass_time=pass_time)
        await database.close()


class TestPostgresLedger(LedgerContract):
    """The real one, with what needs several connections."""

    @pytest.fixture
    async def rig(self, database: Database) -> AsyncIterator[Rig]:
        """A ledger in a database of the test's own."""
        opened = PostgresDatabase(database.url)

        async def pass_time(by: timedelta) -> None:
            connection = await asyncpg.connect(database.url)
            await connection.execute(_SHIFT, by)
            await connection.close()

        yield Rig(db=opened, ledger=PostgresLedger(opened), pass_time=pass_time)
        await opened.close()

    async def test_a_namespace_with_many_users_does_not_hold_another_up(self, rig: Rig) -> None:
        await rig.put(*(job(user=f"u{i}", namespace="crowd") for i in range(60)))
        late = job(user="late", namespace="small")
        await rig.put(late)

        assert late.id in ids_of(await rig.claim(limit=4))

    async def test_namespaces_are_served_in_turn_where_they_are_more_than_a_claim_takes(self, rig: Rig) -> None:
        await rig.put(*(job(user=f"u{i}", namespace="crowd") for i in range(100)))
        await rig.put(*(job(user=f"u{i}", namespace=f"small-{i}") for i in range(10)))

        served = [lease.job.scope.namespace for _ in range(6) for lease in await rig.claim(limit=4)]

        assert {space for space in served if space != "crowd"} == {f"small-{i}" for i in range(10)}

    async def test_a_claim_is_full_while_there_is_work_however_it_is_spread(self, rig: Rig) -> None:
        await rig.put(*(job(user=f"u{i}", namespace="crowd") for i in range(9)), job(namespace="small"))

        assert [len(await rig.claim(limit=5)) for _ in range(3)] == [5, 5, 0]

    async def test_claims_at_one_moment_never_take_the_same_job(self, rig: Rig) -> None:
        await rig.put(*(job(user=f"u{i % 5}") for i in range(60)))

        batches = await asyncio.gather(*(rig.claim(limit=10, worker=f"w{i}") for i in range(8)))

        taken = Counter(each for batch in batches for each in ids_of(batch))
        assert set(taken.values()) == {1}
        rest = await rig.claim()
        assert len(taken) + len(rest) == 60

    async def test_claims_at_one_moment_never_mine_a_session_twice(self, rig: Rig) -> None:
        await rig.put(*(job(JobKind.EXTRACT, session=f"s{i % 4}") for i in range(40)))

        batches = await asyncio.gather(*(rig.claim(JobKind.EXTRACT, limit=2, worker=f"w{i}") for i in range(8)))

        sessions = Counter(lease.job.scope.session_id for batch in batches for lease in batch)
        assert sessions
        assert set(sessions.values()) == {1}

    async def test_two_stores_of_one_turn_at_one_moment_record_it_once(self, rig: Rig) -> None:
        turns = [turn_of("alice", str(i)) for i in range(20)]

        async def record() -> int:
            async with rig.db.transaction() as tx:
                return len(await rig.ledger.record_stored(tx, turns))

        assert sorted(await asyncio.gather(*(record() for _ in range(4)))) == [0, 0, 0, 20]

    async def test_pushes_at_one_moment_are_one_job(self, rig: Rig) -> None:
        answers = await asyncio.gather(
            *(rig.push(*(job(JobKind.EXTRACT, key=f"s{i}") for i in range(10))) for _ in range(6))
        )

        assert len({each for answer in answers for each in answer}) == 10
