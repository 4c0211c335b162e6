"""Prefixes of commands: one runs Postgres under another user than root, one ends a process with its parent.

Postgres refuses root, so root uses another identity that can still access its files.
"""

import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aftermind.errors import StackError

UNPRIVILEGED_ID = 65534


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A prefix for argv, and the user and group that must own the data folder (None: leave it as it is)."""

    prefix: tuple[str, ...] = ()
    owner: tuple[int, int] | None = None


def for_postgres(postgres: Path, *, data: Path) -> Identity:
    """The identity under which this `postgres` program starts on this machine.

    A normal user: the same user. For root there are two methods; both are tested by starting the program:

    1. `setpriv` to the user `nobody` with CAP_DAC_OVERRIDE as an ambient capability. Without this capability `nobody`
    could not access a checkout or venv inside a 0700 folder of root. It needs capabilities that a default container
    grants to root (SETUID, SETGID, SETPCAP, DAC_OVERRIDE), so it is the first choice.
    2. `unshare --user`: root outside, `nobody` inside, so files still belong to root. Seccomp profiles of containers
    and hardened hosts often forbid new user namespaces, so it is the second choice (for a util-linux without
    ambient capabilities, or a busybox setpriv).
    """
    if os.geteuid() != 0:
        return Identity()
    user, group = _owner(data) or _unprivileged_ids()
    for candidate in _ways(user, group):
        if _works(candidate, postgres):
            return candidate
    raise StackError(
        "postgres",
        "it refuses to run as root, and neither `setpriv` nor `unshare --user` could lend it another user here",
        "Run as a normal user, or install util-linux, or grant SETUID, SETGID, SETPCAP and DAC_OVERRIDE.",
    )


@cache
def dying_with_parent(signal_name: str) -> tuple[str, ...]:
    """A prefix that makes the kernel send a signal when the supervisor dies; empty where there is no such thing.

    Where it is empty (macOS), the next start ends what a killed supervisor left behind.
    """
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    prefix = (setpriv, "--pdeathsig", signal_name) if setpriv else ()
    if not setpriv or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        return ()
    return (setpriv, "--pdeathsig", signal_name)


def _ways(user: int, group: int) -> list[Identity]:
    ways: list[Identity] = []
    if setpriv := shutil.which("setpriv"):
        caps = ("--inh-caps", "+dac_override", "--ambient-caps", "+dac_override")
        lent = (setpriv, f"--reuid={user}", f"--regid={group}", "--clear-groups", *caps)
        ways.append(Identity(prefix=lent, owner=(user, group)))
    if unshare := shutil.which("unshare"):
        mapped = (unshare, "--user", f"--map-user={user}", f"--map-group={group}")
        ways.append(Identity(prefix=mapped, owner=(0, 0)))
    return ways


def _works(identity: Identity, postgres: Path) -> bool:
    # Start the server itself on an invalid folder: as root it exits immediately (exit 1, "root" execution is not
    # permitted); as another user it fails because of the missing configuration and names the folder.
    argv = [*identity.prefix, str(postgres), "-D", os.devnull]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 2 and os.devnull in done.stderr


def _owner(data: Path) -> tuple[int, int] | None:
    """The current owner of a data folder, unless it is root: `sudo` does not take the folder from its user."""
    try:
        found = data.stat()
    except FileNotFoundError:
        return None
    return (found.st_uid, found.st_gid) if found.st_uid != 0 else None


def _unprivileged_ids() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return UNPRIVILEGED_ID, UNPRIVILEGED_ID
    return entry.pw_uid, entry.pw_gid
