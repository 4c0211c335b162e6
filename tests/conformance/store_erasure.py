"""What every store promises of forgetting."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from aftermind.types import Trait
from aftermind.types.session_order import Counted
from aftermind.types.tombstone import without_erased
from tests.conformance.store_fixtures import ALICE, BOB, NOW, Rig, fact, heard, summary, vector
from tests.support.stored_turns import said
from tests.support.turns import turn_of


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
        assert stone.fits(gone)
        assert not stone.fits(kept)
        assert stone.owner == ALICE

    async def test_forgetting_by_id_and_by_time_leaves_the_rest(self, rig: Rig) -> None:
        one, two, three = (said(text, at=NOW + timedelta(days=n)) for n, text in enumerate(("one", "two", "three")))
        await rig.add(one, two, three)

        await rig.forget(ids=frozenset({two.id}))
        assert await rig.history() == ["one", "three"]
        await rig.forget(before=NOW + timedelta(days=1))

        assert await rig.history() == ["three"]
        assert len(await rig.do(lambda tx: rig.store.tombstones(tx, [ALICE]))) == 2

    async def test_what_is_stored_is_forgotten_whatever_its_times(self, rig: Rig) -> None:
        await rig.add(
            said("of a host ahead", remembered_at=datetime.now(UTC) + timedelta(hours=1)),
            said("of a host behind", remembered_at=datetime.now(UTC) - timedelta(hours=1)),
        )

        await rig.forget()

        assert await rig.history() == []

    async def test_a_tombstone_covers_turns_of_earlier_generations_alone(self, rig: Rig) -> None:
        before = await rig.db.generation()
        await rig.forget()
        (stone,) = await rig.do(lambda tx: rig.store.tombstones(tx, [ALICE]))
        after = await rig.db.generation()

        assert after == stone.generation > before
        late = turn_of("alice", "behind by an hour")
        late = replace(late, remembered_at=datetime.now(UTC) - timedelta(hours=1), generation=after)
        early = replace(turn_of("alice", "ahead"), remembered_at=datetime.now(UTC) + timedelta(hours=1))
        assert without_erased(late, [stone]) is late
        assert without_erased(replace(early, generation=before), [stone]) is None

    async def test_a_generation_is_above_every_number_that_anybody_was_given(self, rig: Rig) -> None:
        known = await rig.db.generation() + 1_000
        numbers = [await rig.do(lambda tx: rig.store.begin_erasure(tx, ALICE, known=known)) for _ in range(2)]

        assert known < numbers[0] < numbers[1]
        assert await rig.db.generation() == numbers[1]

    async def test_what_stands_is_the_newest_of_each_session_and_what_was_forgotten_since(self, rig: Rig) -> None:
        newest = replace(said("two"), position=20)
        counted = {newest.id: Counted(position=20, counted_from=7, shift=3)}
        one, other = (replace(said("one"), position=10), replace(said("elsewhere", session=None), position=30))
        await rig.do(lambda tx: rig.store.add_episodes(tx, [one, newest, other], counted=counted))
        await rig.forget(ids=frozenset({one.id}))

        found = await rig.do(lambda tx: rig.store.admission_state(tx, ALICE, ["s1", None, "s9"], generation=0))
        later = await rig.do(lambda tx: rig.store.admission_state(tx, ALICE, [], generation=found.stones[0].generation))

        assert found.counted == {"s1": counted[newest.id], None: Counted(position=30)}
        assert [stone.ids for stone in found.stones] == [frozenset({one.id})]
        assert (later.stones, later.counted) == ([], {})
        assert await rig.do(lambda tx: rig.store.find_session_shift(tx, ALICE, "s1", 7)) == 3
        assert await rig.do(lambda tx: rig.store.find_session_shift(tx, ALICE, "s1", 8)) is None

    async def test_what_was_said_is_forgotten_with_its_messages(self, rig: Rig) -> None:
        one, two = said("one"), said("two", session="s2")
        await rig.add(one, two)
        gone, shared, told = heard("Oslo", one.id), heard("tea", one.id, two.id), heard("42")
        await rig.do(lambda tx: rig.store.put_assertions(tx, ALICE, [gone, shared, told], unsaid=[]))

        await rig.forget(session_id="s1")

        left = {each.id: each.claim for each in await rig.do(lambda tx: rig.store.recorded_assertions(tx, ALICE))}
        assert set(left) == {shared.id, told.id}
        assert left[shared.id].sources == (two.id,)

        await rig.forget()
        assert await rig.do(lambda tx: rig.store.recorded_assertions(tx, ALICE)) == []

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
            "items": 0,
            "summaries": 0,
            "profiles": 0,
        }

    async def test_a_forget_that_rolled_back_forgot_nothing(self, rig: Rig) -> None:
        await rig.add(said("still here"))

        await rig.undone(lambda tx: rig.forget_in(tx))

        assert await rig.history() == ["still here"]
        assert await rig.do(lambda tx: rig.store.tombstones(tx, [ALICE])) == []
