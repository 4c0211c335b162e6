"""`aftermind web`: the service."""

import resource
from typing import Annotated

import typer

from aftermind import errors, extras
from aftermind.cli import terminal
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.stack import ports
from aftermind.telemetry import log_format, tracing
from aftermind.telemetry.logger import get_logger
from aftermind.types.loopback_address import is_loopback

log = get_logger(__name__)

LOOPBACK = "127.0.0.1"
OTHER_FILES = 1_024  # in addition to listeners: requests, databases, Redis

Host = Annotated[str | None, typer.Option(help="Address to listen on. Default: AFTERMIND_WEB_HOST.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Default: AFTERMIND_WEB_PORT.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(web)


def web(*, host: Host = None, port: Port = None) -> None:
    """Run the web service until SIGTERM: the JSON API, the console, health.

    Without any API key (`aftermind api-keys create`) it listens on this machine only, whatever --host is, and requires
    the token in `web.token` of the state folder.
    """
    extras.require("uvicorn", "`aftermind web`")
    import uvicorn

    from aftermind.cli.slow_client_timeouts import protocol_class

    settings = Settings()
    number = settings.web_port if port is None else port
    ports.require_free("aftermind web", number, host or settings.web_host)
    _allow_sockets(settings.web_max_listeners)
    log_format.configure(level=settings.log_level, style=settings.log_format)
    tracing.export(settings, service="aftermind-web")
    uvicorn.run(
        "aftermind.web:create_app",
        factory=True,
        host=_host(host or settings.web_host, settings),
        port=number,
        log_config=None,
        access_log=False,  # the application writes it, by route: a path holds names that users gave
        proxy_headers=False,  # a peer is judged by its connection
        http=protocol_class(
            header_seconds=settings.web_header_timeout_seconds, body_seconds=settings.web_body_timeout_seconds
        ),
        limit_concurrency=settings.web_max_listeners + OTHER_FILES,
    )


def _allow_sockets(listeners: int) -> None:
    """Raise what a shell allows (1,024 files, often) as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = listeners + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _host(wanted: str, settings: Settings) -> str:
    """The address to listen on: without any API key this machine's own, and requests need the local token."""
    if terminal.with_memory(_has_keys):
        return wanted
    from aftermind.api import local_web_token

    local_web_token.read_token(settings.state_dir)
    path = local_web_token.token_path(settings.state_dir)
    log.warning(f"no API key exists: requests need the token in {path}. Create one: `aftermind api-keys create NAME`.")
    if is_loopback(wanted):
        return wanted
    log.warning(f"no API key exists: the service listens on {LOOPBACK}, not on {wanted}. Create one, and restart.")
    return LOOPBACK


async def _has_keys(memory: Memory) -> bool:
    try:
        return await memory.api_keys.any()
    except errors.AftermindError:
        # unknown at this time; each request without a key is checked again, and refused from other machines
        return True
