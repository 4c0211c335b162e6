"""A key to the HTTP service: whose tenant it opens, and what it allows there."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol


class Right(StrEnum):
    """What a key allows within its namespace.

    read     recall, history, facts, events and everything else that changes nothing
    write    remember, facts, blocks, forget
    operate  dead letters and replays, what models have cost, webhooks
    """

    READ = "read"
    WRITE = "write"
    OPERATE = "operate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One key, without its secret, which is told once and kept as a SHA-256 alone (it is random, 256 bits)."""

    id: str
    namespace: str
    name: str
    rights: frozenset[Right]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def is_good_at(self, moment: datetime) -> bool:
        """Whether it opens anything at `moment`."""
        return self.revoked_at is None and (self.expires_at is None or moment < self.expires_at)


class StoredKeys(Protocol):
    """Where keys are kept."""

    async def add(
        self,
        namespace: str,
        key_id: str,
        *,
        name: str,
        rights: frozenset[Right],
        secret_sha256: bytes,
        expires_at: datetime | None,
    ) -> ApiKey:
        """Keep a new key."""

    async def of(self, namespace: str) -> list[ApiKey]:
        """Every key of a namespace, revoked ones too, the oldest first."""

    async def revoke(self, namespace: str, key_id: str) -> bool:
        """Whether there was such a key to revoke."""

    async def find(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        """A key of any namespace with the SHA-256 of its secret."""

    async def any(self) -> bool:
        """Whether any namespace has ever had a key."""
