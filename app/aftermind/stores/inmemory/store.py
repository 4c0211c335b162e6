"""`InMemoryStore`: the `Store` protocol within one process, and recall's search over it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import MemoryTransaction, mem
from aftermind.ranking import parse_models
from aftermind.ranking.tokenizer import LanguageFor, english
from aftermind.stores.inmemory.blocks_summaries_profiles import PROFILE, InMemoryDocuments
from aftermind.stores.inmemory.episodes import EPISODE_TABLES, InMemoryEpisodes, owner_key
from aftermind.stores.inmemory.facts import InMemoryFacts
from aftermind.stores.inmemory.items import InMemoryItems
from aftermind.stores.inmemory.search import EpisodeColumns
from aftermind.stores.inmemory.summary_and_profile_backlog import InMemoryLearning
from aftermind.stores.inmemory.vector_tables_by_embedder import VECTOR_TABLES, vector_table
from aftermind.stores.protocol import BatchNeighbours, ExtractionOutcome
from aftermind.stores.search import (
    BlockRequest,
    Briefing,
    NodeState,
    Search,
    SearchResult,
    former_of,
    worth_showing,
)
from aftermind.types import (
    EpisodeId,
    Fact,
    JobId,
    JobKind,
    JobState,
    Profile,
    Scope,
    StoredEmbedders,
    Watermark,
)
from aftermind.types.assertion import BY_USER, Assertion
from aftermind.types.items import CHECKPOINTS, FEEDBACK, SESSIONS, below, feedback_name, internal_path
from aftermind.types.job import TURN_FORGOTTEN
from aftermind.types.message import UNDONE
from aftermind.types.tombstone import Tombstone

MAX_SUMMARIES = 1_000
MAX_READ_INLINE = 100  # texts; reading one takes 40 µs

_BEGINNING = datetime.min.replace(tzinfo=UTC)


class InMemoryStore(InMemoryEpisodes, InMemoryFacts, InMemoryDocuments, InMemoryItems, InMemoryLearning):
    """Memory in this process. `language_for` gives the language of a namespace's texts.

    `standby` searches the vectors of the standby embedder instead of the active one's, for the comparison before a
    cutover.
    """

    def __init__(self, *, language_for: LanguageFor = english, standby: bool = False) -> None:
        self._language_for, self._is_standby = language_for, standby

    # search, see `EpisodeSearch`

    async def node_state(self, tx: Transaction, *, passed: Sequence[Watermark] | None = None) -> NodeState:
        """No replica."""
        return NodeState(replica=False)

    async def find(self, tx: Transaction, owner: Scope, search: Search) -> SearchResult:
        """Exact: every vector of the owner is compared, unless an index has named candidates."""
        stored = await self.stored_embedders(tx)
        if self._is_standby and stored is not None and stored.standby is not None:
            stored = StoredEmbedders(active=stored.standby)
        table = vector_table(tx, None if stored is None else stored.active) or VECTOR_TABLES[0]
        rows, vectors = await mem(tx).owned("episodes", owner), await mem(tx).owned(table, owner)
        then = search.known_at
        facts = await self.facts(tx, owner, as_of=then, known_at=then, limit=1_000_000) if search.facts else []
        if search.facts and search.past:
            facts = [*facts, *await self._former_facts(tx, owner, then)]
        models = (await self.ranking_models(tx, owner.namespace)).get(search.embedder.key if search.embedder else "")
        if stored is not None and search.embedder is not None and search.embedder != stored.active:
            search = replace(search, vector=None, near=None)
        kept: dict[str, EpisodeColumns] = mem(tx).owned_index("search", owner)
        language = self._language_for(owner.namespace)
        key = f"{language}:standby" if self._is_standby else language
        columns = kept.get(key) or EpisodeColumns(language)
        seen = rows.version, table, vectors.version
        if columns.lacks(rows) > MAX_READ_INLINE:
            # The first search of a user reads every text: in a thread, so that other tasks of the loop run. On copies,
            # and not kept before it has ended: a recall that gives up does not stop the thread.
            columns = EpisodeColumns(language)
            await asyncio.to_thread(columns.refresh, dict(rows), dict(vectors))
        elif columns.seen != seen:
            columns.refresh(rows, vectors)
        kept[key], columns.seen = columns, seen
        now, expiring = mem(tx).database.now(), await mem(tx).owned("expiring", owner)
        expired = [id_ for id_, expires_at in expiring.items() if expires_at <= now]
        result = columns.find(search, facts, without=expired)
        return replace(
            result,
            embedders=stored,
            models=None if models is None else parse_models(models),
        )

    async def ranking_models(self, tx: Transaction, namespace: str) -> dict[str, str]:
        rows: dict[tuple[str, str], str] = mem(tx).table("ranking_models")
        return {embedder: models for (space, embedder), models in rows.items() if space == namespace}

    async def set_ranking_models(self, tx: Transaction, namespace: str, embedder: str, models: str | None) -> None:
        rows = mem(tx).table("ranking_models")
        if models is None:
            mem(tx).drop(rows, (namespace, embedder))
        else:
            mem(tx).put(rows, (namespace, embedder), models)

    async def brief(
        self, tx: Transaction, owner: Scope, wanted: BlockRequest, *, found: SearchResult | None = None
    ) -> Briefing:
        at, load = wanted.at, wanted.load
        facts = await self.facts(tx, owner, as_of=at, known_at=at, limit=1_000_000) if "facts" in load else []
        former = await self._former_facts(tx, owner, at) if "facts" in load else []
        blocks = await self.blocks(tx, owner) if "blocks" in load else []
        summaries = await self.summaries(tx, owner, limit=MAX_SUMMARIES) if "summary" in load else []
        of_then = [each for each in summaries if at is None or each.updated_at <= at]
        profile = await self.profile(tx, owner) if "profile" in load else None
        return Briefing(
            episodes=await self.episodes(tx, owner, wanted.ids) if wanted.ids else [],
            facts=worth_showing(facts, wanted),
            former=former_of(former, wanted),
            blocks=[block for block in blocks if at is None or block.updated_at <= at],
            summary=next(
                (each for each in of_then if each.scope.session_id == wanted.session_id),
                max(of_then, key=lambda each: each.last_message_at or _BEGINNING, default=None),
            ),
            profile=profile if at is None or _is_of(profile, at) else None,
        )

    async def _former_facts(self, tx: Transaction, owner: Scope, at: datetime | None) -> list[Fact]:
        moment = at or mem(tx).database.now()
        rows = await self.facts(tx, owner, history=True, limit=1_000_000)
        believed = [each for each in rows if (each.superseded_at is None if at is None else each.is_believed_at(at))]
        return [each for each in believed if each.valid_to is not None and each.valid_to <= moment]

    # forgetting, counting

    async def begin_erasure(self, tx: Transaction, owner: Scope, *, known: int = 0) -> int:
        """The next number; transactions follow each other."""
        run = mem(tx)
        table = run.table("generation")
        number: int = max(table.get("last", 0), known) + 1
        run.put(table, "last", number)
        return number

    async def undelivered(self, tx: Transaction, namespace: str) -> list[Tombstone]:
        """None: there is no other place."""
        return []

    async def delivered(self, tx: Transaction, tombstone: Tombstone) -> None:
        """Nothing to note."""

    async def forget(self, tx: Transaction, tombstone: Tombstone) -> dict[str, int]:
        """Write the tombstone and delete what it fits, with derived facts that lose their last source."""
        run, key = mem(tx), owner_key(tombstone.owner)
        await run.database.load(key)
        run.is_erasure = True
        run.owned_index("search", tombstone.owner).clear()
        stones = run.rows("tombstones", key)
        run.put(stones, len(stones), tombstone)
        episodes = run.rows("episodes", key)
        gone = {id_ for id_, episode in episodes.items() if tombstone.fits(episode)}
        times = {id_: episode.occurred_at for id_, episode in episodes.items()}
        # Nothing was derived from a message that expires.
        sessions = {episodes[id_].scope.session_id for id_ in gone if episodes[id_].expires_at is None}
        counts = {"episodes": len(gone)}
        _forget_traces(run, tombstone.owner, gone)
        if tombstone.marks_turns:
            _mark_emptied_turns(run, key, gone)
        for id_ in gone:
            for table in EPISODE_TABLES:
                run.drop(run.rows(table, key), id_)
        _forget_batches(run, key, gone)
        counts["facts"] = _forget_facts(run, key, gone, times)
        _forget_feedback(run, key)
        counts["summaries"] = sum(run.drop(run.rows("summaries", key), session) for session in sessions)
        counts["traits"] = _forget_traits(run, key, gone)
        if tombstone.is_whole:
            counts |= _erase_owner(run, key, counts)
        elif tombstone.is_session:
            _erase_session_rows(run, key, tombstone)
        if tombstone.is_whole or tombstone.is_session:
            counts["jobs"] = _forget_jobs(run, tombstone)
        return counts

    async def undo(
        self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId], *, beside: BatchNeighbours
    ) -> dict[str, int]:
        run, key, undone = mem(tx), owner_key(owner), set(ids)
        await run.database.load(key)
        episodes, mined, facts = run.rows("episodes", key), run.rows("extractions", key), run.rows("facts", key)
        sessions = {episodes[id_].scope.session_id for id_ in undone & episodes.keys()}
        for id_ in undone & episodes.keys():
            run.put(episodes, id_, replace(episodes[id_], mark=UNDONE))
            run.drop(run.rows("profile_backlog", key), id_)
            if id_ in mined:
                run.put(mined, id_, replace(mined[id_], outcome=ExtractionOutcome.EMPTY, reason=UNDONE, facts=0))
        for id_ in beside.mined:
            run.drop(mined, id_)
        for id_, fact in list(facts.items()):
            gone = undone if fact.extractor == BY_USER else undone | beside.mined
            left = tuple(source for source in fact.sources if source not in gone)
            if fact.superseded_at is None and len(left) < len(fact.sources):
                run.put(facts, id_, replace(fact, sources=left, strength=max(1, fact.strength - 1)))
        _forget_traces(run, owner, undone)
        return {
            "traits": _forget_traits(run, key, undone | beside.profiled),
            "summaries": sum(run.drop(run.rows("summaries", key), session) for session in sessions),
        }

    async def counts(self, tx: Transaction, owner: Scope) -> dict[str, int]:
        run, key = mem(tx), owner_key(owner)
        await run.database.load(key)
        facts = [fact for fact in run.rows("facts", key).values() if fact.superseded_at is None]
        return {
            "episodes": len(run.rows("episodes", key)),
            "embedded": len(run.rows(vector_table(tx) or VECTOR_TABLES[0], key)),
            "facts": len(facts),
            "blocks": len(run.rows("blocks", key)),
            "items": len(run.rows("items", key)),
            "summaries": len(run.rows("summaries", key)),
            "profiles": len(run.rows("profiles", key)),
        }


def _forget_batches(run: MemoryTransaction, key: tuple[str, str], gone: set[EpisodeId]) -> None:
    rows = run.rows("model_batches", key)
    for job_id, batch in list(rows.items()):
        left = tuple(id_ for id_ in batch.shown if id_ not in gone)
        if not left:
            run.drop(rows, job_id)
        elif len(left) < len(batch.shown):
            run.put(rows, job_id, replace(batch, shown=left))


def _forget_facts(
    run: MemoryTransaction, key: tuple[str, str], gone: set[EpisodeId], times: Mapping[EpisodeId, datetime]
) -> int:
    rows = run.rows("facts", key)
    dropped: list[Fact] = []
    for id_, fact in list(rows.items()):
        left = tuple(source for source in fact.sources if source not in gone)
        if fact.sources and not left:
            run.drop(rows, id_)
            dropped.append(fact)
        elif len(left) < len(fact.sources):
            run.put(rows, id_, replace(fact, sources=left))
    forgotten = {at for fact in dropped for at in (fact.valid_from, fact.valid_to)}
    forgotten |= _erase_assertions(run, key, gone, times)
    _remove_times(run, key, forgotten)
    return len(dropped)


def _erase_assertions(
    run: MemoryTransaction, key: tuple[str, str], gone: set[EpisodeId], times: Mapping[EpisodeId, datetime]
) -> set[datetime | None]:
    """Delete assertions without a source left; the others have the times of their other sources. Returns the times that
    were in them.
    """
    rows = run.rows("assertions", key)
    forgotten: set[datetime | None] = set()
    for id_, one in list(rows.items()):
        claim = one.claim
        left = tuple(source for source in claim.sources if source not in gone)
        if claim.sources and not left:
            run.drop(rows, id_)
            forgotten |= _times(claim)
        elif len(left) < len(claim.sources):
            lost = {times[source] for source in claim.sources if source in gone}
            rest = [times[source] for source in left if source in times]
            claim = replace(
                claim,
                sources=left,
                said_at=max(rest, default=claim.said_at) if claim.said_at in lost else claim.said_at,
                valid_from=min(rest, default=None) if claim.valid_from in lost else claim.valid_from,
                valid_to=None if claim.valid_to in lost else claim.valid_to,
                latest_at=max(rest, default=None) if claim.latest_at in lost else claim.latest_at,
            )
            run.put(rows, id_, replace(one, claim=claim))
            forgotten |= lost
    return forgotten


def _remove_times(run: MemoryTransaction, key: tuple[str, str], forgotten: set[datetime | None]) -> None:
    """Remove times that no assertion gives any more from facts, superseded ones included."""
    for one in run.rows("assertions", key).values():
        forgotten = forgotten - _times(one.claim)
    rows = run.rows("facts", key)
    for id_, fact in list(rows.items()) if forgotten - {None} else []:
        if fact.valid_from in forgotten or fact.valid_to in forgotten:
            begins = None if fact.valid_from in forgotten else fact.valid_from
            ends = None if fact.valid_to in forgotten else fact.valid_to
            run.put(rows, id_, replace(fact, valid_from=begins, valid_to=ends))


def _times(claim: Assertion) -> set[datetime | None]:
    return {claim.said_at, claim.valid_from, claim.valid_to, claim.latest_at}


def _forget_traits(run: MemoryTransaction, key: tuple[str, str], gone: set[EpisodeId]) -> int:
    rows = run.rows("profiles", key)
    profile = rows.get(PROFILE)
    if profile is None:
        return 0
    kept = {name: trait for name, trait in profile.traits.items() if not gone & set(trait.evidence)}
    run.put(rows, PROFILE, replace(profile, traits=kept))
    return len(profile.traits) - len(kept)


def _forget_feedback(run: MemoryTransaction, key: tuple[str, str]) -> None:
    """Drop counts of feedback about what does not exist."""
    rows, (first, behind) = run.rows("items", key), below(internal_path(FEEDBACK))
    left = {feedback_name(id_) for table in ("episodes", "facts") for id_ in run.rows(table, key)}
    for name in [each for each in rows if first <= each < behind and each not in left]:
        run.drop(rows, name)


def _erase_session_rows(run: MemoryTransaction, key: tuple[str, str], stone: Tombstone) -> None:
    rows, session = run.rows("items", key), replace(stone.owner, session_id=stone.session_id)
    for first, behind in [below(internal_path(kind, session)) for kind in (SESSIONS, CHECKPOINTS)]:
        for name in [each for each in rows if first <= each < behind]:
            run.drop(rows, name)


def _erase_owner(run: MemoryTransaction, key: tuple[str, str], counts: dict[str, int]) -> dict[str, int]:
    more = {}
    for table in ("facts", "blocks", "items", "summaries", "profiles"):
        more[table] = counts.get(table, 0) + len(run.rows(table, key))
        run.clear(run.rows(table, key))
    for table in ("assertions", "events"):
        run.clear(run.rows(table, key))
    return more


def _forget_traces(run: MemoryTransaction, owner: Scope, gone: set[EpisodeId]) -> None:
    """Delete stored model answers that used the forgotten episodes, and results of dry runs of replays."""
    jobs, names = run.table("jobs"), {str(id_) for id_ in gone}
    for id_, record in list(jobs.items()):
        job = record.job
        if job.kind is JobKind.SHADOW and job.note and gone and job.scope.owner == owner.owner:
            job = replace(job, note=None)
            run.put(jobs, id_, replace(record, job=job))
        told = job.answer.get("episodes") if job.answer is not None and job.scope.owner == owner.owner else None
        if isinstance(told, list) and names.intersection(map(str, told)):
            run.put(jobs, id_, replace(jobs[id_], job=replace(job, answer=None)))


def _mark_emptied_turns(run: MemoryTransaction, key: tuple[str, str], gone: set[EpisodeId]) -> None:
    """Mark turns without a message left in their jobs."""
    turns: dict[EpisodeId, JobId] = run.rows("turns", key)
    left = {turns[id_] for id_ in turns.keys() - gone}
    jobs = run.table("jobs")
    for job_id in {turns[id_] for id_ in turns.keys() & gone} - left:
        record = jobs.get(job_id)
        if record is not None and record.job.state is JobState.DONE:
            run.put(jobs, job_id, replace(record, job=replace(record.job, reason_code=TURN_FORGOTTEN)))


def _forget_jobs(run: MemoryTransaction, stone: Tombstone) -> int:
    jobs, holds, forgotten = run.table("jobs"), run.table("hold_history"), set()
    for id_, record in list(jobs.items()):
        job = record.job
        is_meant = job.scope.owner == stone.owner and stone.session_id in (None, job.scope.session_id)
        if is_meant and job.state is not JobState.FORGOTTEN:
            emptied = replace(job, scope=job.scope.owner, effect_key=str(job.id), state=JobState.FORGOTTEN, payload={})
            emptied = replace(emptied, raw=None, answer=None, error=None, note=None)
            run.put(jobs, id_, replace(record, job=emptied, token=None, place=None, edited=None))
            forgotten.add(id_)
    for hold_id in [hold_id for hold_id, hold in holds.items() if hold.job_id in forgotten]:
        run.drop(holds, hold_id)
    if forgotten:
        run.clear_indexes()  # of the ledger, which a store does not import
    return len(forgotten)


def _is_of(profile: Profile | None, at: datetime) -> bool:
    """Whether a profile was at that time as it is now."""
    return profile is not None and profile.updated_at is not None and profile.updated_at <= at
