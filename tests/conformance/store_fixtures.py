"""A store to be held to its contract, and what is put into it."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import uuid4

import numpy as np

from aftermind.db.database_protocol import Database, Transaction
from aftermind.stores.protocol import EpisodeFilter, Store, Vector
from aftermind.types import (
    Block,
    Cardinality,
    Episode,
    EpisodeId,
    Fact,
    FactId,
    Profile,
    Scope,
    Summary,
    Trait,
)
from aftermind.types.assertion import Assertion, Operation, RecordedAssertion
from aftermind.types.tombstone import Tombstone
from aftermind.types.uuid7 import uuid7

T = TypeVar("T")
ALICE, BOB = Scope(user_id="alice"), Scope(user_id="bob")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DIMENSION = 384
ODD_IDS = [None, "o'); DROP TABLE x; --", "%_*?[", "ü" * 256, "\u202e\U0001f600", "\x01", " alice", "Alice"]


class _RolledBack(Exception):
    """What ends a transaction that is to leave nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """A store with its database."""

    db: Database
    store: Store

    async def do(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Do it in a transaction of its own."""
        async with self.db.transaction() as tx:
            return await work(tx)

    async def undone(self, work: Callable[[Transaction], Awaitable[object]]) -> None:
        """Do it in a transaction that rolls back."""
        with suppress(_RolledBack):
            async with self.db.transaction() as tx:
                await work(tx)
                raise _RolledBack

    async def add(self, *episodes: Episode, vectors: Mapping[EpisodeId, Vector] | None = None) -> frozenset[EpisodeId]:
        """Store episodes."""
        return await self.do(lambda tx: self.store.add_episodes(tx, episodes, vectors))

    async def history(self, owner: Scope = ALICE, *, limit: int = 100, **wanted: object) -> list[str]:
        """What was said."""
        rule = EpisodeFilter(**wanted)  # type: ignore[arg-type]
        found = await self.do(lambda tx: self.store.history(tx, owner, rule, limit=limit))
        return [episode.content for episode in found]

    async def add_facts(self, *facts: Fact) -> int:
        """Store facts."""
        return await self.do(lambda tx: self.store.add_facts(tx, facts))

    async def objects(self, owner: Scope = ALICE, **wanted: object) -> list[str]:
        """The objects of facts."""
        found = await self.do(lambda tx: self.store.facts(tx, owner, **wanted))  # type: ignore[arg-type]
        return [fact.object for fact in found]

    async def put_block(self, content: str, *, expected: int | None = None, owner: Scope = ALICE) -> Block:
        """Set the block "human"."""
        block = Block(scope=owner, name="human", content=content, version=0, updated_at=NOW)
        return await self.do(lambda tx: self.store.put_block(tx, block, expected_version=expected))

    async def merge(self, **traits: Trait | None) -> Profile:
        """Merge traits into alice's profile."""
        return await self.do(lambda tx: self.store.merge_profile(tx, ALICE, traits, at=NOW))

    async def forget(self, owner: Scope = ALICE, **covers: object) -> dict[str, int]:
        """Forget, now."""
        return await self.do(lambda tx: self.forget_in(tx, owner, **covers))

    async def forget_in(self, tx: Transaction, owner: Scope = ALICE, **covers: object) -> dict[str, int]:
        """Forget, in a transaction under way."""
        number = await self.store.begin_erasure(tx, owner)
        stone = Tombstone(owner=owner, generation=number, **covers)  # type: ignore[arg-type]
        return await self.store.forget(tx, stone)

    async def counts(self, owner: Scope = ALICE) -> dict[str, int]:
        """Rows of an owner."""
        return await self.do(lambda tx: self.store.counts(tx, owner))


def heard(value: str, *sources: EpisodeId, subject: str = "user") -> RecordedAssertion:
    """A claim that was kept."""
    claim = Assertion(
        subject=subject,
        predicate="likes",
        object=value,
        said_at=NOW,
        operation=Operation.RETRACT,
        valid_from=NOW - timedelta(days=3),
        valid_to=NOW,
        confidence=0.5,
        cardinality=Cardinality.MULTI,
        sources=sources,
    )
    return RecordedAssertion(id=uuid7(), claim=claim, extractor="rules:1", place=3)


def fact(
    object_: str,
    *,
    owner: Scope = ALICE,
    predicate: str = "lives_in",
    recorded_at: datetime = NOW,
    sources: tuple[EpisodeId, ...] = (),
    **more: object,
) -> Fact:
    """A fact about the user."""
    return Fact(
        id=FactId(uuid4()),
        scope=owner,
        subject="user",
        predicate=predicate,
        object=object_,
        recorded_at=recorded_at,
        sources=sources,
        **more,  # type: ignore[arg-type]
    )


def vector(seed: int) -> Vector:
    """A unit vector."""
    drawn = np.random.default_rng(seed).standard_normal(DIMENSION).astype(np.float32)
    return np.asarray(drawn / np.linalg.norm(drawn), dtype=np.float32)


def summary(text: str, *, session: str | None = "s1", covers_to: int = 10, at: datetime = NOW) -> Summary:
    """A summary of a session of alice's."""
    scope = Scope(user_id="alice", session_id=session)
    return Summary(scope=scope, text=text, covers_to=covers_to, messages=3, updated_at=at, summariser="test")


def fields(episode: Episode) -> dict[str, object]:
    """What an episode is made of."""
    return {name: getattr(episode, name) for name in Episode.__dataclass_fields__}
