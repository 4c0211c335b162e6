"""`aftermind secrets`: every password, key, URL and Redis user of a deployment, as files for Compose or Kubernetes.

A process gets only the files of its role. Those that are there stay, so running it again adds what a release needs
newly and writes the Redis users of this release. A password whose file was deleted is replaced, in its URLs too.
"""

import base64
import json
import os
import re
import secrets as random
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from aftermind import errors, private_files
from aftermind.cli import terminal
from aftermind.cli.terminal import out
from aftermind.database_map import DEFAULT
from aftermind.settings import Settings
from aftermind.wire.redis import acl

DATABASE = "aftermind"
ROLES = ("superuser", "migrator", "agent", "worker", "replicator")  # of Postgres
OTHERS = stat.S_IRWXO
READABLE = 0o444  # containers read them as other users; the folder keeps this host's other users out
HOST = re.compile(r"[\w\[][\w.:%\]-]*")  # with its port; IPv6 addresses are in brackets
REDIS_USERS = "redis_users.acl"
NO_URLS = "[]"
HEALTH_USER = "health"  # may ping, with any password: for health checks


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(secrets)


@terminal.with_json
def secrets(
    folder: Annotated[
        Path, typer.Argument(help="Folder to write, closed to other users; created with mode 0700.")
    ] = Path("secrets"),
    *,
    postgres: Annotated[str, typer.Option(help="Host and port of the primary.")] = "postgres:5432",
    replica: Annotated[
        list[str] | None,
        typer.Option(
            help="Host and port of a replica; repeat for more, or none. Default: postgres-replica:5432.",
            show_default=False,
        ),
    ] = None,
    redis: Annotated[str, typer.Option(help="Host and port of Redis.")] = "redis:6379",
) -> dict[str, str | int]:
    """Write the passwords, keys, URLs and Redis users of a deployment. Files that exist stay as they are.

    To replace a password, delete its file and repeat the command: the URLs get the new one.
    """
    replicas = ["postgres-replica:5432"] if replica is None else [each for each in replica if each != "none"]
    for option, value in (("postgres", postgres), *(("replica", each) for each in replicas), ("redis", redis)):
        if not all(HOST.fullmatch(each) for each in value.split(",")):
            no_replica = ", or none for no replica" if option == "replica" else ""
            raise errors.InvalidSettings(option, value, f"give a host and its port, such as db:5432{no_replica}.")
    users = _redis_users(Settings())
    try:
        private_files.make_folder(folder)
        if folder.stat().st_mode & OTHERS:  # Docker makes a missing folder of a mount so that every user may enter
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) & ~OTHERS)
        made = _write(folder, postgres, replicas, redis, users)
    except OSError as exc:
        raise errors.InvalidSettings("folder", str(folder), f"it cannot be written: {exc.strerror}.") from exc
    out.print(
        f"{made} files were written to {folder}. Keep a copy of audit_key, encryption_key and webhook_key elsewhere."
    )
    return {"folder": str(folder), "files_written": made}


def _redis_users(settings: Settings) -> Mapping[str, acl.RedisUser]:
    """The users, with the keys of each database that shares the Redis of `default`; another Redis has other users."""
    default = settings.of_database(DEFAULT) if settings.databases else settings
    every = [settings.of_database(name) for name in settings.database_names] if settings.databases else [default]
    sharing = [each for each in every if _queue_of(each) == _queue_of(default)]
    found = [acl.users(each.redis_prefix) for each in sharing]
    return {role: acl.merge([each[role] for each in found]) for role in found[0]}


def _queue_of(settings: Settings) -> tuple[SecretStr | None, SecretStr | None]:
    return settings.broker_url, settings.redis_url


def _write(folder: Path, postgres: str, replicas: list[str], redis: str, users: Mapping[str, acl.RedisUser]) -> int:
    files = _Files(folder)
    passwords = {role: files.read_or_make(f"postgres_{role}_password", _password) for role in ROLES}
    for role in ("migrator", "agent", "worker"):
        login, is_new = f"aftermind_{role}_login", not files.has(f"postgres_{role}_password")
        url = f"postgresql://{login}:{passwords[role]}@{{}}/{DATABASE}"
        every = json.dumps([url.format(host) for host in replicas])  # of none: NO_URLS
        files.add_url(f"{role}_database_url", url.format(postgres), login, passwords[role], is_new=is_new)
        files.add_url(f"{role}_replica_urls", every, login, passwords[role], is_new=is_new)
    words = {role: files.read_or_make(f"redis_{role}_password", _password) for role in users}
    for role, user in users.items():
        url, is_new = f"redis://{user.name}:{words[role]}@{redis}/0", not files.has(f"redis_{role}_password")
        files.add_url(f"{role}_redis_url", url, user.name, words[role], is_new=is_new)
    files.replace(REDIS_USERS, _acl_file(users, words, former=files.read_or_make(REDIS_USERS, str)))
    # Last: a run that ends before it is repeated with another password, for all files.
    for kind, made in (("postgres", passwords), ("redis", words)):
        for role, password in made.items():
            files.add(f"{kind}_{role}_password", lambda password=password: password)  # type: ignore[misc]
    files.add("audit_key", lambda: random.token_hex(32))
    files.add("encryption_key", lambda: random.token_hex(32))
    files.add("webhook_key", lambda: base64.urlsafe_b64encode(random.token_bytes(32)).decode())
    files.add("flower_login", lambda: f"aftermind:{_password()}")
    files.add("grafana_password", _password)
    files.add("metrics_token", _password)
    return len(files.made)


def _acl_file(users: Mapping[str, acl.RedisUser], words: Mapping[str, str], *, former: str) -> str:
    """The users of this release; users of other names that the file had, such as those of tenants, stay."""
    # No client can log in as `default`, which keeps all rights: Redis (7.0 at least) replays the transactions of its
    # append-only file with them, and drops those that they do not cover (github.com/redis/redis/issues/14541).
    lines = ["user default off ~* &* +@all", f"user {HEALTH_USER} on nopass resetchannels -@all +ping"]
    lines += [user.line(words[role]) for role, user in users.items()]
    ours = set(map(_user_of, lines))
    lines += [line for line in former.splitlines() if _user_of(line) not in {*ours, ""}]
    return "\n".join(lines) + "\n"


def _user_of(line: str) -> str:
    found = re.match(r"user (\S+) ", line)
    return found[1] if found else ""


class _Files:
    """Files of one folder, owned as it is: in a container root writes for the user of the host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.made: set[str] = set()  # names of files
        self._owner = folder.stat()

    def add(self, name: str, make: Callable[[], str]) -> str:
        """The text of a file, which is written where it is missing."""
        path = self._folder / name
        if private_files.create(path, make().encode(), mode=READABLE):
            self._give(path)
            self.made.add(name)
        return private_files.read(path).decode().strip()

    def has(self, name: str) -> bool:
        """Whether the file is there."""
        return (self._folder / name).exists()

    def read_or_make(self, name: str, make: Callable[[], str]) -> str:
        """The text of a file, or a new one for it, which is not written yet."""
        return private_files.read(self._folder / name).decode().strip() if self.has(name) else make()

    def add_url(self, name: str, url: str, user: str, password: str, *, is_new: bool) -> None:
        """Write a file of one URL or more where it is missing; with `is_new`, change the password in the one there."""
        found = self.add(name, lambda: url)
        if not is_new or name in self.made:
            return
        changed = re.sub(rf"(?<=//{re.escape(user)}:)[^@/]*(?=@)", lambda _: password, found)
        if found == NO_URLS:
            return
        if changed == found:
            why = f"it has no password of {user}, which is to be replaced. Write the new URL into it, or delete it."
            raise errors.InvalidSettings(name, str(self._folder), why)
        self.replace(name, changed)
        self.made.add(name)

    def replace(self, name: str, text: str) -> None:
        """Write a file, whatever it held."""
        if not (self._folder / name).exists():
            self.made.add(name)
        private_files.write(self._folder / name, text.encode(), mode=READABLE)
        self._give(self._folder / name)

    def _give(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, self._owner.st_uid, self._owner.st_gid, follow_symlinks=False)


def _password() -> str:
    return random.token_hex(24)  # no URL and no SQL has to quote it
