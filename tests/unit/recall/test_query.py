"""What can be asked, and what is refused by name."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermind import errors
from aftermind.ranking import Question
from aftermind.recall import Query, RecallMode
from aftermind.types import Role, Scope

SCOPE = Scope(user_id="alice")
NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("mode", {"mode": "telepathy"}),
        ("token_budget", {"token_budget": 0}),
        ("token_budget", {"token_budget": -5}),
        ("token_budget", {"token_budget": True}),
        ("token_budget", {"token_budget": 1.5}),
        ("limit", {"limit": 0}),
        ("limit", {"limit": 10**9}),
        ("min_score", {"min_score": float("nan")}),
        ("min_score", {"min_score": 1.1}),
        ("diversity", {"diversity": -0.1}),
        ("since", {"since": datetime(2024, 3, 1)}),  # noqa: DTZ001  # it is the missing zone that is refused
        ("until", {"since": NOON, "until": NOON}),
        ("known_at", {"known_at": "yesterday"}),
        ("roles", {"roles": ["wizard"]}),
        ("roles", {"roles": ["user", "wizard"]}),
        ("roles", {"roles": []}),
        ("metadata", {"metadata": ["a"]}),
        ("load", {"load": ["everything"]}),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidQuery) as refused:
        Query.checked("What theme?", SCOPE, **given)

    assert refused.value.field == field


def test_roles_have_the_names_that_messages_have_in_other_libraries() -> None:
    assert Query.checked("tea", SCOPE, roles=["human", "AI"]).wanted.roles == {Role.USER, Role.ASSISTANT}


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("as_of", "For what was true then, name the time in the text"),
        ("limits", "Did you mean limit"),
        ("colour", "It has user_id, .*token_budget, mode, "),
    ],
)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(given: str, hint: str) -> None:
    with pytest.raises(TypeError, match=f"recall has no option '{given}'. {hint}"):
        Query.checked("What theme?", SCOPE, **{given: 1})  # type: ignore[misc]


@pytest.mark.parametrize("text", [None, 7, b"bytes", "x" * 1_048_577])
def test_a_question_is_text_of_bounded_length(text: Any) -> None:
    with pytest.raises(errors.InvalidQuery):
        Query.checked(text, SCOPE)


@pytest.mark.parametrize("text", ["", "  \n", "\x00"])
def test_an_empty_question_asks_for_what_is_newest(text: str) -> None:
    assert Query.checked(text, SCOPE).mode is RecallMode.RECENCY


def test_a_long_question_is_searched_by_its_beginning_and_its_end() -> None:
    asked = Query.checked("theme " + "x" * 500_000 + " dark", SCOPE)

    assert len(asked.searched) < 10_000
    assert {"theme", "dark"} <= set(Question.of(asked.searched).terms)


@given(st.text(max_size=300))
def test_any_text_can_be_asked_or_is_refused_by_name(text: str) -> None:
    asked = Query.checked(text, SCOPE)

    asked.text.encode()
    assert "\x00" not in asked.text
    Question.of(asked.searched)
