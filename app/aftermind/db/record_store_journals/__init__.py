"""Journals: where the tables of `db.inmemory_database` are written. `protocol.Journal` is what a store has to offer."""
