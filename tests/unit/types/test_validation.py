"""Bad input: a named error at the call, or a stated normalisation. None of it reaches a worker."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aftermind import errors
from aftermind.types import Message, Role, Scope, Turn
from aftermind.types.message import new_ids
from aftermind.types.validation import Limits, normalise, split
from aftermind.wire.turn_encoding import decode_turn, encode_turn

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
LIMITS = Limits()


def one(given: Any, limits: Limits = LIMITS) -> Message:
    [message] = normalise(given, limits, now=NOW)
    return message


def user(**more: Any) -> dict[str, Any]:
    return {"role": "user", "content": "hi", **more}


def nested(depth: int) -> dict[str, Any]:
    return {"in": nested(depth - 1)} if depth else {}


class Odd:
    """Something that is no JSON."""


BAD: dict[str, tuple[Any, str]] = {
    # nothing to remember
    "no messages": ([], "messages"),
    "an empty text": ("", "content"),
    "only blanks": (" \n\t", "content"),
    "only NUL": ("\x00\x00", "content"),
    "no content": ({"role": "user"}, "content"),
    "content None without a tool call": (user(content=None), "content"),
    "an empty list of parts": (user(content=[]), "content"),
    # not messages
    "None": (None, "messages"),
    "a number": (5, "messages"),
    "bytes": (b"hi", "messages"),
    "a list of numbers": ([1], "message"),
    "a list in a list": ([[user()]], "message"),
    "None among messages": ([user(), None], "message"),
    # roles
    "an unknown role": (user(role="robot"), "role"),
    "no role": ({"content": "hi"}, "role"),
    "a role that is no text": (user(role=["user"]), "role"),
    "a role None": (user(role=None), "role"),
    "a Message with an unknown role": (Message(role="robot", content="hi"), "role"),  # type: ignore[arg-type]
    # content
    "content that is a number": (user(content=7), "content"),
    "content that is an object": (user(content={"text": "hi"}), "content"),
    "a part of an unknown kind": (user(content=[{"type": "hologram", "data": "x"}]), "content"),
    "a part without a kind": (user(content=[{"text": "hi"}]), "content"),
    "a part whose kind is a list": (user(content=[{"type": ["text"], "text": "hi"}]), "content"),
    "a text part without text": (user(content=[{"type": "text"}]), "content"),
    "a part that is a number": (user(content=[1]), "content"),
    "a Message whose content is None": (Message.user(None), "content"),  # type: ignore[arg-type]
    # names
    "a name that is a number": (user(name=7), "name"),
    "a name that is too long": (user(name="ü" * 257), "name"),
    # metadata
    "metadata that is a list": (user(metadata=[]), "metadata"),
    "metadata that is a text": (user(metadata="x"), "metadata"),
    "metadata that is 0": (user(metadata=0), "metadata"),
    "a Message whose metadata is None": (Message(role=Role.USER, content="hi", metadata=None), "metadata"),  # type: ignore[arg-type]
    "metadata with an object in it": (user(metadata={"x": Odd()}), "metadata"),
    "metadata with bytes in it": (user(metadata={"x": b"y"}), "metadata"),
    "metadata with a set in it": (user(metadata={"x": {1}}), "metadata"),
    "metadata with a date in it": (user(metadata={"x": NOW}), "metadata"),
    "metadata with NaN": (user(metadata={"x": float("nan")}), "metadata"),
    "metadata with infinity": (user(metadata={"x": [float("-inf")]}), "metadata"),
    "metadata with a huge number": (user(metadata={"x": 2**63}), "metadata"),
    "metadata with keys that are no text": (user(metadata={1: "x"}), "metadata"),
    "metadata that nests too deep": (user(metadata=nested(20)), "metadata"),
    "metadata that is too large": (user(metadata={"x": "y" * 20_000}), "metadata"),
    "another key that is no JSON": (user(extra=Odd()), "metadata"),
    # times
    "a time without a zone": (user(occurred_at=datetime(2026, 1, 1)), "occurred_at"),  # noqa: DTZ001
    "a text without a zone": (user(occurred_at="2026-01-01T00:00:00"), "occurred_at"),
    "a day without a time": (user(occurred_at="2026-01-01"), "occurred_at"),
    "a text that is no time": (user(timestamp="yesterday"), "occurred_at"),
    "an empty text as time": (user(created_at=""), "occurred_at"),
    "a misspelt time": (user(occured_at=NOW), "occured_at"),
    "a time in the manner of JavaScript": (user(createdAt=NOW), "createdAt"),
    "a time in the far future": (user(occurred_at=NOW + timedelta(days=2)), "occurred_at"),
    "a number in the far future": (user(occurred_at=1e12), "occurred_at"),
    "a number beyond every calendar": (user(occurred_at=1e30), "occurred_at"),
    "a time that is NaN": (user(occurred_at=float("nan")), "occurred_at"),
    "a time that is a bool": (user(occurred_at=True), "occurred_at"),
    "a time that is a list": (user(occurred_at=[2026]), "occurred_at"),
    "the first hour of the calendar, further east": (
        user(occurred_at=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))),
        "occurred_at",
    ),
}


@pytest.mark.parametrize(("given", "field"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_kept_is_a_named_error(given: Any, field: str) -> None:
    with pytest.raises(errors.InvalidMessage) as caught:
        normalise(given, LIMITS, now=NOW)

    assert caught.value.field == field
    assert len(str(caught.value)) < 400


def test_other_fields_of_a_message_that_resemble_times_are_metadata() -> None:
    extra = {"rated_at": "x", "created_date": "x", "timestamp_ms": 1}

    assert one(user(**extra)).metadata == extra


def test_the_error_names_the_message_that_is_wrong() -> None:
    with pytest.raises(errors.InvalidMessage, match="message 1") as caught:
        normalise([user(), user(role="robot")], LIMITS, now=NOW)

    assert caught.value.index == 1


def test_a_message_over_the_limit_is_refused_in_bytes_not_characters() -> None:
    assert one("x" * 262_144).content
    with pytest.raises(errors.MessageTooLarge) as caught:
        one("ü" * 131_073)

    assert (caught.value.size_bytes, caught.value.limit_bytes) == (262_146, 262_144)


def test_a_turn_over_its_limits_is_refused() -> None:
    with pytest.raises(errors.InvalidMessage, match="at most 3 messages"):
        normalise(["a"] * 4, replace(LIMITS, messages=3), now=NOW)
    with pytest.raises(errors.InvalidMessage, match="Split it into several turns, or raise AFTERMIND_TURN_MAX_BYTES"):
        normalise(["x" * 60, "y" * 60], replace(LIMITS, turn_bytes=100), now=NOW)
    with pytest.raises(errors.InvalidMessage, match="bytes of text and metadata"):
        normalise([user(metadata={"k": "y" * 100})], replace(LIMITS, turn_bytes=100), now=NOW)


@pytest.mark.parametrize(
    ("sizes", "limits", "turns"),
    [
        ((60, 40), {"turn_bytes": 100}, [(60, 40)]),
        ((60, 41), {"turn_bytes": 100}, [(60,), (41,)]),
        ((10, 90, 10, 90, 100), {"turn_bytes": 100}, [(10, 90), (10, 90), (100,)]),
        ((1, 1, 1, 1, 1), {"messages": 2}, [(1, 1), (1, 1), (1,)]),
        ((120, 1), {"turn_bytes": 100}, [(120,), (1,)]),  # `remember` refuses the first turn
    ],
)
def test_messages_too_many_for_a_turn_are_split_in_their_order(
    sizes: tuple[int, ...], limits: dict[str, Any], turns: list[tuple[int, ...]]
) -> None:
    found = split(["x" * size for size in sizes], replace(LIMITS, **limits), now=NOW)

    assert [tuple(len(message.content) for message in turn) for turn in found] == turns


def test_a_text_is_what_the_user_said() -> None:
    assert one("I moved to Oslo.") == Message.user("I moved to Oslo.")


@pytest.mark.parametrize(
    ("given", "role"),
    [
        ("user", Role.USER),
        ("Assistant", Role.ASSISTANT),
        ("SYSTEM", Role.SYSTEM),
        ("developer", Role.SYSTEM),
        ("function", Role.TOOL),
        ("tool", Role.TOOL),
        ("human", Role.USER),
        ("ai", Role.ASSISTANT),
        (Role.TOOL, Role.TOOL),
    ],
)
def test_roles_of_the_usual_frameworks_are_understood(given: str, role: Role) -> None:
    assert one(user(role=given)).role is role


def test_nul_is_removed_and_a_lone_surrogate_replaced_everywhere() -> None:
    message = one(user(content="a\x00b\ud800c", name="n\x00\udfff", metadata={"k\x00": ["v\ud800", {"d": "\x00"}]}))

    assert message.content == "ab\ufffdc"
    assert message.name == "n\ufffd"
    assert message.metadata == {"k": ["v\ufffd", {"d": ""}]}


def test_a_surrogate_pair_is_one_character() -> None:
    assert one("\ud83d\ude00").content == "\N{GRINNING FACE}"


def test_parts_become_text_and_references() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png", "detail": "low"}}
    parts = [{"type": "text", "text": "Look:"}, image, {"type": "input_text", "text": "nice?"}, "yes"]

    message = one(user(content=parts))

    assert message.content == "Look:\nnice?\nyes"
    assert message.metadata["attachments"] == [image]


def test_an_image_alone_is_a_message() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}

    assert one(user(content=[image])).content == "[image]"
    assert one(user(content=[image, {"type": "file", "file": {"file_id": "f1"}}])).content == "[image, file]"
    assert one(user(content=[image, {"type": "text", "text": "see"}])).content == "see"


def test_an_inline_image_is_kept_as_its_digest() -> None:
    url = "data:image/png;base64," + "A" * 1_000_000

    message = one(user(content=["see", {"type": "image_url", "image_url": {"url": url}}]))

    kept = message.metadata["attachments"][0]["image_url"]["url"]
    assert kept.startswith("data:image/png;base64[1000022 characters, sha256 ")
    assert len(kept) < 200


@pytest.mark.parametrize(
    "part",
    [
        {"type": "file", "file": {"filename": "n.txt", "file_data": "data:text/plain;base64,SECRET"}},
        {"type": "input_audio", "input_audio": {"format": "wav", "data": "SECRET"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,SECRET"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "SECRET"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "SECRET"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "SECRET"}]}},
        {"type": "image_url", "image_url": {"url": " DATA:;base64,SECRET"}},
        {"type": "image_url", "image_url": "data:,SECRET"},
        {"type": "image", "image": "SECRET"},
    ],
)
def test_a_short_file_is_not_kept_either(part: dict[str, Any]) -> None:
    kept = str(one(user(content=["see", part])).metadata["attachments"])

    assert "SECRET" not in kept
    assert "sha256" in kept
    assert part["type"] in kept


def test_a_part_of_an_unknown_type_is_refused_with_the_types() -> None:
    with pytest.raises(errors.InvalidMessage, match="one of document, file, image, image_url"):
        one(user(content=[{"type": "tool_use", "id": "x"}]))


def test_tool_calls_without_text_are_a_message_and_keep_their_ids() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}

    asked = one({"role": "assistant", "content": None, "tool_calls": [call]})
    told = one({"role": "tool", "content": "sunny", "tool_call_id": "c1"})

    assert asked.metadata["tool_calls"] == [call]
    assert told.metadata["tool_call_id"] == "c1"


@pytest.mark.parametrize(
    "refused",
    [{"content": None, "refusal": "I can't help."}, {"content": [{"type": "refusal", "refusal": "I can't help."}]}],
)
def test_a_refusal_is_the_text_of_its_message(refused: dict[str, Any]) -> None:
    assert one({"role": "assistant", **refused}).content == "I can't help."


@pytest.mark.parametrize("key", ["occurred_at", "created_at", "timestamp"])
@pytest.mark.parametrize("value", ["2024-02-29T12:00:00Z", "2024-02-29T13:00:00+01:00", 1709208000, 1709208000.0])
def test_times_are_read_in_each_usual_form_and_kept_in_utc(key: str, value: Any) -> None:
    assert one(user(**{key: value})).occurred_at == datetime(2024, 2, 29, 12, tzinfo=UTC)


def test_a_clock_a_day_ahead_is_forgiven() -> None:
    assert one(user(occurred_at=NOW + timedelta(hours=23))).occurred_at == NOW + timedelta(hours=23)


def test_messages_may_come_from_a_generator_and_keep_their_order() -> None:
    def said() -> Iterator[str]:
        yield "a"
        yield "b"

    assert [message.content for message in normalise(said(), LIMITS, now=NOW)] == ["a", "b"]


def test_what_was_given_is_not_changed() -> None:
    metadata = {"a": {"b": [1]}}
    given = user(metadata=metadata, extra=1)

    message = one(given)

    assert given == user(metadata={"a": {"b": [1]}}, extra=1)
    assert message.metadata == {"a": {"b": [1]}, "extra": 1}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
ANYTHING: st.SearchStrategy[Any] = JSON | st.builds(
    dict,
    role=st.sampled_from(["user", "assistant", "tool"]) | JSON,
    content=JSON | st.lists(st.fixed_dictionaries({"type": JSON, "text": JSON})),
    metadata=JSON,
    occurred_at=JSON | st.datetimes(),
    name=JSON,
)


@given(ANYTHING | st.lists(ANYTHING, max_size=3))
@settings(max_examples=400, deadline=None)
def test_whatever_comes_is_refused_by_name_or_survives_the_way_to_the_worker(given: Any) -> None:
    try:
        messages = normalise(given, LIMITS, now=NOW)
    except errors.InvalidMessage:
        return
    job_id, episode_ids = new_ids(len(messages))
    turn = Turn(job_id=job_id, scope=Scope(), remembered_at=NOW, base=1, messages=messages, episode_ids=episode_ids)
    assert decode_turn(encode_turn(turn)) == turn
    for message in messages:
        assert "\x00" not in message.content
        message.content.encode()


def test_a_text_under_another_name_is_named() -> None:
    with pytest.raises(errors.InvalidMessage, match="the message has 'role', 'text' and no 'content'"):
        normalise({"role": "user", "text": "hi"}, LIMITS, now=NOW)
