"""Gold sets without labels: each fact is a question, and its sources are the evidence."""

from collections.abc import Sequence

from aftermind.evaluation.datasets import GoldConversation, GoldQuestion
from aftermind.memory import Memory
from aftermind.types import Fact

FACTS_READ = 10_000  # of one user
USERS_READ = 1_000


async def draw(memory: Memory, users: Sequence[str | None], *, namespace: str | None = None) -> list[GoldConversation]:
    """The gold sets of these users: subject and predicate of each fact as question, `facts.why` as evidence.

    Facts that were added by a call have no source and are left out.
    """
    found = []
    for user_id in users:
        facts = await memory.facts.query(user_id=user_id, namespace=namespace, limit=FACTS_READ)
        questions = await _questions(memory, facts, user_id, namespace)
        if questions:
            found.append(GoldConversation(user_id=user_id, questions=questions))
    return found


async def every_user(memory: Memory, *, namespace: str | None = None) -> list[str | None]:
    """All users of the namespace."""
    found: list[str | None] = []
    after: str | None = None
    while page := await memory.users(namespace=namespace, after=after, limit=USERS_READ):
        found += [each.user_id for each in page]
        after = page[-1].user_id or ""
    return found


async def _questions(
    memory: Memory, facts: Sequence[Fact], user_id: str | None, namespace: str | None
) -> list[GoldQuestion]:
    """One question for all objects of a subject and predicate: "Alice lives in"."""
    evidence: dict[tuple[str, str], dict[str, None]] = {}
    for fact in facts:
        why = await memory.facts.why(fact, user_id=user_id, namespace=namespace)
        if why is not None and why.episodes:
            ids = dict.fromkeys(str(episode.id) for episode in why.episodes)
            evidence.setdefault((fact.subject, fact.predicate), {}).update(ids)
    return [
        GoldQuestion(text=f"{subject} {predicate.replace('_', ' ')}", evidence=tuple(ids), category=predicate)
        for (subject, predicate), ids in evidence.items()
    ]
