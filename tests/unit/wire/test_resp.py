"""Redis's language: whole answers out of pieces of any size."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermind.wire.redis.resp import ErrorReply, ProtocolError, Reader, pack
from tests.support.cpu_time import cpu_seconds, slowness

ANSWERS = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=50), lambda inner: st.lists(inner), max_leaves=10
)


def written(answer: Any) -> bytes:
    if answer is None:
        return b"$-1\r\n"
    if isinstance(answer, int):
        return b":%d\r\n" % answer
    if isinstance(answer, bytes):
        return b"$%d\r\n%b\r\n" % (len(answer), answer)
    return b"*%d\r\n" % len(answer) + b"".join(map(written, answer))


@given(st.lists(ANSWERS, max_size=5), st.integers(1, 20))
def test_answers_are_the_same_however_they_arrive(answers: list[Any], piece: int) -> None:
    stream = b"".join(map(written, answers))
    reader = Reader()

    found = [answer for at in range(0, len(stream), piece) for answer in reader.feed(stream[at : at + piece])]

    assert found == answers


def test_an_error_is_told_from_a_text() -> None:
    [error, word] = Reader().feed(b"-OOM command not allowed\r\n+OK\r\n")

    assert isinstance(error, ErrorReply)
    assert error == "OOM command not allowed"
    assert word == b"OK"


def test_what_is_no_answer_is_refused() -> None:
    with pytest.raises(ProtocolError):
        Reader().feed(b"HTTP/1.1 200 OK\r\n")


def test_a_command_is_a_list_of_texts() -> None:
    assert (
        pack(("SET", "kü", b"\x00\r\n", 12)) == b"*4\r\n$3\r\nSET\r\n$3\r\nk\xc3\xbc\r\n$3\r\n\x00\r\n\r\n$2\r\n12\r\n"
    )


def test_a_long_answer_costs_its_length_once() -> None:
    stream = written([b"x" * 80_000] * 100)

    def read() -> None:
        reader = Reader()
        found = [answer for at in range(0, len(stream), 65_536) for answer in reader.feed(stream[at : at + 65_536])]
        assert found == [[b"x" * 80_000] * 100]

    assert cpu_seconds(read) < 0.2 * slowness()  # 0.01 there; reading it again with each piece took 0.5
