"""Episodes of one process: by owner, each with its vector and what came of mining it."""

from collections.abc import Collection, Mapping, Sequence

from aftermind.db.inmemory import mem
from aftermind.db.protocol import Transaction
from aftermind.stores.protocol import AdmissionState, EpisodeFilter, MiningOutcome, SessionInfo, Vector
from aftermind.types import EmbedderIdentity, Episode, EpisodeId, JobId, Scope, StoredEmbedders
from aftermind.types.session_order import Counted
from aftermind.types.tombstone import Tombstone

Owner = tuple[str, str]


def owner_key(scope: Scope) -> Owner:
    """What rows of an owner are kept under."""
    return scope.namespace, scope.user_column


class InMemoryEpisodes:
    """The part of the store that keeps episodes. See `Store` for what each method promises."""

    async def tombstones(self, tx: Transaction, owners: Sequence[Scope]) -> list[Tombstone]:
        """The owners' tombstones; no lock is needed, because transactions run one after the other."""
        table = mem(tx).table("tombstones")
        return [stone for key in {owner_key(owner) for owner in owners} for stone in table.get(key, ())]

    async def admission_state(
        self, tx: Transaction, owner: Scope, sessions: Collection[str | None], *, generation: int | None = None
    ) -> AdmissionState:
        key = owner_key(owner)
        stones = mem(tx).table("tombstones").get(key, ()) if generation is not None else ()
        newest: dict[str | None, Counted] = {}
        for episode in _ordered(tx, owner):
            if episode.scope.session_id in sessions:
                counted_from, shift = mem(tx).table("counted").get(episode.id, (None, 0))
                newest[episode.scope.session_id] = Counted(
                    position=episode.position, counted_from=counted_from, shift=shift
                )
        return AdmissionState(stones=[each for each in stones if each.generation > (generation or 0)], counted=newest)

    async def hold_order(self, tx: Transaction, owner: Scope, session_id: str | None) -> None:
        """Transactions follow each other."""

    async def find_session_shift(
        self, tx: Transaction, owner: Scope, session_id: str | None, counted_from: int
    ) -> int | None:
        table = mem(tx).table("counted")
        found = [table.get(each.id) for each in _in_session(tx, owner, session_id)]
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
        for episode in given:
            rows = mem(tx).rows("episodes", owner_key(episode.scope))
            if episode.id in rows:
                continue
            mem(tx).put(rows, episode.id, episode)
            new.add(episode.id)
            if counted and episode.id in counted:
                place = counted[episode.id]
                mem(tx).put(mem(tx).table("counted"), episode.id, (place.counted_from, place.shift))
            if vectors and episode.id in vectors:
                mem(tx).put(mem(tx).rows("vectors", owner_key(episode.scope)), episode.id, vectors[episode.id])
        return frozenset(new)

    async def stored_embedders(self, tx: Transaction, *, hold: bool = False) -> StoredEmbedders | None:
        """None: the embedder of a process does not change during its life."""
        return None

    async def unembedded(
        self, tx: Transaction, owner: Scope, embedder: EmbedderIdentity, *, after_position: int, limit: int
    ) -> list[Episode]:
        vectors = mem(tx).rows("vectors", owner_key(owner))
        lacking = [each for each in _ordered(tx, owner) if each.position >= after_position and each.id not in vectors]
        return lacking[:limit]

    async def set_vectors(
        self,
        tx: Transaction,
        vectors: Mapping[tuple[Scope, EpisodeId], Vector],
        *,
        embedder: EmbedderIdentity | None = None,
    ) -> int:
        there = 0
        for (owner, id_), vector in vectors.items():
            if id_ in mem(tx).rows("episodes", owner_key(owner)):
                mem(tx).put(mem(tx).rows("vectors", owner_key(owner)), id_, vector)
                there += 1
        return there

    async def vectors(self, tx: Transaction, owner: Scope) -> dict[EpisodeId, Vector]:
        return dict(mem(tx).rows("vectors", owner_key(owner)))

    async def episodes(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[Episode]:
        rows = mem(tx).rows("episodes", owner_key(owner))
        return [rows[id_] for id_ in ids if id_ in rows]

    async def mined_in(self, tx: Transaction, owner: Scope, job_id: JobId) -> list[Episode]:
        rows = mem(tx).rows("extractions", owner_key(owner))
        return [each for each in _ordered(tx, owner) if each.id in rows and rows[each.id].job_id == job_id]

    async def history(self, tx: Transaction, owner: Scope, wanted: EpisodeFilter, *, limit: int) -> list[Episode]:
        return [episode for episode in _ordered(tx, owner) if wanted.fits(episode)][-limit:] if limit else []

    async def sessions(self, tx: Transaction, owner: Scope, *, limit: int = 100) -> list[SessionInfo]:
        groups: dict[str | None, list[Episode]] = {}
        for episode in _ordered(tx, owner):
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
        span = [episode for episode in _in_session(tx, owner, session_id) if episode.position > after_position]
        return span[:limit]

    async def embedded(
        self,
        tx: Transaction,
        owner: Scope,
        ids: Sequence[EpisodeId],
        *,
        embedder: EmbedderIdentity | None = None,
    ) -> frozenset[EpisodeId]:
        vectors = mem(tx).rows("vectors", owner_key(owner))
        return frozenset(id_ for id_ in ids if id_ in vectors)

    async def unmined(self, tx: Transaction, owner: Scope, session_id: str | None, *, limit: int) -> list[Episode]:
        mined = mem(tx).rows("extractions", owner_key(owner))
        return [episode for episode in _in_session(tx, owner, session_id) if episode.id not in mined][:limit]

    async def note_outcomes(self, tx: Transaction, owner: Scope, outcomes: Sequence[MiningOutcome]) -> None:
        rows = mem(tx).rows("extractions", owner_key(owner))
        for outcome in outcomes:
            mem(tx).put(rows, outcome.episode_id, outcome)

    async def outcomes(self, tx: Transaction, owner: Scope, ids: Sequence[EpisodeId]) -> list[MiningOutcome]:
        rows = mem(tx).rows("extractions", owner_key(owner))
        return [rows[id_] for id_ in ids if id_ in rows]


def _ordered(tx: Transaction, owner: Scope) -> list[Episode]:
    rows = mem(tx).rows("episodes", owner_key(owner)).values()
    return sorted(rows, key=lambda episode: (episode.position, episode.id))


def _in_session(tx: Transaction, owner: Scope, session_id: str | None) -> list[Episode]:
    return [episode for episode in _ordered(tx, owner) if episode.scope.session_id == session_id]
