"""What every store promises, whichever database keeps it. Bound to each in `test_stores.py`."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID, uuid4

import numpy as np
import pytest
from uuid6 import uuid7

from aftermind import errors
from aftermind.db.base import Database, Transaction
from aftermind.stores.base import EpisodeFilter, Mined, MiningOutcome, Store, Tombstone, Vector
from aftermind.types import (
    Block,
    Cardinality,
    Episode,
    EpisodeId,
    Fact,
    FactId,
    Profile,
    Role,
    Scope,
    Summary,
    Trait,
)
from aftermind.types.claim import Claim, Operation, Said
from tests.support.remembered import said

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

    async def merge(self, **traits: Trait) -> Profile:
        """Merge traits into alice's profile."""
        return await self.do(lambda tx: self.store.merge_profile(tx, ALICE, traits, at=NOW))

    async def forget(self, owner: Scope = ALICE, **covers: object) -> dict[str, int]:
        """Forget, now."""
        stone = Tombstone(owner=owner, at=datetime.now(UTC), **covers)  # type: ignore[arg-type]
        return await self.do(lambda tx: self.store.forget(tx, stone))

    async def counts(self, owner: Scope = ALICE) -> dict[str, int]:
        """Rows of an owner."""
        return await self.do(lambda tx: self.store.counts(tx, owner))


def heard(value: str, *sources: EpisodeId, subject: str = "user") -> Said:
    """A claim that was kept."""
    claim = Claim(
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
    return Said(id=UUID(bytes=uuid7().bytes), claim=claim, extractor="rules:1", place=3)


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
    return Summary(scope=scope, text=text, covers_to=covers_to, turns=3, updated_at=at, summariser="test")


class EpisodesContract:
    """Subclasses give the fixture `rig`."""

    async def test_an_episode_comes_back_as_it_went_in(self, rig: Rig) -> None:
        given = said(
            "Ünïcode 'quotes' \u2028 and \U0001f600",
            agent="a1",
            role=Role.TOOL,
            name="search",
            metadata={"deep": {"list": [1, 2.5, None, True]}, "quote": "\"'"},
        )

        assert await rig.add(given) == {given.id}

        (found,) = await rig.do(lambda tx: rig.store.episodes(tx, ALICE, [given.id]))
        assert found == given

    async def test_an_episode_that_is_there_is_left_as_it_is(self, rig: Rig) -> None:
        given, new = said("first"), said("second")
        await rig.add(given)
        changed = Episode(**{**_fields(given), "content": "changed"})  # type: ignore[arg-type]

        assert await rig.add(changed, new) == {new.id}

        assert await rig.history() == ["first", "second"]

    async def test_a_hundred_episodes_of_many_owners_are_stored_at_once(self, rig: Rig) -> None:
        given = [said(f"said {i}", user=f"u{i % 7}", session=f"s{i % 3}") for i in range(100)]

        assert await rig.add(*given) == {episode.id for episode in given}

        assert await rig.history(Scope(user_id="u3")) == [f"said {i}" for i in range(3, 100, 7)]

    async def test_the_same_id_of_two_owners_is_two_episodes(self, rig: Rig) -> None:
        mine = said("mine")
        theirs = Episode(**{**_fields(mine), "scope": BOB, "content": "theirs"})  # type: ignore[arg-type]

        await rig.add(mine, theirs)

        assert await rig.history(ALICE) == ["mine"]
        assert await rig.history(BOB) == ["theirs"]

    async def test_nothing_of_a_transaction_that_rolled_back_stays(self, rig: Rig) -> None:
        await rig.undone(lambda tx: rig.store.add_episodes(tx, [said("never")]))

        assert await rig.history() == []

    async def test_history_is_the_newest_in_the_order_in_which_it_was_said(self, rig: Rig) -> None:
        one, two, three = said("one"), said("two", session="s2"), said("three")
        await rig.add(three, one, two)

        assert await rig.history() == ["one", "two", "three"]
        assert await rig.history(limit=2) == ["two", "three"]
        assert await rig.history(before_position=three.position) == ["one", "two"]

    async def test_history_is_filtered_by_labels_roles_times_and_metadata(self, rig: Rig) -> None:
        await rig.add(
            said("plain", session="s1", at=NOW),
            said("labelled", session="s2", agent="a1", at=NOW + timedelta(hours=1)),
            said("tool", session=None, role=Role.TOOL, at=NOW + timedelta(hours=2)),
            said("tagged", metadata={"tags": ["x", "y"], "n": {"a": 1}}, at=NOW + timedelta(hours=3)),
        )

        assert await rig.history(session_id="s2") == ["labelled"]
        assert await rig.history(agent_id="a1") == ["labelled"]
        assert await rig.history(roles=frozenset({Role.TOOL})) == ["tool"]
        assert await rig.history(since=NOW + timedelta(hours=1), until=NOW + timedelta(hours=3)) == ["labelled", "tool"]
        assert await rig.history(metadata={"tags": ["y"]}) == ["tagged"]
        assert await rig.history(metadata={"n": {"a": 1}}) == ["tagged"]
        assert await rig.history(metadata={"n": {"a": True}}) == []

    async def test_sessions_are_listed_the_latest_first(self, rig: Rig) -> None:
        await rig.add(said("a", session="old", at=NOW), said("b", session=None, at=NOW))
        await rig.add(said("c", session="new", at=NOW), said("d", session="new", at=NOW + timedelta(hours=1)))

        found = await rig.do(lambda tx: rig.store.sessions(tx, ALICE))

        assert [(each.session_id, each.episodes) for each in found] == [("new", 2), (None, 1), ("old", 1)]
        assert (found[0].first_at, found[0].last_at) == (NOW, NOW + timedelta(hours=1))
        assert len(await rig.do(lambda tx: rig.store.sessions(tx, ALICE, limit=1))) == 1

    @pytest.mark.parametrize("session", ["s1", None])
    async def test_a_rolling_job_sees_what_came_after_its_last_look(self, rig: Rig, session: str | None) -> None:
        one, two, three = (said(text, session=session) for text in ("one", "two", "three"))
        await rig.add(one, two, three, said("elsewhere", session="s9"))

        found = await rig.do(
            lambda tx: rig.store.session_span(tx, ALICE, session, after_position=one.position, limit=1)
        )

        assert [episode.content for episode in found] == ["two"]

    async def test_vectors_come_with_the_episodes_or_later(self, rig: Rig) -> None:
        at_once, later, never = said("one"), said("two"), said("three")
        await rig.add(at_once, later, never, vectors={at_once.id: vector(1)})
        ids = [at_once.id, later.id, never.id]
        assert await rig.do(lambda tx: rig.store.embedded(tx, ALICE, ids)) == {at_once.id}

        unknown = EpisodeId(uuid4())
        given = {(ALICE, later.id): vector(2), (ALICE, unknown): vector(3), (BOB, never.id): vector(4)}
        for _ in range(2):
            assert await rig.do(lambda tx: rig.store.set_vectors(tx, given)) == 1

        assert await rig.do(lambda tx: rig.store.embedded(tx, ALICE, ids)) == {at_once.id, later.id}

    async def test_an_episode_is_mined_once_and_its_outcome_kept(self, rig: Rig) -> None:
        one, two = said("one"), said("two")
        await rig.add(one, two)
        facts = MiningOutcome(episode_id=one.id, outcome=Mined.FACTS, extractor="rules-1", facts=2)
        await rig.do(lambda tx: rig.store.note_outcomes(tx, ALICE, [facts]))

        unmined = await rig.do(lambda tx: rig.store.unmined(tx, ALICE, "s1", limit=10))
        outcomes = await rig.do(lambda tx: rig.store.outcomes(tx, ALICE, [one.id, two.id]))

        assert [episode.id for episode in unmined] == [two.id]
        assert outcomes == [facts]
        later = MiningOutcome(episode_id=one.id, outcome=Mined.EMPTY, extractor="rules-2", reason="nothing new")
        await rig.do(lambda tx: rig.store.note_outcomes(tx, ALICE, [later]))
        assert await rig.do(lambda tx: rig.store.outcomes(tx, ALICE, [one.id])) == [later]

    async def test_owners_with_odd_ids_never_see_each_other(self, rig: Rig) -> None:
        owners = [Scope(namespace=space, user_id=user) for user in ODD_IDS for space in ("default", "%", "other")]
        for index, owner in enumerate(owners):
            await rig.add(said(f"of {index}", user=owner.user_id, namespace=owner.namespace, session=owner.user_id))

        seen = [await rig.history(owner) for owner in owners]

        assert seen == [[f"of {index}"] for index in range(len(owners))]


class FactsContract:
    """Subclasses give the fixture `rig`."""

    async def test_a_fact_comes_back_as_it_went_in(self, rig: Rig) -> None:
        episode = said("I moved to Oslo.")
        await rig.add(episode)
        given = fact(
            "Oslo 'o' \U0001f600",
            owner=Scope(user_id="alice", session_id="s1", agent_id="a1"),
            sources=(episode.id,),
            confidence=0.5,
            cardinality=Cardinality.SINGLE,
            valid_from=NOW - timedelta(days=400),
            strength=2,
            extractor="rules-1",
        )

        assert await rig.add_facts(given) == 1
        assert await rig.add_facts(given) == 0

        assert await rig.do(lambda tx: rig.store.fact(tx, ALICE, given.id)) == given
        assert await rig.do(lambda tx: rig.store.fact(tx, BOB, given.id)) is None

    async def test_facts_are_asked_for_by_subject_and_predicate_newest_belief_first(self, rig: Rig) -> None:
        await rig.add_facts(
            fact("Oslo"), fact("tea", predicate="likes", recorded_at=NOW + timedelta(minutes=1)), fact("x", owner=BOB)
        )

        assert await rig.objects() == ["tea", "Oslo"]
        assert await rig.objects(predicate="likes") == ["tea"]
        assert await rig.objects(subject="sister") == []
        assert await rig.objects(limit=1) == ["tea"]

    async def test_another_moment_of_the_world_has_other_facts(self, rig: Rig) -> None:
        moved = NOW - timedelta(days=30)
        await rig.add_facts(fact("Bergen", valid_to=moved), fact("Oslo", valid_from=moved))

        assert await rig.objects() == ["Oslo"]
        assert await rig.objects(as_of=moved - timedelta(days=1)) == ["Bergen"]
        assert await rig.objects(as_of=moved) == ["Oslo"]

    async def test_another_moment_of_our_knowledge_had_other_beliefs(self, rig: Rig) -> None:
        wrong, right = fact("Bergen"), fact("Oslo", recorded_at=NOW + timedelta(days=2))
        await rig.add_facts(wrong, right)
        at = NOW + timedelta(days=2)

        ended = [
            await rig.do(lambda tx: rig.store.supersede_facts(tx, ALICE, [wrong.id], at=at, by_id=right.id))
            for _ in range(2)
        ]

        assert ended == [1, 0]
        assert await rig.objects() == ["Oslo"]
        assert await rig.objects(known_at=NOW + timedelta(days=1)) == ["Bergen"]
        assert await rig.objects(known_at=at) == ["Oslo"]
        assert await rig.objects(known_at=NOW - timedelta(days=1)) == []
        assert await rig.objects(history=True) == ["Oslo", "Bergen"]

    async def test_the_same_claim_again_strengthens_the_fact(self, rig: Rig) -> None:
        first, second = said("I live in Oslo."), said("Here in Oslo, where I live …")
        await rig.add(first, second)
        given = fact("Oslo", sources=(first.id,), confidence=0.6)
        await rig.add_facts(given)

        for confidence in (0.9, 0.3):
            await rig.do(
                lambda tx, sure=confidence: rig.store.strengthen_fact(  # type: ignore[misc]
                    tx, ALICE, given.id, sources=[second.id], confidence=sure
                )
            )

        found = await rig.do(lambda tx: rig.store.fact(tx, ALICE, given.id))
        assert found is not None
        assert (found.strength, found.confidence, set(found.sources)) == (3, 0.9, {first.id, second.id})

    async def test_facts_are_found_by_the_episodes_they_came_from(self, rig: Rig) -> None:
        first, second = said("one"), said("two")
        await rig.add(first, second)
        ours, other = fact("Oslo", sources=(first.id, second.id)), fact("tea", sources=(second.id,))
        gone = fact("Bergen", sources=(first.id,))
        await rig.add_facts(ours, other, gone)
        await rig.do(lambda tx: rig.store.supersede_facts(tx, ALICE, [gone.id], at=NOW))

        found = await rig.do(lambda tx: rig.store.facts_from(tx, ALICE, [first.id]))

        assert [each.id for each in found] == [ours.id]
        assert await rig.do(lambda tx: rig.store.facts_from(tx, BOB, [first.id])) == []

    async def test_a_namespace_says_of_predicates_how_many_objects_they_have(self, rig: Rig) -> None:
        single, multi = Cardinality.SINGLE, Cardinality.MULTI
        for space, name, rule in (
            ("default", "plays", single),
            ("default", "plays", multi),
            ("default", "drives", single),
            ("default", "drives", None),
            ("other", "plays", single),
        ):
            await rig.do(lambda tx, a=space, b=name, c=rule: rig.store.set_cardinality(tx, a, b, c))  # type: ignore[misc]

        assert await rig.do(lambda tx: rig.store.cardinalities(tx, "default")) == {"plays": multi}
        assert await rig.do(lambda tx: rig.store.cardinalities(tx, "other")) == {"plays": single}


class DocumentsContract:
    """Subclasses give the fixture `rig`."""

    async def test_a_blocks_version_grows_with_each_edit(self, rig: Rig) -> None:
        assert (await rig.put_block("one")).version == 1
        assert (await rig.put_block("two")).version == 2
        assert (await rig.put_block("three", expected=2)).version == 3

        found = await rig.do(lambda tx: rig.store.block(tx, ALICE, "human"))

        assert found is not None
        assert (found.content, found.version) == ("three", 3)
        assert [each.name for each in await rig.do(lambda tx: rig.store.blocks(tx, ALICE))] == ["human"]
        assert await rig.do(lambda tx: rig.store.blocks(tx, BOB)) == []

    async def test_an_edit_of_a_version_that_is_gone_is_refused(self, rig: Rig) -> None:
        with pytest.raises(errors.BlockConflict):
            await rig.put_block("nothing there", expected=3)
        await rig.put_block("one", expected=0)

        for stale in (0, 2):
            with pytest.raises(errors.BlockConflict) as refused:
                await rig.put_block("two", expected=stale)
            assert (refused.value.expected, refused.value.found) == (stale, 1)

    async def test_a_block_is_deleted_once(self, rig: Rig) -> None:
        await rig.put_block("one")

        assert await rig.do(lambda tx: rig.store.delete_block(tx, ALICE, "human"))
        assert not await rig.do(lambda tx: rig.store.delete_block(tx, ALICE, "human"))

        assert await rig.do(lambda tx: rig.store.block(tx, ALICE, "human")) is None

    async def test_a_summary_gives_way_to_one_that_covers_as_much_or_more(self, rig: Rig) -> None:
        assert await rig.do(lambda tx: rig.store.put_summary(tx, summary("first", covers_to=10)))
        assert not await rig.do(lambda tx: rig.store.put_summary(tx, summary("older", covers_to=5)))
        assert await rig.do(lambda tx: rig.store.put_summary(tx, summary("newer", covers_to=20)))

        found = await rig.do(lambda tx: rig.store.summary(tx, ALICE, "s1"))

        assert found is not None
        assert (found.text, found.covers_to, found.version) == ("newer", 20, 2)
        assert found.scope == Scope(user_id="alice", session_id="s1")

    async def test_each_session_has_its_summary_and_so_has_what_belongs_to_none(self, rig: Rig) -> None:
        for text, session, hours in (("a", "s1", 0), ("b", None, 1), ("c", "s2", 2)):
            given = summary(text, session=session, at=NOW + timedelta(hours=hours))
            await rig.do(lambda tx, given=given: rig.store.put_summary(tx, given))  # type: ignore[misc]

        latest = await rig.do(lambda tx: rig.store.summaries(tx, ALICE, limit=2))
        of_none = await rig.do(lambda tx: rig.store.summary(tx, ALICE, None))

        assert [(each.text, each.scope.session_id) for each in latest] == [("c", "s2"), ("b", None)]
        assert of_none is not None
        assert of_none.text == "b"
        assert await rig.do(lambda tx: rig.store.summary(tx, BOB, "s1")) is None

    async def test_a_merge_touches_only_the_traits_that_it_names(self, rig: Rig) -> None:
        evidence = EpisodeId(uuid4())
        await rig.merge(tone=Trait(value="dry", evidence=(evidence,)), diet=Trait(value=["vegan"]))

        merged = await rig.merge(diet=Trait(value={"kind": "vegetarian"}))

        assert {name: trait.value for name, trait in merged.traits.items()} == {
            "tone": "dry",
            "diet": {"kind": "vegetarian"},
        }
        assert merged.traits["tone"].evidence == (evidence,)
        assert merged.version == 2
        assert await rig.do(lambda tx: rig.store.profile(tx, ALICE)) == merged
        assert await rig.do(lambda tx: rig.store.profile(tx, BOB)) is None


class ForgettingContract:
    """Subclasses give the fixture `rig`."""

    async def test_what_is_forgotten_is_gone_and_cannot_be_written_again(self, rig: Rig) -> None:
        gone, kept = said("forget me"), said("keep me", session="s2")
        await rig.add(gone, kept, vectors={gone.id: vector(1)})

        embedded = await rig.do(lambda tx: rig.store.vectors(tx, ALICE))
        counts = await rig.forget(session_id="s1")

        assert list(embedded) == [gone.id]
        assert np.allclose(embedded[gone.id], vector(1), atol=1e-3)
        assert await rig.do(lambda tx: rig.store.vectors(tx, ALICE)) == {}
        assert counts["episodes"] == 1
        assert await rig.history() == ["keep me"]
        assert (await rig.counts())["embedded"] == 0
        (stone,) = await rig.do(lambda tx: rig.store.tombstones(tx, [ALICE, BOB]))
        assert stone.covers(gone)
        assert not stone.covers(kept)
        assert stone.owner == ALICE

    async def test_forgetting_by_id_and_by_time_leaves_the_rest(self, rig: Rig) -> None:
        one, two, three = (said(text, at=NOW + timedelta(days=n)) for n, text in enumerate(("one", "two", "three")))
        await rig.add(one, two, three)

        await rig.forget(ids=frozenset({two.id}))
        assert await rig.history() == ["one", "three"]
        await rig.forget(before=NOW + timedelta(days=1))

        assert await rig.history() == ["three"]
        assert len(await rig.do(lambda tx: rig.store.tombstones(tx, [ALICE]))) == 2

    async def test_what_was_remembered_after_the_tombstone_is_not_covered(self, rig: Rig) -> None:
        await rig.forget()
        new = said("again", remembered_at=datetime.now(UTC) + timedelta(minutes=1))

        (stone,) = await rig.do(lambda tx: rig.store.tombstones(tx, [ALICE]))

        assert not stone.covers(new)

    async def test_what_was_said_comes_back_as_it_went_in_by_its_subject(self, rig: Rig) -> None:
        ours, other = heard("Oslo"), heard("tea", subject="the Ann")
        await rig.do(lambda tx: rig.store.keep_said(tx, ALICE, [ours, other], unsaid=[]))
        await rig.do(lambda tx: rig.store.keep_said(tx, ALICE, [replace(ours, extractor="again")], unsaid=[]))

        assert await rig.do(lambda tx: rig.store.said(tx, ALICE)) == [ours, other]
        assert await rig.do(lambda tx: rig.store.said(tx, ALICE, ["Ann!"])) == [other]
        assert await rig.do(lambda tx: rig.store.said(tx, BOB)) == []

        await rig.do(lambda tx: rig.store.keep_said(tx, ALICE, [], unsaid=[ours.id]))
        assert await rig.do(lambda tx: rig.store.said(tx, ALICE)) == [other]

    async def test_what_was_said_is_forgotten_with_its_messages(self, rig: Rig) -> None:
        one, two = said("one"), said("two", session="s2")
        await rig.add(one, two)
        gone, shared, told = heard("Oslo", one.id), heard("tea", one.id, two.id), heard("42")
        await rig.do(lambda tx: rig.store.keep_said(tx, ALICE, [gone, shared, told], unsaid=[]))

        await rig.forget(session_id="s1")

        left = {each.id: each.claim for each in await rig.do(lambda tx: rig.store.said(tx, ALICE))}
        assert set(left) == {shared.id, told.id}
        assert left[shared.id].sources == (two.id,)

        await rig.forget()
        assert await rig.do(lambda tx: rig.store.said(tx, ALICE)) == []

    async def test_a_fact_goes_with_its_last_source(self, rig: Rig) -> None:
        one, two = said("one"), said("two", session="s2")
        await rig.add(one, two)
        derived, shared = fact("Oslo", sources=(one.id,)), fact("tea", sources=(one.id, two.id))
        told = fact("42", predicate="age")
        await rig.add_facts(derived, shared, told)

        counts = await rig.forget(session_id="s1")

        assert counts["facts"] == 1
        assert set(await rig.objects()) == {"tea", "42"}
        left = await rig.do(lambda tx: rig.store.fact(tx, ALICE, shared.id))
        assert left is not None
        assert left.sources == (two.id,)

    async def test_summaries_and_traits_that_drew_on_it_go_too(self, rig: Rig) -> None:
        one, two = said("one"), said("two", session="s2")
        await rig.add(one, two)
        for each in (summary("of s1"), summary("of s2", session="s2")):
            await rig.do(lambda tx, each=each: rig.store.put_summary(tx, each))  # type: ignore[misc]
        await rig.merge(tone=Trait(value="dry", evidence=(one.id,)), diet=Trait(value="vegan", evidence=(two.id,)))

        await rig.forget(session_id="s1")

        assert [each.text for each in await rig.do(lambda tx: rig.store.summaries(tx, ALICE))] == ["of s2"]
        profile = await rig.do(lambda tx: rig.store.profile(tx, ALICE))
        assert profile is not None
        assert set(profile.traits) == {"diet"}

    async def test_forgetting_a_user_leaves_nothing_of_them_and_everything_of_others(self, rig: Rig) -> None:
        for owner in (ALICE, BOB):
            episode = said("something", user=owner.user_id)
            await rig.add(episode, vectors={episode.id: vector(1)})
            await rig.add_facts(fact("Oslo", owner=owner, sources=(episode.id,)), fact("tea", owner=owner))
            await rig.put_block("about me", owner=owner)
        await rig.do(lambda tx: rig.store.put_summary(tx, summary("of s1")))
        await rig.merge(tone=Trait(value="dry"))

        counts = await rig.forget()

        assert {name: counts[name] for name in ("episodes", "facts", "blocks", "summaries", "profiles")} == {
            "episodes": 1,
            "facts": 2,
            "blocks": 1,
            "summaries": 1,
            "profiles": 1,
        }
        assert set((await rig.counts()).values()) == {0}
        assert await rig.objects(history=True) == []
        assert await rig.counts(BOB) == {
            "episodes": 1,
            "embedded": 1,
            "facts": 2,
            "blocks": 1,
            "summaries": 0,
            "profiles": 0,
        }

    async def test_a_forget_that_rolled_back_forgot_nothing(self, rig: Rig) -> None:
        await rig.add(said("still here"))
        stone = Tombstone(owner=ALICE, at=datetime.now(UTC))

        await rig.undone(lambda tx: rig.store.forget(tx, stone))

        assert await rig.history() == ["still here"]
        assert await rig.do(lambda tx: rig.store.tombstones(tx, [ALICE])) == []


class StoreContract(EpisodesContract, FactsContract, DocumentsContract, ForgettingContract):
    """All of it."""


def _fields(episode: Episode) -> dict[str, object]:
    return {name: getattr(episode, name) for name in Episode.__dataclass_fields__}
