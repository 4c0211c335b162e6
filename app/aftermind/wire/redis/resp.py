"""The Redis protocol (RESP2): commands to bytes, bytes to answers. Pure."""

from collections.abc import Sequence
from typing import Any

Argument = str | bytes | int | float
# an answer of Redis: bytes, int, None, lists of them, or a Refused; each caller expects the type of its command
Answer = Any

SHORT_REPLY_BYTES = 512  # bytes that are parsed in one step if they are complete, in a third of the time
_END = b"\r\n"
_TEXT, _LIST, _NUMBER, _WORD, _ERROR = b"$*:+-"


class ErrorReply(str):
    """An error reply, as Redis put it."""

    __slots__ = ()


def pack(command: Sequence[Argument]) -> bytes:
    """One command as bytes. Texts are encoded as UTF-8, numbers as decimals."""
    return joined(len(command), packed(command))


def packed(arguments: Sequence[Argument]) -> bytes:
    """Some arguments of a command as bytes; what is always the same is packed once (`joined`)."""
    parts = []
    for argument in arguments:
        if isinstance(argument, str):
            data = argument.encode()
        else:
            data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def joined(count: int, *parts: bytes) -> bytes:
    """A command with the given number of arguments from `packed` parts."""
    return b"".join((b"*%d\r\n" % count, *parts))


class Reader:
    """Answers out of a stream that arrives in pieces.

    An answer is read when it is whole: until then its pieces are only counted, so a long one costs no more than a
    short one for each of its bytes.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = 1  # bytes without which nothing more can be whole

    @property
    def is_midway(self) -> bool:
        """Whether a part of an answer has come."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[Answer]:
        """The answers that are whole now."""
        if not self._buffer and len(data) <= SHORT_REPLY_BYTES:
            short = _short(data)
            if short is not None:
                return short
        self._buffer += data
        answers: list[Answer] = []
        position = 0
        while len(self._buffer) - position >= self._needed:
            end = self._end(position)
            if end > len(self._buffer):
                self._needed = end - position
                break
            answer, position = self._parse(position)
            answers.append(answer)
            self._needed = 1
        del self._buffer[:position]
        return answers

    def _end(self, position: int) -> int:
        """Where the answer that begins there ends; what is beyond the buffer is a lower bound."""
        left = 1
        while left and position <= len(self._buffer):
            start, end = position, self._buffer.find(_END, position)
            if end < 0:
                return len(self._buffer) + 1
            kind, position, left = self._buffer[start], end + 2, left - 1
            if kind == _TEXT:
                position += _after(int(self._buffer[start + 1 : end]))
            elif kind == _LIST:
                left += max(int(self._buffer[start + 1 : end]), 0)
        return position

    def _parse(self, position: int) -> tuple[Answer, int]:
        end = self._buffer.find(_END, position)
        kind, line = self._buffer[position], bytes(self._buffer[position + 1 : end])
        position = end + 2
        if kind == _TEXT:
            return self._text(int(line), position)
        if kind == _LIST:
            return self._list(int(line), position)
        if kind == _NUMBER:
            return int(line), position
        if kind == _WORD:
            return line, position
        if kind == _ERROR:
            return ErrorReply(line.decode("utf-8", "replace")), position
        raise ProtocolError(f"an answer begins with {chr(kind)!r}")

    def _text(self, length: int, position: int) -> tuple[bytes | None, int]:
        if length < 0:
            return None, position
        end = position + length
        return bytes(self._buffer[position:end]), end + 2

    def _list(self, length: int, position: int) -> tuple[list[Answer] | None, int]:
        if length < 0:
            return None, position
        items = []
        for _ in range(length):
            item, position = self._parse(position)
            items.append(item)
        return items, position


def _short(data: bytes) -> list[Answer] | None:
    """Whole answers that are numbers, words, texts and flat lists of them; None for anything else."""
    lines = data.split(_END)
    if lines.pop():
        return None
    answers: list[Answer] = []
    items, left, at = answers, 0, 0
    while at < len(lines):
        line, at = lines[at], at + 1
        kind = line[0] if line else 0
        if kind == _LIST and not left:
            items, left = [], int(line[1:])
            if left <= 0:
                return None
            answers.append(items)
            continue
        if kind == _NUMBER:
            items.append(int(line[1:]))
        elif kind == _WORD:
            items.append(line[1:])
        elif kind == _TEXT and at < len(lines) and len(lines[at]) == int(line[1:]):  # it may hold ends of lines itself
            items.append(lines[at])
            at += 1
        else:
            return None
        if left:
            left -= 1
            items = items if left else answers
    return None if left else answers


def _after(length: int) -> int:
    """Bytes that follow the head of a text; -1 is nothing, which has none."""
    return length + 2 if length >= 0 else 0


class ProtocolError(Exception):
    """Bytes that are no answer of Redis: something else listens there."""
