"""`EmbedderIdentity`: which embedder made a vector. Vectors of two identities are never compared."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderIdentity:
    """Name, dimension and revision of an embedder.

    `revision` distinguishes two models of one name: the language of the hash embedder, a digest of a local model's
    files. It is empty if the name is sufficient.
    """

    name: str
    dimension: int
    revision: str = ""

    def __str__(self) -> str:
        shown = self.name if self.name.endswith(f":{self.dimension}") else f"{self.name} ({self.dimension} dimensions)"
        return f"{shown}, revision {self.revision}" if self.revision else shown

    @property
    def key(self) -> str:
        """The identity as the database stores and compares it."""
        return f"{self.name}\n{self.dimension}\n{self.revision}"

    @classmethod
    def from_key(cls, key: str) -> Self:
        """The reverse of `key`."""
        name, dimension, revision = key.rsplit("\n", 2)
        return cls(name=name, dimension=int(dimension), revision=revision)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEmbedders:
    """The embedders whose vectors a database has.

    `active` is used by recall. `standby` belongs to a re-embedding: its target before the cutover, the former embedder
    afterwards; None if there is no re-embedding.
    """

    active: EmbedderIdentity
    standby: EmbedderIdentity | None = None

    @classmethod
    def from_keys(cls, active: str | None, standby: str | None) -> "StoredEmbedders | None":
        """From the keys as stored; None if the store does not record any."""
        if active is None:
            return None
        return cls(
            active=EmbedderIdentity.from_key(active),
            standby=None if standby is None else EmbedderIdentity.from_key(standby),
        )

    def __contains__(self, identity: object) -> bool:
        return identity is not None and identity in (self.active, self.standby)
