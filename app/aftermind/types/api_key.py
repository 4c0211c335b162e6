"""API keys: the namespace and the rights of each."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Right(StrEnum):
    """What a key allows; all but `tenants` within its namespace alone.

    read     recall, history, facts, events and everything else that changes nothing
    write    remember, facts, blocks, forget
    operate  dead letters and replays, what models have cost, webhooks
    tenants  in the console: the list of all namespaces, and the other rights of the key in each of them
    """

    READ = "read"
    WRITE = "write"
    OPERATE = "operate"
    TENANTS = "tenants"


OF_ONE_TENANT = frozenset({Right.READ, Right.WRITE, Right.OPERATE})  # what a new key has, if no right is named


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One key, without its secret, which is shown once and kept as a SHA-256 alone (it is random, 256 bits).

    `is_valid`: neither revoked nor expired when it was read, by the clock of the database.
    """

    id: str
    namespace: str
    name: str
    rights: frozenset[Right]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    is_valid: bool = True
