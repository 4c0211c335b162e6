"""What becomes of facts when nothing is to be believed on the word of an episode any more."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from aftermind.facts.bitemporal_resolution import Changes, decide
from aftermind.facts.undo import undo
from aftermind.types import EpisodeId, Fact, FactId, Scope
from aftermind.types.assertion import Assertion, Operation
from tests.support.fact_changes import Believing

OWNER = Scope(user_id="alice")
FIRST, POISON, THIRD = (EpisodeId(UUID(int=number)) for number in (1, 2, 3))
DAYS = [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 10)]


class Believer:
    """Rows of one owner, changed by claims as workers change them, each at its own time."""

    def __init__(self) -> None:
        self.rows: dict[FactId, Fact] = {}
        self._ids = iter(range(1, 1_000))

    def told(self, day: int, source: EpisodeId, predicate: str, object_: str, **more: object) -> None:
        claim = Assertion(
            subject="user",
            predicate=predicate,
            object=object_,
            said_at=DAYS[day],
            sources=(source,),
            **more,  # type: ignore[arg-type]
        )
        believed = [row for row in self.rows.values() if row.superseded_at is None]
        self.write(
            decide([claim], believed, owner=OWNER, now=DAYS[day], extractor="rules", new_id=self._new), DAYS[day]
        )

    def undo(self, *episodes: EpisodeId) -> Changes:
        changes = undo(list(self.rows.values()), frozenset(episodes), owner=OWNER, now=DAYS[8], new_id=self._new)
        self.write(changes, DAYS[8])
        return changes

    def write(self, changes: Changes, at: datetime) -> None:
        self.rows |= {fact.id: fact for fact in changes.added}
        for old in changes.superseded:
            self.rows[old] = replace(self.rows[old], superseded_at=at)
        for one in changes.strengthened:
            fact = self.rows[one.fact_id]
            self.rows[fact.id] = replace(fact, sources=fact.sources + one.sources, strength=fact.strength + 1)

    def believed(self) -> list[tuple[str, str, datetime | None, datetime | None]]:
        rows = [row for row in self.rows.values() if row.superseded_at is None]
        return sorted((row.predicate, row.object, row.valid_from, row.valid_to) for row in rows)

    def _new(self) -> FactId:
        return FactId(UUID(int=next(self._ids)))


def test_what_rests_on_it_alone_is_believed_no_more_and_stays_in_the_history() -> None:
    user = Believer()
    user.told(0, POISON, "likes", "tea")

    changes = user.undo(POISON)

    assert user.believed() == []
    assert list(changes.superseded.values()) == [None]
    assert len(user.rows) == 1


def test_the_home_that_it_had_ended_goes_on() -> None:
    user = Believer()
    user.told(0, FIRST, "lives_in", "Oslo")
    user.told(1, POISON, "lives_in", "Paris")

    user.undo(POISON)

    assert user.believed() == [("lives_in", "Oslo", DAYS[0], None)]


def test_the_home_goes_on_until_the_next_that_is_believed() -> None:
    user = Believer()
    user.told(0, FIRST, "lives_in", "Oslo")
    user.told(1, POISON, "lives_in", "Paris")
    user.told(2, THIRD, "lives_in", "Rome")

    user.undo(POISON)

    assert user.believed() == [("lives_in", "Oslo", DAYS[0], DAYS[2]), ("lives_in", "Rome", DAYS[2], None)]


def test_an_end_that_it_told_is_taken_back() -> None:
    user = Believer()
    user.told(0, FIRST, "lives_in", "Oslo")
    user.told(1, POISON, "lives_in", "Oslo", valid_to=DAYS[1])
    assert user.believed() == [("lives_in", "Oslo", DAYS[0], DAYS[1])]

    user.undo(POISON)

    assert user.believed() == [("lives_in", "Oslo", DAYS[0], None)]
    assert [row.sources for row in user.rows.values() if row.superseded_at is None] == [(FIRST,)]


def test_what_others_say_too_stays_as_it_is() -> None:
    user = Believer()
    user.told(0, FIRST, "likes", "tea")
    user.told(1, POISON, "likes", "tea")

    changes = user.undo(POISON)

    assert not changes, "the store takes the source away; nothing else changes"
    assert user.believed() == [("likes", "tea", DAYS[0], None)]


def test_a_liking_that_its_opposite_had_ended_goes_on() -> None:
    user = Believer()
    user.told(0, FIRST, "likes", "tea")
    user.told(1, POISON, "dislikes", "tea")
    assert ("likes", "tea", DAYS[0], DAYS[1]) in user.believed()

    user.undo(POISON)

    assert user.believed() == [("likes", "tea", DAYS[0], None)]


def test_two_poisoned_homes_in_a_row_give_back_the_one_before_them() -> None:
    user = Believer()
    user.told(0, FIRST, "lives_in", "Oslo")
    user.told(1, POISON, "lives_in", "Paris")
    user.told(2, THIRD, "lives_in", "Rome")

    user.undo(POISON, THIRD)

    assert user.believed() == [("lives_in", "Oslo", DAYS[0], None)]


def test_what_it_only_took_back_cannot_be_told_from_the_rows() -> None:
    user = Believer()
    user.told(0, FIRST, "lives_in", "Oslo")
    user.told(1, POISON, "lives_in", "Oslo", operation=Operation.RETRACT)

    assert not user.undo(POISON)


def test_what_it_only_took_back_is_believed_again_where_claims_were_kept() -> None:
    user = Believing()
    user.hear([claim(0, FIRST)])
    user.hear([claim(1, POISON, operation=Operation.RETRACT)])
    assert user.facts() == []

    user.undo(POISON)

    assert [(fact.object, fact.valid_from, fact.valid_to) for fact in user.facts()] == [("Oslo", DAYS[0], None)]


def test_what_somebody_took_back_beside_it_stays_taken_back() -> None:
    user = Believing()
    user.hear([claim(0, FIRST)])
    user.hear([claim(1, POISON, operation=Operation.RETRACT)])
    user.hear([claim(2, THIRD, operation=Operation.RETRACT)])

    user.undo(POISON)

    assert user.facts() == []


def claim(day: int, source: EpisodeId, **more: object) -> Assertion:
    return Assertion(
        subject="user",
        predicate="lives_in",
        object="Oslo",
        said_at=DAYS[day],
        sources=(source,),
        **more,  # type: ignore[arg-type]
    )
