"""Turns as bytes: what one release wrote, the next one reads."""

from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import orjson
import pytest

from aftermind import errors
from aftermind.types import EpisodeId, JobId, Message, Role, Scope, Turn
from aftermind.types.feedback import Feedback
from aftermind.wire.turn_encoding import decode_turn, encode_turn

# Never edit: these bytes lie in somebody's Redis.
GOLDEN = (
    b'{"v":1,"job":"01890a5d-ac96-774b-bcce-b302099a8057","ns":"acme","at":"2026-05-01T12:00:00.000123+00:00",'
    b'"base":1777636800000123,"messages":[{"id":"01890a5d-ac96-774b-bcce-b302099a8058","role":"user",'
    b'"content":"I moved to Oslo.","name":"Al","metadata":{"k":[1,null]},"occurred":"2026-04-30T08:00:00+00:00"},'
    b'{"id":"01890a5d-ac96-774b-bcce-b302099a8059","role":"assistant","content":"Noted."}],'
    b'"user":"alice","session":"s1","agent":"bot","key":"req-1","keep":["facts","history"]}'
)
TURN = Turn(
    job_id=JobId(UUID("01890a5d-ac96-774b-bcce-b302099a8057")),
    scope=Scope(namespace="acme", user_id="alice", session_id="s1", agent_id="bot"),
    remembered_at=datetime(2026, 5, 1, 12, 0, 0, 123, tzinfo=UTC),
    base=1777636800000123,
    messages=(
        Message(
            role=Role.USER,
            content="I moved to Oslo.",
            name="Al",
            metadata={"k": [1, None]},
            occurred_at=datetime(2026, 4, 30, 8, tzinfo=UTC),
        ),
        Message.assistant("Noted."),
    ),
    episode_ids=(
        EpisodeId(UUID("01890a5d-ac96-774b-bcce-b302099a8058")),
        EpisodeId(UUID("01890a5d-ac96-774b-bcce-b302099a8059")),
    ),
    keep=frozenset({"facts", "history"}),
    idempotency_key="req-1",
)


def test_a_turn_has_the_bytes_that_were_agreed_on() -> None:
    assert encode_turn(TURN) == GOLDEN


def test_the_bytes_that_were_agreed_on_are_read() -> None:
    assert decode_turn(GOLDEN) == TURN


def test_the_position_that_redis_gave_stands_above_the_agents_own() -> None:
    assert decode_turn(GOLDEN, base=5).base == 5


def test_fields_of_a_later_release_are_passed_over() -> None:
    data = orjson.loads(GOLDEN) | {"more": 1}
    data["messages"][0]["mood"] = "fine"

    assert decode_turn(orjson.dumps(data)) == TURN


def test_a_turn_with_feedback_is_of_a_version_that_a_reader_without_feedback_keeps_unread() -> None:
    turn = replace(TURN, messages=(), episode_ids=(), feedback=Feedback(helpful=(UUID(int=1),)))
    payload = encode_turn(turn)

    assert payload.startswith(b'{"v":2,')
    assert decode_turn(payload) == turn


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x80\x04pickle",
        b"null",
        b"[]",
        b'{"v":3}',
        b'{"v":1}',
        b'{"v":1,"job":"x","ns":"a","at":"x","base":1,"messages":[]}',
        GOLDEN.replace(b'"role":"user"', b'"role":"robot"'),
        GOLDEN.replace(b'"ns":"acme"', b'"ns":""'),
        GOLDEN.replace(b'"user":"alice"', b'"user":7'),
        GOLDEN[:-1],
    ],
)
def test_what_cannot_be_read_says_so_and_nothing_else(payload: bytes) -> None:
    with pytest.raises(errors.UnknownPayload):
        decode_turn(payload)
