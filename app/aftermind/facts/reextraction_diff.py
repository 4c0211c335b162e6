"""The result for facts when their episodes are extracted again: repeated ones stay, the others are superseded."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from aftermind.facts.apply_assertions import effective_start, fold
from aftermind.facts.bitemporal_resolution import Changes, Group, assertions_for, decide, group_key
from aftermind.types import Cardinality, Episode, EpisodeId, Fact, FactId, Scope
from aftermind.types.assertion import BY_USER, Assertion, Operation, RecordedAssertion


def redo(
    claims: Iterable[Assertion],
    believed: Sequence[Fact],
    *,
    said: Sequence[RecordedAssertion] = (),
    mined: frozenset[EpisodeId],
    owner: Scope,
    now: datetime,
    extractor: str,
    new_id: Callable[[], FactId],
    cardinalities: Mapping[str, Cardinality] | None = None,
) -> Changes:
    """The rows to write when `claims` replace the results of the earlier extraction of the `mined` episodes.

    Assertions with other sources, and those stated by a call, stay. So do a user's retractions: no other model restores
    a fact that the user has corrected. Nothing is deleted: a fact that is not asserted again is superseded without a
    successor.
    """
    everything = assertions_for(believed, said)
    former = frozenset(one.id for one in everything if _comes_from(one, mined))
    return decide(
        claims,
        believed,
        said=said,
        owner=owner,
        now=now,
        extractor=extractor,
        new_id=new_id,
        cardinalities=cardinalities,
        unsaid=former,
    )


def believed_before(
    episodes: Sequence[Episode],
    believed: Sequence[Fact],
    *,
    said: Sequence[RecordedAssertion],
    owner: Scope,
    now: datetime,
) -> list[Fact]:
    """The facts that were current at the time of one of `episodes`, as without them; the latest first.

    An ending or a correction ("Rex died") is about such a fact, which its first extraction has ended. Later assertions
    do not count, except for those of calls, which state facts of any time.
    """
    ids, times = {episode.id for episode in episodes}, [episode.occurred_at for episode in episodes]
    groups: dict[Group, list[RecordedAssertion]] = {}
    for one in assertions_for(believed, said):
        is_of_call = one.extractor == BY_USER and one.claim.operation is Operation.ASSERT
        if (one.claim.said_at <= max(times) or is_of_call) and ids.isdisjoint(one.claim.sources):
            groups.setdefault(group_key(one.claim), []).append(one)
    facts = [fact for group in groups.values() for fact in fold(group, owner=owner, now=now)]
    current = [replace(fact, valid_to=None) for fact in facts if fact.valid_to is None or fact.valid_to > min(times)]
    return sorted(current, key=effective_start, reverse=True)


def _comes_from(one: RecordedAssertion, mined: frozenset[EpisodeId]) -> bool:
    sources = one.claim.sources
    is_drawn = one.extractor != BY_USER and bool(sources) and one.claim.operation is Operation.ASSERT
    return is_drawn and mined.issuperset(sources)
