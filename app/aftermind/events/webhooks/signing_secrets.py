"""Encrypted secrets: the signing secret of a tenant is in the database, its key is not.

AES-256-GCM, bound to its row, so that a secret copied into another row does not decrypt.
"""

import base64
import secrets
from collections.abc import Sequence
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.db.encryption import keyfiles
from aftermind.settings import Settings

FILE = "webhook.key"
KEY_BYTES, ID_BYTES, NONCE_BYTES = 32, 4, 12


class Sealer:
    """Seals with the first key, opens with any: put a new one in front, and drop the old one once nothing needs it."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {sha256(key).digest()[:ID_BYTES]: AESGCM(key) for key in keys}
        self._first = next(iter(self._keys), b"")

    def seal(self, secret: str, bound_to: str) -> bytes:
        """A secret as it is kept: which key, a nonce, and what is sealed."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._keys[self._first].encrypt(nonce, secret.encode(), bound_to.encode())
        return self._first + nonce + sealed

    def open(self, sealed: bytes, bound_to: str) -> str:
        """The secret. Raises `InvalidSettings` where none of the keys opens it."""
        key = self._keys.get(sealed[:ID_BYTES])
        nonce, rest = sealed[ID_BYTES : ID_BYTES + NONCE_BYTES], sealed[ID_BYTES + NONCE_BYTES :]
        try:
            if key is None:
                raise InvalidTag
            return key.decrypt(nonce, rest, bound_to.encode()).decode()
        except InvalidTag as exc:
            why = "none of these keys opens the secret. Give web processes and workers the same AFTERMIND_WEBHOOK_KEY."
            raise errors.InvalidSettings("AFTERMIND_WEBHOOK_KEY", "(hidden)", why) from exc


def opener(settings: Settings) -> Sealer:
    """With the keys that the settings name, else with the one in the state folder; without any it opens nothing.

    Raises `InvalidSettings` for a key that cannot be used.
    """
    return Sealer([_key(each) for each in keys(settings).existing()])


async def sealer(tx: Transaction, settings: Settings) -> Sealer:
    """A cipher for encryption: creates the key in the state folder if no webhook was encrypted with a missing one.

    Raises `KeyFileLost`, `InvalidSettings`.
    """
    return Sealer([_key(each) for each in await keys(settings).for_writing(tx)])


def keys(settings: Settings) -> keyfiles.LazyKeys:
    """The keys as text, the newest first."""
    return keyfiles.LazyKeys("webhook_key", settings.webhook_key, settings.state_dir / FILE, made=_made)


def _made() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def bound(namespace: str, row: object) -> str:
    """What a secret of a row is bound to."""
    return f"{namespace}/{row}"


def _key(text: bytes) -> bytes:
    try:
        key = base64.urlsafe_b64decode(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        why = "a key is 32 bytes as URL-safe base64: openssl rand -base64 32 | tr '+/' '-_'"
        raise errors.InvalidSettings("AFTERMIND_WEBHOOK_KEY", "(hidden)", why)
    return key
