"""`aftermind redis-acl`: a Redis user per kind of process, printed or made."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from aftermind import errors, private_files
from aftermind.api import address_resolution
from aftermind.cli import terminal
from aftermind.cli.terminal import err, out
from aftermind.settings import Settings
from aftermind.wire.redis import acl, script, sentinel, server_url
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis.cluster import is_cluster
from aftermind.wire.redis_keys import Keys

Passwords = Annotated[
    Path | None,
    typer.Option(
        help="Folder with a password file per user, named like its role; those that are missing are written.",
        show_default=False,
    ),
]
Apply = Annotated[bool, typer.Option("--apply", help="Create the users in the configured Redis, as its administrator.")]
Tenant = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="One user alone: an agent's that reaches the users of this tenant."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("redis-acl")(redis_acl)


@terminal.with_json
def redis_acl(*, passwords: Passwords = None, namespace: Tenant = None, apply: Apply = False) -> list[dict[str, str]]:
    """Print a Redis ACL file with a user per kind of process and the rights that it uses, or create these users.

    Passwords are printed as SHA-256 hashes. Without --passwords new ones are generated, and printed once to stderr.
    """
    settings = Settings()
    if apply and is_cluster(address_resolution.resolve(settings).required_redis):
        why = "users of a Redis Cluster belong into the ACL file of each node, replicas included. Leave --apply out."
        raise errors.InvalidSettings("AFTERMIND_REDIS_URL", "a Redis Cluster", why)
    made = _users(settings, namespace)
    words = {name: _password(passwords, name) for name in made}
    for name, user in made.items():
        out.print(user.line(words[name]), markup=False)
        if passwords is None:
            err.print(f"{user.name}: {words[name]}")
    if apply:
        url = address_resolution.resolve(settings).required_redis
        prefixes = [Keys(each.redis_prefix) for each in _sharing_redis(settings)]
        terminal.run(apply_to(url, [(user, words[name]) for name, user in made.items()], *prefixes))
        err.print("The users were created. To keep them over a restart, use an aclfile or ACL SAVE.")
    return [{"role": name, "user": user.name, "line": user.line(words[name])} for name, user in made.items()]


def _users(settings: Settings, namespace: str | None) -> Mapping[str, acl.RedisUser]:
    """The users, with the keys of every database that uses this Redis; of a tenant, with those of its database."""
    sharing = _sharing_redis(settings)
    if namespace is not None and settings.databases:
        settings = settings.of_database(settings.database_for(namespace))
        sharing = [settings]
    if settings.redis_url is not None and is_cluster(settings.redis_url.get_secret_value()):
        of_cluster = [acl.cluster_users(each.redis_prefix, namespace=namespace) for each in sharing]
        return {name: acl.merge([each[name] for each in of_cluster]) for name in of_cluster[0]}
    found = [acl.users(each.redis_prefix, database=database_number(each), namespace=namespace) for each in sharing]
    return {name: acl.merge([each[name] for each in found]) for name in found[0]}


def _sharing_redis(settings: Settings) -> list[Settings]:
    """The settings of each database whose Redis is the configured one."""
    if not settings.databases:
        return [settings]
    redis = address_resolution.resolve(settings).redis
    each_database = (settings.of_database(name) for name in settings.database_names)
    return [each for each in each_database if address_resolution.resolve(each).redis == redis]


async def apply_to(url: str, made: Sequence[tuple[acl.RedisUser, str]], *prefixes: Keys) -> None:
    """Make the users over a connection that may, and load the functions that they call. Raises `RedisUnavailable`.

    Subcommands that the server does not have are left out: Redis 7.0 has no CLIENT SETINFO (redis-py can do
    without it).
    """
    link = RedisLink(url, timeout=5.0)
    try:
        for keys in prefixes:
            await script.load(link, keys)
        named = sorted({command for user, _ in made for command in user.commands if "|" in command})
        known = await link.call("COMMAND", "INFO", *named)
        unknown = {command for command, entry in zip(named, known, strict=True) if not entry}
        for user, password in made:
            rules = replace(user, commands=tuple(each for each in user.commands if each not in unknown)).rules(password)
            await link.call("ACL", "SETUSER", user.name, *rules)
    finally:
        await link.close()


def database_number(settings: Settings) -> int:
    """The broker's database, whose number is part of its channels' names; 0 for RabbitMQ. Raises `InvalidSettings`."""
    address_resolution.check_queue_settings(settings)
    secret = settings.broker_url or settings.redis_url
    url = "" if secret is None else secret.get_secret_value()
    if url.startswith(f"{sentinel.SCHEME}://"):
        return sentinel.parse_url(url).db
    if not url or url.startswith(address_resolution.AMQP):
        return 0
    return int(server_url.parse_url(url).get("db", 0))


def _password(folder: Path | None, name: str) -> str:
    if folder is None:
        return secrets.token_urlsafe(24)
    file = folder / name
    if not file.exists():
        private_files.make_folder(folder)
        private_files.create(file, secrets.token_urlsafe(24).encode())
    return private_files.read(file).decode().strip()
