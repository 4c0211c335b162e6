"""Episodes of one process: by owner, each with its vector and what came of mining it."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from aftermind.db.database_protocol import Transaction
from aftermind.db.inmemory_database import Rows, mem
from aftermind.ranking.vectors import whole
from aftermind.stores.inmemory.vector_tables_by_embedder import ACTIVE, VECTOR_TABLES, read_embedders, vector_table
from aftermind.stores.protocol import AdmissionState, EpisodeFilter, MiningOutcome, SessionInfo, Vector
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, JobId, JobState, Scope, StoredEmbedders
from aftermind.types.session_order import Counted
from aftermind.types.tombstone import Tombstone

Owner = tuple[str, str]
# Tables whose rows have the id of an episode as their key, and are deleted with it.
EPISODE_TABLES = ("episodes", *VECTOR_TABLES, "extractions", "profile_backlog", "counted", "expiring", "turns")


def owner_key(scope: Scope) -> Owner:
    """What rows of an owner are kept under."""
    return scope.namespace, scope.user_column


class InMemoryEpisodes:
    """The part of the store that keeps episodes. See `Store` for what each method promises."""

    async def now(self, tx: Transaction) -> datetime:
        return mem(tx).database.now()

    async def tombstones(self, tx: Transaction, owners: Sequence[Scope]) -> list[Tombstone]:
        """The owners' tombstones; no lock is needed, because transactions run one after the other."""
        known = [await mem(tx).owned("tombstones", owner) for owner in {owner.owner for owner in owners}]
        return [stone for rows in known for stone in rows.values()]

    async def admission_state(
        self,
        tx: Transaction,
        owner: Scope,
        sessions: Collection[str | None],
        *,
        generation: int | None = None,
        turns: Collection[JobId] = (),
    ) -> AdmissionState:
        stones = await self.tombstones(tx, [owner]) if generation is not None else ()
        places, newest = await mem(tx).owned("counted", owner), (await _newest(tx, owner)).sessions
        counted: dict[str | None, Counted] = {}
        for session in sessions:
            if session in newest:
                episode = newest[session]
                counted_from, shift = places.get(episode.id, (None, 0))
                counted[session] = Counted(position=episode.position, counted_from=counted_from, shift=shift)
        jobs = mem(tx).table("jobs")
        erasures = await self.tombstones(tx, [owner]) if turns else ()
        known = {id_: jobs[id_].job for id_ in turns if erasures and id_ in jobs}
        return AdmissionState(
            stones=[each for each in stones if each.generation > (generation or 0)],
            counted=counted,
            erased_after={id_: job.payload.get("hash") for id_, job in known.items() if job.state is JobState.DONE},
        )

    async def hold(self, tx: Transaction, owner: Scope, name: str) -> None:
        """Transactions follow each other."""

    async def find_session_shift(
        self, tx: Transaction, owner: Scope, session_id: str | None, counted_from: int
    ) -> int | None:
        places = await mem(tx).owned("counted", owner)
        found = [places.get(each.id) for each in await _in_session(tx, owner, session_id)]
        shifts = [each[1] for each in found if each is not None and each[0] == counted_from]
        return shifts[-1] if shifts else None

    async def add_episodes(
        self,
        tx: Transaction,
        given: Sequence[Episode],
        vectors: Mapping[EpisodeId, Vector] | None = None,
        *,
        counted: Mapping[EpisodeId, Counted] | None = None,
    ) -> frozenset[EpisodeId]:
        new = set()
        for owner in {episode.scope.owner for episode in given}:
            await _drop_expired(tx, owner)
        for episode in given:
            rows = await mem(tx).owned("episodes", episode.scope)
            if episode.id in rows:
                continue
            newest = await _newest(tx, episode.scope)
            mem(tx).put(rows, episode.id, episode)
            newest.add(episode, seen=rows.version)
            new.add(episode.id)
            if episode.expires_at is not None:
                mem(tx).put(await mem(tx).owned("expiring", episode.scope), episode.id, episode.expires_at)
            if counted and episode.id in counted:
                place = counted[episode.id]
                mem(tx).put(
                    await mem(tx).owned("counted", episode.scope), episode.id, (place.counted_from, place.shift)
                )
                if place.job_id is not None:  # for timelines
                    mem(tx).put(await mem(tx).owned("turns", episode.scope), episode.id, place.job_id)
            if vectors and episode.id in vectors:
                mem(tx).put(await _vectors(tx, episode.scope), episode.id, vectors[episode.id])
        return frozenset(new)

    async def stored_embedders(self, tx: Transaction, *, hold: bool = False) -> StoredEmbedders | None:
        """Those that `adopt_embedder` and a re-embedding recorded; transactions follow each other."""
        known = read_embedders(tx)
        return None if known is None else known.stored

    async def adopt_embedder(self, tx: Transaction, identity: EmbedderIdentity) -> StoredEmbedders:
        """Record the embedder of a store that has none; the one that it has now."""
        known = await self.stored_embedders(tx)
        if known is None:
            mem(tx).put(mem(tx).table("embedders"), ACTIVE, identity)
        return known or StoredEmbedders(active=identity)

    async def unembedded(
        self, tx: Transaction, owner: Scope, embedder: EmbedderIdentity, *, after_position: int, limit: int
    ) -> list[Episode]:
        table = vector_table(tx, embedder)
        if table is None:
            return []
        vectors = await mem(tx).owned(table, owner)
        later = [each for each in await _ordered(tx, owner) if each.position >= after_position]
        lacking = [each for each in later if each.id not in vectors]
        return lacking[:limit]

    async def set_vectors(
        self,
        tx: Transaction,
        vectors: Mapping[tuple[Scope, EpisodeId], Vector],
        *,
        embedder: EmbedderIdentity | None = None,
    ) -> int:
        table = vector_table(tx, embedder)
        if table is None:
            return 0
        there = 0
        for (owner, id_), vector in vectors.items():
            if id_ in await mem(tx).owned("episodes", owner):
                mem(tx).put(await mem(tx).owned(table, owner), id_, vector)
                there += 1
        return there

    async def vectors(
        self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId] | None = None
    ) -> dict[EpisodeId, Vector]:
        rows = await _vectors(tx, owner)
        return {id_: whole(rows[id_]) for id_ in (rows if ids is None else ids) if id_ in rows}

    async def episodes(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Episode]:
        rows, now = await mem(tx).owned("episodes", owner), mem(tx).database.now()
        return [rows[id_] for id_ in ids if id_ in rows and not rows[id_].is_expired(now)]

    async def mined_in(self, tx: Transaction, owner: Scope, job_id: JobId) -> list[Episode]:
        rows = await mem(tx).owned("extractions", owner)
        return [each for each in await _ordered(tx, owner) if each.id in rows and rows[each.id].job_id == job_id]

    async def history(self, tx: Transaction, owner: Scope, wanted: EpisodeFilter, *, limit: int) -> list[Episode]:
        return [each for each in await _unexpired(tx, owner) if wanted.fits(each)][-limit:] if limit else []

    async def sessions(self, tx: Transaction, owner: Scope, *, limit: int = 100) -> list[SessionInfo]:
        groups: dict[str | None, list[Episode]] = {}
        for episode in await _unexpired(tx, owner):
            groups.setdefault(episode.scope.session_id, []).append(episode)
        latest = sorted(groups.items(), key=lambda item: -item[1][-1].position)[:limit]
        return [
            SessionInfo(
                session_id=session,
                episodes=len(group),
                first_at=min(episode.occurred_at for episode in group),
                last_at=max(episode.occurred_at for episode in group),
            )
            for session, group in latest
        ]

    async def session_span(
        self, tx: Transaction, owner: Scope, session_id: str | None, *, after_position: int, limit: int
    ) -> list[Episode]:
        found = await _in_session(tx, owner, session_id)
        return [each for each in found if each.position > after_position and each.expires_at is None][:limit]

    async def embedded(
        self,
        tx: Transaction,
        owner: Scope,
        ids: Sequence[EpisodeId],
        *,
        embedder: EmbedderIdentity | None = None,
    ) -> frozenset[EpisodeId]:
        table = vector_table(tx, embedder)
        vectors = {} if table is None else await mem(tx).owned(table, owner)
        return frozenset(id_ for id_ in ids if id_ in vectors)

    async def unmined(self, tx: Transaction, owner: Scope, session_id: str | None, *, limit: int) -> list[Episode]:
        mined, now = await mem(tx).owned("extractions", owner), mem(tx).database.now()
        found = await _in_session(tx, owner, session_id)
        return [each for each in found if each.id not in mined and not each.is_expired(now)][:limit]

    async def note_outcomes(self, tx: Transaction, owner: Scope, outcomes: Sequence[MiningOutcome]) -> None:
        rows = await mem(tx).owned("extractions", owner)
        for outcome in outcomes:
            mem(tx).put(rows, outcome.episode_id, outcome)

    async def outcomes(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[MiningOutcome]:
        rows = await mem(tx).owned("extractions", owner)
        return [rows[id_] for id_ in ids if id_ in rows]


class _Newest:
    """The newest episode of each session of an owner, when the rows had the version `seen`."""

    def __init__(self) -> None:
        self.sessions: dict[str | None, Episode] = {}
        self.seen: int | None = None

    def add(self, episode: Episode, *, seen: int) -> None:
        """Take over a row."""
        known = self.sessions.get(episode.scope.session_id)
        if known is None or (known.position, known.id) < (episode.position, episode.id):
            self.sessions[episode.scope.session_id] = episode
        self.seen = seen


async def _newest(tx: Transaction, owner: Scope) -> _Newest:
    """It is kept, so that a turn costs the same whatever its user has; any change but a new row builds it again."""
    rows = await mem(tx).owned("episodes", owner)
    kept = mem(tx).owned_index("newest", owner)
    found: _Newest | None = kept.get("newest")
    if found is None or found.seen != rows.version:
        found = kept["newest"] = _Newest()
        found.seen = rows.version
        for episode in rows.values():
            found.add(episode, seen=rows.version)
    return found


async def _vectors(tx: Transaction, owner: Scope) -> Rows:
    """Those of the active embedder."""
    return await mem(tx).owned(vector_table(tx) or VECTOR_TABLES[0], owner)


async def _ordered(tx: Transaction, owner: Scope) -> list[Episode]:
    rows = (await mem(tx).owned("episodes", owner)).values()
    return sorted(rows, key=lambda episode: (episode.position, episode.id))


async def _drop_expired(tx: Transaction, owner: Scope) -> None:
    """Delete the owner's expired messages, from which nothing was derived."""
    run, now = mem(tx), mem(tx).database.now()
    expiring = await run.owned("expiring", owner)
    for id_, expires_at in list(expiring.items()):
        if expires_at <= now:
            run.is_erasure = True
            for table in EPISODE_TABLES:
                run.drop(run.rows(table, owner_key(owner)), id_)


async def _unexpired(tx: Transaction, owner: Scope) -> list[Episode]:
    now = mem(tx).database.now()
    return [episode for episode in await _ordered(tx, owner) if not episode.is_expired(now)]


async def _in_session(tx: Transaction, owner: Scope, session_id: str | None) -> list[Episode]:
    return [episode for episode in await _ordered(tx, owner) if episode.scope.session_id == session_id]
