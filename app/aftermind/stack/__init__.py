"""The embedded stack: Postgres with pgvector, a streaming replica, and Redis or Valkey, run and watched by us."""

from aftermind.stack.component_types import (
    Command,
    ComponentState,
    ComponentStatus,
    Endpoints,
    HealthCheck,
    Restart,
    StopOrder,
)
from aftermind.stack.stack import Stack

__all__ = [
    "Command",
    "ComponentState",
    "ComponentStatus",
    "Endpoints",
    "HealthCheck",
    "Restart",
    "Stack",
    "StopOrder",
]
