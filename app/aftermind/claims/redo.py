"""What becomes of facts when their episodes are mined anew: what is said again stays, the rest is believed no more."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from aftermind.claims import predicates
from aftermind.claims.decide import Changes, decide
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Scope
from aftermind.types.claim import Claim

TOLD = "user"  # the extractor of facts that somebody told by a call: no mining takes them back


def redo(
    claims: Iterable[Claim],
    believed: Sequence[Fact],
    *,
    mined: frozenset[EpisodeId],
    owner: Scope,
    now: datetime,
    extractor: str,
    new_id: Callable[[], FactId],
    cardinalities: Mapping[str, Cardinality] | None = None,
) -> Changes:
    """The rows to write when `claims` take the place of what was drawn from the `mined` episodes before.

    Facts with a source beside them, and facts that were told, stay. Nothing is deleted: a fact that is not claimed
    again is superseded without a follower.
    """
    former = [fact for fact in believed if _is_of(fact, mined)]
    rest = [fact for fact in believed if fact not in former]
    changes = decide(
        claims, rest, owner=owner, now=now, extractor=extractor, new_id=new_id, cardinalities=cardinalities
    )
    kept: set[FactId] = set()
    followers = set(changes.superseded.values())
    for added in list(changes.added):
        same = next((fact for fact in former if fact.id not in kept and _says_the_same(fact, added)), None)
        if same is not None and added.id not in followers:
            kept.add(same.id)
            changes.added.remove(added)
    changes.superseded.update({fact.id: None for fact in former if fact.id not in kept})
    sources = {fact.id: set(fact.sources) for fact in rest}
    changes.strengthened = [
        one for one in changes.strengthened if not set(one.sources) <= sources.get(one.fact_id, set())
    ]
    return changes


def _is_of(fact: Fact, mined: frozenset[EpisodeId]) -> bool:
    return fact.extractor != TOLD and bool(fact.sources) and mined.issuperset(fact.sources)


def _says_the_same(one: Fact, other: Fact) -> bool:
    return (
        one.predicate == other.predicate
        and predicates.same_text(one.subject, other.subject)
        and predicates.same_text(one.object, other.object)
        and (one.valid_from, one.valid_to) == (other.valid_from, other.valid_to)
    )
