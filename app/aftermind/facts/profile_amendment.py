"""What a profile loses or changes when a fact is retracted or corrected. Pure."""

import re
from collections.abc import Mapping
from dataclasses import replace

from aftermind.facts import predicates
from aftermind.types import Fact, Json, Profile, Trait


def amended_traits(profile: Profile, fact: Fact, instead: str | None) -> Mapping[str, Trait | None]:
    """The traits that quote the object of a fact, with `instead` in its place; None for those of which nothing is left.

    A trait rests on the fact if it draws on one of its episodes, or is named as its predicate ("Melanie likes").
    """
    sources, amended = set(fact.sources), dict[str, Trait | None]()
    for name, trait in profile.traits.items():
        is_named = predicates.canonical(name.rpartition(" ")[2]) == fact.predicate
        if not is_named and sources.isdisjoint(trait.evidence):
            continue
        value = _amended(trait.value, fact.object, instead)
        if value != trait.value:
            amended[name] = None if value in (None, [], {}) else replace(trait, value=value)
    return amended


def _amended(value: Json, old: str, new: str | None) -> Json:
    """A value without a text, or with another in its place; None where nothing else is left."""
    if isinstance(value, str):
        quoted = re.compile(rf"(?<!\w){re.escape(old)}(?!\w)", re.IGNORECASE)
        if not quoted.search(value) and not predicates.same_text(value, old):
            return value
        return None if new is None else quoted.sub(lambda _: new, value) if quoted.search(value) else new
    if isinstance(value, list):
        kept = [_amended(each, old, new) for each in value]
        return [each for number, each in enumerate(kept) if each is not None and each not in kept[:number]]
    if isinstance(value, Mapping):
        return {name: left for name, each in value.items() if (left := _amended(each, old, new)) is not None}
    return value
