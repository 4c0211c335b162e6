"""Jobs, leases and dead letters: the record of all background work."""
