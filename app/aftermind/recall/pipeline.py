"""The order of a recall's steps, its deadline, and what it does where one of them fails.

    pending and watermark (Redis) ─┐
    the question's vector ─────────┴► a node ► find ► rank with pending ► read what is shown ► cut, render

Pending is read *before* the database: a turn that is stored in between is then in both, never in neither, and its
double is dropped by id.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from time import perf_counter
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from aftermind import errors
from aftermind.db.database_protocol import Transaction
from aftermind.facts.learned_procedures import PROCEDURE
from aftermind.freshness import ReplicaLease
from aftermind.indexes.client import IndexClient
from aftermind.llm import token_count
from aftermind.ranking import (
    FactMatch,
    Frame,
    Frequencies,
    Models,
    Question,
    Scores,
    compares_sentences,
    features_of,
    models_of,
    score_frame,
    shares,
    terms,
    worths_of,
)
from aftermind.ranking.accents import fold_accents
from aftermind.ranking.fitted_coefficients import to_json
from aftermind.ranking.turn_features import FEATURES
from aftermind.recall import match_selection
from aftermind.recall.assemble import Unfitted, build
from aftermind.recall.excerpts import QuestionWords
from aftermind.recall.match_selection import CandidateRank
from aftermind.recall.pending_candidates import (
    PendingTurns,
    Vector,
    standing_turns,
    to_episodes,
    unexpired,
    unforgotten_turns,
)
from aftermind.recall.query import Query, RecallMode
from aftermind.recall.query_embeddings import QueryVectors
from aftermind.recall.question_time import CANDIDATES, UNSPECIFIC_TERMS, QuestionTime
from aftermind.recall.render import as_text, line_of
from aftermind.recall.replica_selection import Route, Routing
from aftermind.recall.reranker import RERANKED, Reranker, rerank
from aftermind.recall.session_diversification import asks_about_all_sessions, diversify_sessions
from aftermind.settings import Settings
from aftermind.stores import feedback_counts
from aftermind.stores.protocol import EpisodeFilter, Store
from aftermind.stores.search import HITS, BlockRequest, Briefing, EpisodeSearch, Search, SearchResult, with_passages
from aftermind.telemetry.logger import get_logger
from aftermind.types import (
    Block,
    EmbedderIdentity,
    Episode,
    EpisodeId,
    ExcludedMatch,
    ExclusionReason,
    Fact,
    FactId,
    Json,
    Match,
    Passage,
    RecallBlock,
    RecallExplanation,
    RecallId,
    Scope,
    ServedBy,
    Summary,
    Turn,
    Watermark,
)
from aftermind.types.fact import USER
from aftermind.types.feedback import FeedbackCount
from aftermind.types.message import RECORD
from aftermind.types.scope import GROUP_PREFIX
from aftermind.types.uuid7 import uuid7
from aftermind.wire.pending import Pending
from aftermind.wire.turn_encoding import decode_readable

LocalTurns = Callable[[Scope], Awaitable[Sequence[Turn]]]
UnstoredTurns = Callable[[Transaction, Scope], Awaitable[Sequence[bytes]]]
_Serving = tuple[QueryVectors, PendingTurns]
Follow = Callable[[EmbedderIdentity], Awaitable[_Serving | None]]

log = get_logger(__name__)

REPLICAS_SHARE = 0.6  # of the time left, for all replicas together; what remains is the primary's
# For pending texts, of the budget: they end before `REPLICAS_SHARE`, so that no replica is left because of them.
PENDING_SHARE = 0.5
# A turn that is less likely to answer is not shown, unless the owner has no more turns than the limit.
# Twice as much costs MiniLM 0.009 of recall@10 where answers are spread over sessions; half as much finds the same.
NOISE = 0.001
LEAST_CONSIDERED = 30  # turns, whatever the limit: what ended, and what took its place, is seen among them
SPARE = 3  # multiple of the limit that is considered if diversity is requested
NEAR_MISSES = 20  # turns that an explanation adds to those that were considered, and that filters left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Turns that may match a query, with a row of features for each, and the models that score them.

    `feature_names` are those of the columns. `embedder` is the key of the one whose vectors were compared, "" if none
    were.
    """

    ids: Sequence[EpisodeId]
    features: NDArray[np.float64]
    embedder: str
    models: Models
    feature_names: tuple[str, ...] = FEATURES

    @property
    def models_json(self) -> dict[str, Json]:
        """The models in the form that `memory.ranking.set` takes."""
        return to_json(self.models)


@dataclass(slots=True)
class _Run:
    """State of one recall: the results so far, and the reasons for missing parts."""

    id: RecallId
    query: Query
    now: datetime
    time: QuestionTime
    spans_sessions: bool  # the question is about all of them
    min_score: float
    deadline: float
    pending_until: float  # for everything that is computed from pending texts
    vectors: QueryVectors
    pending_turns: PendingTurns
    without_vector: str | None = None  # why the embedder made no vector of the question
    accepted: list[Turn] = field(default_factory=list)  # turns that are not stored yet
    local: list[Turn] = field(default_factory=list)  # those that only this host has
    pending: list[Episode] = field(default_factory=list)  # what is shown of both
    is_pending_placed: bool = False  # whether a node has judged what of both was forgotten
    passed: tuple[Watermark, ...] | None = ()  # what a replica must have passed; None: none is read
    last_erasure: int | None = None  # the number of the last one before the pending turns, or the rows, were read
    names_user: bool = False  # the question
    vector: Vector | None = None
    near: Sequence[EpisodeId] | None = None  # candidates of the external index; None: the store searches
    served_by: ServedBy = ServedBy.NONE
    replica: str | None = None
    matches: list[Match] = field(default_factory=list)
    # Too unlikely by themselves to be matches, but likely where a match passes its score on to them.
    alternatives: list[Match] = field(default_factory=list)
    burst_scores: dict[EpisodeId, float] = field(default_factory=dict)  # of messages in one burst with a match
    of_bursts: list[Match] = field(default_factory=list)  # these
    available: int = 0
    is_complete: bool = False  # every turn that may be shown was read
    shares: dict[FactId, float] = field(default_factory=dict)  # of the question, by facts that share words with it
    briefing: Briefing = field(default_factory=Briefing)
    passages: dict[EpisodeId, Passage] = field(default_factory=dict)  # the best of each long message
    words: QuestionWords = field(default_factory=lambda: QuestionWords(words=(), worths=()))
    facts: Sequence[Fact] = ()  # what a block may show of them
    passed_on: dict[FactId, float] = field(default_factory=dict)  # scores of turns that facts took the place of
    feedback: Mapping[UUID, FeedbackCount] = field(default_factory=dict)
    degraded: list[str] = field(default_factory=list)
    models: Models = field(default_factory=models_of)
    scored: tuple[Sequence[EpisodeId], Frame, Question, Frequencies] | None = None  # what the models were applied to
    scores: Scores | None = None  # of the models
    excluded: "_Excluded | None" = None  # where the recall is to be explained


@dataclass(slots=True)
class _Excluded:
    """What the steps of a recall left out, in their order. `near` are the turns below those that were considered."""

    matches: list[tuple[Match, ExclusionReason]] = field(default_factory=list)
    near: list[CandidateRank] = field(default_factory=list)

    def add(self, before: Sequence[Match], after: Sequence[Match], reason: ExclusionReason) -> None:
        """Add what a step did not keep."""
        kept = {_identity(match) for match in after}
        self.matches += [(match, reason) for match in before if _identity(match) not in kept]


class Recall:
    """Recalls for every scope of a process. Constructing it connects nothing; usable from any number of tasks.

    `pending` None: jobs run in this process and nothing waits in Redis. `local_turns` gives what only this host has;
    `lease` is given with `pending`. `unstored` reads, on the node that serves, turns that the ledger has accepted and
    no store job has committed; a search brings them along itself. `follow` opens the other embedder of a
    re-embedding, if this process can: a cutover needs no restart. `index` names candidates instead of the store's own
    vector search. `generation` reads the number of the last erasure where there is no `pending`, which has it.
    """

    def __init__(
        self,
        store: Store,
        search: EpisodeSearch,
        routing: Routing,
        vectors: QueryVectors,
        *,
        settings: Settings,
        pending: Pending | None = None,
        lease: ReplicaLease | None = None,
        pending_turns: PendingTurns | None = None,
        local_turns: LocalTurns | None = None,
        unstored: UnstoredTurns | None = None,
        reranker: Reranker | None = None,
        follow: Follow | None = None,
        index: IndexClient | None = None,
        generation: Callable[[Transaction], Awaitable[int]] | None = None,
    ) -> None:
        self._store, self._search, self._routing, self._vectors = store, search, routing, vectors
        self._settings, self._pending, self._lease = settings, pending, lease
        self._pending_turns = pending_turns or PendingTurns(None, language_for=settings.language_for)
        self._local, self._unstored = local_turns, unstored
        self._reranker, self._index, self._generation = reranker, index, generation
        self._reranker_failure: str | None = None
        self._follow, self._followed = follow, [(vectors, self._pending_turns)]
        self._opening: dict[tuple[asyncio.AbstractEventLoop, EmbedderIdentity], asyncio.Future[_Serving | None]] = {}

    def prepare(self) -> None:
        """Get ready for recalls to come, in the background: the first waits for an embedder no longer than others."""
        self._vectors.prepare()

    async def recall(self, query: Query) -> RecallBlock:
        """The best matches of the query as a block within its budget. Never later than
        `settings.recall_budget_seconds`.

        If a component does not answer, `degraded` has the reason and the block contains the available parts.
        """
        started = perf_counter()
        run = await self._run(query, limit=query.limit, min_score=max(query.min_score, NOISE))
        await asyncio.sleep(0)  # rendering takes about as long as ranking: let others of the loop between here, too
        return self._build(run, started=started)

    async def explain(self, query: Query) -> RecallExplanation:
        """The block as `recall` returns it, and what it left out: each step reports that here.

        With filters the search is repeated without them, for the turns that they left out.
        """
        started, excluded, unfitted = perf_counter(), _Excluded(), Unfitted()
        run = await self._run(query, limit=query.limit, min_score=max(query.min_score, NOISE), excluded=excluded)
        block = self._build(run, started=started, unfitted=unfitted)
        found = [*unfitted.matches, *excluded.matches]
        if not query.wanted.is_open and run.served_by is not ServedBy.NONE:
            unfiltered = replace(query, wanted=EpisodeFilter(), limit=query.limit + NEAR_MISSES, diversity=0.0)
            others = _Excluded()
            run_of_all = await self._run(unfiltered, limit=unfiltered.limit, min_score=run.min_score, excluded=others)
            every = [*run_of_all.matches, *sorted((m for m, _ in others.matches), key=lambda match: -match.score)]
            turns = [(match, match.item) for match in every if isinstance(match.item, Episode)]
            found += [(m, ExclusionReason.FILTERED) for m, turn in turns if not query.wanted.fits(turn)][:NEAR_MISSES]
        return RecallExplanation(
            block=block,
            excluded=_explained(found, block),
            min_score=run.min_score,
            limit=query.limit,
            token_budget=query.token_budget,
            traits=tuple(unfitted.traits),
            known_at=query.known_at,
        )

    def _build(self, run: _Run, *, started: float, unfitted: Unfitted | None = None) -> RecallBlock:
        query = run.query
        shown = {match.item.id for match in run.matches if isinstance(match.item, Episode)}
        of_bursts = [each for each in run.of_bursts if isinstance(each.item, Episode) and each.item.id not in shown]
        of_bursts = [replace(each, rank=rank) for rank, each in enumerate(of_bursts, start=len(run.matches) + 1)]
        matches = [*run.matches, *of_bursts]
        return build(
            query,
            matches,
            run.briefing,
            words=run.words,
            count_each=token_count.count_each,
            available=max(run.available, len(matches)),
            served_by=run.served_by,
            replica=run.replica,
            degraded="; ".join(run.degraded) or None,
            started=started,
            recall_id=run.id,
            last_erasure=run.last_erasure,
            is_past=run.time.is_past,
            unfitted=unfitted,
        )

    async def scored(self, query: Query) -> list[Match]:
        """Every match up to `query.limit`, however unlikely, with all scores and ranks; no block and no budget.

        Raises `StoreUnavailable` where a block would be degraded for want of a store.
        """
        run = await self._run(query, limit=query.limit, min_score=query.min_score)
        if run.served_by is ServedBy.NONE:
            raise _unavailable(run)
        return run.matches

    async def candidates(self, query: Query) -> Candidates:
        """The features of every turn that may match: what models are fitted to. Raises as `scored`."""
        run = await self._run(query, limit=query.limit, min_score=query.min_score)
        if run.served_by is ServedBy.NONE or run.scored is None:
            raise _unavailable(run)
        ids, frame, question, frequencies = run.scored
        rows = np.flatnonzero(frame.candidate)
        return Candidates(
            ids=tuple(ids[row] for row in rows.tolist()),
            features=features_of(frame, question, frequencies).columns[rows],
            embedder=run.vectors.embedder.key if run.vector is not None and run.vectors.embedder else "",
            models=run.models,
        )

    async def close(self) -> None:
        """Stop background tasks. Connections belong to their creator."""
        for vectors, _ in self._followed:
            await vectors.close()
        await self._routing.close()
        if self._lease is not None:
            await self._lease.close()

    async def _run(self, query: Query, *, limit: int, min_score: float, excluded: _Excluded | None = None) -> _Run:
        if query.rerank and self._reranker is None:
            raise errors.InvalidQuery("rerank", query.rerank, "there is no reranker: Memory(reranker=…) takes one.")
        loop = asyncio.get_running_loop()
        budget = self._settings.recall_budget_seconds
        deadline = loop.time() + budget
        now = query.known_at or datetime.now(UTC)  # to the day: relative times of a question
        run = _Run(
            id=RecallId(uuid7()),
            query=query,
            now=now,
            time=QuestionTime.of(query.searched, now),
            spans_sessions=query.mode is RecallMode.HYBRID and asks_about_all_sessions(query.searched),
            min_score=min_score,
            deadline=deadline,
            pending_until=deadline - (1 - PENDING_SHARE) * budget,
            vectors=self._vectors,
            pending_turns=self._pending_turns,
            excluded=excluded,
        )
        try:
            async with asyncio.timeout_at(run.deadline):
                if self._lacks_vector(run) or (
                    run.vector is not None and self._index is not None
                ):  # Redis first: an embedder in this process computes while it answers
                    await asyncio.gather(self._read_pending(run), self._embed(run))
                else:
                    await self._read_pending(run)
                await self._read_node(run, limit)
            await self._finish(run, limit)
        except TimeoutError:
            await self._from_pending(run, limit, f"no answer within {self._settings.recall_budget_seconds:g} s")
        except (errors.Unavailable, errors.Conflict) as exc:
            if isinstance(exc, errors.TenantMoved) and exc.database is not None:
                raise  # another database serves it: rows and pending turns are there
            await self._from_pending(run, limit, str(exc))
        return run

    def _lacks_vector(self, run: _Run) -> bool:
        """Whether the query has to be embedded first; a cached vector is used here."""
        if run.query.mode not in (RecallMode.HYBRID, RecallMode.VECTOR):
            return False
        run.vector = run.vectors.get_cached(run.query.searched)
        return run.vector is None

    async def _embed(self, run: _Run) -> None:
        run.vector, run.without_vector = await run.vectors.vector(run.query.searched)
        run.degraded += [] if run.without_vector is None else [run.without_vector]
        if self._index is not None and run.vector is not None and run.vectors.embedder is not None:
            query = run.query
            run.near, why = await self._index.search(
                query.scope, run.vector, run.vectors.embedder, query.wanted, text=query.searched, k=HITS
            )
            run.degraded += [] if why is None else [why]

    async def _read_pending(self, run: _Run) -> None:
        """Watermark, epoch and pending turns of one moment; without Redis only the primary has the newest rows."""
        query = run.query
        run.local = [] if self._local is None else list(await self._local(query.scope.owner))
        turns: list[Turn] = []
        if self._pending is not None:
            try:
                read = await self._pending.read(query.scope.owner, limit=self._settings.pending_recalled)
            except errors.RedisUnavailable:
                run.passed = None
                run.degraded.append("pending unknown")
            else:
                if read.moved is not None:
                    raise errors.TenantMoved(query.scope.namespace, database=read.moved, other=read.moved)
                turns += read.turns
                if read.epoch is not None and read.epoch.settled and read.generation is not None:
                    # Without a settled epoch Redis may have lost the last one.
                    run.last_erasure = max(read.generation, self._pending.generation.known or 0)
                left_out = read.total - len(read.turns) - read.unreadable
                if left_out > 0 and self._settings.pending_recalled:
                    run.degraded.append(f"{left_out} of {read.total} pending turns were not searched")
                run.passed = None
                if self._lease is not None:
                    passed = await self._lease.passed(query.scope.owner, read, deadline=run.deadline)
                    run.passed, doubt = passed.marks, passed.doubt
                    run.degraded += [doubt] if doubt else []
        run.accepted = turns
        # By the clock of this process, in case no node answers: a node's clock replaces it.
        shown = unexpired([*turns, *run.local], run.now)
        run.pending = await self._pending_turns.marked(to_episodes(shown, query.known_at), until=run.pending_until)

    async def _read_node(self, run: _Run, limit: int) -> None:
        """Read a replica that is fresh enough, else the primary."""
        try:
            if run.passed is None or not await self._read_replica(run, run.passed, limit):
                async with self._routing.primary(deadline=run.deadline, namespace=run.query.scope.namespace) as route:
                    await self._read_route(run, route, limit)
        except errors.DimensionMismatch as exc:
            if run.vector is None:
                raise
            run.vector = None
            run.degraded.append(f"only a lexical search was made: {exc}")
            await self._read_node(run, limit)  # in a separate transaction: the first has failed

    async def _read_replica(self, run: _Run, passed: tuple[Watermark, ...], limit: int) -> bool:
        """Whether a replica answered; if one fails, enough time is left for the primary."""
        left = run.deadline - asyncio.get_running_loop().time()
        asked: Route | None = None
        try:
            async with (
                asyncio.timeout(max(left * REPLICAS_SHARE, 0.0)),
                self._routing.replica(passed, deadline=run.deadline, namespace=run.query.scope.namespace) as asked,
            ):
                if asked is not None:
                    await self._read_route(run, asked, limit)
                return asked is not None
        except errors.TenantMoved:
            raise
        except (errors.StoreUnavailable, errors.Unreadable):  # a replica may lack the rows that encryption rewrote
            return False
        except TimeoutError:
            if asked is not None:
                self._routing.leave(asked.node, "no answer in time")
            return False

    async def _last_committed_erasure(self, run: _Run, route: Route) -> int | None:
        """By the owner's tombstones on the primary, where Redis does not have the number.

        None for a group: those of each author would count, and a number that is too low would drop their turns.
        """
        owner = run.query.scope.owner
        is_of_group = (owner.user_id or "").startswith(GROUP_PREFIX)
        if self._pending is None or route.served_by is not ServedBy.PRIMARY or is_of_group:
            return None
        found = await self._store.admission_state(route.tx, owner, [], generation=0)
        return max((stone.generation for stone in found.stones), default=0)

    async def _read_route(self, run: _Run, route: Route, limit: int) -> None:
        """Place the pending turns, then find, rank and read on one node."""
        if self._generation is not None:
            run.last_erasure = await self._generation(route.tx)
        elif run.last_erasure is None:
            run.last_erasure = await self._last_committed_erasure(run, route)
        if run.accepted or run.local:
            turns = await standing_turns(self._store, route.tx, run.query.scope.owner, run.accepted, run.local)
            shown = to_episodes(turns, run.query.known_at)
            run.pending = await self._pending_turns.marked(shown, until=run.pending_until)
        run.is_pending_placed = True
        if run.query.mode in (RecallMode.RECENCY, RecallMode.VECTOR):  # nothing is searched by words: all are alike
            language = self._settings.language_for(run.query.scope.namespace)
            worths = dict.fromkeys(terms(run.query.searched, language), 1.0)
            run.words = QuestionWords.of(run.query.searched, worths, language)
        if run.query.mode is RecallMode.RECENCY:
            await self._newest(run, route, limit)
        else:
            question = self._question(run)
            found = await self._search_vectors_of_one_embedder(run, route, question)
            await self._add_unstored(run, route, found.unstored)
            await asyncio.sleep(0)  # reading took a millisecond, and ranking takes another: let other tasks run between
            stored = frozenset(found.ids)
            run.pending = [episode for episode in run.pending if episode.id not in stored]
            places = await self._ranked(run, question, found, limit)
            await self._read(run, route, places, found)
        run.served_by = route.served_by
        run.replica = route.node if route.served_by is ServedBy.REPLICA else None

    async def _search_vectors_of_one_embedder(self, run: _Run, route: Route, question: Question) -> SearchResult:
        """What the search finds; vectors are compared only if the question's embedder made the stored ones."""
        found = await self._search.find(route.tx, run.query.scope.owner, self._searching(run, question))
        has_or_wants_vector = run.vector is not None or run.without_vector is not None
        stored, mine = found.embedders, run.vectors.embedder if has_or_wants_vector else None
        if stored is None or mine is None or mine == stored.active:
            return found
        if mine in stored and await self._followed_to(run, stored.active):
            return await self._search.find(route.tx, run.query.scope.owner, self._searching(run, question))
        run.vector = None
        if found.ids:  # else there was nothing to compare with
            run.degraded.append(f"only a lexical search was made: {errors.EmbedderMismatch(stored.active, mine)}")
        return found

    async def _followed_to(self, run: _Run, active: EmbedderIdentity) -> bool:
        """Change to the other embedder of a re-embedding, for this recall and later ones; whether that was possible."""
        other = next((each for each in self._followed if each[0].embedder == active), None)
        if other is None:
            try:
                other = await self._opened(active)
            except (errors.InvalidSettings, TimeoutError) as exc:  # a key or an extra is missing, or a model loads
                run.degraded.append(str(exc) or f"{active} is being loaded")
            if other is None:
                return False
            self._followed.append(other)
        run.vectors, run.pending_turns = self._vectors, self._pending_turns = other
        if run.without_vector in run.degraded:  # of the configured embedder, which no stored vector is compared with
            run.degraded.remove(run.without_vector)
        await self._embed(run)
        return True

    async def _opened(self, embedder: EmbedderIdentity) -> _Serving | None:
        """Loading a model may take longer than a recall: later recalls find it loaded."""
        if self._follow is None:
            return None
        key = asyncio.get_running_loop(), embedder
        if key not in self._opening:
            self._opening[key] = asyncio.ensure_future(self._follow(embedder))
        async with asyncio.timeout(self._settings.query_embedding_budget_seconds):
            return await asyncio.shield(self._opening[key])

    async def _add_unstored(self, run: _Run, route: Route, payloads: Sequence[bytes]) -> None:
        """Add turns that the ledger has accepted, except what was forgotten: a row may be committed after the forget.

        A spooled turn is sent late, for example. Its store job drops it; until then the row is there.
        """
        most = self._settings.pending_recalled
        if len(payloads) > most > 0:
            run.degraded.append(f"more than {most} pending turns: the older ones were not searched")
        found = decode_readable(payloads[:most], owner=run.query.scope)
        if found:
            accepted = [*found, *run.accepted]
            turns = await standing_turns(self._store, route.tx, run.query.scope.owner, accepted, run.local)
            shown = to_episodes(turns, run.query.known_at)
            run.pending = await self._pending_turns.marked(shown, until=run.pending_until)

    async def _newest(self, run: _Run, route: Route, limit: int) -> None:
        query = run.query
        wanted = replace(query.wanted, undone=False)
        if self._unstored is not None:  # first: a turn that is stored in between is then in both
            payloads = await self._unstored(route.tx, query.scope.owner)
            await self._add_unstored(run, route, payloads[::-1][: self._settings.pending_recalled + 1])
        most = limit + NEAR_MISSES if run.excluded is not None else limit
        # Twice as many: a call of a tool, which is not shown, is followed by its result.
        newest = await self._store.history(route.tx, query.scope.owner, wanted, limit=2 * most)
        stored = frozenset(episode.id for episode in newest)
        waiting = [each for each in run.pending if each.id not in stored and query.wanted.fits(each)]
        known = [each for each in newest if query.known_at is None or each.remembered_at <= query.known_at]
        spoken = [each for each in (*known, *waiting) if not _has_no_text(each)]
        ordered = sorted(spoken, key=lambda each: each.position, reverse=True)[:most]
        run.available = min(len(ordered), limit)
        run.matches = [
            Match(item=episode, score=1.0 - place / (run.available + 1), rank=place + 1)
            for place, episode in enumerate(ordered[:limit])
        ]
        if run.excluded is not None:
            older = [
                Match(item=each, score=0.0, rank=rank) for rank, each in enumerate(ordered[limit:], start=limit + 1)
            ]
            run.excluded.matches = [(match, ExclusionReason.LIMIT) for match in older]
        ids = [episode.id for episode in ordered[:limit] if episode.id in stored]  # what is no longer true is of these
        run.briefing = await self._search.brief(route.tx, query.scope.owner, self._block_request(run, ids))

    async def _read(self, run: _Run, route: Route, places: Sequence[CandidateRank], found: SearchResult) -> None:
        query = run.query
        waiting = {episode.id: episode for episode in run.pending}
        ids = [id_ for id_ in dict.fromkeys([*(place.id for place in places), *run.burst_scores]) if id_ not in waiting]
        wanted = replace(self._block_request(run, ids), facts=list(run.shares))
        run.briefing = await self._search.brief(route.tx, query.scope.owner, wanted, found=found)
        texts = waiting | {episode.id: episode for episode in run.briefing.episodes}
        texts = {id_: each for id_, each in texts.items() if not _has_no_text(each)}
        # An episode that was forgotten between the two statements is missing in the second: it is not shown.
        kept = [place for place in places if place.id in texts]
        run.matches = _matched(run, kept, texts)
        run.of_bursts = [
            Match(item=texts[id_], score=score)
            for id_, score in run.burst_scores.items()
            if id_ in texts and score >= run.min_score
        ]
        if run.excluded is not None:
            await self._read_near(run, run.excluded, route, waiting)
        if query.mode is RecallMode.HYBRID:
            run.matches = match_selection.prefer_names(run.matches)
        if run.time.orders_turns:
            _keep_likely(run, run.time.preferred(run.matches), least=min(run.min_score, NOISE))
        run.matches = self._decayed(run, run.matches)
        await self._apply_feedback(run, route)
        if run.spans_sessions:
            _keep_likely(run, diversify_sessions(run.matches), least=min(query.min_score, NOISE))
        run.alternatives = await self._read_alternatives(run, route, texts, found)

    def _decayed(self, run: _Run, matches: list[Match]) -> list[Match]:
        """Newer ones likelier, if a setting asks for it and the question names no period."""
        days = self._settings.recall_half_life_days
        if not days or run.time.end is not None:
            return matches
        return match_selection.decayed(matches, half_life=timedelta(days=days), now=run.query.known_at or run.now)

    async def _apply_feedback(self, run: _Run, route: Route) -> None:
        """Read counts where they may change something: no statement for a user without procedures, by default."""
        weight, facts = self._settings.recall_feedback_weight, run.briefing.facts
        ids = [fact.id for fact in facts if weight or fact.predicate == PROCEDURE]
        wanted = [*(match.item.id for match in run.matches if isinstance(match.item, Episode) and weight), *ids]
        if wanted and run.query.known_at is None:  # counts have no history
            run.feedback = await feedback_counts.counts(self._store, route.tx, run.query.scope.owner, wanted)
            run.matches = match_selection.reinforced(run.matches, run.feedback, weight=weight)

    async def _read_alternatives(
        self, run: _Run, route: Route, texts: Mapping[EpisodeId, Episode], found: SearchResult
    ) -> list[Match]:
        """Turns that are too unlikely to be matches, but may get the score of one if their fact replaces its fact."""
        matched = {match.item.id: match.score for match in run.matches if isinstance(match.item, Episode)}
        facts = [*run.briefing.facts, *run.briefing.former]
        likely = [id_ for id_, score in matched.items() if score >= NOISE]
        sources = match_selection.alternative_sources(facts, likely).difference(matched)
        if not sources or run.scored is None or run.scores is None:
            return []
        ids, frame, *_ = run.scored
        places, _ = match_selection.places(ids, frame, run.scores, min_score=None, most=LEAST_CONSIDERED, among=sources)
        texts = {episode.id: episode for episode in run.pending} | dict(texts)
        unread = [place.id for place in places if place.id not in texts]
        if unread:
            wanted = BlockRequest(ids=unread, at=run.query.known_at)
            read = await self._search.brief(route.tx, run.query.scope.owner, wanted, found=found)
            texts |= {episode.id: episode for episode in read.episodes}
        return _matched(run, [place for place in places if place.id in texts], texts)

    async def _read_near(
        self, run: _Run, excluded: _Excluded, route: Route, waiting: Mapping[EpisodeId, Episode]
    ) -> None:
        """Read the turns below those that were considered; apart from those, so that they change nothing."""
        ids = [place.id for place in excluded.near if place.id not in waiting]
        read = await self._search.brief(route.tx, run.query.scope.owner, BlockRequest(ids=ids, at=run.query.known_at))
        texts = {**waiting, **{episode.id: episode for episode in read.episodes}}
        least = run.time.threshold(run.min_score)
        for match in _matched(run, [place for place in excluded.near if place.id in texts], texts):
            is_likely = 0 < match.score >= least  # the half-life comes after the threshold, as in the recall
            [decayed] = self._decayed(run, [match])
            excluded.matches.append((decayed, ExclusionReason.LIMIT if is_likely else ExclusionReason.MIN_SCORE))

    async def _finish(self, run: _Run, limit: int) -> None:
        """What needs no connection any more: a second opinion, unlikeness, and facts among the episodes."""
        facts, moment = [*run.briefing.facts, *run.briefing.former], run.time.moment(run.now)
        former = match_selection.asked_former(
            run.briefing.former, run.briefing.facts, run.time, run.words, run.query.searched
        )
        run.matches = [*run.matches, *run.alternatives]
        if run.briefing.former:
            # In the order of time only the marks count.
            is_past, start = (
                (True, None) if run.query.mode is RecallMode.RECENCY else (run.time.is_past, run.time.start)
            )
            run.matches, run.passed_on = match_selection.supersede(
                run.matches,
                facts,
                run.words,
                moment=moment,
                is_past=is_past,
                start=start,
                names_user=run.names_user,
                named=former.named,
                question=run.query.searched,
            )
        if former.facts and not run.time.is_ever and run.query.mode is not RecallMode.RECENCY:
            for fact in former.successors:
                run.shares.pop(fact.id, None)
            run.matches, scores = match_selection.raise_former(run.matches, former, run.words)
            run.passed_on |= {id_: max(score, run.passed_on.get(id_, 0.0)) for id_, score in scores.items()}
        if run.alternatives:
            _keep_raised(run)
        if run.query.mode is not RecallMode.RECENCY and run.query.min_score > NOISE:
            _keep_likely(run, run.matches, least=run.query.min_score)
        run.available = len(run.matches) if run.is_complete else max(run.available, len(run.matches))
        found: list[Match] = []
        if "facts" in run.query.load:
            run.facts = (
                run.time.valid_facts(facts) if run.time.end is not None else [*run.briefing.facts, *former.facts]
            )
            found = self._scored_facts(run, limit)
        if run.query.rerank and self._reranker is not None:
            reranked, failure = await rerank(
                self._reranker, run.query.searched, [*run.matches, *found], deadline=run.deadline
            )
            run.degraded += [failure] if failure else []
            self._log_reranker(failure)
            episodes = [each for each in reranked if isinstance(each.item, Episode)]
            run.matches = [replace(each, rank=rank) for rank, each in enumerate(episodes, start=1)]
            found = [each for each in reranked if isinstance(each.item, Fact)]
            _keep_likely(run, run.matches, least=run.min_score)
        ranked = run.matches
        if run.query.diversity:
            run.matches = match_selection.spread(ranked, amount=run.query.diversity, limit=limit)
        run.matches = run.matches[:limit]
        if run.excluded is not None:
            run.excluded.add(ranked[:limit], run.matches, ExclusionReason.SIMILAR)
            run.excluded.add(ranked[limit:], run.matches, ExclusionReason.LIMIT)
        if found:
            merged = sorted([*run.matches, *found], key=lambda match: (-match.score, -(match.rerank_score or 0.0)))
            run.matches = [replace(match, rank=rank) for rank, match in enumerate(merged, start=1)]

    def _log_reranker(self, failure: str | None) -> None:
        """Log a failure once, until the reranker works or fails in another form."""
        kind = failure and re.sub(r"\d+", "", failure)
        if kind and kind != self._reranker_failure:
            log.warning("recall without its reranker", extra={"reason": failure})
        self._reranker_failure = kind

    async def _from_pending(self, run: _Run, limit: int, why: str) -> None:
        """No node answered: what waits in Redis or on this host is still shown, but for what may be forgotten."""
        run.degraded.append(f"the store does not answer: {why}")
        if not run.is_pending_placed:
            await self._hide_doubtful(run)
        run.served_by, run.replica, run.briefing = ServedBy.NONE, None, Briefing()
        if "history" not in run.query.load:
            return
        question = self._question(run)
        nothing = SearchResult(
            ids=(),
            frame=Frame.of((), question.terms),
            frequencies=Frequencies(episodes=0, having=[0] * len(question.terms)),
        )
        ranked = await self._ranked(run, question, nothing, limit)
        places = [place for place in ranked if place.score >= run.min_score]
        texts = {episode.id: episode for episode in run.pending}
        if not places:  # better the newest turns than none, where the question has no word in common with them
            newest = sorted(filter(run.query.wanted.fits, run.pending), key=lambda each: -each.position)[:limit]
            run.matches = [Match(item=each, score=0.0, rank=rank) for rank, each in enumerate(newest, start=1)]
        else:
            run.matches = _matched(run, places[:limit], texts)
        run.available = max(run.available, len(run.matches))

    async def _hide_doubtful(self, run: _Run) -> None:
        """Leave out pending turns that an erasure may cover: only the store has what it covers."""
        last = None if self._pending is None else self._pending.generation.known
        turns = [*run.accepted, *run.local]
        left = unforgotten_turns(turns, last)
        if len(left) < len(turns):
            hidden = len({turn.job_id for turn in turns} - {turn.job_id for turn in left})
            run.degraded.append(f"{hidden} pending turns are not shown, because they may have been forgotten")
            shown = to_episodes(unexpired(left, run.now), run.query.known_at)
            run.pending = await self._pending_turns.marked(shown, until=run.pending_until)

    async def _ranked(self, run: _Run, question: Question, found: SearchResult, limit: int) -> list[CandidateRank]:
        query = run.query
        frame, ids, frequencies = found.frame, list(found.ids), found.frequencies
        named = {question.terms[place] for hit in found.facts if hit.names_user for place in hit.places}
        question = question.naming_user(named.difference(terms(f"{USER} name", question.language)))
        run.names_user = bool(question.user_names)
        run.passages = dict(found.passages)
        if run.pending:
            searched = await run.pending_turns.search(
                run.pending, question, run.vector, query.wanted, until=run.pending_until
            )
            run.degraded += [gap for gap in searched.gaps() if gap not in run.degraded]
            waiting = searched.frame
            more = [int(count) for count in waiting.hits.sum(axis=0)]
            frequencies = Frequencies(
                episodes=frequencies.episodes + len(waiting),
                having=[old + new for old, new in zip(frequencies.having, more, strict=True)],
            )
            added = [episode.id for episode in searched.episodes]
            waiting, passages = with_passages(added, waiting, searched.compared, frequencies)
            run.passages |= passages
            frame, ids = frame.joined(waiting), [*ids, *added]
        worths = worths_of(frame, question, frequencies)
        if run.time.end is not None and (years := match_selection.years_alone(found.facts, frame, question, worths)):
            question = question.ignoring(years)
            worths = worths_of(frame, question, frequencies)
        by_term = dict(zip(question.terms, worths.tolist(), strict=True))
        if question.terms:
            run.words = QuestionWords.of(query.searched, by_term, question.language)
        sharing = [FactMatch(places=hit.places, having=hit.having) for hit in found.facts]
        worth = match_selection.about_named(found.facts, frame, question, shares(sharing, frame, question, frequencies))
        run.shares = {hit.id: float(share) for hit, share in zip(found.facts, worth, strict=True)}
        if "history" not in query.load:
            return []
        if frequencies.episodes <= limit:
            run.min_score = query.min_score
        embedder = run.vectors.embedder
        models = run.models = found.models or models_of(None if embedder is None else embedder.name)
        if query.mode is RecallMode.VECTOR:  # each turn's own vector counts
            models = replace(models, meaning=models.vector)
        run.scored = ids, frame, question, frequencies
        scores = score_frame(frame, question, frequencies, session=query.scope.session_id, models=models, worths=worths)
        scores = match_selection.weighed(found.facts, ids, frame, scores, worth)
        if run.time.end is not None:
            specific = [each not in UNSPECIFIC_TERMS and not each[0].isdigit() for each in question.terms]
            asked = np.array(specific, dtype=bool) & (worths > 0)  # a speaker's name is worth nothing
            shared = np.asarray(frequencies.having) > 0
            shared[[place for hit in found.facts for place in hit.places]] = True
            is_alone, has_words = not asked.any(), bool((asked & shared).any())
            likely = frame.candidate if is_alone else frame.candidate & (scores.total > 0)
            run.time = run.time.among(query.searched, frame.said_at[likely])
            scores = match_selection.admit_period(scores, frame, run.time, is_alone=is_alone, has_words=has_words)
        most = max(limit * SPARE if query.diversity else limit, RERANKED if query.rerank else 0, LEAST_CONSIDERED)
        settings = self._settings
        is_reordered = settings.recall_half_life_days or settings.recall_feedback_weight
        is_reordered = is_reordered or run.time.orders_turns or run.spans_sessions
        most = max(most, CANDIDATES if is_reordered else 0)
        # What is no longer true has its score later, and `min_score` is applied to that. What took its place may be
        # below this bound: see `_read_alternatives`.
        least = None if query.rerank else run.time.threshold(min(run.min_score, NOISE))
        run.scores = scores
        places, run.available = match_selection.places(ids, frame, scores, min_score=least, most=most)
        run.is_complete = len(places) == run.available
        if run.min_score > NOISE:
            enough = scores.total >= run.time.threshold(run.min_score)
            run.available = int((frame.candidate & enough).sum())
        run.burst_scores = match_selection.burst_scores(ids, frame, scores, places, limit=limit)
        if run.excluded is not None:
            run.excluded.matches.clear()  # of another node, which failed
            every, _ = match_selection.places(ids, frame, scores, min_score=None, most=len(places) + NEAR_MISSES)
            run.excluded.near = every[len(places) :]
        return places

    def _scored_facts(self, run: _Run, limit: int) -> list[Match]:
        question, words, passed_on = run.query.searched, run.words, run.passed_on
        scored = match_selection.score_facts(
            run.facts, run.shares, run.matches, passed_on=passed_on, words=words, question=question
        )
        weight, judged = self._settings.recall_feedback_weight, match_selection.judged(scored, run.feedback)
        confident = match_selection.confident(judged)
        reinforced = match_selection.reinforced(confident, run.feedback, weight=weight)
        facts = [match for match in self._decayed(run, reinforced) if match.score >= run.query.min_score]
        run.available += len(facts)
        if run.excluded is not None:
            known = {fact.id for fact in run.facts}
            former = [fact for fact in run.briefing.former if fact.id not in known]
            ended = [Match(item=fact, score=0.0, superseded_at=fact.valid_to) for fact in former]
            run.excluded.add(judged, confident, ExclusionReason.LOW_CONFIDENCE)
            run.excluded.add(reinforced, facts, ExclusionReason.MIN_SCORE)
            run.excluded.add(facts, facts[:limit], ExclusionReason.LIMIT)
            run.excluded.add(ended, (), ExclusionReason.SUPERSEDED)
        return facts[:limit]

    def _question(self, run: _Run) -> Question:
        words = "" if run.query.mode is RecallMode.VECTOR else run.query.searched
        scope = run.query.scope
        question = Question.of(words, language=self._settings.language_for(scope.namespace))
        is_named = fold_accents((scope.user_id or "").casefold()) in question.capitalised
        return question.naming_user(terms(scope.user_id or "", question.language)) if is_named else question

    def _searching(self, run: _Run, question: Question) -> Search:
        sessions = dict.fromkeys(episode.scope.session_id for episode in run.pending)
        embedder = run.vectors.embedder if run.vector is not None else None
        return Search(
            question=question,
            vector=run.vector,
            embedder=embedder,
            sentences=embedder is not None and compares_sentences(models_of(embedder.name)),
            wanted=run.query.wanted,
            known_at=run.query.known_at,
            hits=max(HITS, run.query.limit),
            tails=list(sessions),
            exact_rows=self._settings.exact_search_max_rows,
            facts="facts" in run.query.load,
            past=run.time.is_past,
            near=None if run.vector is None else run.near,
            along=self._block_request(run, ()),
            unstored=self._settings.pending_recalled + 1 if self._settings.pending_recalled else 0,
        )

    def _block_request(self, run: _Run, ids: Sequence[EpisodeId]) -> BlockRequest:
        query = run.query
        # Facts are read for the history as well: they mark messages whose statement is no longer true.
        load = query.load | {"facts"} if "history" in query.load else query.load
        return BlockRequest(
            ids=ids,
            load=load,
            session_id=query.scope.session_id,
            at=query.known_at,
            then=None if run.time.end is None else run.time.moment(run.now),
            past=run.time.is_undated_past,
        )


def _matched(run: _Run, places: Sequence[CandidateRank], texts: Mapping[EpisodeId, Episode]) -> list[Match]:
    return [
        match_selection.matched(place, texts[place.id], rank, run.passages.get(place.id))
        for rank, place in enumerate(places, start=1)
    ]


def _has_no_text(episode: Episode) -> bool:
    """Whether it only calls tools: the results are the next messages."""
    return not episode.content.strip() and bool({"tool_calls", RECORD} & episode.metadata.keys())


def _keep_likely(run: _Run, rescored: Sequence[Match], *, least: float) -> None:
    """Take over matches with new scores, without those that are below the least now."""
    run.matches = [match for match in rescored if match.score >= least]
    if run.excluded is not None:
        run.excluded.add(rescored, run.matches, ExclusionReason.MIN_SCORE)


def _keep_raised(run: _Run) -> None:
    """Leave out the alternatives that got no score of another turn, or too little of it."""
    own = {_identity(match): match.score for match in run.alternatives}
    raised = {_identity(match) for match in run.matches if match.score > own.get(_identity(match), match.score)}
    kept = [
        match
        for match in run.matches
        if (key := _identity(match)) not in own or (key in raised and match.score >= run.min_score)
    ]
    run.matches = [replace(match, rank=rank) for rank, match in enumerate(kept, start=1)]
    if run.excluded is not None:
        run.excluded.matches = [each for each in run.excluded.matches if _identity(each[0]) not in raised]


def _unavailable(run: _Run) -> errors.StoreUnavailable:
    """Its reasons have hints, of the store that was asked."""
    return errors.StoreUnavailable("recall", "; ".join(run.degraded) or "no node answered in time", "Repeat the call.")


def _identity(match: Match) -> Hashable:
    item = match.item
    if isinstance(item, Episode | Fact):
        return item.id
    return (Block, item.name) if isinstance(item, Block) else (Summary, item.scope)


def _explained(found: Sequence[tuple[Match, ExclusionReason]], block: RecallBlock) -> tuple[ExcludedMatch, ...]:
    """Each candidate once, by the last step that had it, without those that the block shows; the best first."""
    seen = {_identity(match) for match in block.matches}
    kept: list[tuple[Match, ExclusionReason]] = []
    for match, reason in found:
        if _identity(match) not in seen:
            seen.add(_identity(match))
            kept.append((match, reason))
    kept.sort(key=lambda each: -each[0].score)
    kept = [
        (replace(match, rank=rank), reason) for rank, (match, reason) in enumerate(kept, start=len(block.matches) + 1)
    ]
    tokens = token_count.count_each([as_text(line_of(match.item)) for match, _ in kept])
    return tuple(
        ExcludedMatch(match=match, reason=reason, tokens=count)
        for (match, reason), count in zip(kept, tokens, strict=True)
    )
