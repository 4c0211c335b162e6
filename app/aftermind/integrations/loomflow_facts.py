"""loomflow's fact store on the facts of a memory."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from xml.sax.saxutils import escape

from aftermind.integrations.framework_imports import extra
from aftermind.memory import Memory
from aftermind.ranking.tokenizer import terms
from aftermind.recall import RecallOptions
from aftermind.types import Fact as Known

with extra("loomflow"):
    from loomflow.core.types import Fact

MAX_FACTS = 100_000  # of a user


class AftermindFacts:
    """loomflow's `FactStore` on the facts of a memory."""

    def __init__(self, memory: Memory, namespace: str | None) -> None:
        self._memory, self._namespace = memory, namespace

    async def append(self, fact: Fact) -> str:
        """Add a fact; the id of the resulting one. A single-valued predicate ends what it contradicts."""
        found = await self._memory.facts.add(
            fact.subject,
            fact.predicate,
            fact.object,
            valid_from=fact.valid_from,
            valid_to=fact.valid_until,
            confidence=fact.confidence,
            user_id=fact.user_id,
            namespace=self._namespace,
        )
        return str(found.id)

    async def append_many(self, facts: Sequence[Fact]) -> list[str]:
        """Add facts."""
        return [await self.append(each) for each in facts]

    async def query(
        self,
        *,
        subject: str | None = None,
        predicate: str | None = None,
        object_: str | None = None,
        valid_at: datetime | None = None,
        limit: int = 10,
        user_id: str | None = None,
    ) -> list[Fact]:
        """Facts by their parts, newest first: those that are true at `valid_at`; without it, ended ones too.

        What Aftermind no longer believes is never returned.
        """
        whose: dict[str, Any] = {"user_id": user_id, "namespace": self._namespace}
        if valid_at is None:
            found = await self._memory.facts.history(subject, predicate, limit=MAX_FACTS, **whose)
            found = [each for each in found if each.superseded_at is None]
        else:
            found = await self._memory.facts.query(
                subject=subject, predicate=predicate, as_of=utc(valid_at), limit=MAX_FACTS, **whose
            )
        found.sort(key=lambda each: each.recorded_at, reverse=True)
        return [to_fact(each) for each in found if object_ is None or each.object == object_][:limit]

    async def recall_text(
        self, query: str, *, limit: int = 5, valid_at: datetime | None = None, user_id: str | None = None
    ) -> list[Fact]:
        """Facts that fit a query, best first. With `valid_at`, those that were true then, by common words."""
        if valid_at is None:
            options = RecallOptions(load=("facts",), limit=limit)
            found = await self._memory.recall_scored(query, user_id=user_id, namespace=self._namespace, **options)
            return [to_fact(each.item) for each in found if isinstance(each.item, Known)][:limit]
        wanted = set(terms(query))
        facts = await self.query(valid_at=valid_at, limit=MAX_FACTS, user_id=user_id)
        stated = {fact.id: f"{fact.subject} {fact.predicate} {fact.object}".replace("_", " ") for fact in facts}
        shared = {id_: len(wanted & set(terms(text))) for id_, text in stated.items()}
        return sorted((fact for fact in facts if shared[fact.id]), key=lambda fact: -shared[fact.id])[:limit]

    async def all_facts(self) -> list[Fact]:
        """The facts of the anonymous user; those of another user are read by `query`."""
        return await self.query(limit=MAX_FACTS)

    async def delete(self, *, user_id: str | None = None, before: datetime | None = None) -> int:
        """Retract facts, of those recorded before a time if given; how many."""
        found = await self.query(limit=MAX_FACTS, user_id=user_id)
        old = [each for each in found if before is None or each.recorded_at < utc(before)]
        # The earliest first: a fact that is retracted makes the one that it had ended true again.
        for each in sorted(old, key=lambda each: each.valid_from):
            await self._memory.facts.retract(each.id, user_id=user_id, namespace=self._namespace)
        return len(old)

    async def count(self, *, user_id: str | None = None) -> int:
        """How many facts there are, with ended ones."""
        return len(await self.query(limit=MAX_FACTS, user_id=user_id))

    async def aclose(self) -> None:
        """Nothing: the memory closes the connections."""


class EscapedFact(Fact):
    """A fact that is data of a prompt: its text is escaped and one line."""

    def format(self) -> str:
        """The text for a prompt."""
        return escape(" ".join(super().format().split()))


def to_fact(known: Known) -> Fact:
    """A fact as loomflow has it."""
    return EscapedFact(
        id=str(known.id),
        user_id=known.scope.user_id,
        subject=known.subject,
        predicate=known.predicate,
        object=known.object,
        confidence=known.confidence,
        valid_from=known.valid_from or known.recorded_at,
        valid_until=known.valid_to,
        recorded_at=known.recorded_at,
        sources=[str(each) for each in known.sources],
    )


def utc(moment: datetime) -> datetime:
    """A time without a zone is UTC for loomflow."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
