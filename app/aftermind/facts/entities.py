"""Several names of one entity: a call states that they are the same, and facts are resolved under one of them.

An alias is itself a fact ("Mel" `same_as` "Melanie"), so it is stored, exported, retracted and erased like any other.
Only aliases that a call has stated count: a message must not be able to merge two people.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from aftermind.facts.apply_assertions import fold
from aftermind.facts.bitemporal_resolution import Changes, assertions_for, fact_group_key, group_key, reconcile
from aftermind.facts.predicates import canonical, folded
from aftermind.types import Fact, FactId, Scope
from aftermind.types.assertion import BY_USER, Assertion, RecordedAssertion

SAME_AS = "same_as"

Aliases = Mapping[str, str]  # from a folded name to the name of its entity


def aliases_of(facts: Iterable[Fact]) -> Aliases:
    """The aliases among facts that are believed and valid; an alias of an alias leads to the last name."""
    stated = {
        folded(fact.subject): fact.object
        for fact in facts
        if fact.predicate == SAME_AS
        and fact.extractor == BY_USER
        and fact.superseded_at is None
        and fact.valid_to is None
    }
    return {name: _last(name, stated) for name in stated}


def entity_name(name: str, aliases: Aliases) -> str:
    """The name of the entity that a name refers to: itself without an alias."""
    return aliases.get(folded(name), name)


def rename(claim: Assertion, aliases: Aliases) -> Assertion:
    """The claim about the entities that its names refer to."""
    if not aliases or canonical(claim.predicate) == SAME_AS:
        return claim
    subject, object_ = entity_name(claim.subject, aliases), entity_name(claim.object, aliases)
    return (
        claim
        if (subject, object_) == (claim.subject, claim.object)
        else replace(claim, subject=subject, object=object_)
    )


def merge(
    aliases: Aliases,
    believed: Sequence[Fact],
    recorded: Sequence[RecordedAssertion],
    *,
    owner: Scope,
    now: datetime,
    new_id: Callable[[], FactId],
) -> Changes:
    """Move every assertion of the owner to the names of their entities, and resolve the facts again.

    Of a single-valued predicate the latest object of all names remains current. Sources and times stay.
    """
    stored = {one.id for one in recorded}
    everything = assertions_for(believed, recorded)
    moved = {one.id: renamed for one in everything if (renamed := rename(one.claim, aliases)) is not one.claim}
    kept = [one for one in everything if one.id not in moved]
    new = [replace(one, id=UUID(str(new_id())), claim=moved[one.id]) for one in everything if one.id in moved]
    touched = {group_key(one.claim) for one in everything if one.id in moved} | {group_key(one.claim) for one in new}
    changes = Changes(unsaid=[id_ for id_ in moved if id_ in stored])
    for group in sorted(touched):
        mine = [one for one in (*kept, *new) if group_key(one.claim) == group]
        changes.said += [one for one in mine if one.id not in stored]
        rows = [fact for fact in believed if fact_group_key(fact) == group]
        reconcile(rows, fold(mine, owner=owner, now=now), changes, new_id)
    return changes


def _last(name: str, stated: Mapping[str, str]) -> str:
    seen = {name}
    while (following := folded(stated[name])) in stated and following not in seen:
        seen.add(following)
        name = following
    return stated[name]
