"""Computation on texts from users, in child processes: it blocks no event loop, and it has a deadline.

A thread is not sufficient. Regular expressions and Unicode normalisation hold the interpreter's lock. While messages of
256 KB were checked, a loop that wakes up every millisecond was late by 8.6 ms at the median and 208 ms at most with a
thread, by 0.14 ms and 13 ms with the process, and by 0.12 ms and 8 ms without any check (two busy cores).
"""

import asyncio
import atexit
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from types import FrameType
from typing import IO, Any, ParamSpec, TypeVar

from aftermind.process_priority import lower_priority

P = ParamSpec("P")
T = TypeVar("T")

SHORT_CHARACTERS = 32_768  # of one call; a longer one has another process, so that short ones never wait for it
INLINE_CHARACTERS = 2_000  # computed on the loop: a chat turn, in less than a millisecond
CPU_SECONDS = 5.0  # of one call; an ordinary message of 256 KB takes 1 to 2
WAIT_SECONDS = 180.0  # for an answer: the CPU time above at a thirtieth of a core; then the process is killed
IDLE_SECONDS = 60  # without a call after which the process ends
SHORT_NICE, LONG_NICE = 0, 10  # priority of the processes: event loops and short texts run first
_START = "from aftermind.llm.text_process_pool import serve; serve({nice})"


class TextTimeout(Exception):
    """A text took longer than its deadline. The text is at fault, not the machine: the deadline counts CPU time."""


async def run(characters: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a module's function with arguments of the given total length, in a process for texts.

    Short calls run one after the other in one process, long ones in another. If no process can be started, a thread
    computes. Raises `TextTimeout`.
    """
    loop = asyncio.get_running_loop()
    server = _server(os.getpid(), SHORT_NICE if characters <= SHORT_CHARACTERS else LONG_NICE)
    answer: T = await loop.run_in_executor(server.executor, server.call, work, args, kwargs)
    return answer


class _Server:
    """The process, started at the first call and again after it ended."""

    def __init__(self, nice: int) -> None:
        self._nice = nice
        atexit.register(self._end)
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="aftermind texts")
        self._child: subprocess.Popen[bytes] | None = None

    def call(self, work: Callable[..., Any], args: Any, kwargs: Any) -> Any:  # Any: of any function
        request = pickle.dumps((work, args, kwargs))
        for _ in range(2):  # it may have ended while it was idle
            child = self._started()
            if child is None:
                return work(*args, **kwargs)
            with suppress(OSError, EOFError):
                _write(_stream(child.stdin), request)
                return self._answer(child)
            self._end()
        raise TextTimeout("the process for texts ended twice")

    def _answer(self, child: "subprocess.Popen[bytes]") -> Any:  # Any: as above
        if not select.select([_stream(child.stdout)], [], [], WAIT_SECONDS)[0]:
            self._end()
            raise TextTimeout(f"no answer within {WAIT_SECONDS:g} s")
        is_done, answer = pickle.loads(_read(_stream(child.stdout)))
        if not is_done:
            raise answer
        return answer

    def _started(self) -> "subprocess.Popen[bytes] | None":
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end()
        try:
            # Apart from the terminal's signals; it ends when its input is closed, so it never outlives this process.
            self._child = subprocess.Popen(
                [sys.executable, "-c", _START.format(nice=self._nice)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )
        except OSError:
            return None
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            for stream in (child.stdin, child.stdout):
                with suppress(OSError):
                    _stream(stream).close()
            child.wait()


@cache
def _server(pid: int, nice: int) -> _Server:
    """One for each process and priority; a forked process does not share its parent's pipes."""
    return _Server(nice)


def serve(nice: int = 0) -> None:
    """Answer calls from standard input until it is closed or nothing came for a while."""
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    signal.signal(signal.SIGVTALRM, _expired)
    lower_priority(nice)
    while select.select([calls], [], [], IDLE_SECONDS)[0]:
        try:
            work, args, kwargs = pickle.loads(_read(calls))
            _write(answers, _performed(work, args, kwargs))
        except (EOFError, BrokenPipeError):
            return


def _performed(work: Callable[..., Any], args: Any, kwargs: Any) -> bytes:  # Any: as above
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
        try:
            answer = work(*args, **kwargs)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return pickle.dumps((True, answer))
    except Exception as exc:
        try:
            return pickle.dumps((False, exc))
        except Exception:
            return pickle.dumps((False, RuntimeError(f"{type(exc).__name__} in the process for texts")))


def _expired(number: int, frame: FrameType | None) -> None:
    raise TextTimeout(f"more than {CPU_SECONDS:g} s of computing")


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(8, "big") + data)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes:
    size = _exactly(stream, 8)
    return _exactly(stream, int.from_bytes(size, "big"))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # both are pipes
    return stream
