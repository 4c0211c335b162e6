"""`aftermind secrets`: every password, key, URL and Redis user of a deployment, as files for Compose or Kubernetes.

A process gets only the files of its role. Those that are there stay, so running it again adds what a release needs
newly and writes the Redis users of this release. A password whose file was deleted is replaced, in its URLs too, and
URLs follow an address that is given.
"""

import base64
import json
import os
import re
import secrets as random
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
KEYS = ("audit_key", "encryption_key", "webhook_key")  # no server has a second copy of them
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
    postgres: Annotated[
        str | None, typer.Option(help="Host and port of the primary. Default: postgres:5432.", show_default=False)
    ] = None,
    replica: Annotated[
        list[str] | None,
        typer.Option(
            help="Host and port of a replica; repeat for more, or none. Default: postgres-replica:5432.",
            show_default=False,
        ),
    ] = None,
    redis: Annotated[
        str | None, typer.Option(help="Host and port of Redis. Default: redis:6379.", show_default=False)
    ] = None,
) -> dict[str, str | int | list[str]]:
    """Write the passwords, keys, URLs and Redis users of a deployment. Files that exist stay as they are.

    To replace a password, delete its file and repeat the command: the URLs get the new one. To change an address or
    the replicas, repeat the command with the option.
    """
    primary = _Address((postgres or "postgres:5432",), is_given=postgres is not None)
    named = ["postgres-replica:5432"] if replica is None else [each for each in replica if each != "none"]
    replicas = _Address(tuple(named), is_given=replica is not None)
    queue = _Address((redis or "redis:6379",), is_given=redis is not None)
    given = (("postgres", postgres), *(("replica", each) for each in named), ("redis", redis))
    for option, value in given:
        if value is not None and not all(HOST.fullmatch(each) for each in value.split(",")):
            no_replica = ", or none for no replica" if option == "replica" else ""
            raise errors.InvalidSettings(option, value, f"give a host and its port, such as db:5432{no_replica}.")
    users = _redis_users(Settings())
    try:
        private_files.make_folder(folder)
        if folder.stat().st_mode & OTHERS:  # Docker makes a missing folder of a mount so that every user may enter
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) & ~OTHERS)
        files = _write(folder, primary, replicas, queue, users)
    except OSError as exc:
        raise errors.InvalidSettings("folder", str(folder), f"it cannot be written: {exc.strerror}.") from exc
    written = len(files.made | files.changed)
    out.print(f"{terminal.count_of(written, 'file')} {'was' if written == 1 else 'were'} written to {folder}.")
    if keys := [name for name in KEYS if name in files.made]:
        out.print(f"Keep a copy of {', '.join(keys)} elsewhere.")
    if files.changed:
        names = ", ".join(sorted(files.changed))
        out.print(f"Changed: {names}. Restart the processes that read them: docs/security.md lists them.")
    for name in files.kept:
        terminal.warn(
            f"{name} was edited by hand and stays: change the address in it, or delete it and repeat the command."
        )
    return {
        "folder": str(folder),
        "files_written": written,
        "files_changed": sorted(files.changed),
        "files_kept": files.kept,
    }


def _redis_users(settings: Settings) -> Mapping[str, acl.RedisUser]:
    """The users, with the keys of each database that shares the Redis of `default`; another Redis has other users."""
    default = settings.of_database(DEFAULT) if settings.databases else settings
    every = [settings.of_database(name) for name in settings.database_names] if settings.databases else [default]
    sharing = [each for each in every if _queue_of(each) == _queue_of(default)]
    found = [acl.users(each.redis_prefix) for each in sharing]
    return {role: acl.merge([each[role] for each in found]) for role in found[0]}


def _queue_of(settings: Settings) -> tuple[SecretStr | None, SecretStr | None]:
    return settings.broker_url, settings.redis_url


@dataclass(frozen=True, slots=True)
class _Address:
    """Host and port of each server; `is_given` by an option, not by default."""

    hosts: tuple[str, ...]
    is_given: bool


@dataclass(frozen=True, slots=True)
class _Login:
    """A user of a server, with the scheme and path of its URL; `is_new` if its password was made now."""

    scheme: str
    user: str
    password: str
    path: str
    is_new: bool

    def host_of(self, url: str) -> str | None:
        """The host and port in a URL with this user; None for one of another form, written by hand."""
        found = re.match(rf"\w+://{re.escape(self.user)}(?::[^@/]*)?@([^/?@]+)/", url)
        return found[1] if found else None

    def at(self, host: str, model: str = "") -> str:
        """The URL at a host, with the scheme, path and parameters of the model if that has this user."""
        if (former := self.host_of(model)) is not None:
            return model.replace(f"@{former}/", f"@{host}/", 1)
        return f"{self.scheme}://{self.user}:{self.password}@{host}/{self.path}"


def _write(
    folder: Path, primary: _Address, replicas: _Address, queue: _Address, users: Mapping[str, acl.RedisUser]
) -> "_Files":
    files = _Files(folder)
    passwords = {role: files.read_or_make(f"postgres_{role}_password", _password) for role in ROLES}
    for role in ("migrator", "agent", "worker"):
        name, is_new = f"aftermind_{role}_login", not files.has(f"postgres_{role}_password")
        login = _Login("postgresql", name, passwords[role], DATABASE, is_new)
        model = files.add_url(f"{role}_database_url", login, primary)
        files.add_urls(f"{role}_replica_urls", login, replicas, model=model)
    words = {role: files.read_or_make(f"redis_{role}_password", _password) for role in users}
    for role, user in users.items():
        is_new = not files.has(f"redis_{role}_password")
        login = _Login("redis", user.name, words[role], "0", is_new)
        files.add_url(f"{role}_redis_url", login, queue)
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
    return files


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
        self.made: set[str] = set()  # names of files, as in the other two
        self.changed: set[str] = set()
        self.kept: list[str] = []  # of a given address, because they were edited by hand
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

    def add_url(self, name: str, login: _Login, address: _Address) -> str:
        """The URL of a file, which is written where it is missing; else it gets a new password and a given address."""
        [host] = address.hosts
        url = self._with_password(name, login, login.at(host))
        if address.is_given and login.host_of(url) != host:
            if login.host_of(url) is None:
                self.kept.append(name)
            else:
                url = login.at(host, url)
                self.replace(name, url)
        return url

    def add_urls(self, name: str, login: _Login, address: _Address, *, model: str) -> None:
        """As `add_url`, of a list: URLs of hosts that stay are kept, others get what the model has."""
        wanted = json.dumps([login.at(host, model) for host in address.hosts])
        text = self._with_password(name, login, wanted)
        try:
            kept = {login.host_of(str(url)): str(url) for url in json.loads(text)}
        except (ValueError, TypeError):  # no list
            kept = {None: text}
        if address.is_given and list(kept) != list(address.hosts):
            if None in kept:
                self.kept.append(name)
            else:
                self.replace(name, json.dumps([kept.get(host) or login.at(host, model) for host in address.hosts]))

    def _with_password(self, name: str, login: _Login, text: str) -> str:
        """The text of a file, with the new password of its login; the given text where the file is missing."""
        found = self.add(name, lambda: text)
        if not login.is_new or name in self.made or found == NO_URLS:
            return found
        changed = re.sub(rf"(?<=//{re.escape(login.user)}:)[^@/]*(?=@)", lambda _: login.password, found)
        if changed == found:
            why = (
                f"it has no password of {login.user}, which is to be replaced. Write the new URL into it, or delete it."
            )
            raise errors.InvalidSettings(name, str(self._folder), why)
        self.replace(name, changed)
        return changed

    def replace(self, name: str, text: str) -> None:
        """Write a file, whatever it held."""
        path = self._folder / name
        if not path.exists():
            self.made.add(name)
        elif private_files.read(path).decode() != text:
            self.changed.add(name)
        else:
            return
        private_files.write(path, text.encode(), mode=READABLE)
        self._give(path)

    def _give(self, path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, self._owner.st_uid, self._owner.st_gid, follow_symlinks=False)


def _password() -> str:
    return random.token_hex(24)  # no URL and no SQL has to quote it
