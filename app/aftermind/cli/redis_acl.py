"""`aftermind redis-acl`: Redis users for agents, workers and Flower, printed or made."""

import secrets
from pathlib import Path
from typing import Annotated

import typer

from aftermind.cli import console
from aftermind.cli.console import err, out
from aftermind.faces import addresses
from aftermind.wire import acl
from aftermind.wire.connection import RedisLink

Passwords = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the files agent, worker and flower, a password each; those that are missing are written.",
        show_default=False,
    ),
]
Apply = Annotated[bool, typer.Option("--apply", help="Make them in the Redis that the settings name, as its admin.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("redis-acl")(redis_acl)


def redis_acl(*, passwords: Passwords = None, apply: Apply = False) -> None:
    """Print Redis users as lines of an ACL file, as narrow as what each process does; or make them.

    Passwords are printed as their SHA-256. Without a folder for them they are drawn, and told once on stderr.
    """
    settings = console.settings()
    made = acl.users(settings.redis_prefix)
    words = {name: _password(passwords, name) for name in made}
    for name, user in made.items():
        out.print(user.line(words[name]))
        if passwords is None:
            err.print(f"{user.name}: {words[name]}")
    if apply:
        url = addresses.resolve(settings).required_redis
        console.run(apply_to(url, {user: words[name] for name, user in made.items()}))
        err.print("They are made. Keep them over a restart by an aclfile, or ACL SAVE.")


async def apply_to(url: str, made: "dict[acl.RedisUser, str]") -> None:
    """Make the users over a connection that may. Raises `RedisUnavailable`."""
    link = RedisLink(url, timeout=5.0)
    try:
        for user, password in made.items():
            await link.call("ACL", "SETUSER", user.name, *user.rules(password))
    finally:
        await link.close()


def _password(folder: Path | None, name: str) -> str:
    if folder is None:
        return secrets.token_urlsafe(24)
    file = folder / name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(secrets.token_urlsafe(24))
    return file.read_text().strip()
