"""Sealed secrets: what signs for a tenant lies in the database, and what opens it does not.

AES-256-GCM, bound to the row that it belongs to, so that a sealed secret put into another row does not open.
"""

import base64
import secrets
from collections.abc import Sequence
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from aftermind import errors
from aftermind.db import keyfiles
from aftermind.settings import Settings

FILE = "webhook.key"
KEY_BYTES, ID_BYTES, NONCE_BYTES = 32, 4, 12


class Sealer:
    """Seals with the first key, opens with any: put a new one in front, and drop the old one once nothing needs it."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {sha256(key).digest()[:ID_BYTES]: AESGCM(key) for key in keys}
        self._first = next(iter(self._keys))

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


def sealer(settings: Settings) -> Sealer:
    """With the keys that the settings name, else with the one in the state folder, made where there is none.

    Raises `InvalidSettings` for a key that is none.
    """
    named = "" if settings.webhook_key is None else settings.webhook_key.get_secret_value()
    if named.strip():
        return Sealer([_key(text) for text in named.split(",")])
    return Sealer([_key(keyfiles.of_file("webhook_key", settings.state_dir / FILE, _made))])


def _made() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def bound(namespace: str, row: object) -> str:
    """What a secret of a row is bound to."""
    return f"{namespace}/{row}"


def _key(text: str) -> bytes:
    try:
        key = base64.urlsafe_b64decode(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        why = "a key is 32 bytes as URL-safe base64: openssl rand -base64 32 | tr '+/' '-_'"
        raise errors.InvalidSettings("AFTERMIND_WEBHOOK_KEY", "(hidden)", why)
    return key
