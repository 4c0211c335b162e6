"""What every store promises about what is learned beyond facts. Bound to each in `test_learning_stores.py`."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

from aftermind.stores.protocol import DrewOn, ExtractionOutcome, MiningOutcome
from aftermind.types import Block, EpisodeId, ExtractionState, Scope, Trait
from aftermind.types.assertion import Assertion, RecordedAssertion
from aftermind.types.tombstone import Tombstone
from aftermind.types.uuid7 import uuid7
from tests.conformance.store_fixtures import ALICE, BOB, Rig, fact, summary
from tests.support.stored_turns import said

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def stated(value: str, *sources: EpisodeId, said_at: datetime, predicate: str = "lives_in") -> RecordedAssertion:
    """An assertion about the user."""
    claim = Assertion(subject="user", predicate=predicate, object=value, said_at=said_at, sources=sources)
    return RecordedAssertion(id=uuid7(), claim=claim, extractor="rules:1")


class LearningContract:
    """Subclasses give the fixture `rig`."""

    async def test_every_episode_has_a_state_and_a_reason(self, rig: Rig) -> None:
        one, two, three, other = said("one"), said("two"), said("three"), said("four", session="s2")
        await rig.add(one, two, three, other)
        noted = [
            MiningOutcome(episode_id=one.id, outcome=ExtractionOutcome.FACTS, extractor="rules:2", facts=2),
            MiningOutcome(episode_id=two.id, outcome=ExtractionOutcome.EMPTY, extractor="rules:2", reason="small talk"),
            MiningOutcome(
                episode_id=other.id, outcome=ExtractionOutcome.NOT_NEEDED, extractor="none", reason="not in save="
            ),
        ]
        await rig.do(lambda tx: rig.store.note_outcomes(tx, ALICE, noted))

        found = await rig.do(lambda tx: rig.store.extraction_results(tx, ALICE, None, limit=10))
        of_session = await rig.do(lambda tx: rig.store.extraction_results(tx, ALICE, "s1", limit=2))

        assert [(each.episode_id, each.state) for each in found] == [
            (one.id, ExtractionState.FACTS),
            (two.id, ExtractionState.EMPTY),
            (three.id, ExtractionState.WAITING),
            (other.id, ExtractionState.NOT_NEEDED),
        ]
        assert [each.reason for each in found] == [None, "small talk", "no job waits", "not in save="]
        assert found[0].facts == 2
        assert [each.episode_id for each in of_session] == [two.id, three.id]
        assert await rig.do(lambda tx: rig.store.extraction_results(tx, BOB, None, limit=10)) == []

    async def test_a_profile_update_sees_each_episode_once(self, rig: Rig) -> None:
        one, two = said("one"), said("two", session="s2")
        await rig.add(one, two)
        gone = EpisodeId(uuid4())
        for ids in ([two.id, one.id, gone], [one.id]):
            await rig.do(lambda tx, ids=ids: rig.store.want_profiled(tx, ALICE, ids))  # type: ignore[misc]

        waiting = await rig.do(lambda tx: rig.store.unprofiled(tx, ALICE, limit=10))
        await rig.do(lambda tx: rig.store.profiled(tx, ALICE, [one.id]))
        left = await rig.do(lambda tx: rig.store.unprofiled(tx, ALICE, limit=10))

        assert [each.content for each in waiting] == ["one", "two"]
        assert [each.content for each in left] == ["two"]
        assert left[0] == two
        assert await rig.do(lambda tx: rig.store.unprofiled(tx, BOB, limit=10)) == []

    async def test_a_session_is_counted_up_to_a_position(self, rig: Rig) -> None:
        one, two, three = said("one"), said("two"), said("three", session="s2")
        none = said("of no session", session=None)
        await rig.add(one, two, three, none)

        async def size(session: str | None, up_to: int) -> int:
            return await rig.do(lambda tx: rig.store.session_size(tx, ALICE, session, up_to=up_to))

        assert await size("s1", two.position) == 2
        assert await size("s1", two.position - 1) == 1
        assert await size("s2", three.position) == 1
        assert await size(None, none.position) == 1

    async def test_a_summary_made_anew_takes_the_place_of_one_that_covers_more(self, rig: Rig) -> None:
        await rig.do(lambda tx: rig.store.put_summary(tx, summary("all", covers_to=20)))

        kept = await rig.do(lambda tx: rig.store.put_summary(tx, summary("anew", covers_to=5), over=1))
        refused = await rig.do(lambda tx: rig.store.put_summary(tx, summary("older", covers_to=3), over=1))

        found = await rig.do(lambda tx: rig.store.summary(tx, ALICE, "s1"))
        assert (kept, refused) == (True, False)
        assert found is not None
        assert (found.text, found.version) == ("anew", 2)

    async def test_what_a_forget_takes_along_is_named_before(self, rig: Rig) -> None:
        one, two, three = said("one"), said("two"), said("three", session="s2")
        await rig.add(one, two, three)
        for each in (summary("of s1"), summary("of s2", session="s2")):
            await rig.do(lambda tx, each=each: rig.store.put_summary(tx, each))  # type: ignore[misc]
        await rig.merge(
            likes=Trait(value=["tea"], evidence=(one.id, three.id)), diet=Trait(value="vegan", evidence=(two.id,))
        )

        stone = Tombstone(owner=ALICE, ids=frozenset({one.id}))
        drew_on = await rig.do(lambda tx: rig.store.drew_on(tx, stone))
        nothing = await rig.do(lambda tx: rig.store.drew_on(tx, Tombstone(owner=BOB)))

        assert drew_on == DrewOn(sessions=("s1",), evidence=(three.id,))
        assert nothing == DrewOn()

    async def test_times_that_only_forgotten_assertions_gave_are_removed(self, rig: Rig) -> None:
        moved, back = NOW - timedelta(days=30), NOW - timedelta(days=10)
        first, second = said("I live in Oslo.", at=back), said("I moved to Rome.", session="s2", at=moved)
        await rig.add(first, second)
        given = [
            stated("Oslo", first.id, said_at=back),
            stated("Bern", first.id, said_at=back),
            stated("Rome", second.id, said_at=moved),
            stated("tea", first.id, second.id, predicate="likes", said_at=moved),
        ]
        await rig.do(lambda tx: rig.store.put_assertions(tx, ALICE, given, unsaid=[]))
        await rig.add_facts(
            fact("Oslo", valid_from=None, valid_to=back, sources=(first.id,)),
            fact("Oslo", valid_from=None, valid_to=moved, sources=(first.id,), superseded_at=NOW),
            fact("Rome", valid_from=moved, valid_to=back, sources=(second.id,)),
            fact("Bern", valid_from=back, sources=(first.id,)),
        )
        about = await rig.do(lambda tx: rig.store.drew_on(tx, Tombstone(owner=ALICE, session_id="s2")))

        await rig.forget(session_id="s2")
        kept = await rig.do(lambda tx: rig.store.facts(tx, ALICE, history=True))
        await rig.do(lambda tx: rig.store.delete_facts(tx, ALICE, [kept[0].id]))
        left = await rig.do(lambda tx: rig.store.facts(tx, ALICE, history=True))
        claims = await rig.do(lambda tx: rig.store.recorded_assertions(tx, ALICE))

        assert about.claims == {("user", "lives_in"), ("user", "likes")}
        times = {(row.object, row.superseded_at is None): (row.valid_from, row.valid_to) for row in kept}
        assert times == {("Oslo", True): (None, back), ("Oslo", False): (None, None), ("Bern", True): (back, None)}
        assert left == kept[1:]
        assert {one.claim.object: one.claim.said_at for one in claims} == {"Oslo": back, "Bern": back, "tea": back}

    async def test_owners_with_episodes_are_listed(self, rig: Rig) -> None:
        await rig.add(said("a"), said("b", user="bob"), said("c", user=None), said("d", namespace="other"))

        owners = await rig.do(lambda tx: rig.store.owners(tx, "default"))
        recent = await rig.do(lambda tx: rig.store.owners(tx, "default", since=NOW + timedelta(days=365)))

        assert owners == [Scope(), Scope(user_id="alice"), Scope(user_id="bob")]
        assert recent == []

    async def test_users_are_listed_by_id_page_by_page(self, rig: Rig) -> None:
        newest = said("e", user="bobby")
        given = (said("a"), said("b", user="bob"), said("c", user=None), said("d", namespace="other", user="eve"))
        await rig.do(lambda tx: rig.store.tombstones(tx, [each.scope.owner for each in (*given, newest)]))
        await rig.add(*given, newest)

        everybody = await rig.do(lambda tx: rig.store.users(tx, "default"))
        paged = await rig.do(lambda tx: rig.store.users(tx, "default", after="alice", limit=1))
        named = await rig.do(lambda tx: rig.store.users(tx, "default", prefix="bob"))

        assert [each.user_id for each in everybody] == [None, "alice", "bob", "bobby"]
        assert all(each.last_at is not None for each in everybody)
        assert [each.user_id for each in paged] == ["bob"]
        assert [each.user_id for each in named] == ["bob", "bobby"]

    async def test_a_user_of_whom_only_a_block_is_kept_is_listed_and_a_forgotten_one_is_not(self, rig: Rig) -> None:
        carol = Scope(user_id="carol")
        block = Block(scope=carol, name="todo", content="tea", version=1, updated_at=NOW)
        await rig.do(lambda tx: rig.store.tombstones(tx, [carol, Scope(user_id="dora")]))
        await rig.add(said("gone", user="dora"))
        await rig.do(lambda tx: rig.store.put_block(tx, block, expected_version=0))
        await rig.forget(Scope(user_id="dora"))

        users = await rig.do(lambda tx: rig.store.users(tx, "default"))

        assert [(each.user_id, each.last_at) for each in users] == [("carol", None)]
