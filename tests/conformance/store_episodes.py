"""What every store promises of episodes."""

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import numpy as np
import pytest

from aftermind.ranking import unit
from aftermind.ranking.passages import SpokenTexts, split
from aftermind.ranking.vectors import part_vectors
from aftermind.stores.protocol import EpisodeFilter, ExtractionOutcome, MiningOutcome
from aftermind.types import (
    Episode,
    EpisodeId,
    Role,
    Scope,
)
from tests.conformance.store_fixtures import ALICE, BOB, NOW, ODD_IDS, Rig, fields, vector
from tests.support.stored_turns import said


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

    async def test_an_expired_episode_is_read_by_nothing(self, rig: Rig) -> None:
        now = await rig.do(rig.store.now)
        old, later, lasting = (
            Episode(**{**fields(said(text)), "expires_at": expires_at})  # type: ignore[arg-type]
            for text, expires_at in [("old", now), ("later", now + timedelta(days=1)), ("lasting", None)]
        )
        await rig.add(old, later, lasting)

        found = await rig.do(lambda tx: rig.store.episodes(tx, ALICE, [old.id, later.id, lasting.id]))
        assert found == [later, lasting]
        assert await rig.history() == ["later", "lasting"]
        assert [each.episodes for each in await rig.do(lambda tx: rig.store.sessions(tx, ALICE))] == [2]
        unmined = await rig.do(lambda tx: rig.store.unmined(tx, ALICE, "s1", limit=9))
        span = await rig.do(lambda tx: rig.store.session_span(tx, ALICE, "s1", after_position=0, limit=9))
        size = await rig.do(lambda tx: rig.store.session_size(tx, ALICE, "s1", up_to=2**62))
        assert [each.content for each in unmined] == ["later", "lasting"]
        assert ([each.content for each in span], size) == (["lasting"], 1)  # no summary has what will expire

    async def test_an_episode_that_is_there_is_left_as_it_is(self, rig: Rig) -> None:
        given, new = said("first"), said("second")
        await rig.add(given)
        changed = Episode(**{**fields(given), "content": "changed"})  # type: ignore[arg-type]

        assert await rig.add(changed, new) == {new.id}

        assert await rig.history() == ["first", "second"]

    async def test_a_hundred_episodes_of_many_owners_are_stored_at_once(self, rig: Rig) -> None:
        given = [said(f"said {i}", user=f"u{i % 7}", session=f"s{i % 3}") for i in range(100)]

        assert await rig.add(*given) == {episode.id for episode in given}

        assert await rig.history(Scope(user_id="u3")) == [f"said {i}" for i in range(3, 100, 7)]

    async def test_the_same_id_of_two_owners_is_two_episodes(self, rig: Rig) -> None:
        mine = said("mine")
        theirs = Episode(**{**fields(mine), "scope": BOB, "content": "theirs"})  # type: ignore[arg-type]

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

    async def test_pages_of_a_history_have_every_episode_also_those_of_one_position(self, rig: Rig) -> None:
        first = said("first")
        given = [first, *(replace(said("as well", session=f"s{n}"), position=first.position) for n in (2, 3))]
        await rig.add(*given)

        found: list[Episode] = []
        older = EpisodeFilter()
        while page := await rig.do(lambda tx, wanted=older: rig.store.history(tx, ALICE, wanted, limit=1)):
            found += page
            older = EpisodeFilter(before_position=page[0].position, before_id=page[0].id)

        assert [each.id for each in found] == sorted((each.id for each in given), reverse=True)

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

    async def test_a_long_episode_has_a_vector_for_each_passage_and_their_mean_for_itself(self, rig: Rig) -> None:
        at_once, later = said("one " * 600), said("two " * 600)
        spoken = SpokenTexts.of(None, at_once.content, sentences=True)
        passages = np.stack([vector(number) for number in range(len(spoken.texts))])
        given = spoken.vectors(passages)
        await rig.add(at_once, later, vectors={at_once.id: given})

        await rig.do(lambda tx: rig.store.set_vectors(tx, {(ALICE, later.id): given}))
        found = await rig.do(lambda tx: rig.store.vectors(tx, ALICE))

        assert len(passages) == len(split(at_once.content)) == len(part_vectors(given))
        for episode in (at_once, later):
            np.testing.assert_allclose(found[episode.id], unit(passages.mean(axis=0)), atol=1e-3)

    async def test_an_episode_with_vectors_of_sentences_has_one_for_itself(self, rig: Rig) -> None:
        at_once, later = (said("I went to Oslo in May. There I met an old friend.") for _ in range(2))
        vectors = np.stack([vector(number) for number in range(3)])
        await rig.add(at_once, later, vectors={at_once.id: vectors})

        assert await rig.do(lambda tx: rig.store.set_vectors(tx, {(ALICE, later.id): vectors})) == 1
        found = await rig.do(lambda tx: rig.store.vectors(tx, ALICE))

        assert len(SpokenTexts.of(None, later.content, sentences=True).texts) == len(vectors)
        for episode in (at_once, later):
            np.testing.assert_allclose(found[episode.id], vectors[0], atol=1e-3)

    async def test_an_episode_is_mined_once_and_its_outcome_kept(self, rig: Rig) -> None:
        one, two = said("one"), said("two")
        await rig.add(one, two)
        facts = MiningOutcome(episode_id=one.id, outcome=ExtractionOutcome.FACTS, extractor="rules-1", facts=2)
        await rig.do(lambda tx: rig.store.note_outcomes(tx, ALICE, [facts]))

        unmined = await rig.do(lambda tx: rig.store.unmined(tx, ALICE, "s1", limit=10))
        outcomes = await rig.do(lambda tx: rig.store.outcomes(tx, ALICE, [one.id, two.id]))

        assert [episode.id for episode in unmined] == [two.id]
        assert outcomes == [facts]
        later = MiningOutcome(
            episode_id=one.id, outcome=ExtractionOutcome.EMPTY, extractor="rules-2", reason="nothing new"
        )
        await rig.do(lambda tx: rig.store.note_outcomes(tx, ALICE, [later]))
        assert await rig.do(lambda tx: rig.store.outcomes(tx, ALICE, [one.id])) == [later]

    async def test_owners_with_odd_ids_never_see_each_other(self, rig: Rig) -> None:
        owners = [Scope(namespace=space, user_id=user) for user in ODD_IDS for space in ("default", "%", "other")]
        for index, owner in enumerate(owners):
            await rig.add(said(f"of {index}", user=owner.user_id, namespace=owner.namespace, session=owner.user_id))

        seen = [await rig.history(owner) for owner in owners]

        assert seen == [[f"of {index}"] for index in range(len(owners))]
