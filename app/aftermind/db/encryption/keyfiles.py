"""Keys that are not in the database: from a setting, or a file of the state folder that is made at first use."""

import os
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import SecretStr

from aftermind import errors, private_files
from aftermind.db.database_protocol import Transaction

MIN_KEY_CHARACTERS = 16  # characters of a key that is set


class LazyKeys:
    """Keys, read when they are first needed. `for_writing` makes the file that is missing; `existing` never does."""

    def __init__(
        self, what: str, given: SecretStr | None, path: Path, *, made: Callable[[], str] | None = None
    ) -> None:
        self._what, self._given, self._path = what, given, path
        self._made = made or partial(secrets.token_hex, 32)
        self._keys: tuple[bytes, ...] | None = None

    async def for_writing(self, tx: Transaction) -> tuple[bytes, ...]:
        """The keys, made if no row of any tenant was made with one. Raises `KeyFileLost`, `InvalidSettings`."""
        # Here, because it loads SQLAlchemy, which commands that only read a key do without.
        from aftermind.db.encryption import rows_of_key_check

        if self._is_missing() and await rows_of_key_check.is_used(tx, self._what):
            raise errors.KeyFileLost(self._what, str(self._path))
        return self()

    def __call__(self) -> tuple[bytes, ...]:
        """The keys, whatever was made with a former one. Raises `InvalidSettings`."""
        self._keys = self._keys or load_keys(self._what, self._given, self._path, self._made)
        return self._keys

    def existing(self) -> tuple[bytes, ...]:
        """The keys, to read with: none where there is no setting and no file. Raises `InvalidSettings`."""
        return () if self._is_missing() else self()

    def _is_missing(self) -> bool:
        return self._given is None and self._keys is None and not os.path.lexists(self._path)


def load_keys(what: str, given: SecretStr | None, path: Path, made: Callable[[], str]) -> tuple[bytes, ...]:
    """Keys of a setting, separated by commas, the newest first; else that of the file. Raises `InvalidSettings`."""
    if given is None:
        return (read_or_create(what, path, made).encode(),)
    told = [each.strip() for each in given.get_secret_value().split(",") if each.strip()]
    if not told or any(len(each) < MIN_KEY_CHARACTERS for each in told):
        raise errors.InvalidSettings(
            what, "…", f"a key has at least {MIN_KEY_CHARACTERS} characters; `openssl rand -hex 32`."
        )
    return tuple(each.encode() for each in told)


def audit_keys(given: SecretStr | None, state_dir: Path) -> LazyKeys:
    """The keys of the audit trail."""
    return LazyKeys("audit_key", given, state_dir / "audit.key")


def master_keys(given: SecretStr | None, state_dir: Path) -> LazyKeys:
    """The master keys of encrypted content."""
    return LazyKeys("encryption_key", given, state_dir / "encryption.key")


def read_or_create(what: str, path: Path, made: Callable[[], str]) -> str:
    """The key of a file; of several processes that find none one makes it. Raises `InvalidSettings`."""
    try:
        private_files.make_folder(path.parent)
        if not os.path.lexists(path):
            private_files.create(path, made().encode())
        key = private_files.read(path).decode().strip()
        if len(key) < MIN_KEY_CHARACTERS:  # an empty key would sign and seal as well as any
            why = "it is damaged: too short for a key. Restore it from a backup; a new key cannot decrypt older data."
            raise errors.InvalidSettings(what, str(path), why)
        return key
    except UnicodeDecodeError as exc:
        why = "it is damaged: not text. Restore it from a backup; a new key cannot decrypt older data."
        raise errors.InvalidSettings(what, str(path), why) from exc
    except OSError as exc:
        why = f"it cannot be read or made: {exc.strerror}. Set AFTERMIND_{what.upper()} or _FILE instead."
        raise errors.InvalidSettings(what, str(path), why) from exc
