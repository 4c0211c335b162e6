"""Journals: where the tables of `db.inmemory` are written. `protocol.Journal` is what a store has to offer."""
