"""Remaining content of a user by place, and whether it may remain."""

from dataclasses import dataclass

from aftermind.types.scope import EpisodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedPlace:
    """One searched place.

    `found` counts rows, keys, or positions in files that contain one of the searched texts or ids. `owned` counts rows
    and keys with the user's label; `kept` is the reason why those may remain, and empty if they may not. `missing` is
    the reason why the place was not, or not completely, searched.
    """

    name: str
    examined: str = ""
    found: int = 0
    owned: int = 0
    kept: str = ""
    missing: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether it was completely searched and has no content that must not remain."""
        return not self.is_remaining and not self.missing

    @property
    def is_remaining(self) -> bool:
        """Whether it has content that must not remain."""
        return bool(self.found or (self.owned and not self.kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReport:
    """All searched places."""

    places: tuple[SearchedPlace, ...]

    def __repr__(self) -> str:
        remaining = sum(place.is_remaining for place in self.places)
        result = f"content remains in {remaining}" if remaining else "nothing remains in any"
        unsearched = f", {len(self.unsearched)} not searched" if self.unsearched else ""
        return f"<ErasureReport {result} of {len(self.places)} places{unsearched}>"

    @property
    def is_clean(self) -> bool:
        """Whether nothing remains anywhere, and no place was left out."""
        return all(place.is_clean for place in self.places)

    @property
    def unsearched(self) -> tuple[str, ...]:
        """Names of the places that were not, or not completely, searched."""
        return tuple(place.name for place in self.places if place.missing)

    @property
    def is_erased(self) -> bool | None:
        """True: nothing remains. False: content remains. None: none was found, but a place was not searched."""
        remains = any(place.is_remaining for place in self.places)
        return False if remains else None if self.unsearched else True


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureProof:
    """A verified forget.

    `canary` is a unique word that was stored for the user just before; `ids` are episodes of the user. `before` shows
    where they were found, which proves that the search works, so that `after` is reliable. `seconds` is the duration of
    the forget.
    """

    canary: str
    ids: tuple[EpisodeId, ...]
    before: ErasureReport
    after: ErasureReport
    seconds: float

    def __repr__(self) -> str:
        return f"<ErasureProof before {self.before!r}, after {self.after!r}>"
