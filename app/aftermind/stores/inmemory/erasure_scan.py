"""Searches the rows of a store of one process for texts."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from aftermind.db.inmemory_database import MemoryDatabase
from aftermind.db.record_store_journals.row_codec import SHARED, RowCodec

Tables = Mapping[str, Mapping[Any, Any]]  # Any: the module that owns a table defines the types of its keys and rows


async def search_rows(db: MemoryDatabase, codec: RowCodec, texts: Sequence[str]) -> tuple[int, int]:
    """How many rows the store has, jobs and those of all users, and how many of them contain one of the texts.

    Reads every row: each user in a separate transaction, and the texts of the rows in a thread.
    """
    spelt = [json.dumps(text, ensure_ascii=False)[1:-1].encode() for text in texts]
    rows = found = 0
    await db.open()
    for owner in (SHARED, *sorted(db.owners)):
        async with db.transaction(read_only=True):
            await db.load(owner)
            tables = {name: dict(table) for name, table in db.partition(owner).tables.items()}
        rows += sum(map(len, tables.values()))
        if spelt:
            found += await asyncio.to_thread(_count, codec, tables, spelt)
    return rows, found


def _count(codec: RowCodec, tables: Tables, spelt: Sequence[bytes]) -> int:
    dumped = (codec.dump(name, key, row) for name, table in tables.items() for key, row in table.items())
    written = (key.encode() + b"\n" + (row or b"") for key, row in dumped)
    return sum(any(text in each for text in spelt) for each in written)
