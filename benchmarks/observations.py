"""Observations of a conversation as facts: a scripted model answers with them, extraction jobs draw and store them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aftermind import Memory
from aftermind.db.engine import PostgresDatabase
from aftermind.events.bus import EventBus
from aftermind.ledger.postgres.ledger import PostgresLedger
from aftermind.llm import factory
from aftermind.settings import Settings
from aftermind.stack import Endpoints
from aftermind.stores.postgres import PostgresStore
from aftermind.types import Episode, EpisodeId, JobKind, Scope
from aftermind.wire.redis.client import RedisLink
from aftermind.wire.redis_keys import Keys
from aftermind_tasks import followup_jobs
from aftermind_tasks.inmemory import open_work
from tests.support.scripted_openai import scripted_openai

PREDICATE = "observed"  # of no special meaning: several at a time, and none ends another


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A sentence about a speaker, and the turns that say so."""

    owner: Scope
    speaker: str
    text: str
    evidence: Sequence[Episode] = field(default=())

    @property
    def claim(self) -> dict[str, Any]:  # Any: JSON of the model's answer
        """What the model answers where it is shown a turn that says so."""
        return {"subject": self.speaker, "predicate": PREDICATE, "object": self.text}


def observed(
    owner: Scope, sessions: Sequence[Mapping[str, Any]], by_name: Mapping[str, Episode]
) -> list[Observation]:  # Any: JSON as it comes
    """The observations whose evidence is there."""
    found = []
    for session in sessions:
        for each in session.get("observations", ()):
            evidence = [by_name[name] for name in each["evidence"] if name in by_name]
            if evidence:
                found.append(Observation(owner=owner, speaker=each["speaker"], text=each["fact"], evidence=evidence))
    return found


async def learn(at: Endpoints, observations: Sequence[Observation]) -> None:
    """Let extraction jobs draw them: one for each session, in this process, by a scripted model."""
    with scripted_openai() as model:
        for each in observations:
            for episode in each.evidence:
                model.script.facts.setdefault(episode.content, []).append(each.claim)
        settings = Settings(extractor="openai:scripted", OPENAI_API_KEY="k", OPENAI_BASE_URL=model.url)
        db = PostgresDatabase(at.relay_url, timeout_seconds=30.0, application_name="observations")
        link = RedisLink(at.redis_url, timeout=5.0, name="observations")
        ledger, events = PostgresLedger(db), EventBus(db, link, Keys())
        extractor: Any = factory.extractor(settings)  # Any: its client is to be closed
        work = open_work(
            settings=settings, db=db, store=PostgresStore(), ledger=ledger, events=events, extractor=extractor
        )
        sessions = {episode.scope for each in observations for episode in each.evidence}
        async with db.transaction() as tx:
            await ledger.enqueue(tx, [followup_jobs.job(JobKind.EXTRACT, scope) for scope in sessions])
        while await work():
            pass
        for close in (extractor._client.close, events.close, link.close, db.close):
            await close()


async def unreachable(memory: Memory, observations: Sequence[Observation]) -> int:
    """How many are not among the facts, or not led back to their evidence by `facts.why`."""
    missing = 0
    for owner in {each.owner for each in observations}:
        facts = await memory.facts.query(user_id=owner.user_id, predicate=PREDICATE, limit=100_000)
        sources: dict[tuple[str, str], set[EpisodeId]] = {}
        for fact in facts:
            why = await memory.facts.why(fact, user_id=owner.user_id)
            sources[fact.subject, fact.object] = {episode.id for episode in why.episodes} if why else set()
        for each in observations:
            if each.owner == owner:
                found = sources.get((each.speaker, each.text.strip()), set())
                missing += not found.issuperset(episode.id for episode in each.evidence)
    return missing
