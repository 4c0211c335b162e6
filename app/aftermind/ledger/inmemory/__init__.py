"""The in-memory ledger."""
