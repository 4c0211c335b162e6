"""The ledger in Postgres, one module per group of statements."""
