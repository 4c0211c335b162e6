"""Processes of the embedded stack in addition to the data servers: workers, reconciler, web service, Flower."""

import hashlib
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from aftermind import __version__
from aftermind.api import local_web_token
from aftermind.api.address_resolution import Addresses, resolve_stack
from aftermind.cli import worker
from aftermind.cli.terminal import out
from aftermind.settings import PREFIX, Settings
from aftermind.stack import Command, ComponentState, ComponentStatus, Endpoints, HealthCheck, StopOrder, ports
from aftermind.stack.state_dir import read_json, write_json
from aftermind.telemetry import exposition
from aftermind.types.plain_values import to_plain
from aftermind.wire import queues

# A process for each group, so that slow model calls never hold up a store.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "worker-store": (queues.STORE,),
    "worker-embed": (queues.EMBED,),
    "worker-extract": (queues.EXTRACT, queues.REPLAY),
}
REMEMBERED = "services.json"
FLOWER_USER = "aftermind"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """The processes of `aftermind up` and `aftermind demo` in addition to the data servers, and their addresses."""

    addresses: Addresses
    state_dir: Path
    web_port: int
    flower_port: int
    flower_password: str
    log_level: str

    @property
    def web_url(self) -> str:
        """The service."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def flower_url(self) -> str:
        """Flower, without its password."""
        return f"http://127.0.0.1:{self.flower_port}"

    def commands(self) -> list[Command]:
        """The processes, for the stack's supervisor."""
        workers = [
            self._worker(name, worker.worker_argv(list(names), loglevel=self.log_level))
            for name, names in GROUPS.items()
        ]
        return [*workers, self._worker("reconciler", worker.reconciler_argv()), self._web(), self._flower()]

    def _worker(self, name: str, argv: list[str]) -> Command:
        """A worker's command. It is healthy once it reports that it is ready, so one that dies at startup is not shown
        as running.
        """
        ready = str(self.state_dir / "logs" / f"{name}.ready")
        more = {"AFTERMIND_READY_FILE": ready, **self._counted()}
        return self._command(name, argv, health=HealthCheck(ready_file=ready), more=more)

    def _web(self) -> Command:
        argv = [sys.executable, "-m", "aftermind.cli", "web", "--port", str(self.web_port)]
        health = HealthCheck(url=f"{self.web_url}/healthz")
        more = {"AFTERMIND_FLOWER_URL": os.environ.get("AFTERMIND_FLOWER_URL") or self.flower_url, **self._counted()}
        return self._command("web", argv, health=health, port=self.web_port, stop_order=StopOrder.WEB, more=more)

    def _counted(self) -> Mapping[str, str]:
        """Where processes leave their numbers, for `/metrics` of the service."""
        return {exposition.FOLDER: str(self.state_dir / "metrics")}

    def _flower(self) -> Command:
        argv = worker.flower_argv()
        more = {
            "FLOWER_ADDRESS": "127.0.0.1",
            "FLOWER_PORT": str(self.flower_port),
            "FLOWER_BASIC_AUTH": f"{FLOWER_USER}:{self.flower_password}",
        }
        health = HealthCheck(url=f"tcp://127.0.0.1:{self.flower_port}")
        return self._command("flower", argv, health=health, port=self.flower_port, stop_order=StopOrder.WEB, more=more)

    def _command(
        self,
        name: str,
        argv: list[str],
        *,
        health: HealthCheck | None = None,
        port: int | None = None,
        stop_order: int = StopOrder.WORKER,
        more: Mapping[str, str] | None = None,
    ) -> Command:
        env = {
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),  # of this shell, and not of the one that started the stack
            **_inherited_settings(),
            **self.addresses.environment(),
            "AFTERMIND_STATE_DIR": str(self.state_dir),
            **(more or {}),
        }
        return Command(
            name=name,
            argv=tuple(argv),
            env=env,
            cwd=str(Path.cwd()),
            health=health,
            port=port,
            stop_order=stop_order,
        )


def plan(settings: Settings, endpoints: Endpoints, running: list[ComponentStatus]) -> ProcessPlan:
    """The processes for these data servers. Ports and Flower's password are stored in the state folder."""
    state_dir = settings.state_dir.absolute()
    known = read_json(state_dir / REMEMBERED) or {}
    alive = {ComponentState.RUNNING, ComponentState.STARTING, ComponentState.UNHEALTHY}
    ours = {each.name for each in running if each.state in alive}
    web_port = _port(settings, "web_port", known, is_ours="web" in ours)
    stack = Addresses(
        store=endpoints.app_url,
        relay=endpoints.relay_url,
        replicas=endpoints.replica_urls,
        redis=endpoints.redis_url,
        broker=endpoints.redis_url,
    )
    made = ProcessPlan(
        addresses=resolve_stack(settings, stack),
        state_dir=state_dir,
        web_port=web_port,
        flower_port=_port(settings, "flower_port", known, is_ours="flower" in ours, but_not=web_port),
        flower_password=str(known.get("flower_password") or secrets.token_urlsafe(12)),
        log_level=settings.log_level,
    )
    remembered = {name: asdict(made)[name] for name in ("web_port", "flower_port", "flower_password")}
    if remembered != {name: known.get(name) for name in remembered}:
        write_json(state_dir / REMEMBERED, {**known, **remembered})
    if not ours.intersection(GROUPS):  # counters restart with the processes; scrapers detect this
        shutil.rmtree(state_dir / "metrics", ignore_errors=True)
    (state_dir / "metrics").mkdir(exist_ok=True)
    return made


def settings_differ(settings: Settings) -> bool:
    """Whether the running processes were started with other settings. False if they have left no record."""
    known = (read_json(settings.state_dir / REMEMBERED) or {}).get("settings")
    return known is not None and not _is_digest_of(settings, str(known))


def remember_settings(settings: Settings) -> None:
    """Record the settings of the running processes, as a digest: they include keys."""
    path = settings.state_dir / REMEMBERED
    known = read_json(path) or {}
    if not _is_digest_of(settings, str(known.get("settings", ""))):
        write_json(path, {**known, "settings": _digest(settings, secrets.token_hex(16))})


def _is_digest_of(settings: Settings, known: str) -> bool:
    return _digest(settings, known.partition(":")[0]) == known


def _digest(settings: Settings, salt: str) -> str:
    # scrypt: a password in a URL may be short
    plain = to_plain({name: _revealed(value) for name, value in settings.model_dump().items()})
    text = orjson.dumps([__version__, plain], default=str, option=orjson.OPT_SORT_KEYS)
    return f"{salt}:{hashlib.scrypt(text, salt=salt.encode(), n=2**12, r=8, p=1).hex()}"


def _revealed(value: object) -> object:
    if isinstance(value, tuple):
        return [_revealed(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _revealed(each) for name, each in value.items()}
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def print_addresses(settings: Settings, *, has_keys: bool | None) -> None:
    """Print the addresses of the processes that were started here, with Flower's password.

    `has_keys`: an API key was made, so the local token is not accepted; None: the database does not answer.
    """
    known = read_json(settings.state_dir / REMEMBERED)
    if known is None:
        return
    web_port, flower_port, password = (
        known.get(name, "unknown") for name in ("web_port", "flower_port", "flower_password")
    )
    out.print(f"\n[bold]Service[/]  http://127.0.0.1:{web_port}{_note_on_port(settings, 'web_port', web_port)}")
    if has_keys:
        out.print("[bold]Sign in[/]  with an API key: [bold]aftermind api-keys create NAME[/] makes one")
    elif has_keys is False:
        token = local_web_token.read_token(settings.state_dir)
        out.print(f"[bold]Sign in[/]  http://127.0.0.1:{web_port}/login?token={token}")
        out.print("         until the first key is made")
    note = _note_on_port(settings, "flower_port", flower_port)
    out.print(f"[bold]Flower[/]   http://127.0.0.1:{flower_port}   user {FLOWER_USER}, password {password}{note}")


def _port(settings: Settings, name: str, known: Mapping[str, Any], *, is_ours: bool, but_not: int = 0) -> int:
    """The remembered port while it is ours or free, else the one from the settings, else any free one.

    A port that the user has set, and not only its default, is tried before the remembered one. `but_not` is that of
    another process of this stack.
    """
    remembered, wanted = known.get(name), getattr(settings, name)
    tried = (wanted, remembered) if name in settings.model_fields_set else (remembered, wanted)
    for port in tried:
        if not port or port == but_not:
            continue
        if (is_ours and port == remembered) or (ports.is_free(port) and ports.claim(port)):
            return int(port)
    return ports.choose(1)[0]


def _note_on_port(settings: Settings, name: str, port: object) -> str:
    wanted = getattr(settings, name)
    is_taken = wanted and port != wanted and not ports.is_free(wanted)
    return f"   (port {wanted} is in use; set AFTERMIND_{name.upper()})" if is_taken else ""


def _inherited_settings() -> dict[str, str]:
    """Settings of the caller's environment without keys and passwords: processes inherit those, no file holds them."""
    secret = {f"{PREFIX}{name.upper()}" for name, field in Settings.model_fields.items() if _is_secret(field)}
    return {name: value for name, value in os.environ.items() if name.startswith(PREFIX) and name not in secret}


def _is_secret(field: FieldInfo) -> bool:
    return "SecretStr" in str(field.annotation)
