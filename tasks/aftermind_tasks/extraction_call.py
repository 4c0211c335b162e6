"""Common part of extraction and re-extraction: the model call, and writing the resolved facts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.facts.bitemporal_resolution import Changes
from aftermind.facts.learned_procedures import LEARNED_CONFIDENCE, PROCEDURE, find_procedures
from aftermind.facts.reextraction_diff import believed_before
from aftermind.ledger.protocol import ModelUsage
from aftermind.llm import text_process_pool
from aftermind.llm.grounding import ground
from aftermind.llm.injection import detect
from aftermind.llm.protocols import Extraction, ExtractionRequest, Extractor, TurnText, Usage
from aftermind.ranking.tokenizer import terms
from aftermind.stores import apply_fact_changes
from aftermind.stores.protocol import ExtractionBatch
from aftermind.types import (
    Cardinality,
    Episode,
    EpisodeId,
    Fact,
    FactId,
    JobKind,
    Json,
    Lease,
    Role,
    Scope,
)
from aftermind.types.assertion import Assertion
from aftermind.types.message import UNDONE
from aftermind.types.uuid7 import uuid7
from aftermind_tasks.job_outcome_types import Snooze
from aftermind_tasks.runtime import Runtime

KNOWN = 50  # facts that the model is shown: those with words of the turns first, then the latest
CHARACTERS_PER_TOKEN = 3  # fewer than any text has on average
MAX_REJECTED_CHARACTERS = 20_000  # of an unusable answer, or of a provider's message, that a dead letter keeps
FACTS, SUMMARY, PROFILE = "facts", "summary", "profile"  # as `save=` names them
HISTORY = "history"
UNKNOWN_SPEAKER = "none"  # the model of an answer without a model call
MAX_FACTS_READ = 1_000  # facts of the owner among which those are chosen


async def ask(
    runtime: Runtime, extractor: Extractor, scope: Scope, episodes: Sequence[Episode], *, is_repeated: bool = False
) -> Extraction:
    """The claims that the episodes' own words bear out; no model is asked where none of them may speak for the user.

    The extractor is given what is believed, or, where the extraction is repeated, what was believed before it. Every
    extractor's claims pass `grounding.ground` here, whichever job asks.
    """
    turns = [to_turn_text(episode) for episode in visible_episodes(episodes, FACTS)]
    if not any(turn.trusted for turn in turns):
        reason = "no message of the user or of a trusted tool"
        return Extraction(claims=(), reason_empty=reason, usage=Usage(model=UNKNOWN_SPEAKER))
    await check_budget(runtime, scope)
    async with runtime.db.transaction(namespace=scope.namespace, read_only=True) as tx:
        believed = await runtime.store.facts(tx, scope.owner, limit=MAX_FACTS_READ)
        if is_repeated:
            said = await runtime.store.recorded_assertions(tx, scope.owner)
            now = runtime.clock.utc_now()
            believed = believed_before(episodes, believed, said=said, owner=scope.owner, now=now)[:MAX_FACTS_READ]
    known = await related(believed, turns, language=runtime.settings.language_for(scope.namespace))
    with evidence_of_failures(episodes, FACTS):
        extraction = await extractor.extract(ExtractionRequest(turns=turns, known=known, now=runtime.clock.utc_now()))
    subjects = {fact.subject for fact in known}
    claims = await ground(extraction.claims, turns, subjects=subjects)
    if runtime.settings.learn_procedures:
        claims = (*claims, *_procedures(visible_episodes(episodes, FACTS)))
    if claims or not extraction.claims:
        return replace(extraction, claims=claims)
    return replace(extraction, claims=(), reason_empty="no claim was in the words of a trusted turn")


@contextmanager
def evidence_of_failures(episodes: Sequence[Episode], kind: str) -> Iterator[None]:
    """Let a dead letter keep an unusable answer of a model, or its provider's message.

    It has the ids of the episodes, so that an erasure of one of them deletes it too.
    """
    try:
        yield
    except (errors.BadModelAnswer, errors.BadModelRequest) as exc:
        if exc.answer is not None:
            exc.evidence = build_answer(episodes, kind, rejected=exc.answer[:MAX_REJECTED_CHARACTERS])
        raise


def _procedures(episodes: Sequence[Episode]) -> list[Assertion]:
    """What users want to be done in general, by rules, whatever the extractor."""
    return [
        Assertion(
            subject=trigger,
            predicate=PROCEDURE,
            object=action,
            said_at=episode.occurred_at,
            confidence=LEARNED_CONFIDENCE,
            cardinality=Cardinality.MULTI,
            sources=(episode.id,),
        )
        for episode in episodes
        if episode.role is Role.USER
        for trigger, action in find_procedures(episode.content)
    ]


def visible_episodes(episodes: Sequence[Episode], kind: str) -> list[Episode]:
    """Those that a model may see which is asked for a kind of `save=`: not marked, and kept for that kind."""
    return [episode for episode in episodes if episode.mark is None and kind in episode.keep]


async def record_batch(
    runtime: Runtime, tx: Transaction, lease: Lease, kind: JobKind, model: object, ids: Sequence[EpisodeId]
) -> None:
    """Record in the effect's transaction what its model was shown together, for an undo of one of them.

    Nothing where the model reads each turn by itself: none could change what came of another.
    """
    if ids and not getattr(model, "reads_turns_apart", False):
        scope = lease.job.scope
        batch = ExtractionBatch(job_id=lease.job.id, kind=kind, session_id=scope.session_id, shown=tuple(ids))
        await runtime.store.note_batch(tx, scope.owner, batch)


def is_void(answer: Mapping[str, Any], there: Sequence[Episode]) -> bool:  # Any: JSON that is kept with a job
    """Whether an episode was undone since a model was shown it: what the model answered is not to be written."""
    seen = set(answer.get("shown", ()))
    return any(episode.mark == UNDONE and str(episode.id) in seen for episode in there)


def build_answer(episodes: Sequence[Episode], kind: str, **more: Json) -> dict[str, Json]:
    """What a job keeps of a model's answer: what it is about, what the model was shown of that, and the answer."""
    seen = [str(episode.id) for episode in visible_episodes(episodes, kind)]
    return {"episodes": [str(episode.id) for episode in episodes], "shown": seen, **more}


class AnswerVoid(Exception):
    """What a model was shown was undone before its answer could be written: it is asked again, without that."""

    outcome = Snooze(after=timedelta(0), why="the source messages were undone during the call", is_own=True)


async def check_budget(runtime: Runtime, scope: Scope, *, tokens: bool = True) -> None:
    """Raise `BudgetExhausted` if the namespace has used its model budget of today: its jobs then wait.

    `tokens` False checks only dollars: embeddings are not in the budget of tokens.
    """
    budget = runtime.settings.budget_for(scope.namespace)
    if not (tokens and budget.tokens_per_day) and not budget.usd_per_day:
        return
    rows = await runtime.ledger.spending(scope.namespace, since=None)
    said = [row.spent for row in rows if row.kind is not JobKind.EMBED] if tokens else []
    used = sum(spent.tokens_in + spent.tokens_out for spent in said)
    limit = budget.reached_limit(tokens=used, usd=sum(row.spent.cost_usd for row in rows))
    if limit is not None:
        raise errors.BudgetExhausted(scope.namespace, *limit)


def episode_ids(answer: Mapping[str, Any], which: str = "episodes") -> list[EpisodeId]:  # Any: JSON kept with a job
    """The episodes that a kept answer is about, or those that the model was `visible_episodes`."""
    return [EpisodeId(UUID(text)) for text in answer.get(which, ())]


async def related(known: Sequence[Fact], turns: Sequence[TurnText], *, language: str) -> list[Fact]:
    """At most `KNOWN` of the facts: those that share words with the turns, then the latest.

    Long texts are compared in a process for texts; the latest facts are taken if that exceeds its deadline.
    """
    if len(known) <= KNOWN:
        return list(known)
    facts, contents = [fact.text for fact in known], [turn.content for turn in turns]
    characters = sum(map(len, (*facts, *contents)))
    if characters <= text_process_pool.INLINE_CHARACTERS:
        places = _related_places(facts, contents, language)
    else:
        try:
            places = await text_process_pool.run(characters, _related_places, facts, contents, language)
        except text_process_pool.TextTimeout:
            places = list(range(KNOWN))
    return [known[place] for place in places]


def _related_places(facts: Sequence[str], contents: Sequence[str], language: str) -> list[int]:
    said = {term for content in contents for term in terms(content, language)}
    shared = [len(said.intersection(terms(text, language))) for text in facts]
    return sorted(sorted(range(len(facts)), key=lambda place: (-shared[place], place))[:KNOWN])


async def write(runtime: Runtime, tx: Transaction, owner: Scope, changes: Changes) -> None:
    """Write what was decided. A fact ends at the time at which the one that replaces it was recorded."""
    at = max((fact.recorded_at for fact in changes.added), default=runtime.clock.utc_now())
    await apply_fact_changes.write(runtime.store, tx, owner, changes, at=at)


def first(episodes: Sequence[Episode], *, tokens: int) -> list[Episode]:
    """As many episodes from the beginning as fit into the tokens of a prompt; at least one."""
    chosen: list[Episode] = []
    size = 0
    for episode in episodes:
        size += len(episode.content) // CHARACTERS_PER_TOKEN + 1
        if chosen and size > tokens:
            break
        chosen.append(episode)
    return chosen


def new_fact_id() -> FactId:
    """A fresh id."""
    return FactId(uuid7())


async def save_answer(runtime: Runtime, lease: Lease, answer: Mapping[str, Json], usage: Usage) -> None:
    """Keep a model's answer with its job, and count what it cost. Raises `LeaseLost`."""
    cost = spent(usage)
    await runtime.ledger.save_answer(lease, answer, spent=cost)
    runtime.observer.spent(lease.job.kind, cost)


def spent(usage: Usage) -> ModelUsage:
    """What a call cost, as the ledger keeps it."""
    return ModelUsage(
        model=usage.model,
        calls=usage.calls if usage.model != UNKNOWN_SPEAKER else 0,
        tokens_in=usage.tokens_in,
        tokens_out=usage.tokens_out,
        cost_usd=usage.cost_usd or 0.0,
        latency_ms=usage.latency_ms,
    )


def to_turn_text(episode: Episode) -> TurnText:
    """An episode as a model sees it."""
    return TurnText(
        id=episode.id,
        role=episode.role,
        name=episode.name,
        content=episode.content,
        occurred_at=episode.occurred_at,
        trusted=episode.mark is None and detect.may_become_fact(episode.role, episode.metadata),
    )
