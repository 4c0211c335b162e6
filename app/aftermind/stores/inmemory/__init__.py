"""The store of one process."""

from aftermind.stores.inmemory.store import InMemoryStore

__all__ = ["InMemoryStore"]
