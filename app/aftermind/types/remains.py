"""What is still found of somebody: place by place, and whether it may be there."""

from dataclasses import dataclass

from aftermind.types.scope import EpisodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place that was looked at.

    `found` counts rows, keys, or places in files that hold one of the texts or ids that were looked for. `owned` counts
    rows and keys that are labelled with the user; `kept` says why those may stay, and is empty where they may not.
    `missing` says why the place could not be looked at, or not whole.
    """

    name: str
    looked: str = ""
    found: int = 0
    owned: int = 0
    kept: str = ""
    missing: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether it was looked at whole, and nothing is there that should not be."""
        return not self.found and not self.missing and (not self.owned or bool(self.kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """Every place that was looked at."""

    places: tuple[Place, ...]

    @property
    def are_none(self) -> bool:
        """Whether nothing remains anywhere, and no place was left out."""
        return all(place.is_clean for place in self.places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A forget that was watched.

    `canary` is a word that nobody has ever said, remembered for the user just before; `ids` are episodes that the user
    had. `before` shows where they were found, so that `after` is the answer of an instrument that works. `seconds` is
    what the forget itself took.
    """

    canary: str
    ids: tuple[EpisodeId, ...]
    before: Remains
    after: Remains
    seconds: float
