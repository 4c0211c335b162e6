"""The storages of Upsonic's memory by their names. What names Upsonic's tables has no effect: Aftermind has its own."""

from typing import TypedDict, Unpack

from aftermind import errors
from aftermind.integrations.places import MemoryPlace, Place


class Tables(TypedDict, total=False):
    """What Upsonic's storages take that has no effect here."""

    id: str | None
    session_table: str | None
    user_memory_table: str | None
    knowledge_table: str | None
    db_schema: str | None
    create_schema: bool


class AftermindStorage(MemoryPlace):
    """Where Upsonic's memory is kept: an Aftermind `Memory`, or its URL or dict; None: the settings of Aftermind."""

    def __init__(self, memory: Place | None = None, *, namespace: str | None = None, **tables: Unpack[Tables]) -> None:
        for name in tables.keys() - Tables.__annotations__.keys():
            raise errors.InvalidSettings(name, tables.get(name), "a storage of Aftermind has no such parameter.")
        super().__init__(memory, namespace=namespace)


class InMemoryStorage(AftermindStorage):
    """A storage of this process."""

    def __init__(self, **tables: Unpack[Tables]) -> None:
        super().__init__("inmemory", **tables)


class SqliteStorage(AftermindStorage):
    """A storage in a file."""

    def __init__(self, db_file: str = "./upsonic.db", **tables: Unpack[Tables]) -> None:
        super().__init__(f"sqlite:{db_file}", **tables)


class JSONStorage(AftermindStorage):
    """A storage in a folder."""

    def __init__(self, db_path: str = "./upsonic", **tables: Unpack[Tables]) -> None:
        super().__init__(f"json:{db_path}", **tables)


class PostgresStorage(AftermindStorage):
    """A storage in Postgres; the settings of Aftermind name the Redis of its workers."""

    def __init__(self, db_url: str, **tables: Unpack[Tables]) -> None:
        super().__init__(db_url, **tables)


class RedisStorage(AftermindStorage):
    """A storage in Redis."""

    def __init__(
        self, *, db_url: str = "redis://localhost:6379/0", db_prefix: str = "upsonic", **tables: Unpack[Tables]
    ) -> None:
        super().__init__({"url": db_url, "key_prefix": db_prefix}, **tables)
