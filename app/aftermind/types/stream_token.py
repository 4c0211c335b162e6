"""Stream tokens: what a browser shows to listen to one user's events, for minutes, in place of an API key.

`ams_PAYLOAD.SIGNATURE`: the payload is base64url of the JSON list [id of the API key, user or null, Unix time of its
end], the signature HMAC-SHA256 with the hash of the API key's secret. So any process of the service can check it, and
revoking the key ends its tokens.
"""

import base64
import hmac
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

PREFIX = "ams_"
MAX_CHARACTERS = 4_096  # a user id of 512 bytes, escaped and encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamToken:
    """Whose events a token opens, until when, and the API key that signed it. `user_id` None: the anonymous user."""

    key_id: str
    user_id: str | None
    expires_at: datetime

    def sign(self, secret_sha256: bytes) -> str:
        """The token as text."""
        payload = [self.key_id, self.user_id, int(self.expires_at.timestamp())]
        body = _encode(json.dumps(payload, separators=(",", ":")).encode())
        return f"{PREFIX}{body}.{_signature(secret_sha256, body)}"


def parse(text: str) -> StreamToken | None:
    """The content of a token; None if it is malformed. Its signature is not checked."""
    if not text.startswith(PREFIX) or len(text) > MAX_CHARACTERS or not text.isascii():
        return None
    body, _, _ = text.removeprefix(PREFIX).partition(".")
    try:
        key_id, user_id, until = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        if not isinstance(key_id, str) or not isinstance(user_id, str | None) or type(until) is not int:
            return None
        return StreamToken(key_id=key_id, user_id=user_id, expires_at=datetime.fromtimestamp(until, UTC))
    except (ValueError, TypeError, OverflowError, OSError, RecursionError):
        return None


def is_signed(text: str, secret_sha256: bytes) -> bool:
    """Whether the token was signed with this key's hash."""
    body, _, signature = text.removeprefix(PREFIX).partition(".")
    return hmac.compare_digest(signature.encode(), _signature(secret_sha256, body).encode())


def _signature(secret_sha256: bytes, body: str) -> str:
    return _encode(hmac.digest(secret_sha256, b"aftermind stream token " + body.encode(), sha256))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
