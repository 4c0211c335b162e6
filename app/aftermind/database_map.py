"""The map of databases (`AFTERMIND_DATABASES`) and the rule that places namespaces (`AFTERMIND_PLACEMENT`). Pure."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import SecretStr

from aftermind import errors
from aftermind.namespace_rules import check_rules, match_rule

DEFAULT = "default"  # the database that the other settings name
VARIABLE = "AFTERMIND_DATABASES"
POSTGRES = ("postgresql:", "postgres:", "postgresql+asyncpg:")
# What differs from database to database. Every other setting is that of the process.
FIELDS = ("database_url", "relay_url", "migrator_url", "replica_urls", "broker_url", "redis_url", "index_url")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclasses.dataclass(slots=True)
class Moved:
    """What a process has learned about tenants that were moved: the placement of the settings does not have them.

    `databases` has a database by namespace. `parts` opens the services in a database, and `opened` lists those that are
    open, where a process has several; `Any`, because they are built from settings.
    """

    databases: dict[str, str] = dataclasses.field(default_factory=dict)
    parts: Callable[[str], Any] | None = None
    opened: Callable[[], Iterable[Any]] = tuple


Given = Mapping[str, SecretStr | tuple[SecretStr, ...]]
Connections = Mapping[str, Any]  # Any: values of settings, each checked by pydantic


def connections(databases: Mapping[str, Given], default: Connections, *, prefix: str) -> Mapping[str, Connections]:
    """The connections of every database by its name, those that the settings name as `default` included.

    One without a broker and a Redis shares those of the default, under a separate prefix. Raises `InvalidSettings`.
    """
    found: dict[str, Connections] = {DEFAULT: {**default, "redis_prefix": prefix}}
    for name, given in databases.items():
        _check(name, given)
        queue = default if not given.keys() & {"broker_url", "redis_url"} else {}
        shared = {field: queue.get(field) for field in ("broker_url", "redis_url")}
        own = {field: given.get(field) for field in FIELDS if field in given or field not in shared}
        # Not a word of `wire.redis_keys`: the key of a turn in one database is never a key of another one.
        own_prefix = {"redis_prefix": f"{prefix}db-{name}:"}
        found[name] = {**shared, **own, "replica_urls": given.get("replica_urls", ()), **own_prefix}
    _check_apart(found)
    return found


def check_placement(placement: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise `InvalidSettings` for a rule that names no database, or is no namespace and no prefix."""
    known = sorted(names)
    for rule, name in placement.items():
        if name not in known:
            why = f"there is no such database. {VARIABLE} has {', '.join(known)}."
            raise errors.InvalidSettings("AFTERMIND_PLACEMENT", f"{rule}: {name}", why)
    check_rules("AFTERMIND_PLACEMENT", placement)


def place(placement: Mapping[str, str], namespace: str) -> str:
    """The database of a namespace: by its name, else by the longest beginning, else the default."""
    return match_rule(placement, namespace) or DEFAULT


def _check(name: str, given: Given) -> None:
    if name == DEFAULT or not _NAME.fullmatch(name):
        why = f"a name has lower-case letters, digits and '-', at most 31; {DEFAULT!r} is AFTERMIND_DATABASE_URL."
        raise errors.InvalidSettings(VARIABLE, name, why)
    if unknown := sorted(given.keys() - set(FIELDS)):
        raise errors.InvalidSettings(VARIABLE, f"{name}.{unknown[0]}", f"a database has {', '.join(FIELDS)}.")
    for field in FIELDS:
        if field in given and isinstance(given[field], tuple) is not (field == "replica_urls"):
            why = "it is a list of URLs." if field == "replica_urls" else "it is a URL."
            raise errors.InvalidSettings(VARIABLE, f"{name}.{field}", why)
    if not _text(given.get("database_url")).startswith(POSTGRES):
        raise errors.InvalidSettings(VARIABLE, f"{name}.database_url", "a postgresql:// URL is required.")


def _check_apart(found: Mapping[str, Connections]) -> None:
    """No two databases may share rows, queues or an index."""
    for field, why in (
        ("database_url", "two names for one database would mix their tenants."),
        ("index_url", "give each database a separate index, or none of them an index."),
    ):
        _refuse_repeated(field, {name: _text(each[field]) for name, each in found.items() if each[field]}, why)
    brokers = {name: _text(each["broker_url"]) for name, each in found.items()}
    amqp = {name: url for name, url in brokers.items() if url.startswith("amqp")}
    _refuse_repeated("broker_url", amqp, "queues of RabbitMQ have no prefix: give each database a virtual host.")
    without = [name for name, each in found.items() if not each["index_url"]]
    if without and len(without) < len(found):
        why = "give each database a separate index, or none of them an index."
        raise errors.InvalidSettings(VARIABLE, f"{without[0]}.index_url", why)


def _refuse_repeated(field: str, urls: Mapping[str, str], why: str) -> None:
    seen: dict[str, str] = {}
    for name, url in urls.items():
        if url in seen:
            raise errors.InvalidSettings(VARIABLE, f"{name}.{field}", f"{seen[url]} has the same: {why}")
        seen[url] = name


def _text(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else ""
