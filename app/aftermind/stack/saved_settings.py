"""What a stack remembers between starts: ports, passwords, and which Redis wrote its files."""

import hmac
import secrets
from dataclasses import asdict, dataclass, field

from aftermind.errors import StackError
from aftermind.stack import ports
from aftermind.stack.component_types import Endpoints
from aftermind.stack.state_dir import StateFolder, read_json, write_json

FORMAT = 1
DATABASE = "aftermind"
ROLE = "aftermind"  # owns the database, and migrates it
APP, RELAY = "aftermind_app", "aftermind_relay"  # see aftermind.db.row_level_security
SUPERUSER = "postgres"
REPLICATOR = "aftermind_replicator"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackConfig:
    """Ports and passwords of one state folder. Passwords are URL-safe, so that no URL and no SQL has to quote them."""

    postgres_port: int
    replica_port: int
    redis_port: int
    redis_binary: str = ""
    password: str = field(repr=False, default_factory=lambda: secrets.token_urlsafe(24))
    superuser_password: str = field(repr=False, default_factory=lambda: secrets.token_urlsafe(24))
    replicator_password: str = field(repr=False, default_factory=lambda: secrets.token_urlsafe(24))
    redis_password: str = field(repr=False, default_factory=lambda: secrets.token_urlsafe(24))

    def endpoints(self, *, replica: bool) -> Endpoints:
        """The URLs under which the components answer."""
        replicas = (self.replica_port,) if replica else ()
        return Endpoints(
            postgres_url=self._url(ROLE, self.password, self.postgres_port),
            app_url=self._url(APP, self.role_password(APP), self.postgres_port),
            relay_url=self._url(RELAY, self.role_password(RELAY), self.postgres_port),
            replica_urls=tuple(self._url(APP, self.role_password(APP), port) for port in replicas),
            redis_url=f"redis://:{self.redis_password}@127.0.0.1:{self.redis_port}/0",
            admin_url=self._url(SUPERUSER, self.superuser_password, self.postgres_port),
            replica_admin_urls=tuple(self._url(SUPERUSER, self.superuser_password, port) for port in replicas),
        )

    def role_password(self, role: str) -> str:
        """The password of one of the lesser roles; derived, so that a folder of before they existed has them too."""
        return hmac.new(self.superuser_password.encode(), role.encode(), "sha256").hexdigest()

    @staticmethod
    def _url(user: str, password: str, port: int) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{port}/{DATABASE}"


def load(folder: StateFolder) -> StackConfig | None:
    """The remembered configuration, or None before the first start."""
    found = read_json(folder.config)
    if found is None:
        return None
    if found.pop("format", None) != FORMAT:
        raise StackError("stack", f"{folder.config} is of another release", "Use that release, or destroy the stack.")
    try:
        return StackConfig(**found)  # type: ignore[arg-type]  # written by `save`, field by field
    except TypeError as exc:
        raise StackError(
            "stack", f"{folder.config} is not complete: {exc}", "Correct it, or destroy the stack."
        ) from exc


def save(folder: StateFolder, config: StackConfig) -> None:
    """Remember the configuration."""
    write_json(folder.config, {"format": FORMAT, **asdict(config)})


def new() -> StackConfig:
    """A configuration with fresh passwords and ports that are free now."""
    postgres, replica, redis = ports.choose(3)
    return StackConfig(postgres_port=postgres, replica_port=replica, redis_port=redis)


def with_free_ports(config: StackConfig) -> StackConfig:
    """The same configuration, with a new port where another process uses the stored one."""
    wanted = {name: getattr(config, name) for name in ("postgres_port", "replica_port", "redis_port")}
    taken = [name for name, port in wanted.items() if not ports.is_free(port)]
    chosen = dict(zip(taken, ports.choose(len(taken)), strict=True))
    return StackConfig(**{**asdict(config), **chosen})
