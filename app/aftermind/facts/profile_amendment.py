"""What a profile loses or changes when a call ends a fact, or when a newer fact is there. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from aftermind.facts import predicates
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Json, Profile, Trait
from aftermind.types.assertion import BY_USER, Operation, RecordedAssertion
from aftermind.types.fact import USER

_NO_LONGER = re.compile(r"no longer (?P<object>.+) since [\d-]{10}")  # as `llm.offline.summaries` writes it


def amended_traits(
    profile: Profile, over: Collection[FactId], rows: Sequence[Fact], *, now: datetime
) -> Mapping[str, Trait | None]:
    """The traits that quote the object of a fact that is not true any more, with what took its place; None if nothing
    is left.

    `over` are superseded rows; those whose object is still true count for nothing. `rows` are all of the user. A trait
    rests on a fact if it draws on an episode of a row with the same subject and predicate, or is named as the predicate
    ("Melanie likes").
    """
    traits, amended = dict(profile.traits), dict[str, Trait | None]()
    for old in sorted((row for row in rows if row.id in over), key=lambda row: row.recorded_at):
        about = [
            row for row in rows if row.predicate == old.predicate and predicates.same_text(row.subject, old.subject)
        ]
        current = [row for row in about if row.superseded_at is None and row.is_valid_at(now)]
        if any(predicates.same_text(row.object, old.object) for row in current):
            continue
        sources = {source for row in about for source in row.sources}
        for name, trait in traits.items():
            is_named = predicates.canonical(name.rpartition(" ")[2]) == old.predicate
            if is_named or not sources.isdisjoint(trait.evidence):
                value = _amended(trait.value, old.object, _successor(old, about, current))
                if value != trait.value:
                    amended[name] = (
                        None if value in (None, [], {}) else replace(trait, value=value, last_message_at=None)
                    )
        traits = {name: trait for name, trait in {**traits, **amended}.items() if trait is not None}
    return amended


def updated_traits(
    profile: Profile, rows: Sequence[Fact], *, now: datetime, follows_facts: bool = False
) -> Mapping[str, Trait]:
    """The traits that a newer fact replaces, with its object.

    These are traits of the user that are named as a predicate with one value at a time. The fact is newer if it begins
    after the last message of the trait, or if a call has changed the trait since. `rows` are all facts of the user.
    With `follows_facts` so is every other value whose messages are sources of facts of the predicate: the traits are
    made by the rules of the facts, which have times.
    """
    current = {
        row.predicate: row
        for row in rows
        if row.subject == USER and row.cardinality is Cardinality.SINGLE
        if row.superseded_at is None and row.is_valid_at(now)
    }
    read: dict[str, set[EpisodeId]] = {}
    for row in rows if follows_facts else ():
        read.setdefault(row.predicate, set()).update(row.sources)
    found = {}
    for name, trait in profile.traits.items():
        if follows_facts and (text := _dated_by_facts(trait, predicates.canonical(name), rows)) != trait.value:
            found[name] = replace(trait, value=text)
        fact, last = current.get(predicates.canonical(name)), trait.last_message_at
        if fact is None or not isinstance(trait.value, str) or (fact.valid_from is None and not follows_facts):
            continue
        is_read = bool(trait.evidence) and read.get(fact.predicate, set()).issuperset(trait.evidence)
        is_newer = is_read or last is None or (fact.valid_from is not None and fact.valid_from > last)
        if is_newer and not predicates.same_text(trait.value, fact.object):
            found[name] = replace(trait, value=fact.object, evidence=fact.sources, last_message_at=None)
    return found


def _dated_by_facts(trait: Trait, predicate: str, rows: Sequence[Fact]) -> Json:
    """A value like "no longer Acme since 2026-03-02" with the end that the fact has."""
    over = _NO_LONGER.fullmatch(trait.value) if isinstance(trait.value, str) else None
    ends = [
        row.valid_to
        for row in rows
        if over is not None and row.superseded_at is None and row.subject == USER and row.predicate == predicate
        if row.valid_to is not None and predicates.same_text(row.object, over["object"])
    ]
    return f"no longer {over['object']} since {max(ends).date()}" if over is not None and ends else trait.value


def replaced_by_calls(
    rows: Sequence[Fact], said: Sequence[RecordedAssertion], ids: Collection[EpisodeId]
) -> set[FactId]:
    """Superseded rows, drawn from one of these episodes, whose end was stated by a call and not by a message."""
    stated = {_key(row.subject, row.predicate, row.recorded_at) for row in rows if row.extractor == BY_USER}
    ended = {
        _key(one.claim.subject, one.claim.predicate, predicates.folded(one.claim.object))
        for one in said
        if one.extractor == BY_USER and (one.claim.operation is Operation.RETRACT or one.claim.valid_to is not None)
    }
    return {
        row.id
        for row in rows
        if row.superseded_at is not None
        and not set(ids).isdisjoint(row.sources)
        and (
            _key(row.subject, row.predicate, row.superseded_at) in stated
            or _key(row.subject, row.predicate, predicates.folded(row.object)) in ended
        )
    }


def _key(subject: str, predicate: str, rest: object) -> tuple[str, str, object]:
    return predicates.folded(subject), predicate, rest


def _successor(old: Fact, about: Sequence[Fact], current: Sequence[Fact]) -> str | None:
    """The object of the current row that took its place, perhaps after others; None if none did."""
    for row in about:
        if row.recorded_at != old.superseded_at or predicates.same_text(row.object, old.object):
            continue
        if row in current:
            return row.object
        if row.superseded_at != row.recorded_at and (found := _successor(row, about, current)):
            return found
    return None


def _amended(value: Json, old: str, new: str | None) -> Json:
    """A value without a text, or with another in its place; None where nothing else is left."""
    if isinstance(value, str):
        quoted = re.compile(rf"(?<!\w){re.escape(old)}(?!\w)", re.IGNORECASE)
        changed, count = quoted.subn(lambda _: new or "", value)
        if not count and not predicates.same_text(value, old):
            return value
        return changed if count and new is not None else new
    if isinstance(value, list):
        kept = [_amended(each, old, new) for each in value]
        return [each for number, each in enumerate(kept) if each is not None and each not in kept[:number]]
    if isinstance(value, Mapping):
        return {name: left for name, each in value.items() if (left := _amended(each, old, new)) is not None}
    return value
