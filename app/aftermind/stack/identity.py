"""As whom Postgres runs: it refuses root, so root lends it another identity that may still reach its files."""

import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aftermind.errors import StackError

NOBODY = 65534


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A prefix for argv, and the user and group that must own the data folder (None: leave it as it is)."""

    prefix: tuple[str, ...] = ()
    owner: tuple[int, int] | None = None


def for_postgres(postgres: Path, *, data: Path) -> Identity:
    """The identity under which this `postgres` program starts on this machine.

    As a normal user: our own. As root there are two ways, both tried here by really starting the program:

    1. `setpriv` to nobody, keeping CAP_DAC_OVERRIDE as an ambient capability. Without that one capability nobody
       could not walk into a checkout or venv inside a 0700 folder of root. It needs what a default container
       grants to root (SETUID, SETGID, SETPCAP, DAC_OVERRIDE), so it is the first choice.
    2. `unshare --user`: root outside, nobody inside, so files stay root's own. Seccomp profiles of containers and
       hardened hosts often forbid new user namespaces, so it comes second (a util-linux too old for ambient
       capabilities, a busybox setpriv).
    """
    if os.geteuid() != 0:
        return Identity()
    user, group = _owner(data) or _nobody()
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
    # Start the server itself on a folder that cannot be: as root it stops at once (exit 1, "root" execution is not
    # permitted), as anybody else it goes on until it misses its configuration and names the folder.
    argv = [*identity.prefix, str(postgres), "-D", os.devnull]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 2 and os.devnull in done.stderr


def _owner(data: Path) -> tuple[int, int] | None:
    """Whoever a data folder belongs to already, unless that is root: `sudo` does not take it away from its user."""
    try:
        found = data.stat()
    except FileNotFoundError:
        return None
    return (found.st_uid, found.st_gid) if found.st_uid != 0 else None


def _nobody() -> tuple[int, int]:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return NOBODY, NOBODY
    return entry.pw_uid, entry.pw_gid
