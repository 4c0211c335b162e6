"""What a profile loses or changes when a call ends a fact, or when a newer fact is there. Pure."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from pydantic import ConfigDict, TypeAdapter, ValidationError

from aftermind.facts import predicates
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Json, Profile, Trait
from aftermind.types.assertion import BY_USER, Operation, RecordedAssertion
from aftermind.types.fact import USER

Fitted = Callable[[str, Json], Json]  # a trait's value in the type of the profile's schema; None if it does not fit

_NO_LONGER = re.compile(r"no longer (?P<object>.+) since [\d-]{10}")  # as `llm.offline.summaries` writes it
_FINITE = ConfigDict(allow_inf_nan=False)
MAX_NUMBER = 2**63  # JSON is written by orjson, whose integers have 64 bits


def amended_traits(
    profile: Profile, over: Collection[FactId], rows: Sequence[Fact], *, now: datetime, fitted: Fitted
) -> Mapping[str, Trait | None]:
    """The traits that quote the object of a fact that is not true any more, with what took its place; None if nothing
    is left.

    `over` are superseded rows; those whose object is still true count for nothing. `rows` are all of the user. A trait
    rests on a fact if it draws on an episode of a row with the same subject and predicate, or is named as the predicate
    ("Melanie likes"). Numbers and booleans count only where it is so named: another one of the same message is often
    equal. Where the new object does not fit the trait, only the old one is removed.
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
                new = _successor(old, about, current)
                is_quoted = is_named and fitted(name, old.object) == trait.value
                value = new if is_quoted else _amended(trait.value, old.object, new, is_named=is_named)
                if value != trait.value:
                    value = fitted(name, value)
                    if value is None and not is_quoted:
                        value = fitted(name, _amended(trait.value, old.object, None, is_named=is_named))
                    # Without the messages of the new object as evidence, it would outlast their deletion.
                    stated = [each for row in current if row.object == new for each in row.sources]
                    evidence = tuple(dict.fromkeys([*trait.evidence, *stated]))
                    amended[name] = (
                        None
                        if value in (None, [], {})
                        else replace(trait, value=value, evidence=evidence, last_message_at=None)
                    )
        traits = {name: trait for name, trait in {**traits, **amended}.items() if trait is not None}
    return amended


def updated_traits(
    profile: Profile, rows: Sequence[Fact], *, now: datetime, fitted: Fitted, follows_facts: bool = False
) -> Mapping[str, Trait | None]:
    """The traits that a newer fact replaces, with its object.

    These are traits of the user that are named as a predicate with one value at a time. The fact is newer if it begins
    after the last message of the trait, or if a call has changed the trait since. `rows` are all facts of the user.
    With `follows_facts` so is every other value whose messages are sources of facts of the predicate: the traits are
    made by the rules of the facts, which have times. Lists then lose objects of facts that are over, so that an old
    message that is read again does not bring back what a later one has ended; None if nothing is left.
    A trait keeps its value where the object does not fit its type, as it does where a profiler's value does not fit.
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
    found = dict[str, Trait | None]()
    for name, trait in profile.traits.items():
        is_of_facts = read.get(predicates.canonical(name.rpartition(" ")[2]), set()).issuperset(trait.evidence)
        if follows_facts and is_of_facts and isinstance(trait.value, list):
            left = [each for each in trait.value if not _is_over(name, each, rows, now=now)]
            if len(left) < len(trait.value):
                found[name] = replace(trait, value=left) if left else None
        if follows_facts and (text := _dated_by_facts(trait, predicates.canonical(name), rows)) != trait.value:
            found[name] = replace(trait, value=text)
        fact, last = current.get(predicates.canonical(name)), trait.last_message_at
        if (
            fact is None
            or not isinstance(trait.value, str | int | float)
            or (fact.valid_from is None and not follows_facts)
        ):
            continue
        is_read = bool(trait.evidence) and read.get(fact.predicate, set()).issuperset(trait.evidence)
        is_newer = is_read or last is None or (fact.valid_from is not None and fact.valid_from > last)
        if is_newer and not _is_same(trait.value, fact.object):
            value = fitted(name, _typed(fact.object, trait.value))
            if isinstance(value, type(trait.value)) and value != trait.value:
                found[name] = replace(trait, value=value, evidence=fact.sources, last_message_at=None)
    return found


def _is_over(name: str, value: Json, rows: Sequence[Fact], *, now: datetime) -> bool:
    """Whether there were facts of this object of a trait, and all were retracted or have ended."""
    speaker, _, predicate = name.rpartition(" ")
    about = [
        row
        for row in rows
        if row.predicate == predicates.canonical(predicate)
        if predicates.same_text(row.subject, speaker or USER) and predicates.same_text(row.object, str(value))
    ]
    return bool(about) and all(
        row.superseded_at is not None or (row.valid_to is not None and row.valid_to <= now) for row in about
    )


def _dated_by_facts(trait: Trait, predicate: str, rows: Sequence[Fact]) -> Json:
    """A value like "no longer Acme since 2026-03-02" with the end that the fact has; the object if it has none."""
    over = _NO_LONGER.fullmatch(trait.value) if isinstance(trait.value, str) else None
    about = [
        row
        for row in rows
        if over is not None and row.superseded_at is None and row.subject == USER and row.predicate == predicate
        if predicates.same_text(row.object, over["object"])
    ]
    if over is None or not about:
        return trait.value
    ends = [row.valid_to for row in about if row.valid_to is not None]
    return over["object"] if len(ends) < len(about) else f"no longer {over['object']} since {max(ends).date()}"


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


def _amended(value: Json, old: str, new: str | None, *, is_named: bool) -> Json:
    """A value without a text, or with another in its place; None where nothing else is left."""
    if isinstance(value, int | float):
        if not is_named or not _is_same(value, old):
            return value
        return None if new is None else _typed(new, value)
    if isinstance(value, str):
        quoted = re.compile(rf"(?<!\w){re.escape(old)}(?!\w)", re.IGNORECASE)
        changed, count = quoted.subn(lambda _: new or "", value)
        if not count and not predicates.same_text(value, old):
            return value
        return changed if count and new is not None else new
    if isinstance(value, list):
        kept = [_amended(each, old, new, is_named=is_named) for each in value]
        return [each for number, each in enumerate(kept) if each is not None and each not in kept[:number]]
    if isinstance(value, Mapping):
        kept_items = {name: _amended(each, old, new, is_named=is_named) for name, each in value.items()}
        return {name: each for name, each in kept_items.items() if each is not None}
    return value


def _is_same(value: str | float, text: str) -> bool:
    return predicates.same_text(value, text) if isinstance(value, str) else _typed(text, value) == value


def _typed(text: str, like: str | float) -> str | float:
    """A text in the type of a value: "36" is a number where 34 was one. The text itself if it is none of that type."""
    if isinstance(like, str):
        return text
    try:
        number = TypeAdapter[float](type(like), config=_FINITE).validate_python(text)
    except ValidationError:
        return text
    return number if abs(number) < MAX_NUMBER else text
