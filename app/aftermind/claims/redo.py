"""What becomes of facts when their episodes are mined anew: what is said again stays, the rest is believed no more."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from aftermind.claims.decide import Changes, claims_of, decide
from aftermind.types import Cardinality, EpisodeId, Fact, FactId, Scope
from aftermind.types.claim import Claim, Operation, Said

TOLD = "user"  # the extractor of what somebody told by a call: no mining takes it back


def redo(
    claims: Iterable[Claim],
    believed: Sequence[Fact],
    *,
    said: Sequence[Said] = (),
    mined: frozenset[EpisodeId],
    owner: Scope,
    now: datetime,
    extractor: str,
    new_id: Callable[[], FactId],
    cardinalities: Mapping[str, Cardinality] | None = None,
) -> Changes:
    """The rows to write when `claims` take the place of what was drawn from the `mined` episodes before.

    What has a source beside them, and what was told by a call, stays said. So does what the user has taken back: no
    other model brings back a fact that the user has corrected. Nothing is deleted: a fact that is not claimed again is
    superseded without a follower.
    """
    everything = claims_of(believed, said)
    former = frozenset(one.id for one in everything if _is_of(one, mined))
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


def _is_of(one: Said, mined: frozenset[EpisodeId]) -> bool:
    sources = one.claim.sources
    is_drawn = one.extractor != TOLD and bool(sources) and one.claim.operation is Operation.ASSERT
    return is_drawn and mined.issuperset(sources)
