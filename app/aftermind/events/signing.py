"""Signatures of what is posted, as the Standard Webhooks specification has them: libraries of many languages know them.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import hmac
import secrets
from hashlib import sha256

PREFIX = "whsec_"
SECRET_BYTES = 32


def new_secret() -> str:
    """A secret, as its receiver is told it."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def headers(secret: str, message_id: str, at: int, body: bytes) -> dict[str, str]:
    """What goes with a body that is posted at a time (Unix seconds). The id is the same at each try."""
    signature = sign(secret, message_id, at, body)
    return {"webhook-id": message_id, "webhook-timestamp": str(at), "webhook-signature": signature}


def sign(secret: str, message_id: str, at: int, body: bytes) -> str:
    """`v1,` and the HMAC-SHA256 of id, time and body."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message_id}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, sha256)).decode()
