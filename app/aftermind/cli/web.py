"""`aftermind web`: the service."""

import resource
from typing import Annotated

import typer

from aftermind import errors
from aftermind.cli import console
from aftermind.memory import Memory
from aftermind.telemetry import logs, tracing
from aftermind.types.hosts import is_loopback

LOOPBACK = "127.0.0.1"
OTHER_FILES = 1_024  # beside listeners: requests, databases, Redis

Host = Annotated[str | None, typer.Option(help="Address to listen on. Default: AFTERMIND_WEB_HOST.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Default: AFTERMIND_WEB_PORT.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(web)


def web(*, host: Host = None, port: Port = None) -> None:
    """Run the web service until SIGTERM: the JSON API, the screens, health.

    Without any key (`aftermind keys create`) it listens on this machine alone, whatever --host says.
    """
    import uvicorn

    settings = console.settings()
    _allow_sockets(settings.web_max_listeners)
    logs.configure()
    tracing.export(settings, service="aftermind-web")
    uvicorn.run(
        "aftermind.web:create_app",
        factory=True,
        host=_host(host or settings.web_host),
        port=settings.web_port if port is None else port,
        log_config=None,
        proxy_headers=False,  # who is near is judged by the connection itself
    )


def _allow_sockets(listeners: int) -> None:
    """Raise what a shell allows (1,024 files, often) as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = listeners + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _host(wanted: str) -> str:
    """Where to listen: as wanted, but near where no key was ever made."""
    if is_loopback(wanted) or console.with_memory(_has_keys):
        return wanted
    console.warn(
        f"no key to the service was ever made: it listens on {LOOPBACK}, not on {wanted}. "
        "Make one by `aftermind keys create NAME`, and start again."
    )
    return LOOPBACK


async def _has_keys(memory: Memory) -> bool:
    try:
        return await memory.keys.any()
    except errors.AftermindError:
        return True  # nobody can say now; each request without a key is judged again, and refused from afar
