"""`aftermind mcp`: the MCP server."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from aftermind.cli import terminal
from aftermind.memory import Memory
from aftermind.settings import Settings
from aftermind.stack import ports
from aftermind.telemetry import log_format
from aftermind.types.loopback_address import is_loopback

if TYPE_CHECKING:
    import uvicorn

LOOPBACK = "127.0.0.1"

Http = Annotated[bool, typer.Option("--http", help="Serve streamable HTTP at /mcp, in place of stdio.")]
Host = Annotated[str, typer.Option(help="Address to listen on, with --http.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on, with --http.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(mcp)


def mcp(
    *,
    user: terminal.User = None,
    namespace: terminal.Namespace = None,
    http: Http = False,
    host: Host = LOOPBACK,
    port: Port = 8571,
) -> None:
    """Serve one user's memory to MCP clients: by stdio, or with --http to several with API keys.

    With --http each request has a key (`aftermind api-keys create`) and names its user by X-Aftermind-User; without
    that header it is about --user. Without any key it listens on this machine only, and requires the token in
    `web.token` of the state folder.
    """
    from aftermind.integrations.mcp import make_server
    from aftermind.integrations.mcp_http import authenticated

    settings = Settings()
    if http:
        ports.require_free("aftermind mcp", port, host)
    log_format.configure(level=settings.log_level, style=settings.log_format)

    async def serve(memory: Memory) -> None:
        server = make_server(memory, user_id=user, namespace=namespace)
        if not http:
            await server.run_stdio_async()
            return
        import uvicorn

        from aftermind.api import local_web_token
        from aftermind.cli.slow_client_timeouts import protocol_class

        is_closed = await memory.api_keys.any()
        address = host if is_closed or is_loopback(host) else LOOPBACK
        if not is_closed:
            local_web_token.read_token(memory.settings.state_dir)
        settings = memory.settings
        config = uvicorn.Config(
            authenticated(server.streamable_http_app(host=address), memory, user_id=user),
            host=address,
            port=port,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            http=protocol_class(
                header_seconds=settings.web_header_timeout_seconds, body_seconds=settings.web_body_timeout_seconds
            ),
        )
        await _serve_until_stopped(config)

    terminal.with_memory(serve)


async def _serve_until_stopped(config: "uvicorn.Config") -> None:
    """Serve until Ctrl-C or SIGTERM; then end the requests, and return. A second signal ends it immediately."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave the signals to the loop's handlers, which cancel this task.

            With uvicorn's in addition, one signal would stop the server and cancel it in the middle of that.
            """
            yield

    server = Server(config)
    serving = asyncio.create_task(server.serve())
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.handle_exit(signal.SIGTERM, None)  # a method, because sse_starlette ends its streams in it
        await serving
