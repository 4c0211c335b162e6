"""Questions about everything until now find answers in several sessions."""

from datetime import UTC, datetime, timedelta

import pytest

from aftermind.recall.session_diversification import asks_about_all_sessions, diversify_sessions
from aftermind.types import Episode, Match, Role, Scope
from aftermind.types.message import new_ids

NOON = datetime(2025, 7, 10, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "What has Melanie painted?",
        "Which cities have Jean and John both visited?",
        "How many times has Joanna found new trails?",
        "In what ways has Caroline helped?",
        "So, where have I been this year?",
        "Who have written notes of gratitude to Maria?",
    ],
)
def test_a_question_in_the_present_perfect_is_about_all_sessions(text: str) -> None:
    assert asks_about_all_sessions(text)


@pytest.mark.parametrize(
    "text",
    [
        "What did Melanie paint?",
        "What does Tim have on his desk?",
        "What was the name of the dog that Ann has adopted?",
        "How long has Nate had his turtles?",
        "When has she been there?",
        "Has Tim been to Norway?",
        "What had he promised?",
        "Wo hat Anna gewohnt?",
        "",
    ],
)
def test_other_questions_are_not(text: str) -> None:
    assert not asks_about_all_sessions(text)


def match(score: float, *, session: str | None, at: datetime = NOON) -> Match:
    episode = Episode(
        id=new_ids(1)[1][0],
        scope=Scope(user_id="ann", session_id=session),
        role=Role.USER,
        content="words",
        name=None,
        metadata={},
        occurred_at=at,
        remembered_at=at,
        position=0,
    )
    return Match(item=episode, score=score)


def test_a_session_with_an_answer_gives_way_to_one_without() -> None:
    first, second, third = (match(score, session="a") for score in (0.6, 0.58, 0.5))
    other = match(0.35, session="b")

    found = diversify_sessions([first, second, third, other])

    assert [each.item for each in found] == [each.item for each in (first, second, other, third)]
    assert [each.rank for each in found] == [1, 2, 3, 4]
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert (found[0].score, found[2].score) == (0.6, 0.35)


def test_a_turn_that_is_much_likelier_stays_first() -> None:
    found = diversify_sessions([match(0.9, session="a"), match(0.8, session="a"), match(0.1, session="b")])

    assert [each.item.scope.session_id for each in found if isinstance(each.item, Episode)] == ["a", "a", "b"]


def test_days_of_one_thread_are_sessions() -> None:
    today = [match(score, session=None) for score in (0.6, 0.4)]
    earlier = match(0.35, session=None, at=NOON - timedelta(days=3))

    found = diversify_sessions([*today, earlier])

    assert [each.item for each in found] == [today[0].item, earlier.item, today[1].item]
