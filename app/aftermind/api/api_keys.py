"""`memory.api_keys`: create, list, revoke and verify keys of the HTTP service."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from aftermind import errors
from aftermind.api.memory_services import Parts
from aftermind.types import stream_token
from aftermind.types.api_key import OF_ONE_TENANT, ApiKey, Right
from aftermind.types.stream_token import StreamToken
from aftermind.types.timestamps import why_unusable

PREFIX = "am"  # of every key: scanners for leaked secrets find it by that
NAME_CHARACTERS = 200
MAX_TOKEN_LIFETIME = timedelta(hours=1)


class ApiKeys:
    """The keys of a namespace. Every call raises `StoreUnavailable`.

    A key has the form `am_ID_SECRET`. The id is shown in lists and logs; the secret is shown once.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def create(
        self,
        name: str,
        *,
        rights: Iterable[Right | str] = OF_ONE_TENANT,
        expires_at: datetime | None = None,
        namespace: str | None = None,
    ) -> tuple[ApiKey, str]:
        """Create a key; returns it with its full text. By default it has all rights except `tenants`.

        Raises `InvalidKey` for an unknown right or an expiry in the past.
        """
        owner = self._parts.scope(namespace=namespace)
        if not name.strip() or len(name) > NAME_CHARACTERS:
            raise errors.InvalidKey(
                "name", name, f"the name of the key's user or program, in 1 to {NAME_CHARACTERS} characters."
            )
        why = None if expires_at is None else why_unusable(expires_at)
        if why is not None:
            raise errors.InvalidKey("expires_at", expires_at, why)
        key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        made = await self._parts.stored_keys.add(
            owner.namespace,
            key_id,
            name=name,
            rights=_rights(rights),
            secret_sha256=_hash(secret),
            expires_at=expires_at,
        )
        return made, f"{PREFIX}_{key_id}_{secret}"

    async def list(self, *, namespace: str | None = None) -> list[ApiKey]:
        """Every key of the namespace, revoked ones too, the oldest first."""
        return await self._parts.stored_keys.list_for(self._parts.scope(namespace=namespace).namespace)

    async def revoke(self, key_id: str, *, namespace: str | None = None) -> bool:
        """Close a key for good; False where there is none of that id that is open. A service notices within 5 s."""
        return await self._parts.stored_keys.revoke(self._parts.scope(namespace=namespace).namespace, key_id)

    async def check(self, text: str) -> ApiKey | None:
        """The key of any namespace whose whole text this is; None where it is none, or it is revoked or expired."""
        prefix, _, rest = text.partition("_")
        key_id, _, secret = rest.partition("_")
        if prefix != PREFIX or not key_id or not secret or not text.isascii():
            return None
        found = await self._parts.stored_keys.find(key_id)
        if found is None or not hmac.compare_digest(found[1], _hash(secret)):
            return None
        return found[0] if found[0].is_valid else None

    async def create_stream_token(
        self, key_id: str, *, user_id: str | None = None, lifetime: timedelta = timedelta(minutes=5)
    ) -> str:
        """A token with which a browser may listen to one user's events over HTTP, and do nothing else.

        It ends after `lifetime` (at most an hour), and when the key is revoked or expires. Raises `InvalidKey` for an
        unknown or invalid key, or one without the right `read`.
        """
        if not timedelta(0) < lifetime <= MAX_TOKEN_LIFETIME:
            raise errors.InvalidKey("lifetime", lifetime, "at most an hour. Create a new token when it has ended.")
        found = await self._parts.stored_keys.find(key_id)
        if found is None or not found[0].is_valid or Right.READ not in found[0].rights:
            raise errors.InvalidKey("key_id", key_id, "name a valid key with the right `read`.")
        self._parts.scope(namespace=found[0].namespace, user_id=user_id)  # refuses an id that no user can have
        return StreamToken(key_id=key_id, user_id=user_id, expires_at=datetime.now(UTC) + lifetime).sign(found[1])

    async def check_stream_token(self, text: str) -> tuple[ApiKey, StreamToken] | None:
        """The key that signed a token, and the token; None if it is invalid or has ended, or its key is invalid."""
        token = stream_token.parse(text)
        if token is None or token.expires_at <= datetime.now(UTC):
            return None
        found = await self._parts.stored_keys.find(token.key_id)
        if found is None or not found[0].is_valid or not stream_token.is_signed(text, found[1]):
            return None
        return (found[0], token) if Right.READ in found[0].rights else None

    async def any(self) -> bool:
        """Whether a key was ever made, in any namespace: from then on the service asks for one."""
        return await self._parts.stored_keys.any()


def _rights(given: Iterable[Right | str]) -> frozenset[Right]:
    try:
        rights = frozenset(Right(each) for each in ([given] if isinstance(given, str) else given))
    except ValueError as exc:
        raise errors.InvalidKey("rights", given, f"what can be named is {', '.join(Right)}.") from exc
    if not rights:
        raise errors.InvalidKey("rights", given, "a key without any right opens nothing.")
    return rights


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
