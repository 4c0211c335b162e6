"""Types of the components of a stack: commands, health checks, states and endpoints. Plain values, kept as JSON."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum

from aftermind.errors import InvalidSettings

RESERVED = ("postgres", "postgres-replica", "redis", "supervisor")


class Restart(StrEnum):
    """When a command that exited is started again."""

    ALWAYS = "always"
    ON_FAILURE = "on-failure"
    NEVER = "never"


class StopOrder(IntEnum):
    """Order of stopping: first processes that accept work, then those that process it, then those that store it."""

    WEB = 10
    WORKER = 20
    DATA = 30
    PRIMARY = 40  # after the replica, which so receives the last of the log while it stops


class ComponentState(StrEnum):
    """Where a component is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    UNHEALTHY = "unhealthy"  # the process runs, its health check fails
    BACKOFF = "backoff"  # it ended and is started again shortly
    HELD = "held"  # kept down on purpose, see Stack.hold
    EXITED = "exited"  # it ended and its restart policy leaves it at that
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """How to ask whether a command is well: `http://…` answering 2xx, `tcp://host:port`, or an argv that exits 0.

    `ready_file` is for what cannot be asked: the command creates it when it takes work. It is removed before a start.
    """

    url: str = ""
    argv: tuple[str, ...] = ()
    ready_file: str = ""
    every_seconds: float = 5.0
    timeout_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A further process for the supervisor to keep running, with its output in `logs/NAME.log`.

    `env` is added to the environment of the process that started the stack. Without a health check a command counts as
    running once it is started. While another program has its loopback `port`, it is not started. It is stopped by
    SIGTERM, and killed with its process group after `grace_seconds`.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys and passwords
    cwd: str | None = None
    restart: Restart = Restart.ALWAYS
    health: HealthCheck | None = None
    port: int | None = None
    stop_order: int = StopOrder.WORKER
    grace_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.name) or self.name in RESERVED:
            why = f"it names a log file: letters, digits, dot, dash and underscore, and none of {', '.join(RESERVED)}"
            raise InvalidSettings("name", self.name, why)
        if not self.argv:
            raise InvalidSettings("argv", self.argv, f"command {self.name} has nothing to run")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """One component as last seen by the supervisor; `detail` has the error, if there is one."""

    name: str
    state: ComponentState
    pid: int | None
    port: int | None
    restarts: int
    since: datetime
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the running stack answers. The URLs hold passwords, so they stay out of the repr."""

    postgres_url: str = field(repr=False)  # as the owner of the database: migrations
    app_url: str = field(repr=False)  # as agents connect
    relay_url: str = field(repr=False)  # as workers connect
    replica_urls: tuple[str, ...] = field(repr=False)
    redis_url: str = field(repr=False)
    admin_url: str = field(repr=False)  # the Postgres superuser: roles, promotion, pausing a replay
    replica_admin_urls: tuple[str, ...] = field(repr=False, default=())

    def public(self) -> dict[str, object]:
        """Content of `endpoints.json` while the stack runs, for programs that do not import the stack."""
        return {
            "postgres_url": self.app_url,
            "relay_url": self.relay_url,
            "owner_url": self.postgres_url,
            "replica_urls": list(self.replica_urls),
            "redis_url": self.redis_url,
        }
