"""Keys that are not in the database: from a setting, or a file of the state folder that is made at first use."""

import os
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import SecretStr

from aftermind import errors, private_files
from aftermind.db.audit_chain import AuditKeys

SHORTEST = 16  # characters of a key that is set


def lazily(what: str, given: SecretStr | None, path: Path) -> Callable[[], tuple[bytes, ...]]:
    """The keys when they are first asked for (a file is made then), and the same ones afterwards."""
    found: list[tuple[bytes, ...]] = []

    def keys() -> tuple[bytes, ...]:
        if not found:
            found.append(keys_of(what, given, path))
        return found[0]

    return keys


def keys_of(what: str, given: SecretStr | None, path: Path) -> tuple[bytes, ...]:
    """Keys of a setting, separated by commas, the newest first; else that of the file. Raises `InvalidSettings`."""
    if given is None:
        return (of_file(what, path, lambda: secrets.token_hex(32)).encode(),)
    told = [each.strip() for each in given.get_secret_value().split(",") if each.strip()]
    if not told or any(len(each) < SHORTEST for each in told):
        raise errors.InvalidSettings(what, "…", f"a key has at least {SHORTEST} characters; `openssl rand -hex 32`.")
    return tuple(each.encode() for each in told)


def audit_keys(given: SecretStr | None, state_dir: Path) -> Callable[[], AuditKeys]:
    """The keys of the audit trail."""
    return partial(_audit, lazily("audit_key", given, state_dir / "audit.key"))


def master_keys(given: SecretStr | None, state_dir: Path) -> Callable[[], tuple[bytes, ...]]:
    """The master keys of encrypted content."""
    return lazily("encryption_key", given, state_dir / "encryption.key")


def _audit(keys: Callable[[], tuple[bytes, ...]]) -> AuditKeys:
    return AuditKeys(keys())


def of_file(what: str, path: Path, made: Callable[[], str]) -> str:
    """The key of a file; of several processes that find none one makes it. Raises `InvalidSettings`."""
    try:
        private_files.make_folder(path.parent)
        if not os.path.lexists(path):
            private_files.create(path, made().encode())
        return private_files.read(path).decode().strip()
    except OSError as exc:
        why = f"it cannot be read or made: {exc.strerror}. Set AFTERMIND_{what.upper()} or _FILE instead."
        raise errors.InvalidSettings(what, str(path), why) from exc
