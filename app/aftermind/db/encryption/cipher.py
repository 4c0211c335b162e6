"""Encrypted text: AES-256-GCM, bound to its row and column. Pure functions.

An encrypted text is stored in the column of the plain text and names its key: `U+E000 "am1:" key id ":" base64(nonce,
ciphertext, tag)`. A plain text with this prefix is stored after `U+E000 "am0:"`. An encrypted question is followed by
its question mark, which search uses.
"""

import base64
import os
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from aftermind import errors

MARK = "\ue000am"
SEALED, ESCAPED = f"{MARK}1:", f"{MARK}0:"
KEY_BYTES, NONCE_BYTES = 32, 12  # random nonces: 2^32 texts of a key are a chance of 2^-33 that two meet
QUESTION = ("?", "\uff1f", "\u061f")


def is_sealed(text: str) -> bool:
    """Whether a stored text has to be opened."""
    return text.startswith(SEALED)


def key_prefix(key_id: str) -> str:
    """What every text begins with that is sealed with this key."""
    return f"{SEALED}{key_id}:"


def parse_key_id(text: str) -> str:
    """Which key a sealed text is sealed with."""
    return text[len(SEALED) :].partition(":")[0]


def plain(text: str) -> str:
    """A text as it is stored where nothing is encrypted."""
    return f"{ESCAPED}{text}" if text.startswith(MARK) else text


def unsealed(text: str) -> str:
    """The reverse of `plain`."""
    return text[len(ESCAPED) :] if text.startswith(ESCAPED) else text


def seal(key_id: str, key: bytes, text: str, *where: str) -> str:
    """Seal a text of a place: table, column, namespace, user, row, version."""
    nonce = os.urandom(NONCE_BYTES)
    sealed = _cipher(key).encrypt(nonce, text.encode(), _bound(where))
    mark = "?" if text.rstrip().endswith(QUESTION) else ""
    return f"{key_prefix(key_id)}{base64.b64encode(nonce + sealed).decode()}{mark}"


def opened(key: bytes, text: str, *where: str) -> str:
    """The plain text of a sealed one. Raises `Unreadable` where it was changed, or is not of this place."""
    try:
        body = base64.b64decode(text[len(SEALED) :].partition(":")[2].rstrip("?"), validate=True)
        return _cipher(key).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], _bound(where)).decode()
    except (InvalidTag, ValueError) as exc:
        raise errors.Unreadable(where[0], where[4]) from exc


def wrap(master: bytes, key: bytes, *where: str) -> bytes:
    """A key, sealed by a master key."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + _cipher(master).encrypt(nonce, key, _bound(where))


def unwrap(master: bytes, wrapped: bytes, *where: str) -> bytes | None:
    """The key, or None where this master key did not seal it."""
    try:
        return _cipher(master).decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], _bound(where))
    except InvalidTag:
        return None


@lru_cache(maxsize=1_000)
def _cipher(key: bytes) -> AESGCM:
    return AESGCM(key)


def _bound(where: tuple[str, ...]) -> bytes:
    """Each part with its length, so that no two places are one text."""
    parts = [part.encode() for part in where]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
