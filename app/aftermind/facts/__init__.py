"""Effects of a new assertion on the current facts: pure decisions, no I/O, no clock."""
