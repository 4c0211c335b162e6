"""Record stores by their addresses: a URL, a dict or a journal. Nothing here connects."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aftermind import errors, extras
from aftermind.db.record_store_journals.files import FileJournal
from aftermind.db.record_store_journals.protocol import AnyJournal
from aftermind.db.record_store_journals.row_codec import SHARED_NAME
from aftermind.wire.redis_keys import Keys

if TYPE_CHECKING:  # it loads NumPy, which the light commands do not need
    from aftermind.indexes.protocol import VectorIndex

DEFAULT_PREFIX = Keys().prefix
REDIS = ("redis", "rediss", "unix")
MONGODB = ("mongodb", "mongodb+srv")
SQL = "sql+"  # in front of a URL of SQLAlchemy
IN_MEMORY = ("inmemory", "vector")  # search by words and vectors is built in, so both are the same
ADDRESS_KEYS = ("url", "dsn", "path")
DICT_KEYS = (
    *("backend", "type", *ADDRESS_KEYS, "index", "use_vector_index"),
    *("namespace", "embedder", "with_facts", "key_prefix"),
)
KNOWN = "A store is a postgresql://, redis:// or mongodb:// URL, 'sqlite:./bot.db', 'json:./folder' or 'inmemory'."
INDEXES = ("chroma", "qdrant", "pinecone", "mem0")
FILE, FOLDER = "memory.db", "index"  # of a store that is named by its index


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """A store as a dict describes it."""

    store: str | AnyJournal
    index: "str | VectorIndex | None" = None
    namespace: str | None = None
    embedder: Any = None  # Any: a name or an `Embedder`, checked where embedders are made
    with_facts: bool = True


def read_options(given: Mapping[str, Any]) -> StoreOptions:  # Any: values of a dict, checked here
    """The options of a dict: `backend` (or `type`) and `path`, or `url` (or `dsn`). Raises `InvalidSettings`."""
    left = dict(given)
    backends = [left.pop(key) for key in ("backend", "type") if key in left]
    addresses = [str(left.pop(key)) for key in ADDRESS_KEYS if left.get(key) is not None]
    if len(backends) > 1 or len(addresses) > 1 or not (backends or addresses):
        why = "name `backend`, and one of `url`, `dsn` and `path`."
        raise errors.InvalidSettings("store", sorted(given), why)
    url = addresses[0] if addresses else str(backends[0])
    if backends and addresses and "path" in given:
        url = f"{backends[0]}:{addresses[0]}"
    elif backends and addresses and not url.startswith(str(backends[0]).partition("+")[0][:5]):
        raise errors.InvalidSettings("store", backends[0], "`backend` and `url` name different stores.")
    prefix = left.pop("key_prefix", None)
    is_indexed = left.pop("use_vector_index", True)
    optional = ("namespace", "embedder", "with_facts", "index")
    named = {key: left.pop(key) for key in optional if left.get(key) is not None}
    if not is_indexed and named.pop("index", None) is None and is_index(url):
        raise errors.InvalidSettings("use_vector_index", False, f"{url.split(':')[0]!r} names an index.")
    if left:
        why = f"a dict has {', '.join(DICT_KEYS)}; not {', '.join(map(str, left))}."
        raise errors.InvalidSettings("store", sorted(given), why)
    if prefix is not None and not url.startswith(REDIS):
        raise errors.InvalidSettings("key_prefix", prefix, "only a redis:// store has keys.")
    journal = None if prefix is None else make_journal(url, key_prefix=str(prefix))
    return StoreOptions(store=url if journal is None else journal, **named)


def is_index(url: str) -> bool:
    """Whether a store is named by its external vector index."""
    return url.partition(":")[0].partition("+")[0] in INDEXES


def split_index(url: str, state_dir: Path) -> tuple[str, str]:
    """The record store and the index of a shorthand: `chroma:./dir` is SQLite and Chroma in one folder.

    With an index on a server the record store is `memory.db` in the state folder.
    """
    scheme, _, rest = url.partition(":")
    if rest.startswith("//") or scheme not in ("chroma", "qdrant"):
        return f"sqlite:{state_dir / FILE}", url
    folder = Path(rest) if rest else state_dir / scheme
    return f"sqlite:{folder / FILE}", f"{scheme}:{folder / FOLDER}"


def make_journal(url: str, *, key_prefix: str = DEFAULT_PREFIX) -> AnyJournal | None:
    """The journal of a store whose jobs run in this process; None for one in memory. Raises `InvalidSettings`.

    `key_prefix` begins the keys of a Redis.
    """
    scheme, _, rest = url.partition(":")
    if scheme in IN_MEMORY and not rest.strip("/"):
        return None
    if scheme in REDIS:
        from aftermind.db.record_store_journals.redis import RedisJournal  # redis-py: loaded only for such a store

        return RedisJournal(url, Keys(key_prefix).journal, shared=SHARED_NAME)
    if scheme in MONGODB:
        extras.require("pymongo", "a store in MongoDB")
        from aftermind.db.record_store_journals.mongodb import MongoJournal

        return MongoJournal(url, shared=SHARED_NAME)
    if scheme == "json":
        return FileJournal(_read_path(url, rest))
    if scheme == "sqlite" or scheme.startswith(SQL):
        from aftermind.db.record_store_journals.sql import SqlJournal  # SQLAlchemy: loaded only for such a store

        if scheme == "sqlite":
            return SqlJournal(path=_read_path(url, rest), shared=SHARED_NAME)
        return SqlJournal(url.removeprefix(SQL), shared=SHARED_NAME)
    raise errors.InvalidSettings("store", scheme, f"unknown store (the argument, or AFTERMIND_DATABASE_URL). {KNOWN}")


def _read_path(url: str, rest: str) -> Path:
    """`x:./file`, `x:/abs/file`, and as SQLAlchemy has it `x:///file` and `x:////abs/file`."""
    path = rest.removeprefix("///") if rest.startswith("///") else rest
    if rest.startswith("//") and not rest.startswith("///"):
        raise errors.InvalidSettings("url", url, "a path follows the colon: 'sqlite:./bot.db' or 'sqlite:/var/bot.db'.")
    if not path or path.endswith("/") or "?" in path or "\x00" in path:
        scheme = url.partition(":")[0]
        example = "name a folder: 'json:./folder'." if scheme == "json" else f"name a file: '{scheme}:./bot.db'."
        raise errors.InvalidSettings("url", url, example)
    if path == ":memory:":
        raise errors.InvalidSettings("url", url, "use 'inmemory' for a store without a file.")
    return Path(path)
