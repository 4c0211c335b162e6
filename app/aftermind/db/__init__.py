"""Databases underneath: engines, tables, transactions and migrations, shared by stores and ledger."""
