"""The tables of a store of one process that its journal writes and a copy reads, of every part of the library."""

from aftermind.db import api_keys, webhook_deliveries_inmemory
from aftermind.db.record_store_journals.row_codec import RowCodec
from aftermind.events import inmemory as events
from aftermind.ledger.inmemory import job_records, replays
from aftermind.stores.inmemory import tables


def make_codec() -> RowCodec:
    """Converts the rows of all tables."""
    jobs, more = {**job_records.TABLES, **replays.TABLES}, {**api_keys.TABLES, **webhook_deliveries_inmemory.TABLES}
    return RowCodec(tables.TABLES, jobs, events.TABLES, more)
