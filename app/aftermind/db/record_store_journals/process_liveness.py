"""Whether the process that opened a store still lives: each opening names its process, so that others see its end."""

import os
import socket
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

_SEPARATOR = "|"
_open: set[str] = set()  # of this process


def begin() -> str:
    """The name of a new opening."""
    name = _SEPARATOR.join((_host(), str(os.getpid()), _started(os.getpid()), uuid4().hex))
    _open.add(name)
    return name


def end(name: str) -> None:
    """Note that an opening has ended."""
    _open.discard(name)


def has_ended(name: str) -> bool:
    """Whether it is sure that an opening has ended; one of another host may always be there."""
    host, *rest = name.split(_SEPARATOR)
    if host != _host() or len(rest) != 3 or not rest[0].isdecimal():
        return False
    pid, started, _ = rest
    if int(pid) == os.getpid() and started == _started(os.getpid()):
        return name not in _open
    return _started(int(pid)) != started


def _host() -> str:
    """Host and process namespace: in another container the same number is another process."""
    namespace = ""
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{socket.gethostname()}/{namespace}"


def _started(pid: int) -> str:
    """When a process started, as the system counts; empty if it has ended. A zombie has."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        return "" if Path("/proc/self").is_dir() else _signalled(pid)
    except OSError:
        return _signalled(pid)
    return "" if state in ("Z", "X") else fields[18]


def _signalled(pid: int) -> str:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "there"
