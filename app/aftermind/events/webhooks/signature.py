"""Signatures of webhook posts as in the Standard Webhooks specification, supported by libraries of many languages.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import hmac
import secrets
from collections.abc import Sequence
from hashlib import sha256

PREFIX = "whsec_"
SECRET_BYTES = 32


def new_secret() -> str:
    """A new secret, as its receiver needs it."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def headers(secrets_: Sequence[str], message_id: str, at: int, body: bytes) -> dict[str, str]:
    """Headers for a body that is posted at a time (Unix seconds). The id is the same at each attempt.

    One signature per secret, separated by spaces: a receiver with any of them accepts the body.
    """
    signatures = " ".join(sign(secret, message_id, at, body) for secret in secrets_)
    return {"webhook-id": message_id, "webhook-timestamp": str(at), "webhook-signature": signatures}


def sign(secret: str, message_id: str, at: int, body: bytes) -> str:
    """`v1,` and the HMAC-SHA256 of id, time and body."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message_id}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, sha256)).decode()
