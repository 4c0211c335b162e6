"""What becomes of facts when their episodes are mined anew."""

from datetime import UTC, datetime
from uuid import UUID

from aftermind.facts.bitemporal_resolution import Changes
from aftermind.facts.reextraction_diff import redo
from aftermind.types import EpisodeId, Fact, FactId, Scope
from aftermind.types.assertion import Assertion

OWNER = Scope(user_id="alice")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
SAID = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, SECOND = (EpisodeId(UUID(int=number)) for number in (1, 2))


def fact(number: int, object_: str, *sources: EpisodeId, extractor: str = "openai:old") -> Fact:
    """A fact that is believed."""
    return Fact(
        id=FactId(UUID(int=100 + number)),
        scope=OWNER,
        subject="user",
        predicate="likes",
        object=object_,
        valid_from=SAID,
        recorded_at=SAID,
        sources=sources,
        extractor=extractor,
    )


def claim(object_: str, *sources: EpisodeId) -> Assertion:
    """A claim of the new model."""
    return Assertion(subject="user", predicate="likes", object=object_, said_at=SAID, valid_from=SAID, sources=sources)


def mined_anew(claims: list[Assertion], believed: list[Fact]) -> Changes:
    """The changes when the first episode is mined anew."""
    ids = iter(range(900, 999))
    return redo(
        claims,
        believed,
        mined=frozenset({FIRST}),
        owner=OWNER,
        now=NOW,
        extractor="openai:new",
        new_id=lambda: FactId(UUID(int=next(ids))),
    )


def test_what_is_said_again_stays_as_it_is() -> None:
    changes = mined_anew([claim("tea", FIRST)], [fact(1, "tea", FIRST)])

    assert not changes


def test_what_is_not_said_again_is_superseded_and_not_deleted() -> None:
    changes = mined_anew([claim("coffee", FIRST)], [fact(1, "tea", FIRST)])

    assert [each.object for each in changes.added] == ["coffee"]
    assert changes.superseded == {FactId(UUID(int=101)): None}


def test_a_fact_with_another_source_beside_it_stays_and_is_not_counted_twice() -> None:
    changes = mined_anew([claim("tea", FIRST)], [fact(1, "tea", FIRST, SECOND)])

    assert not changes


def test_a_fact_of_another_episode_becomes_stronger_by_what_is_found_only_now() -> None:
    changes = mined_anew([claim("tea", FIRST)], [fact(1, "tea", SECOND)])

    assert [each.sources for each in changes.strengthened] == [(FIRST,)]
    assert not changes.added


def test_what_was_told_by_a_call_is_taken_back_by_no_model() -> None:
    changes = mined_anew([], [fact(1, "tea", FIRST, extractor="user")])

    assert not changes


def test_an_answer_without_claims_ends_what_was_drawn_before() -> None:
    changes = mined_anew([], [fact(1, "tea", FIRST), fact(2, "milk", SECOND)])

    assert changes.superseded == {FactId(UUID(int=101)): None}
