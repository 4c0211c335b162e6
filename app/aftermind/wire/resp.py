"""Redis's own language: commands to bytes, bytes to answers (RESP2). Pure."""

from collections.abc import Sequence
from typing import Any

Argument = str | bytes | int | float
Answer = Any  # what Redis answers: bytes, int, None, lists of them, or a Refused; each caller knows its command

_END = b"\r\n"


class Refused(str):
    """An error reply, as Redis put it."""

    __slots__ = ()


def pack(command: Sequence[Argument]) -> bytes:
    """One command as bytes. Texts go as UTF-8, numbers as decimals."""
    parts = [b"*%d\r\n" % len(command)]
    for argument in command:
        if isinstance(argument, str):
            data = argument.encode()
        else:
            data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Reader:
    """Answers out of a stream that arrives in pieces."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Answer]:
        """The answers that are whole now."""
        self._buffer += data
        answers, position = [], 0
        try:
            while position < len(self._buffer):
                answer, position = self._parse(position)
                answers.append(answer)
        except _IncompleteError:
            pass
        del self._buffer[:position]
        return answers

    def _parse(self, position: int) -> tuple[Answer, int]:
        end = self._buffer.find(_END, position)
        if end < 0:
            raise _IncompleteError
        kind, line = self._buffer[position], bytes(self._buffer[position + 1 : end])
        position = end + 2
        if kind == 0x24:  # $ text of that length
            return self._text(int(line), position)
        if kind == 0x3A:  # : number
            return int(line), position
        if kind == 0x2B:  # + word
            return line, position
        if kind == 0x2D:  # - error
            return Refused(line.decode("utf-8", "replace")), position
        if kind == 0x2A:  # * list
            return self._list(int(line), position)
        raise ProtocolError(f"an answer begins with {chr(kind)!r}")

    def _text(self, length: int, position: int) -> tuple[bytes | None, int]:
        if length < 0:
            return None, position
        end = position + length
        if end + 2 > len(self._buffer):
            raise _IncompleteError
        return bytes(self._buffer[position:end]), end + 2

    def _list(self, length: int, position: int) -> tuple[list[Answer] | None, int]:
        if length < 0:
            return None, position
        items = []
        for _ in range(length):
            item, position = self._parse(position)
            items.append(item)
        return items, position


class ProtocolError(Exception):
    """Bytes that are no answer of Redis: something else listens there."""


class _IncompleteError(Exception):
    pass
