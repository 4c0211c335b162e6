"""Gold sets in each format become questions with evidence, and what cannot be read is refused with the reason."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aftermind import errors
from aftermind.evaluation.datasets import GoldConversation, GoldQuestion, read
from aftermind.types import Role


def _read(folder: Path, data: object, **given: str) -> list[GoldConversation]:
    path = folder / "gold.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return read(path, **given)


FLAT = {
    "id": "c1",
    "sessions": [
        {
            "n": 2,
            "at": "1:56 pm on 8 May, 2023",
            "turns": [
                {"id": "D2:1", "speaker": "Ann", "text": "I paint.", "caption": "a sunset"},
                {"id": "D2:2", "speaker": "Bob", "text": "Nice."},
            ],
        }
    ],
    "questions": [
        {"question": "What does Ann do?", "category": 4, "evidence": ["D2:1"]},
        {"question": "Who sings?", "category": 5, "evidence": ["D2:1"]},
        {"question": "Who?", "category": 1, "evidence": []},
    ],
}
PUBLISHED = {
    "sample_id": "c1",
    "conversation": {
        "speaker_a": "Ann",
        "speaker_b": "Bob",
        "session_2_date_time": "1:56 pm on 8 May, 2023",
        "session_2": [
            {"dia_id": "D2:1", "speaker": "Ann", "text": "I paint.", "blip_caption": "a sunset"},
            {"dia_id": "D2:2", "speaker": "Bob", "text": "Nice."},
        ],
    },
    "qa": FLAT["questions"],
}


@pytest.mark.parametrize("data", [FLAT, PUBLISHED, [PUBLISHED]])
def test_both_forms_of_locomo_are_the_same_conversation(data: Any, tmp_path: Path) -> None:
    (found,) = _read(tmp_path, data)

    (session,) = found.sessions
    assert found.user_id == "c1"
    assert (session.session_id, session.keys) == ("session-2", ["D2:1", "D2:2"])
    assert [each.content for each in session.messages] == ["I paint. [shared image: a sunset]", "Nice."]
    assert [each.name for each in session.messages] == ["Ann", "Bob"]
    assert session.messages[0].occurred_at == datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
    assert found.questions == [GoldQuestion(text="What does Ann do?", evidence=("D2:1",), category="4")]


def test_several_turns_in_one_piece_of_evidence_are_split(tmp_path: Path) -> None:
    asked = {"question": "Who?", "category": 1, "evidence": ["D2:1; D2:2"]}

    (found,) = _read(tmp_path, {**FLAT, "questions": [asked]})

    assert found.questions[0].evidence == ("D2:1", "D2:2")


def test_longmemeval_has_one_history_for_each_question(tmp_path: Path) -> None:
    data = {
        "question_id": "q1",
        "question_type": "multi-session",
        "question": "Which degree?",
        "haystack_session_ids": ["s1", "s2"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 10:00"],
        "haystack_sessions": [
            [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}],
            [
                {"role": "user", "content": "I study law.", "has_answer": True},
                {"role": "assistant", "content": "Good."},
            ],
        ],
    }
    abstained = {**data, "question_id": "q2_abs"}

    (found,) = _read(tmp_path, [data, abstained])

    assert found.user_id == "q1"
    assert found.questions == [GoldQuestion(text="Which degree?", evidence=("1:0",), category="multi-session")]
    assert [each.session_id for each in found.sessions] == ["s1", "s2"]
    assert [each.role for each in found.sessions[1].messages] == [Role.USER, Role.ASSISTANT]
    assert found.sessions[1].keys == ["1:0", "1:1"]
    assert found.sessions[1].messages[0].occurred_at == datetime(2023, 5, 21, 10, tzinfo=UTC)


def test_own_questions_are_asked_of_stored_memories(tmp_path: Path) -> None:
    lines = [
        {"question": "Where?", "user_id": "ann", "evidence": "I moved to Oslo.", "category": "place"},
        {"question": "Who?", "evidence": ["My cat is Dot."]},
    ]

    found = _read(tmp_path, "\n".join(map(json.dumps, lines)), user="ben")

    assert [each.user_id for each in found] == ["ann", "ben"]
    assert not any(each.sessions for each in found)
    assert found[0].questions == [GoldQuestion(text="Where?", evidence=("I moved to Oslo.",), category="place")]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("{", "cannot be read"),
        ("[1]", "JSON objects"),
        ([], "JSON objects"),
        ([{"evidence": ["x"]}], "'question' is missing"),
        ([{"question": "Who?", "evidence": []}], "no question has `evidence`"),
        ([{"question": "Who?", "evidence": "x"}, {"question": "Where?", "evidences": "y"}], "'evidence' is missing"),
        ({**FLAT, "sessions": [{"n": 1, "at": "yesterday", "turns": []}]}, "no date"),
    ],
)
def test_an_unusable_file_is_refused_with_the_reason(data: object, why: str, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidGoldSet, match=why):
        _read(tmp_path, data)
