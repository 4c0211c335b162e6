"""Every store keeps the store's promises; and what only several connections can show."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from sqlalchemy import text

from aftermind import errors
from aftermind.db.engine import PostgresDatabase
from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.db.postgres_transaction import pg
from aftermind.db.record_store_journals.protocol import AnyJournal
from aftermind.stores.inmemory import InMemoryStore
from aftermind.stores.postgres import PostgresStore
from aftermind.types.tombstone import Tombstone
from tests.conformance.store_contract import StoreContract
from tests.conformance.store_fixtures import ALICE, Rig
from tests.support.journals import reading_each_time
from tests.support.servers import Database
from tests.support.stored_turns import said
from tests.support.waiting import wait_until

_BLOCKED = "SELECT count(*) > 0 AS blocked FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


class TestInMemoryStore(StoreContract):
    """The twin."""

    @pytest.fixture
    def rig(self) -> Rig:
        """A store in memory."""
        return Rig(db=MemoryDatabase(), store=InMemoryStore())


class TestJournaledStore(StoreContract):
    """The in-memory store, written by each journal."""

    @pytest.fixture
    async def rig(self, journal: AnyJournal) -> AsyncIterator[Rig]:
        """A store that reads its rows back each time."""
        database = reading_each_time(journal)
        yield Rig(db=database, store=InMemoryStore())
        await database.close()


class TestPostgresStore(StoreContract):
    """The real one, with what needs several connections."""

    @pytest.fixture
    async def rig(self, database: Database) -> AsyncIterator[Rig]:
        """A store in a database of the test's own."""
        opened = PostgresDatabase(database.url)
        yield Rig(db=opened, store=PostgresStore())
        await opened.close()

    async def test_two_stores_of_one_turn_at_one_moment_store_it_once(self, rig: Rig) -> None:
        episodes = [said(f"said {i}") for i in range(20)]

        new = await asyncio.gather(*(rig.add(*episodes) for _ in range(4)))

        assert sorted(len(ids) for ids in new) == [0, 0, 0, 20]
        assert len(await rig.history()) == 20

    @pytest.mark.parametrize("is_known", [True, False])
    async def test_an_effect_that_waited_for_a_forget_sees_its_tombstone(self, rig: Rig, is_known: bool) -> None:
        if is_known:
            await rig.add(said("before"))
            await rig.do(lambda tx: rig.store.tombstones(tx, [ALICE]))

        async def effect() -> list[Tombstone]:
            return await rig.do(lambda tx: rig.store.tombstones(tx, [ALICE]))

        async with rig.db.transaction() as tx:
            await rig.forget_in(tx)
            waiting = asyncio.create_task(effect())
            await wait_until(lambda: _someone_waits(rig), description="the effect waits for the forget")

        assert len(await waiting) == 1

    async def test_a_forget_waits_for_effects_under_way_and_takes_what_they_wrote(self, rig: Rig) -> None:
        async with rig.db.transaction() as tx:
            assert await rig.store.tombstones(tx, [ALICE]) == []
            await rig.store.add_episodes(tx, [said("under way")])
            forgetting = asyncio.create_task(rig.forget())
            await wait_until(lambda: _someone_waits(rig), description="the forget waits for the effect")

        assert (await forgetting)["episodes"] == 1
        assert await rig.history() == []

    async def test_two_edits_of_one_version_end_in_one_conflict(self, rig: Rig) -> None:
        await rig.put_block("one")

        ended = await asyncio.gather(
            *(rig.put_block(f"edit {i}", expected=1) for i in range(4)), return_exceptions=True
        )

        assert sum(isinstance(each, errors.BlockConflict) for each in ended) == 3

    async def test_a_vector_of_another_dimension_is_refused_with_both_numbers(self, rig: Rig) -> None:
        episode = said("one")

        with pytest.raises(errors.DimensionMismatch) as refused:
            await rig.add(episode, vectors={episode.id: np.ones(3, dtype=np.float32)})

        assert (refused.value.stored, refused.value.wanted) == (384, 3)


async def _someone_waits(rig: Rig) -> bool:
    async with rig.db.transaction(read_only=True) as tx:
        row = await pg(tx).row(text(_BLOCKED))
    return bool(row is not None and row.blocked)
