"""How many of the turns that answer a question are among the first recalled, on conversations with known evidence.

    python -m benchmarks.recall_quality --data FILE [--embedder hash|local:PATH] [--ablation] [--json FILE]

Every conversation is a user of its own, every turn a message with its speaker's name, its session and its date.
Episodes are written as the store job writes them; every question goes through `Memory.recall`. The baselines use the
same rows: vectors alone, Postgres's `ts_rank`, and the usual fusion of BM25 and vectors by rank (k = 60). Questions of
category 5 have no evidence and are left out. The measures are defined in `aftermind/evaluation/measures.py`.
`--ablation` asks them again without each part of recall alone, and with each option that is off by default; that of
`benchmarks.fit_ranking` leaves out features.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from aftermind import Memory
from aftermind.db import migrate
from aftermind.db.engine import PostgresDatabase
from aftermind.evaluation import locomo
from aftermind.evaluation.measures import DEPTHS, Measures, mean, measure, share_found
from aftermind.evaluation.run import turns_of
from aftermind.llm import factory
from aftermind.llm.protocols import Embedder, embedder_identity
from aftermind.ranking import compares_sentences, models_of, reciprocal_rank, spoken, terms
from aftermind.ranking.bm25 import bm25, idf
from aftermind.ranking.passages import SpokenTexts
from aftermind.recall.question_time import QuestionTime
from aftermind.settings import Settings
from aftermind.stack import Endpoints
from aftermind.stores import feedback_counts
from aftermind.stores.postgres import PostgresStore
from aftermind.types import Episode, EpisodeId, Role, Scope
from aftermind.types.feedback import Feedback
from aftermind.types.message import new_ids
from benchmarks.common import Report, arguments, embedded_stack, redis_facts
from benchmarks.embeddings import CachedEmbedder
from benchmarks.observations import Observation, learn, observed, unreachable
from benchmarks.perturbed import MOST_PARTS, PART, perturb
from benchmarks.synthetic import connect

BUDGETS = (500, 1_000)  # tokens of a block
TIGHT = 500  # tokens of a block in which facts and turns compete
TARGETS = {
    "local": {"recall@5": 0.70, "recall@10": 0.82, "in_block@500": 0.79, "in_block@1000": 0.86},
    "hash": {"recall@10": 0.77, "in_block@500": 0.74, "in_block@1000": 0.82},
}
CATEGORY_TARGETS = {"local": {1: 0.56}}  # recall@10
# Parts of recall, and what replaces them where they are left out.
PARTS: Mapping[str, Mapping[str, object]] = {
    "messages as lines": {"aftermind.recall.render._is_plain": lambda *_: False},
    "names once in a row": {
        "aftermind.recall.render.continues": lambda *_: False,
        "aftermind.recall.token_budget.continues": lambda *_: False,
    },
    "value per token": {"aftermind.recall.token_budget.COST_POWER": 0.0},
    "other messages of bursts": {"aftermind.recall.match_selection.OF_BURST": 0.0},
    "the time of the question": {"aftermind.recall.question_time.QuestionTime.of": lambda *_: QuestionTime()},
    "other sessions": {"aftermind.recall.pipeline.asks_about_all_sessions": lambda _: False},
    "names in turns": {"aftermind.recall.match_selection.NAMING": 0.0},
    "nicknames and misspelt names": {"aftermind.ranking.candidate_arrays.capitalised_words": lambda _: frozenset()},
    "bursts as utterances": {"aftermind.ranking.turn_features.BURST": 1},
    "windows that end at pauses": {"aftermind.ranking.turn_features.PAUSE_SECONDS": float("inf")},
    "the least probability of a turn": {"aftermind.recall.pipeline.NOISE": 0.0},
}
# Settings that are off by default, each alone.
OPTIONS: Mapping[str, Mapping[str, float]] = {
    "a half-life of 90 days": {"recall_half_life_days": 90},
    "feedback, weight 0.25": {"recall_feedback_weight": 0.25},
    "feedback, weight 0.5": {"recall_feedback_weight": 0.5},
    "feedback, weight 1": {"recall_feedback_weight": 1.0},
}
Results = list[tuple[str, int, Measures]]  # of each question: user, category, measures
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question, the turns that answer it, and how many were named (some may not exist)."""

    text: str
    category: int
    evidence: frozenset[EpisodeId]
    named: int


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """One conversation as a user has it."""

    owner: Scope
    episodes: Sequence[Episode]
    questions: Sequence[Asked]
    observations: Sequence[Observation] = ()
    origins: Mapping[EpisodeId, EpisodeId] = field(default_factory=dict)  # of parts of a turn: its first part

    @cached_property
    def sessions(self) -> Mapping[EpisodeId, str]:
        """The session of each episode; of one thread, the day."""
        return {each.id: f"{each.scope.session_id} {each.occurred_at.date()}" for each in self.episodes}


def main() -> int:
    """Load, ask, compare, print, write."""
    given = arguments("Recall of the evidence of known questions.", more=_more)
    data = json.loads(given.data.read_text())
    if given.perturbed is not None:
        data = [perturb(each, given.perturbed) for each in data]
    conversations = [read_conversation(each) for each in data]
    if given.quick:
        conversations = conversations[:2]
    report = Report(title="Recall quality", facts={"embedder": given.embedder, "data": given.data.name})
    asyncio.run(_measure(conversations, given.embedder, report, facts=given.facts is not None, ablation=given.ablation))
    return report.finish(given.json)


async def _with_facts(
    at: Endpoints, memory: Memory, conversations: Sequence[Conversation], report: Report, without: Results
) -> None:
    """The same questions once the observations are facts, in one ranking with the turns."""
    said = [each for conversation in conversations for each in conversation.observations]
    await learn(at, said)
    results = await ask(conversations, by_memory(memory, load=["history", "facts"]))
    before = _halves(conversations, without)
    for name, found in _halves(conversations, results).items():
        report.add(f"with facts {name} recall@10", found["recall@10"], at_least=before[name]["recall@10"])
    tight = [by_memory(memory, load=load, tokens=TIGHT) for load in (["history"], ["history", "facts"])]
    depth = f"recall@{max(DEPTHS)}"
    turns, both = [mean([each for *_, each in await ask(conversations, answer)])[depth] for answer in tight]
    report.add(f"with facts in {TIGHT} tokens", both, at_least=turns, note="recall of what the block holds")
    report.add("observations", len(said))
    report.add("observations_unreachable", await unreachable(memory, said), at_most=0)


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, required=True, metavar="FILE", help="conversations with questions, as JSON"
    )
    parser.add_argument("--facts", choices=["observations"], help="also with the data's observations as facts")
    parser.add_argument(
        "--perturbed", type=int, metavar="SEED", help="as people write chats, see benchmarks/perturbed.py"
    )
    parser.add_argument("--embedder", default="hash", help="hash, or local:PATH of a sentence-transformers model")
    parser.add_argument("--ablation", action="store_true", help="also without each part of recall alone")


async def _measure(
    conversations: Sequence[Conversation], named: str, report: Report, *, facts: bool, ablation: bool
) -> None:
    settings = Settings(embedder=named)
    made = factory.embedder(settings)
    if made is None:
        raise SystemExit(f"{named} gives no vectors.")
    embedder = CachedEmbedder(made)
    with embedded_stack() as (_, at):
        report.facts |= redis_facts(at.redis_url)
        await migrate.apply(at.postgres_url, embedder=embedder_identity(embedder))
        await store_episodes(at.postgres_url, conversations, embedder)
        patient = settings.model_copy(update={"recall_budget_seconds": 10.0, "query_embedding_budget_seconds": 10.0})
        memory = Memory(at.app_url, broker=at.redis_url, redis=at.redis_url, settings=patient, embedder=embedder)
        try:
            ours = await ask(conversations, by_memory(memory, load=["history"]))
            await _add_blocks(conversations, memory, ours)
            if ablation:
                await _ablate(conversations, memory, report, ours)
                await _add_options(at, conversations, patient, embedder, report)
            if facts:
                await _with_facts(at, memory, conversations, report, ours)
        finally:
            await memory.close()
        baselines = {
            "vector_only": await ask(conversations, await _by_vector(conversations, embedder)),
            "ts_rank": await _by_ts_rank(at.postgres_url, conversations),
            "rrf_60": await ask(conversations, await _by_fused_ranks(conversations, embedder)),
        }
    _tell(report, conversations, ours, baselines, named.partition(":")[0])


async def _ablate(conversations: Sequence[Conversation], memory: Memory, report: Report, whole: Results) -> None:
    """Ranking and block without each part alone: all, and the halves."""
    figures = ("recall@10", *(f"in_block@{budget}" for budget in BUDGETS))
    for part in ("nothing", *PARTS):
        with _left_out(PARTS.get(part, {})):
            found = whole if part == "nothing" else await ask(conversations, by_memory(memory, load=["history"]))
            if part != "nothing":
                await _add_blocks(conversations, memory, found)
        halves = _halves(conversations, found)
        for figure in figures:
            note = " / ".join(f"{halves[half][figure]:.3f}" for half in ("first", "second"))
            report.add(f"without {part}: {figure}", halves["all"][figure], note=note)


async def _add_options(
    at: Endpoints, conversations: Sequence[Conversation], settings: Settings, embedder: Embedder, report: Report
) -> None:
    """Every second question with each option, after its turns got feedback for having answered the others."""
    await _give_feedback(at.postgres_url, conversations)
    asked = [replace(each, questions=each.questions[1::2]) for each in conversations]
    for option in ("nothing", *OPTIONS):
        changed = settings.model_copy(update=dict(OPTIONS.get(option, {})))
        memory = Memory(at.app_url, broker=at.redis_url, redis=at.redis_url, settings=changed, embedder=embedder)
        try:
            halves = _halves(asked, await ask(asked, by_memory(memory, load=["history"])))
        finally:
            await memory.close()
        note = " / ".join(f"{halves[half]['recall@10']:.3f}" for half in ("first", "second"))
        report.add(f"with {option}: recall@10", halves["all"]["recall@10"], note=note)


async def _nothing_waits() -> bool:
    return False


async def _give_feedback(url: str, conversations: Sequence[Conversation]) -> None:
    """Count the evidence of every other question as helpful, as the store job does."""
    database, store = PostgresDatabase(url, timeout_seconds=60), PostgresStore()
    try:
        for each in conversations:
            given = [Feedback(helpful=tuple(asked.evidence)) for asked in each.questions[::2]]
            async with database.transaction() as tx:
                await feedback_counts.add(store, tx, each.owner, given, may_arrive=_nothing_waits)
    finally:
        await database.close()


@contextmanager
def _left_out(replaced: Mapping[str, object]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in replaced.items():
            stack.enter_context(patch(name, value))
        yield


Answer = Callable[[Conversation, Asked], Any]  # Any: an awaitable or a plain list of ids, best first


async def ask(conversations: Sequence[Conversation], answer: Answer) -> Results:
    """The measures of every question."""
    results: Results = []
    for conversation in conversations:
        for asked in conversation.questions:
            found = answer(conversation, asked)
            ids = await found if asyncio.iscoroutine(found) else found
            results.append((conversation.owner.user_column, asked.category, _measured(conversation, asked, ids)))
    return results


def _measured(conversation: Conversation, asked: Asked, ids: Sequence[EpisodeId]) -> Measures:
    turns = list(dict.fromkeys(conversation.origins.get(id_, id_) for id_ in ids))
    return measure(turns, asked.evidence, named=asked.named, sessions=conversation.sessions)


async def _add_blocks(conversations: Sequence[Conversation], memory: Memory, results: Results) -> None:
    """Add the share of the evidence that is in the block, with the default kinds and limit."""
    measures = iter(results)
    for conversation in conversations:
        for asked in conversation.questions:
            *_, found = next(measures)
            for budget in BUDGETS:
                block = await memory.recall(asked.text, user_id=conversation.owner.user_id, token_budget=budget)
                shown = {conversation.origins.get(id_, id_) for id_ in turns_of(block.matches)}
                found[f"in_block@{budget}"] = share_found(shown, asked.evidence, named=asked.named)


def by_memory(memory: Memory, *, load: Sequence[str], tokens: int = 1_000_000) -> Answer:
    """What a memory recalls."""

    async def answer(conversation: Conversation, asked: Asked) -> list[EpisodeId]:
        limit = max(DEPTHS) * (MOST_PARTS if conversation.origins else 1)
        block = await memory.recall(
            asked.text, user_id=conversation.owner.user_id, limit=limit, token_budget=tokens, load=load
        )
        if block.degraded:
            raise SystemExit(f"a recall was degraded: {block.degraded}")
        return turns_of(block.matches)

    return answer


async def _by_vector(conversations: Sequence[Conversation], embedder: Embedder) -> Answer:
    similar = await _similarities(conversations, embedder)

    def answer(conversation: Conversation, asked: Asked) -> list[EpisodeId]:
        return _best(conversation, similar[asked.text, conversation.owner.user_column])

    return answer


async def _by_fused_ranks(conversations: Sequence[Conversation], embedder: Embedder) -> Answer:
    similar = await _similarities(conversations, embedder)
    words = {
        each.owner.user_column: [set(terms(_text(episode))) for episode in each.episodes] for each in conversations
    }

    def answer(conversation: Conversation, asked: Asked) -> list[EpisodeId]:
        user = conversation.owner.user_column
        wanted = terms(asked.text)
        hits = np.array([[term in have for term in wanted] for have in words[user]], dtype=np.bool_)
        lexical = bm25(hits, [len(have) for have in words[user]], idf(len(hits), hits.sum(axis=0)))
        return _best(conversation, reciprocal_rank([lexical, np.clip(similar[asked.text, user], 1e-9, None)]))

    return answer


async def _similarities(
    conversations: Sequence[Conversation], embedder: Embedder
) -> Mapping[tuple[str, str], NDArray[np.float64]]:
    found = {}
    for each in conversations:
        rows = await embedder.embed([spoken(episode.name, episode.content) for episode in each.episodes])
        asked = await embedder.embed([question.text for question in each.questions])
        for question, row in zip(each.questions, asked, strict=True):
            found[question.text, each.owner.user_column] = (rows @ row).astype(np.float64)
    return found


def _best(conversation: Conversation, scores: NDArray[np.float64]) -> list[EpisodeId]:
    order = np.argsort(-scores, kind="stable")[: max(DEPTHS)]
    return [conversation.episodes[place].id for place in order]


async def _by_ts_rank(url: str, conversations: Sequence[Conversation]) -> Results:
    """What full text search of Postgres gives as it comes: any of the words, ordered by `ts_rank`."""
    connection = await connect(url)
    statement = """
        SELECT id FROM aftermind.episodes,
             (SELECT replace(plainto_tsquery('english', $2)::text, '&', '|')::tsquery AS wanted) AS asked
        WHERE user_id = $1 AND to_tsvector('english', coalesce(name || ': ', '') || content) @@ wanted
        ORDER BY ts_rank(to_tsvector('english', coalesce(name || ': ', '') || content), wanted) DESC LIMIT 20
    """
    try:
        results = []
        for each in conversations:
            for asked in each.questions:
                rows = await connection.fetch(statement, each.owner.user_column, asked.text)
                found = _measured(each, asked, [row["id"] for row in rows])
                results.append((each.owner.user_column, asked.category, found))
        return results
    finally:
        await connection.close()


def _tell(
    report: Report,
    conversations: Sequence[Conversation],
    ours: Results,
    baselines: Mapping[str, Results],
    kind: str,
) -> None:
    targets = TARGETS.get(kind, {})
    for name, value in mean([found for *_, found in ours]).items():
        scored = [(mean([found for *_, found in results]).get(name), each) for each, results in baselines.items()]
        best = max(((figure, each) for figure, each in scored if figure is not None), default=None)
        note = "" if best is None else f"best baseline {best[1]} {best[0]:.3f}"
        report.add(name, value, at_least=targets.get(name), note=note)
    report.add("questions", len(ours))
    users = [each.owner.user_column for each in conversations]
    categories = {each: mean([found for _, of, found in ours if of == each]) for each in {of for _, of, _ in ours}}
    report.details["categories"] = {str(category): categories[category] for category in sorted(categories)}
    for category in sorted(categories):
        bound = CATEGORY_TARGETS.get(kind, {}).get(category)
        report.add(f"category {category} recall@10", categories[category]["recall@10"], at_least=bound)
    report.details["halves"] = _halves(conversations, ours)
    report.details["conversations"] = {each: mean([found for user, _, found in ours if user == each]) for each in users}
    report.details["baselines"] = {name: mean([found for *_, found in each]) for name, each in baselines.items()}
    for name, found in report.details["baselines"].items():
        report.add(f"{name} recall@10", found["recall@10"])
    for name, found in report.details["halves"].items():
        if name != "all":
            for figure in ("recall@10", *(f"in_block@{budget}" for budget in BUDGETS)):
                report.add(f"{name} {figure}", found[figure])


def _halves(conversations: Sequence[Conversation], results: Results) -> dict[str, Measures]:
    """All, and either half of the conversations, so that nothing is tuned to one of them."""
    users = [each.owner.user_column for each in conversations]
    middle = (len(users) + 1) // 2
    parts = {"all": users, "first": users[:middle], "second": users[middle:]}
    return {name: mean([found for user, _, found in results if user in of]) for name, of in parts.items()}


async def store_episodes(url: str, conversations: Sequence[Conversation], embedder: Embedder) -> None:
    """Write the episodes to Postgres, as the store job does."""
    database, store = PostgresDatabase(url, timeout_seconds=60), PostgresStore()
    try:
        for each in conversations:
            vectors = await vectors_of(each.episodes, embedder)
            async with database.transaction() as tx:
                await store.tombstones(tx, [each.owner])
                await store.add_episodes(tx, each.episodes, vectors)
    finally:
        await database.close()


async def vectors_of(
    episodes: Sequence[Episode], embedder: Embedder, *, sentences: bool | None = None
) -> dict[EpisodeId, Rows]:
    """What the embed job stores: the vectors of whole turns, and of sentences where the embedder compares meaning."""
    if sentences is None:
        sentences = compares_sentences(models_of(embedder.name))
    spoken = [SpokenTexts.of(each.name, each.content, sentences=sentences).texts for each in episodes]
    whole = await embedder.embed([texts[0] for texts in spoken])
    parts = [text for texts in spoken for text in texts[1:]]
    rest = iter(await embedder.embed(parts) if parts else ())
    found = {}
    for episode, vector, texts in zip(episodes, whole, spoken, strict=True):
        more = [next(rest) for _ in texts[1:]]
        found[episode.id] = np.stack([vector, *more]) if more else vector
    return found


def _text(episode: Episode) -> str:
    return spoken(episode.name, episode.content)


def read_conversation(data: Mapping[str, Any]) -> Conversation:  # Any: JSON as it comes
    """A conversation of the data with its questions and observations."""
    owner = Scope(user_id=data["id"])
    episodes: list[Episode] = []
    by_name: dict[str, EpisodeId] = {}
    for session in data["sessions"]:
        began = locomo.parse_date(session["at"])
        for place, turn in enumerate(session["turns"]):
            label = "thread" if data.get("is_one_thread") else f"session-{session['n']}"
            episode = _episode(owner, label, began + timedelta(minutes=place), turn, len(episodes))
            by_name[turn["id"]] = episode.id
            episodes.append(episode)
    questions = [
        Asked(
            text=question["question"],
            category=question["category"],
            evidence=frozenset(by_name[name] for name in question["evidence"] if name in by_name),
            named=len(question["evidence"]),
        )
        for question in data["questions"]
        if str(question["category"]) != locomo.ADVERSARIAL and any(name in by_name for name in question["evidence"])
    ]
    by_id = {episode.id: episode for episode in episodes}
    said = observed(owner, data["sessions"], {name: by_id[id_] for name, id_ in by_name.items()})
    parts = {id_: by_name[name.partition(PART)[0]] for name, id_ in by_name.items() if re.search(rf"{PART}\d+$", name)}
    return Conversation(owner=owner, episodes=episodes, questions=questions, observations=said, origins=parts)


def _episode(owner: Scope, session: str, at: datetime, turn: Mapping[str, str], place: int) -> Episode:
    return Episode(
        id=new_ids(1)[1][0],
        scope=Scope(namespace=owner.namespace, user_id=owner.user_id, session_id=session),
        role=Role.USER,  # two people with names, and neither is the assistant
        content=locomo.content_of(turn),
        name=turn["speaker"],
        metadata={},
        occurred_at=at,
        remembered_at=at,
        position=int(at.timestamp() * 1_000_000) + place,
    )


if __name__ == "__main__":
    sys.exit(main())
