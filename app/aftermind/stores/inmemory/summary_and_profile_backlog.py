"""The backlog of summaries and profiles, and the extraction result of each episode, of one process."""

from collections.abc import Sequence
from datetime import datetime

from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import mem
from aftermind.stores.inmemory.blocks_summaries_profiles import PROFILE
from aftermind.stores.protocol import BatchNeighbours, DrewOn, ExtractionBatch, MiningOutcome, UserInfo
from aftermind.types import (
    Episode,
    EpisodeId,
    ExtractionResult,
    ExtractionState,
    Job,
    JobKind,
    JobState,
    Profile,
    Scope,
)
from aftermind.types.message import UNDONE
from aftermind.types.scope import GROUP_PREFIX
from aftermind.types.tombstone import Tombstone

_DOING = (JobState.QUEUED, JobState.RUNNING, JobState.RETRYING, JobState.DEAD, JobState.DISCARDED)


class InMemoryLearning:
    """The part of the store about extraction. See `Store` for the promise of each method."""

    async def session_size(self, tx: Transaction, owner: Scope, session_id: str | None, *, up_to: int) -> int:
        rows = (await mem(tx).owned("episodes", owner)).values()
        return sum(
            each.scope.session_id == session_id and each.position <= up_to and each.expires_at is None for each in rows
        )

    async def want_profiled(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> None:
        there = await mem(tx).owned("episodes", owner)
        rows = await mem(tx).owned("profile_backlog", owner)
        for id_ in ids:
            if id_ in there:
                mem(tx).put(rows, id_, True)

    async def unprofiled(self, tx: Transaction, owner: Scope, *, limit: int) -> list[Episode]:
        waiting = await mem(tx).owned("profile_backlog", owner)
        found = [each for id_, each in (await mem(tx).owned("episodes", owner)).items() if id_ in waiting]
        return sorted(found, key=lambda each: (each.position, each.id))[:limit]

    async def profiled(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> None:
        rows = await mem(tx).owned("profile_backlog", owner)
        for id_ in ids:
            mem(tx).drop(rows, id_)

    async def note_batch(self, tx: Transaction, owner: Scope, batch: ExtractionBatch) -> None:
        mem(tx).put(await mem(tx).owned("model_batches", owner), batch.job_id, batch)

    async def list_batch_neighbours(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> BatchNeighbours:
        batches: list[ExtractionBatch] = list((await mem(tx).owned("model_batches", owner)).values())
        episodes, asked = await mem(tx).owned("episodes", owner), set(ids)
        mining = [each for each in batches if each.kind is JobKind.EXTRACT and asked.intersection(each.shown)]
        updates = [each for each in batches if each.kind is JobKind.PROFILE]
        first = next((at for at, each in enumerate(updates) if asked.intersection(each.shown)), len(updates))

        def left(found: Sequence[ExtractionBatch]) -> frozenset[EpisodeId]:
            shown = {id_ for each in found for id_ in each.shown} - asked
            return frozenset(id_ for id_ in shown & episodes.keys() if episodes[id_].mark != UNDONE)

        mined = left(mining)
        sessions = {episodes[id_].scope.session_id for id_ in mined}
        return BatchNeighbours(mined=mined, sessions=tuple(sorted(sessions, key=str)), profiled=left(updates[first:]))

    async def drew_on(self, tx: Transaction, stone: Tombstone) -> DrewOn:
        episodes = await mem(tx).owned("episodes", stone.owner)
        gone = {id_ for id_, episode in episodes.items() if stone.fits(episode)}
        lasting = {episodes[id_].scope.session_id for id_ in gone if episodes[id_].expires_at is None}
        sessions = lasting & set(await mem(tx).owned("summaries", stone.owner))
        profile: Profile | None = (await mem(tx).owned("profiles", stone.owner)).get(PROFILE)
        lost = [trait for trait in profile.traits.values() if gone & set(trait.evidence)] if profile else []
        evidence = {each for trait in lost for each in trait.evidence} - gone
        claims = [one.claim for one in (await mem(tx).owned("assertions", stone.owner)).values()]
        return DrewOn(
            sessions=tuple(sorted(sessions, key=str)),
            evidence=tuple(sorted(evidence)),
            claims=frozenset((claim.subject, claim.predicate) for claim in claims if gone.intersection(claim.sources)),
        )

    async def extraction_results(
        self, tx: Transaction, owner: Scope, session_id: str | None, *, limit: int
    ) -> list[ExtractionResult]:
        rows = (await mem(tx).owned("episodes", owner)).values()
        wanted = [each for each in rows if session_id is None or each.scope.session_id == session_id]
        newest = sorted(wanted, key=lambda each: (each.position, each.id))[-limit:] if limit else []
        mined = await mem(tx).owned("extractions", owner)
        jobs = [record.job for record in mem(tx).table("jobs").values()]
        mining = [job for job in jobs if job.kind is JobKind.EXTRACT and job.state in _DOING]
        mine = [job for job in mining if job.scope.owner == owner.owner]
        return [_learned(each, mined.get(each.id), mine) for each in newest]

    async def owners(
        self, tx: Transaction, namespace: str, *, since: datetime | None = None, limit: int = 10_000
    ) -> list[Scope]:
        found: list[Scope] = []
        for _, user in sorted(mem(tx).owners(namespace)):
            owner = Scope(namespace=namespace, user_id=user or None)
            episodes = (await mem(tx).owned("episodes", owner)).values()
            if any(since is None or each.occurred_at >= since for each in episodes):
                found.append(owner)
            if len(found) == limit:
                break
        return found

    async def users(
        self,
        tx: Transaction,
        namespace: str,
        *,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
        groups: bool = False,
    ) -> list[UserInfo]:
        named = sorted(user for _, user in mem(tx).owners(namespace) if user.startswith(prefix))
        named = [user for user in named if groups or not user.startswith(GROUP_PREFIX)]
        found: list[UserInfo] = []
        for user in [user for user in named if after is None or user > after]:
            owner = Scope(namespace=namespace, user_id=user or None)
            rows = {kind: await mem(tx).owned(kind, owner) for kind in ("blocks", "items", "facts", "episodes")}
            if any(rows.values()):
                at = max((each.remembered_at for each in rows["episodes"].values()), default=None)
                found.append(UserInfo(user_id=user or None, last_at=at))
            if len(found) == limit:
                break
        return found


def _learned(episode: Episode, mined: MiningOutcome | None, jobs: Sequence[Job]) -> ExtractionResult:
    mine = [job for job in jobs if job.scope.session_id == episode.scope.session_id]
    last = (JobState.DEAD, JobState.DISCARDED)
    mine.sort(key=lambda job: (last.index(job.state) + 1 if job.state in last else 0, -job.created_at.timestamp()))
    doing = mine[0] if mine and mined is None else None
    waits = "no job waits" if doing is None else doing.error or doing.note or doing.reason_code or str(doing.state)
    if doing is not None and doing.state is JobState.DISCARDED:
        waits = "its job was discarded"
    return ExtractionResult(
        episode_id=episode.id,
        session_id=episode.scope.session_id,
        occurred_at=episode.occurred_at,
        state=ExtractionState.of(mined.outcome if mined else None, doing.state if doing else None),
        reason=mined.reason if mined else waits,
        facts=mined.facts if mined else 0,
        extractor=mined.extractor if mined else None,
        job_id=mined.job_id if mined else doing.id if doing else None,
    )
