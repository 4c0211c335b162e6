"""Workers, services and commands as processes that need not import everything again: `start_module("celery", ...)`.

A process of the tests imports our packages and their libraries once, and forks for each `python -m module`. What is
forked has its own environment, folder, output and session, and ends as any interpreter does, except that it does not
delete its modules: they are all copied for that, 0.15 s of CPU time. The imports, 1 s each, are there already. Nothing
that reads settings when it is imported is among them. Another interpreter, of another release or with another clock,
has such a process of its own.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import psutil

from tests.support.waiting import PATIENCE_SECONDS

IMPORTED = (
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.thread",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "kombu.pidbox",
    "kombu.transport.redis",
    "aftermind_workers.celery_config",
    "aftermind_workers.celery_consumer",
    "aftermind_workers.lifecycle",
    "aftermind_workers.redis_transport",
    "aftermind_workers.remote_control_limits",
    "aftermind_workers.doorbell_task",
    "aftermind_tasks.inmemory",
    "aftermind_tasks.job_handlers",
    "aftermind.api.wiring",
    "aftermind.db.record_store_journals.sql",
    "aftermind.llm.hash_embedder",
    "aftermind.llm.offline.rule_extractor",
    "aftermind.llm.offline.summaries",
    "aftermind.web",
    "aftermind.cli.web",
    "aftermind.cli.worker",
    "anyio._backends._asyncio",
    "httpcore2",
    "openai",
    "openai.resources.chat.completions",
    "openai.resources.embeddings",
    "rich.progress",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "tests.support.openapi_document",
    "uvicorn",
)
# Read by an interpreter before it runs any code, and by prometheus_client when it is imported.
_OF_THE_INTERPRETER = ("PYTHON", "LD_", "DYLD_", "MALLOC_", "PROMETHEUS_", "FAKETIME_")
_READ_AT_EACH_CALL = "FAKETIME_TIMESTAMP_FILE"
_OF_ONE_TEST = "PROMETHEUS_"  # a folder: with another than ours, a process is started as usual
ROOT = Path(__file__).parents[2]

MESSAGE_BYTES = 16  # a process's id, and later its wait status


class ForkedProcess(psutil.Process):
    """A process that the fork server started; used as a `psutil.Popen` is."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.returncode: int | None = None
        self._connection = connection
        self._init(pid, _ignore_nsp=True)  # type: ignore[attr-defined]  # as psutil.Popen: it may have ended already

    def __del__(self) -> None:
        self._connection.close()

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; negative for a signal. Raises psutil's `TimeoutExpired`."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                answer = self._connection.recv(MESSAGE_BYTES)
            except (TimeoutError, BlockingIOError) as exc:
                raise psutil.TimeoutExpired(timeout or 0.0, pid=self.pid) from exc
            self._connection.close()
            self.returncode = os.waitstatus_to_exitcode(int(answer)) if answer else -signal.SIGKILL
        return self.returncode

    def poll(self) -> int | None:
        """The exit status of a process that has ended."""
        with suppress(psutil.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Also to a process that has ended, as `subprocess.Popen` allows."""
        with suppress(psutil.NoSuchProcess):
            super().send_signal(sig)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process = ForkedProcess | psutil.Popen


def start_module(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    output: IO[bytes] | int,
    errors: IO[bytes] | int | None = None,
    stdin: int | None = None,
    cwd: Path | None = None,
    start_new_session: bool = False,
) -> Process:
    """`python -m arguments`, with stdout and stderr in a file, or in a file each; without `stdin`, that is empty."""
    errors = errors or output
    settings = _interpreter_settings(env)
    if _of_one_test(settings) != _of_one_test(os.environ) or sys.platform != "linux":
        path = os.pathsep.join(filter(None, [env.get("PYTHONPATH"), str(ROOT)]))
        return psutil.Popen(
            [sys.executable, "-m", *arguments],
            env={**env, "PYTHONPATH": path},
            cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=output,
            stderr=errors,
            start_new_session=start_new_session,
        )
    wanted = {
        "arguments": list(arguments),
        "env": dict(env),
        "cwd": str(cwd or Path.cwd()),
        "session": start_new_session,
    }
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(_server(frozenset(settings.items())))
    text = json.dumps(wanted).encode()
    with Path(os.devnull).open("rb") as nothing:
        files = [nothing.fileno() if stdin is None else stdin, _descriptor(output), _descriptor(errors)]
        socket.send_fds(connection, [len(text).to_bytes(4, "big")], files)
    connection.sendall(text)
    return ForkedProcess(int(connection.recv(MESSAGE_BYTES)), connection)


def end(processes: Sequence[Process], *, timeout: float, sig: int = signal.SIGTERM) -> list[Process]:
    """End them by the signal; those that run on after `timeout` seconds are killed, and returned."""
    for process in processes:
        process.send_signal(sig)
    psutil.wait_procs(list(processes), timeout=timeout)
    alive = [process for process in processes if process.poll() is None]
    for process in alive:
        process.kill()
        process.wait()
    return alive


def run_module(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None, timeout: float = PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """`python -m arguments` to its end."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start_module(arguments, env=env, output=output, errors=errors, cwd=cwd)
        try:
            code = process.wait(timeout)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = [os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode() for file in (output, errors)]
    return subprocess.CompletedProcess(list(arguments), code, *texts)


def _interpreter_settings(env: Mapping[str, str]) -> dict[str, str]:
    named = {name: value for name, value in env.items() if name.startswith(_OF_THE_INTERPRETER)}
    return {name: value for name, value in named.items() if name != _READ_AT_EACH_CALL}


def _descriptor(file: IO[bytes] | int) -> int:
    return file if isinstance(file, int) else file.fileno()


def _of_one_test(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_OF_ONE_TEST)}


@cache
def _server(settings: frozenset[tuple[str, str]]) -> str:
    """The address of this process's fork server with these settings of the interpreter; it ends with this process."""
    path = str(Path(tempfile.mkdtemp(prefix="aftermind-fork-")) / "socket")
    others = ("AFTERMIND_", "OPENAI_", *_OF_THE_INTERPRETER)
    env = {name: value for name, value in os.environ.items() if not name.startswith(others)} | dict(settings)
    env["OPENBLAS_NUM_THREADS"] = "1"  # a process of one thread can be forked at any time
    argv = [sys.executable, "-m", "tests.support.fork_server", path]
    server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=ROOT)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    atexit.register(server.communicate)  # the end of its stdin ends it
    return path


def _serve(path: str) -> dict[str, Any]:  # Any: JSON
    """Fork for each request until stdin ends. Returns in the forked process alone: what it has to run."""
    woken, wakes = socket.socketpair()
    for each in (woken, wakes):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C ends the tests, and they end this
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    listening.listen(64)
    selector = selectors.DefaultSelector()
    for readable in (woken, listening, sys.stdin):
        selector.register(readable, selectors.EVENT_READ)
    running: dict[int, socket.socket] = {}
    os.write(1, b"ready\n")
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                Path(path).unlink()
                Path(path).parent.rmdir()
                os._exit(0)
            elif key.fileobj is woken:
                woken.recv(4096)
                _report_ended(running)
            elif (wanted := _fork(listening.accept()[0], running)) is not None:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                selector.close()
                for each in (listening, woken, wakes, *running.values()):
                    each.close()
                return wanted


def _fork(connection: socket.socket, running: dict[int, socket.socket]) -> dict[str, Any] | None:  # Any: JSON
    """Answer a request with the process's id, and in that process with what was requested."""
    size, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as stream:
        wanted: dict[str, Any] = json.loads(stream.read(int.from_bytes(size, "big")))
    pid = os.fork()
    if pid == 0:
        connection.close()
        return {**wanted, "files": descriptors}
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(_message(pid))
    running[pid] = connection
    return None


def _report_ended(running: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with running.pop(ended[0]) as connection, suppress(OSError):
                connection.sendall(_message(ended[1]))


def _message(number: int) -> bytes:
    return str(number).encode().ljust(MESSAGE_BYTES)


def _run(wanted: dict[str, Any]) -> None:  # Any: JSON
    """Be `python -m` for the rest of this process."""
    if wanted["session"]:
        os.setsid()
    for target, source in enumerate(wanted["files"]):
        os.dup2(source, target)
        os.close(source)
    os.chdir(wanted["cwd"])
    sys.path[0] = wanted["cwd"]
    os.execve = _execute_module  # type: ignore[assignment]  # `aftermind worker` becomes Celery, and need not import it either
    _execute_module(sys.executable, [sys.executable, "-m", *wanted["arguments"]], wanted["env"])


def _execute_module(_: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
    """`python -m` in an environment, by this interpreter."""
    if list(argv[:2]) != [sys.executable, "-m"]:
        raise NotImplementedError(f"a forked process becomes a module of Python alone, not {argv!r}")
    os.environ.clear()
    os.environ.update(env)
    sys.argv = list(argv[2:])
    runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
    sys.exit()


def main() -> None:
    """The server, as a process; in each process that it forks, the module."""
    gc.disable()  # what is imported stays: to search it for garbage takes 0.8 s of CPU time
    for name in IMPORTED:
        importlib.import_module(name)
    sys.modules["aftermind.ranking.tokenizer"].terms("the words of all languages")  # tables, made at the first text
    for name in [name for name in sys.modules if name.startswith("aftermind.cli")]:
        del sys.modules[name]  # the commands' console reads COLUMNS when it is imported
    gc.freeze()
    gc.enable()
    wanted = _serve(sys.argv[1])
    try:
        _run(wanted)
    except SystemExit as exc:
        _end(exc.code)
    except Exception:
        sys.excepthook(*sys.exc_info())
        _end(1)


def _end(code: object) -> None:
    """End this process as an interpreter does after `sys.exit(code)`, without deleting all modules."""
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    main()
