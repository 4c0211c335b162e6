"""Where a drop-in keeps its memory, and the stores of other frameworks as stores of Aftermind."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from aftermind import errors
from aftermind.api.blocking_portal import to_async
from aftermind.memory import Memory
from aftermind.sync import Memory as SyncMemory

Place = Memory | SyncMemory | str | Mapping[str, Any]  # Any: the values of a dict that describes a store


class MemoryPlace:
    """A `Memory`, or the URL or dict of its store; None: the settings of Aftermind."""

    message_lifetime: timedelta | None = None  # after which a message expires, if the framework's store defines it

    def __init__(self, memory: Place | None = None, *, namespace: str | None = None) -> None:
        self.memory = to_async(memory) if isinstance(memory, Memory | SyncMemory) else Memory(memory)
        self.namespace = namespace

    async def close(self) -> None:
        """Send remaining turns, and close all connections."""
        await self.memory.close()

    def whose(self, user_id: str | None) -> dict[str, Any]:
        """The owner, for calls of the memory."""
        return {"user_id": user_id, "namespace": self.namespace}


MadePlace = TypeVar("MadePlace", bound=MemoryPlace)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParameters:
    """The parameters of a framework's store, and the store of Aftermind that they name.

    `defaults` are the parameters in their order. `addresses` are templates: the first counts whose names all have a
    value. A name is a parameter, in capitals also a variable of the environment; `{url.scheme}` and `{url.netloc}` are
    parts of one that is a URL of HTTP; a part in brackets is left out without a value. An empty template is the store
    of the settings of Aftermind. `path` is the parameter with the path of the URL, if that has none; `key_prefix` the
    one with the prefix of keys in Redis, `lifetime` the one with the seconds after which a message expires, `namespace`
    the one that separates programs in one database: a value other than the default is the namespace. `with_scheme` are
    parameters that must be a URL of HTTP, `refused` those that must have an effect and cannot, with the remedy; all
    others have none.
    """

    addresses: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)  # Any: whatever a framework's parameter is
    path: str = ""
    key_prefix: str = ""
    lifetime: str = ""
    namespace: str = ""
    with_scheme: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    def place(self, *args: Any, **named: Any) -> str | dict[str, Any] | None:
        """The URL or dict of these arguments. Raises `InvalidSettings`."""
        values = self.values(*args, **named)
        url = next((found for each in self.addresses if (found := _filled(each, values)) is not None), None)
        if url is None:
            why = f"an address is missing: give one of {', '.join(self.addresses)}."
            raise errors.InvalidSettings("store", sorted(values), why)
        if not url:
            return None
        url = re.sub(r"^(sqlite|postgres(?:ql)?)\+\w+:", r"\1:", url)  # of a driver of SQLAlchemy
        parts = urlsplit(url)
        if self.path in values and not parts.path.strip("/"):
            url = urlunsplit(parts._replace(path=f"/{quote(str(values[self.path]))}"))
        return {"url": url, "key_prefix": str(values[self.key_prefix])} if self.key_prefix in values else url

    def values(self, *args: Any, **named: Any) -> dict[str, Any]:
        """The parameters that have a value. Raises `InvalidSettings`."""
        names = list(self.defaults)
        given = dict(zip(names, args, strict=False)) | named
        unknown = [*args[len(names) :], *(name for name in given if name not in self.defaults)]
        if unknown or len(args) + len(named) > len(given):
            why = f"its parameters are {', '.join(names) or 'none'}."
            raise errors.InvalidSettings("store", [str(each) for each in unknown], why)
        for name, why in self.refused.items():
            if given.get(name):
                raise errors.InvalidSettings(name, type(given[name]).__name__, why)
        for name in self.with_scheme:
            if given.get(name) and not _is_http(given[name]):
                raise errors.InvalidSettings(name, given[name], "it must begin with http:// or https://.")
        return {name: value for name, value in {**self.defaults, **given}.items() if value not in (None, "")}

    def message_lifetime(self, values: Mapping[str, Any]) -> timedelta | None:
        """After which a message expires; None if it does not. Raises `InvalidSettings`."""
        seconds = values.get(self.lifetime)
        if seconds is None:
            return None
        try:
            if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0:
                return timedelta(seconds=seconds)
        except (OverflowError, ValueError):
            pass
        raise errors.InvalidSettings(self.lifetime, seconds, "it is a number of seconds above 0.")

    def namespace_of(self, values: Mapping[str, Any]) -> str | None:
        """The namespace that a parameter names, None for its default."""
        value = values.get(self.namespace)
        return None if value == self.defaults.get(self.namespace) else value


def store_classes(base: type[MadePlace], stores: Mapping[str, StoreParameters]) -> dict[str, type[MadePlace]]:
    """A class for each of a framework's stores by its name, with the framework's parameters and `namespace`."""
    return {name: _store_class(base, name, each) for name, each in stores.items()}


def _store_class(base: type[MadePlace], name: str, parameters: StoreParameters) -> type[MadePlace]:
    def init(self: MadePlace, *args: Any, namespace: str | None = None, **named: Any) -> None:
        values = parameters.values(*args, **named)
        lifetime = parameters.message_lifetime(values)
        place = parameters.place(*args, **named)
        base.__init__(self, place, namespace=namespace or parameters.namespace_of(values))
        self.message_lifetime = lifetime

    doc = f"A store with the parameters of the framework's `{name}`: {', '.join(parameters.defaults) or 'none'}."
    return type(name, (base,), {"__init__": init, "__doc__": doc, "__module__": base.__module__})


def _filled(template: str, values: Mapping[str, Any]) -> str | None:
    """The template with its values, None if one is missing."""

    def fill(part: str) -> str | None:
        texts = {name: _text(name, values) for name in re.findall(r"\{([\w.]+)\}", part)}
        if None in texts.values():
            return None
        return re.sub(r"\{([\w.]+)\}", lambda found: str(texts[found[1]]), part)

    return fill(re.sub(r"\[(.*?)\]", lambda part: fill(part[1]) or "", template))


def _text(name: str, values: Mapping[str, Any]) -> str | None:
    name, _, part = name.partition(".")
    value = values.get(name, os.environ.get(name) or None if name.isupper() else None)
    if part:
        return str(getattr(urlsplit(str(value)), part)) if _is_http(value) else None
    if hasattr(value, "url"):  # an engine of SQLAlchemy
        return str(value.url.render_as_string(hide_password=False))
    return quote(str(value), safe="") if name == "api_key" and value else value if value is None else str(value)


def _is_http(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("http://", "https://"))
