"""What mining a session and mining it anew have in common: the question, and the writing of what was decided."""

from collections.abc import Sequence
from uuid import UUID

from uuid6 import uuid7

from aftermind.claims.decide import Changes
from aftermind.db.base import Transaction
from aftermind.ledger.base import Spent
from aftermind.llm import trust
from aftermind.llm.base import Extraction, ExtractionRequest, Extractor, TurnText, Usage
from aftermind.types import Episode, FactId, Scope
from aftermind_tasks.runtime import Runtime

KNOWN = 50  # facts that the model is shown: what is believed of the subjects, the latest first


async def ask(runtime: Runtime, extractor: Extractor, scope: Scope, episodes: Sequence[Episode]) -> Extraction:
    """The model's claims about episodes; it is not asked where nobody spoke who may speak for the user."""
    turns = [_text(episode) for episode in episodes]
    if not any(turn.trusted for turn in turns):
        reason = "nobody spoke who may speak for the user"
        return Extraction(claims=(), reason_empty=reason, usage=Usage(model="none"))
    async with runtime.db.transaction(namespace=scope.namespace, read_only=True) as tx:
        known = await runtime.store.facts(tx, scope.owner, limit=KNOWN)
        summary = await runtime.store.summary(tx, scope.owner, scope.session_id)
    request = ExtractionRequest(
        turns=turns, known=known, summary=None if summary is None else summary.text, now=runtime.clock.utc_now()
    )
    return await extractor.extract(request)


async def write(runtime: Runtime, tx: Transaction, owner: Scope, changes: Changes) -> None:
    """Write what was decided."""
    now = runtime.clock.utc_now()
    await runtime.store.add_facts(tx, changes.added)
    for old, follower in changes.superseded.items():
        await runtime.store.supersede_facts(tx, owner, [old], at=now, by_id=follower)
    for one in changes.strengthened:
        await runtime.store.strengthen_fact(tx, owner, one.fact_id, sources=one.sources, confidence=one.confidence)


def new_fact_id() -> FactId:
    """A fresh id."""
    return FactId(UUID(bytes=uuid7().bytes))


def spent(usage: Usage) -> Spent:
    """What a call cost, as the ledger keeps it."""
    return Spent(
        model=usage.model, tokens_in=usage.tokens_in, tokens_out=usage.tokens_out, cost_usd=usage.cost_usd or 0.0
    )


def _text(episode: Episode) -> TurnText:
    return TurnText(
        id=episode.id,
        role=episode.role,
        name=episode.name,
        content=episode.content,
        occurred_at=episode.occurred_at,
        trusted=episode.mark is None and trust.may_become_fact(episode.role, episode.metadata),
    )
