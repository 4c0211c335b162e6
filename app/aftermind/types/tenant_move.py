"""Results of moving a tenant between databases."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantMove:
    """A move that has ended: the target serves the tenant.

    `rows` were compared by counts and checksums; 0 if an earlier call did that. `passes`: how often all rows were
    compared. `paused_seconds`: how long writes of the tenant waited.
    """

    namespace: str
    source: str
    target: str
    rows: int = 0
    passes: int = 0
    paused_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedTenant:
    """How many rows `memory.tenants.purge` deleted in a database that a tenant has left."""

    namespace: str
    database: str
    rows: int
