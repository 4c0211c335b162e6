"""What every store promises of facts, and of the claims that they are made of."""

from dataclasses import replace
from datetime import timedelta

from aftermind.types import (
    Cardinality,
    Scope,
)
from tests.conformance.store_fixtures import ALICE, BOB, NOW, Rig, fact, heard
from tests.support.stored_turns import said


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

    async def test_ranking_models_are_of_a_namespace_and_an_embedder(self, rig: Rig) -> None:
        for space, embedder, models in (
            ("default", "hash", "{}"),
            ("default", "hash", '{"b": 1, "a": 2}'),
            ("default", "", "{}"),
            ("default", "", None),
            ("other", "hash", "[]"),
        ):
            await rig.do(lambda tx, a=space, b=embedder, c=models: rig.store.set_ranking_models(tx, a, b, c))  # type: ignore[misc]

        assert await rig.do(lambda tx: rig.store.ranking_models(tx, "default")) == {"hash": '{"b": 1, "a": 2}'}
        assert await rig.do(lambda tx: rig.store.ranking_models(tx, "other")) == {"hash": "[]"}

    async def test_what_was_said_comes_back_as_it_went_in_by_its_subject(self, rig: Rig) -> None:
        ours, other = heard("Oslo"), heard("tea", subject="the Ann")
        await rig.do(lambda tx: rig.store.put_assertions(tx, ALICE, [ours, other], unsaid=[]))
        await rig.do(lambda tx: rig.store.put_assertions(tx, ALICE, [replace(ours, extractor="again")], unsaid=[]))

        assert await rig.do(lambda tx: rig.store.recorded_assertions(tx, ALICE)) == [ours, other]
        assert await rig.do(lambda tx: rig.store.recorded_assertions(tx, ALICE, ["Ann!"])) == [other]
        assert await rig.do(lambda tx: rig.store.recorded_assertions(tx, BOB)) == []

        await rig.do(lambda tx: rig.store.put_assertions(tx, ALICE, [], unsaid=[ours.id]))
        assert await rig.do(lambda tx: rig.store.recorded_assertions(tx, ALICE)) == [other]
