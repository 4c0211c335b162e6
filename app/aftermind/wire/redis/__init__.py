"""The Redis client: connections, protocol, scripts and ACL."""
