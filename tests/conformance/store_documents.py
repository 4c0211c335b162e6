"""What every store promises of blocks, summaries and profiles."""

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from aftermind import errors
from aftermind.types import (
    EpisodeId,
    Scope,
    Trait,
)
from tests.conformance.store_fixtures import ALICE, BOB, NOW, Rig, summary


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
        assert (await rig.merge(diet=None)).traits == {"tone": merged.traits["tone"]}
        assert await rig.do(lambda tx: rig.store.profile(tx, BOB)) is None

    async def test_traits_and_summaries_keep_the_time_of_their_last_message(self, rig: Rig) -> None:
        said = NOW - timedelta(days=300)
        await rig.do(
            lambda tx: rig.store.merge_profile(tx, ALICE, {"home": Trait(value="Oslo", last_message_at=said)}, at=NOW)
        )
        await rig.do(lambda tx: rig.store.put_summary(tx, replace(summary("Tea."), last_message_at=said)))

        profile = await rig.do(lambda tx: rig.store.profile(tx, ALICE))
        found = await rig.do(lambda tx: rig.store.summaries(tx, ALICE))

        assert profile is not None
        assert (profile.traits["home"].last_message_at, profile.traits["home"].updated_at) == (said, NOW)
        assert [each.last_message_at for each in found] == [said]
