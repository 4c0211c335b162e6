"""A position in the primary's write-ahead log, so that a reader sees its own writes."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, order=False, kw_only=True)
class Watermark:
    """A place in a write-ahead log: everything committed before it was taken is at or below it.

    `system` is Postgres's system identifier, `timeline` grows with each promotion, `lsn` is in bytes. Two watermarks
    compare only within one system and timeline: after a failover the new primary's LSN may be the lower one.
    """

    system: int
    timeline: int
    lsn: int

    def encode(self) -> str:
        """As text for Redis and events: `system/timeline/lsn`, decimal."""
        return f"{self.system}/{self.timeline}/{self.lsn}"

    @classmethod
    def decode(cls, text: str) -> Self:
        """The reverse of `encode`."""
        system, timeline, lsn = (int(part) for part in text.split("/"))
        return cls(system=system, timeline=timeline, lsn=lsn)
