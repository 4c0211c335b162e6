"""The nearest of given names to an unknown one."""

import difflib
from collections.abc import Iterable, Mapping


def nearest_name(name: str, names: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str | None:
    """The name of which the given one is a synonym or a misspelling; None if no name is near."""
    return (synonyms or {}).get(name) or next(iter(difflib.get_close_matches(name, names, n=1)), None)
