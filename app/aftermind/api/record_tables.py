"""The tables of stores on one engine: what their journals write, and a copy reads."""

from aftermind.db import api_keys
from aftermind.db.record_store_journals.rows import RowCodec
from aftermind.events import inmemory as events
from aftermind.ledger.inmemory import records, replays
from aftermind.stores.inmemory import tables


def make_codec() -> RowCodec:
    """Converts the rows of all tables."""
    return RowCodec(tables.TABLES, records.TABLES, replays.TABLES, events.TABLES, api_keys.TABLES)
