"""Files of conversations become turns, and what cannot be read becomes a line that says why."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aftermind import errors
from aftermind.cli.importers import BadLine, FileTurn, read
from aftermind.integrations.message_records import Records
from aftermind.types import Message, Role
from aftermind.types.validation import Limits, normalise


def _file(folder: Path, *lines: object, name: str = "chat.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def _said(role: str, content: str, **more: Any) -> dict[str, Any]:  # Any: JSON
    return {"role": role, "content": content, **more}


def _turns(path: Path, **given: str) -> list[FileTurn]:
    found = list(read(path, **given))
    assert all(isinstance(each, FileTurn) for each in found), found
    return [each for each in found if isinstance(each, FileTurn)]


CHAT = {
    "user_id": "alice",
    "session_id": "s1",
    "timestamp": "2025-03-03T09:12:00+00:00",
    "metadata": {"channel": "web"},
    "messages": [_said("system", "Be kind."), _said("user", "Hi"), _said("assistant", "Hello"), _said("user", "Bye")],
}


LISTS: list[tuple[Any, list[str]]] = [  # Any: JSON
    ([_said("user", "Hi"), _said("assistant", "Hello"), _said("user", "Bye")], ["Hi", "Bye"]),
    ([CHAT, {**CHAT, "session_id": "s2"}], ["Be kind.", "Bye", "Be kind.", "Bye"]),
    (CHAT, ["Be kind.", "Bye"]),
]


@pytest.mark.parametrize(("value", "first"), LISTS, ids=["messages", "conversations", "one"])
def test_a_file_may_be_one_indented_json_value(value: object, first: list[str], tmp_path: Path) -> None:
    turns = _turns(_file(tmp_path, json.dumps(value, indent=2), name="chat.json"), user="alice")

    assert [turn.messages[0]["content"] for turn in turns if isinstance(turn.messages[0], dict)] == first
    assert {turn.user_id for turn in turns} == {"alice"}


def test_a_conversation_of_a_list_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    good, bad = read(_file(tmp_path, json.dumps([{"messages": [_said("user", "Hi")]}, 3], indent=2), name="chat.json"))

    assert isinstance(good, FileTurn)
    assert isinstance(bad, BadLine)
    assert "conversation 2" in str(bad.place)


def test_a_turn_begins_where_somebody_asks_after_an_answer(tmp_path: Path) -> None:
    turns = _turns(_file(tmp_path, CHAT))

    assert [[message["content"] for message in turn.messages] for turn in turns] == [
        ["Be kind.", "Hi", "Hello"],
        ["Bye"],
    ]


def test_user_session_metadata_and_time_of_a_conversation_are_those_of_its_messages(tmp_path: Path) -> None:
    (first, _) = _turns(_file(tmp_path, CHAT))

    assert (first.user_id, first.session_id) == ("alice", "s1")
    assert all(
        m["metadata"] == {"channel": "web"} and m["occurred_at"].startswith("2025-03-03") for m in first.messages
    )


def test_a_message_keeps_its_own_time_and_metadata(tmp_path: Path) -> None:
    own = _said("user", "Hi", created_at=1_700_000_000, metadata={"channel": "phone"})

    (turn,) = _turns(_file(tmp_path, {**CHAT, "messages": [own]}))

    assert turn.messages[0]["occurred_at"] == 1_700_000_000
    assert turn.messages[0]["metadata"] == {"channel": "phone"}


def test_a_time_without_a_zone_is_utc(tmp_path: Path) -> None:
    (turn,) = _turns(_file(tmp_path, {"messages": [_said("user", "Hi", timestamp="2025-03-03T09:12:00")]}))

    assert turn.messages[0]["occurred_at"] == "2025-03-03T09:12:00+00:00"


def test_the_options_stand_in_where_the_file_names_nobody(tmp_path: Path) -> None:
    path = _file(tmp_path, CHAT, {"messages": [_said("user", "Hi")]})

    turns = _turns(path, user="bob", session="s9")

    assert [(turn.user_id, turn.session_id) for turn in turns] == [("alice", "s1"), ("alice", "s1"), ("bob", "s9")]


def test_a_conversation_without_a_session_gets_one_from_its_content(tmp_path: Path) -> None:
    first = _turns(_file(tmp_path, {"messages": [_said("user", "Hi")]}))
    again = _turns(_file(tmp_path, {"messages": [_said("user", "Hi")]}, name="other.jsonl"))
    other = _turns(_file(tmp_path, {"messages": [_said("user", "Ho")]}, name="third.jsonl"))

    assert first[0].session_id == again[0].session_id != other[0].session_id


def test_a_turn_has_the_same_key_at_the_next_run_also_when_the_conversation_has_grown(tmp_path: Path) -> None:
    before = _turns(_file(tmp_path, CHAT))
    grown = {**CHAT, "messages": [*CHAT["messages"], _said("assistant", "See you"), _said("user", "Yes")]}

    after = _turns(_file(tmp_path, grown))

    assert before[0].key == after[0].key
    assert len({turn.key for turn in after}) == len(after)


def test_what_is_said_twice_in_one_file_is_kept_twice(tmp_path: Path) -> None:
    line = {"messages": [_said("user", "Hi")]}

    turns = _turns(_file(tmp_path, line, line))

    assert len({turn.key for turn in turns}) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]x", "not JSON"),
        ('"text"', "JSON object"),
        ({}, "no messages"),
        ({"messages": []}, "no messages"),
        ({"messages": "Hi"}, "messages must be a list, not a string"),
        ({"messages": ["Hi"]}, "role and content"),
        ({"messages": [_said("user", "Hi")], "user_id": 7}, "user_id must be a string, not a number"),
        ({"messages": [_said("user", "Hi", timestamp="yesterday")]}, "no ISO 8601 time"),
        ({"messages": [_said("user", "Hi")], "metadata": 3}, "metadata is a JSON object"),
    ],
)
def test_a_bad_line_is_named_with_its_reason_and_the_rest_goes_on(tmp_path: Path, line: object, reason: str) -> None:
    path = _file(tmp_path, CHAT, line, CHAT)

    found = list(read(path))

    (bad,) = [each for each in found if isinstance(each, BadLine)]
    assert bad.place.line == 2
    assert str(bad.place) == f"{path}:2"
    assert reason in bad.reason
    assert len(found) == 5


def test_a_file_that_cannot_be_read_is_one_bad_line(tmp_path: Path) -> None:
    binary = tmp_path / "image.png"
    binary.write_bytes(b"\x89PNG\xff\xfe")

    table = tmp_path / "chat.csv"
    table.write_text("user,text\nann,I like tea.\nbob,I like rain.\n")

    assert [type(each) for each in read(binary)] == [BadLine]
    (bad,) = read(table)
    assert isinstance(bad, BadLine)
    assert bad.reason.startswith("no line of it is a JSON object")
    assert [type(each) for each in read(tmp_path / "nothing.jsonl")] == [BadLine]


def test_a_damaged_byte_costs_its_line_and_not_the_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    line = json.dumps(CHAT).encode()
    path.write_bytes(b"\n".join([line, line.replace(b"Hello", b"H\xffllo"), line]))

    found = list(read(path))

    (bad,) = [each for each in found if isinstance(each, BadLine)]
    assert (bad.place.line, len(found)) == (2, 5)


def test_a_malformed_turn_of_a_locomo_file_costs_that_turn_alone(tmp_path: Path) -> None:
    turns = [{"id": f"t{i}", "speaker": "Ann", "text": f"I have {i} cats."} for i in range(3)]
    session = {"n": 1, "at": "1:56 pm on 8 May, 2023", "turns": [turns[0], {"id": "t1"}, turns[2]]}
    undated = {"n": 2, "at": "some day", "turns": turns}
    path = _file(tmp_path, {"id": "c1", "sessions": [session, undated, {**session, "n": 3}]}, name="locomo.json")

    found = list(read(path))

    assert [each.session_id for each in found if isinstance(each, FileTurn)] == ["session-1"] * 2 + ["session-3"] * 2
    assert [str(each.place).removeprefix(f"{path} ") for each in found if isinstance(each, BadLine)] == [
        "c1, session 1, turn 2",
        "c1, session 2",
        "c1, session 3, turn 2",
    ]


def test_nothing_is_made_again_of_an_exported_message_that_was_undone(tmp_path: Path) -> None:
    every = ["facts", "history", "profile", "summary"]
    scope = {"namespace": "default", "user_id": "alice", "session_id": "s", "agent_id": None}
    episodes = [
        {"id": str(place), "role": "user", "content": text, "scope": scope, "keep": every, "mark": mark}
        for place, (text, mark) in enumerate((("Kept.", None), ("Never true.", "undone")))
    ]

    turns = _turns(_file(tmp_path, {"scope": scope, "episodes": episodes}))

    assert [turn.save for turn in turns] == [tuple(every), ("history",)]


def test_an_exported_message_of_a_framework_can_be_remembered_again(tmp_path: Path) -> None:
    records = Records(framework="f", role=lambda record: str(record["role"]), text_at=lambda record: ("text",))
    message = records.to_message({"role": "user", "text": "Hi.", "id": 7}, Limits())
    scope = {"namespace": "default", "user_id": "alice", "session_id": "s", "agent_id": None}
    episode = {"id": "1", **message, "scope": scope, "keep": ["history"], "mark": None}

    (exported,) = _turns(_file(tmp_path, {"scope": scope, "episodes": [episode]}))
    (foreign,) = _turns(_file(tmp_path, {"messages": [message]}, name="other.jsonl"))

    (again,) = normalise(exported.messages, Limits(), now=datetime.now(UTC))
    assert again.metadata == message["metadata"]
    with pytest.raises(errors.InvalidMessage, match="reserved"):
        normalise(foreign.messages, Limits(), now=datetime.now(UTC))


def test_empty_lines_and_a_byte_order_mark_are_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text("\ufeff" + json.dumps(CHAT) + "\n\n\n", encoding="utf-8")

    assert len(_turns(path)) == 2


def test_the_example_can_be_read() -> None:
    turns = _turns(Path(__file__).parents[3] / "examples" / "conversation.jsonl")

    assert {turn.user_id for turn in turns} == {"alice", "ben"}


LOCOMO = {
    "id": "conv-1",
    "speakers": ["Ann", "Bo"],
    "sessions": [
        {
            "n": 1,
            "at": "1:56 pm on 8 May, 2023",
            "turns": [
                {"id": "D1:1", "speaker": "Ann", "text": "Look!", "caption": "a photo of a dog"},
                {"id": "D1:2", "speaker": "Bo", "text": "Nice."},
            ],
        }
    ],
    "questions": [],
}


def test_locomo_is_one_message_a_turn_by_name_with_its_date_and_the_caption_of_its_image(tmp_path: Path) -> None:
    first, second = _turns(_file(tmp_path, [LOCOMO], name="locomo.json"))

    assert first.messages == (
        Message(
            role=Role.USER,
            content="Look! [shared image: a photo of a dog]",
            name="Ann",
            metadata={"turn": "D1:1"},
            occurred_at=datetime(2023, 5, 8, 13, 56, tzinfo=UTC),
        ),
    )
    assert (first.user_id, first.session_id) == ("conv-1", "session-1")
    assert isinstance(second.messages[0], Message)
    assert second.messages[0].role is Role.USER, "both are people: facts of both are kept"


@pytest.mark.parametrize("at", ["2024-05-01T09:00:00Z", 1_714_554_000])
def test_messages_of_a_conversation_with_one_time_have_times_in_their_order(tmp_path: Path, at: object) -> None:
    said = [{"role": "user", "content": text} for text in ("I live in Bern.", "I moved to Basel.", "It is nice.")]
    turns = _turns(_file(tmp_path, {"created_at": at, "messages": said}))

    given = [message for turn in turns for message in turn.messages]
    times = [each.occurred_at for each in normalise(given, Limits(), now=datetime.now(UTC))]
    assert times[0] == datetime(2024, 5, 1, 9, tzinfo=UTC)
    assert times == sorted(set(times), key=str)  # type: ignore[type-var]


def test_one_locomo_conversation_need_not_be_in_a_list(tmp_path: Path) -> None:
    assert len(_turns(_file(tmp_path, LOCOMO, name="one.json"))) == 2


def test_a_broken_locomo_conversation_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    broken = {**LOCOMO, "sessions": [{"n": 1, "at": "once upon a time", "turns": []}]}

    found = list(read(_file(tmp_path, [broken, {"id": "x"}, LOCOMO], name="locomo.json")))

    assert [type(each) for each in found] == [BadLine, BadLine, FileTurn, FileTurn]
    assert "once upon a time" in found[0].reason  # type: ignore[union-attr]
    assert "'sessions' is missing" in found[1].reason  # type: ignore[union-attr]
