"""Stored messages that expire: from then on no read has them, nothing was derived from them, and their rows go."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

import pytest

from aftermind import Message
from aftermind.ranking import Question
from aftermind.stores.postgres.search import PostgresSearch
from aftermind.stores.search import Search
from aftermind.types import Scope
from tests.support.learning import Learning
from tests.support.servers import Database, psql_async

Opened = Callable[..., AbstractAsyncContextManager[Learning]]


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_an_expired_message_is_nowhere(opened: Opened, user: str, database: Database, is_encrypted: bool) -> None:
    async with opened() as learnt:
        memory = learnt.memory
        if is_encrypted:
            await memory.encryption.encrypt()
        later = datetime.now(UTC) + timedelta(hours=1)
        secret = Message.user("I live in Bergen.", expires_at=later)
        await learnt.learn(user, ["I like tea.", secret, "I work at Equinor."])
        (kept,) = [each for each in await memory.history(user_id=user) if each.expires_at is not None]
        facts = [fact.text for fact in await memory.facts.query(user_id=user)]

        await psql_async(database.url, f"UPDATE aftermind.episodes SET expires_at = now() WHERE id = '{kept.id}'")

        assert (kept.expires_at, kept.pending) == (later, False)
        assert facts
        assert not any("Bergen" in fact for fact in facts)
        assert "Bergen" not in (await memory.recall("Where do I live? Bergen?", user_id=user)).text
        assert await memory.get(kept.id, user_id=user) == [None]
        for whole in (0, 300):  # indexed, and full scan
            search = PostgresSearch(learnt.store._vault, whole=whole)
            async with learnt.database.transaction(namespace="default", read_only=True) as tx:
                found = await search.find(tx, Scope(user_id=user), Search(question=Question.of("I live in Bergen")))
            assert kept.id not in found.ids
            assert found.ids
        assert (await memory.sessions(user_id=user))[0].episodes == 2

        assert await memory.retention.delete_expired() == 1

        count = f"SELECT count(*) FROM aftermind.episodes WHERE id = '{kept.id}'"
        assert await psql_async(database.url, count) == "0"
        assert await memory.retention.delete_expired() == 0
        assert [fact.text for fact in await memory.facts.query(user_id=user)] == facts
