"""Vector indexes by their URLs. Nothing here connects."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from urllib.parse import unquote, urlsplit

from aftermind import errors, extras
from aftermind.indexes.client import IndexClient
from aftermind.indexes.protocol import COLLECTION, VectorIndex
from aftermind.settings import Settings
from aftermind.url_redaction import ENCODE, is_cut, why_unreadable

KNOWN = (
    "An index is 'chroma:./folder', 'chroma+http://host:8000', 'qdrant:./folder', 'qdrant://host:6333', a redis:// "
    "URL, 'pinecone:NAME' or 'mem0:'."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAddress:
    """An index URL in its parts. `path` is a folder of this process, or the name of what a service hosts."""

    url: str
    kind: str
    is_secure: bool = False
    host: str | None = None
    port: int | None = None
    password: str | None = None
    path: str = ""
    collection: str = COLLECTION

    @property
    def name(self) -> str:
        """The index in messages, without its password."""
        where = self.path if self.host is None else f"//{self.host}" + (f":{self.port}" if self.port else "")
        return f"{self.kind}:{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Where the class of an index is, the library that it needs, and which addresses it has."""

    place: str
    library: str
    has_path: bool = False
    has_server: bool = False
    has_key: bool = False  # before the path: `pinecone:KEY@NAME`


KINDS: Mapping[str, _Kind] = {
    "chroma": _Kind(place="chroma.ChromaIndex", library="chromadb", has_path=True, has_server=True),
    "qdrant": _Kind(place="qdrant.QdrantIndex", library="qdrant_client", has_path=True, has_server=True),
    "redis": _Kind(place="redis.RedisIndex", library="redis", has_server=True),
    "pinecone": _Kind(place="pinecone.PineconeIndex", library="pinecone", has_path=True, has_key=True),
    "mem0": _Kind(place="mem0.Mem0Index", library="mem0", has_path=True, has_server=True),
}
_SECURE = ("https", "tls")


def open_index(settings: Settings, index: str | VectorIndex | None = None) -> IndexClient | None:
    """An index by its URL, an object, or that of the settings; None without one.

    Raises `InvalidSettings`, `ExtraMissing`.
    """
    given = index or (None if settings.index_url is None else settings.index_url.get_secret_value())
    if given is None:
        return None
    if not isinstance(given, str) and not callable(getattr(given, "upsert", None)):
        raise errors.InvalidSettings("index", given, f"it is a URL or an object. {KNOWN}")
    make = make_index(given) if isinstance(given, str) else lambda: given
    return IndexClient(make, budget_seconds=settings.index_budget_seconds)


def make_index(url: str) -> Callable[[], VectorIndex]:
    """What makes the index of a URL. Raises `InvalidSettings`, `ExtraMissing`."""
    address = parse(url)
    kind = KINDS[address.kind]
    if kind.library in extras.EXTRA_OF:
        extras.require(kind.library, f"an index at {address.name}")
    module, _, name = kind.place.partition(".")
    made: Callable[[IndexAddress], VectorIndex] = getattr(import_module(f"aftermind.indexes.{module}"), name)
    return partial(made, address)


def parse(url: str) -> IndexAddress:
    """The parts of an index URL. Raises `InvalidSettings`."""
    scheme, _, rest = url.partition(":")
    name, _, transport = scheme.partition("+")
    name = "redis" if name == "rediss" else name
    kind = KINDS.get(name)
    if kind is None:
        raise errors.InvalidSettings("index", scheme, f"unknown index. {KNOWN}")
    if not rest.startswith("//"):
        if not kind.has_path or transport or (not rest and name != "mem0"):
            raise errors.InvalidSettings("index", f"{scheme}:", f"the address is incomplete. {KNOWN}")
        key, _, path = rest.rpartition("@") if kind.has_key else ("", "", rest)
        return IndexAddress(url=url, kind=name, path=path, password=unquote(key) or None)
    try:
        parts = urlsplit(url)
        port = parts.port
        if is_cut(url, may_be_key=True):
            raise ValueError(ENCODE)
    except ValueError as exc:
        raise errors.InvalidSettings("index", f"{scheme}://…", why_unreadable(url, exc)) from None
    if not kind.has_server or not parts.hostname:
        raise errors.InvalidSettings("index", f"{scheme}://…", f"the address is incomplete. {KNOWN}")
    return IndexAddress(
        url=url,
        kind=name,
        is_secure=transport in _SECURE or scheme == "rediss",
        host=parts.hostname,
        port=port,
        password=unquote(parts.password or parts.username or "") or None,
        collection=(parts.path.strip("/") if name != "redis" else "") or COLLECTION,
    )
