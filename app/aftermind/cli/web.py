"""`aftermind web`: the service."""

from typing import Annotated

import typer

from aftermind.cli import console

Host = Annotated[str | None, typer.Option(help="Address to listen on. Default: AFTERMIND_WEB_HOST.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Default: AFTERMIND_WEB_PORT.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(web)


def web(*, host: Host = None, port: Port = None) -> None:
    """Run the web service until SIGTERM: health, and a page that shows how everything is."""
    import uvicorn

    settings = console.settings()
    uvicorn.run(
        "aftermind.web:create_app",
        factory=True,
        host=host or settings.web_host,
        port=settings.web_port if port is None else port,
        log_level="info",
    )
