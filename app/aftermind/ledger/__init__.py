"""Jobs, leases and dead letters: the only truth about work."""
