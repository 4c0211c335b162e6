"""Statements with named parameters for a driver that counts them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NAME = re.compile(r"(?<![:\w]):([a-z_]+)")


@dataclass(frozen=True, slots=True)
class Positional:
    """A statement with $1, $2 …, and whose values they take."""

    sql: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "Positional":
        """Number each `:name` by its first appearance; casts (`::type`) stay."""
        names = tuple(dict.fromkeys(_NAME.findall(text)))
        return cls(sql=_NAME.sub(lambda found: f"${names.index(found[1]) + 1}", text), names=names)

    def values(self, given: Mapping[str, Any]) -> tuple[Any, ...]:  # Any: as the driver takes them
        """The values in the statement's order."""
        return tuple(given[name] for name in self.names)
